"""`log/trimmed.json`: the record of what retention removed, and of where the log begins now.

Retention writes it before it removes anything. A log that begins later than the record says has lost segments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tailrace import stored_json
from tailrace.change import Position
from tailrace.errors import CorruptError
from tailrace.log.segment import PREFIX
from tailrace.store import Store

KEY = f"{PREFIX}/trimmed.json"


@dataclass(frozen=True, slots=True)
class Trim:
    first_id: int
    """The first segment that was retained."""
    previous: str
    """That segment's `previous`, the link of the last segment removed."""
    end: Position
    """The position after the last change removed. A reader that starts below it misses changes."""

    @staticmethod
    def load(store: Store) -> Trim | None:
        data = store.get(KEY)
        if data is None:
            return None
        try:
            raw = stored_json.parse(data)
            return Trim(int(raw["first_id"]), str(raw["previous"]), Position.parse(raw["end"]))
        except stored_json.ERRORS as error:
            raise CorruptError(f"{KEY}: not a record of retention", "restore it from a copy of the store") from error

    def save(self, store: Store) -> None:
        raw = {"first_id": self.first_id, "previous": self.previous, "end": str(self.end)}
        store.replace(KEY, json.dumps(raw).encode())
