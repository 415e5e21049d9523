"""What a failed attempt leaves for the next one, in whichever process that is: `cursors/<sink>/attempts.json`.

An attempt may deliver some changes and fail with others. The progress is below all of them. So that the next attempt
repeats only what failed, this record has the delivered ones, how often each of the others failed, how far the search
for the faulty change among them is, and how long the receiver is left alone. It is written only when an attempt fails,
and removed when nothing of it is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tailrace import stored_json
from tailrace.errors import CorruptError
from tailrace.log.retention import CURSORS
from tailrace.sinks.webhook.circuit import Circuit
from tailrace.store import Store

_KEY: Final = "attempts.json"


@dataclass
class AttemptRecord:
    delivered: set[str] = field(default_factory=set)
    """The ids of messages above the progress that the receiver has."""
    tries: dict[str, int] = field(default_factory=dict)
    """By id, how often a message was sent in vain."""
    most: dict[str, int] = field(default_factory=dict)
    """By id, how many messages a request with this one may have: the change that makes requests fail is searched for by
    halving them."""
    circuit: Circuit = field(default_factory=Circuit)

    @property
    def is_empty(self) -> bool:
        return not (self.delivered or self.tries or self.most or self.circuit.failures)

    def forget(self, ids: Iterable[str]) -> None:
        """Remove messages that the progress covers."""
        removed = set(ids)
        self.delivered -= removed
        self.tries = {id: tries for id, tries in self.tries.items() if id not in removed}
        self.most = {id: most for id, most in self.most.items() if id not in removed}


def load(store: Store, sink: str) -> AttemptRecord:
    key = f"{CURSORS}/{sink}/{_KEY}"
    data = store.get(key)
    if data is None:
        return AttemptRecord()
    try:
        raw = stored_json.parse(data)
        return AttemptRecord(
            {str(id) for id in raw["delivered"]},
            {str(id): int(tries) for id, tries in raw["tries"].items()},
            {str(id): int(most) for id, most in raw["most"].items()},
            Circuit(int(raw["failures"]), float(raw["not_before"])),
        )
    except stored_json.ERRORS as error:
        raise CorruptError(
            f"{store.url}: {key} is not the record of attempts of sink {sink}",
            "remove it: the sink then delivers some changes again, with the same ids",
        ) from error


def save(store: Store, sink: str, record: AttemptRecord) -> None:
    """Durable when it returns. An empty record is removed."""
    key = f"{CURSORS}/{sink}/{_KEY}"
    if record.is_empty:
        store.delete(key)
        return
    raw = {
        "delivered": sorted(record.delivered),
        "tries": record.tries,
        "most": record.most,
        "failures": record.circuit.failures,
        "not_before": record.circuit.not_before,
    }
    store.replace(key, json.dumps(raw).encode())
