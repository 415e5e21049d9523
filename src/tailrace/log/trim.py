"""The record of what retention removed: where the log begins now, and what stood before it.

It is written before anything is removed. A log that begins later than its record says has lost segments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tailrace.change import Position
from tailrace.errors import CorruptError, TailraceError
from tailrace.log.segment import PREFIX
from tailrace.store import Store

KEY = f"{PREFIX}/trimmed.json"


@dataclass(frozen=True, slots=True)
class Trim:
    first_id: int
    """The first segment that was kept."""
    previous: str
    """Its `previous`: the link of the last one removed."""
    end: Position
    """After the last change removed: a reader that starts before this misses something."""

    @staticmethod
    def load(store: Store) -> Trim | None:
        data = store.get(KEY)
        if data is None:
            return None
        try:
            raw = json.loads(data)
            return Trim(int(raw["first_id"]), str(raw["previous"]), Position.parse(raw["end"]))
        except (ValueError, KeyError, TypeError, TailraceError) as error:
            raise CorruptError(f"{KEY}: not a record of trimming", "restore it from a copy of the store") from error

    def save(self, store: Store) -> None:
        raw = {"first_id": self.first_id, "previous": self.previous, "end": str(self.end)}
        store.replace(KEY, json.dumps(raw).encode())
