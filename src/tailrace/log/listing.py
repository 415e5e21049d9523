"""The objects of a log, from their names alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.log import segment
from tailrace.store import ObjectInfo, Store


@dataclass(frozen=True, slots=True)
class LogObject:
    """An object with one segment, or a merged object with several."""

    first: int
    last: int
    info: ObjectInfo

    @property
    def key(self) -> str:
        return self.info.key

    @property
    def segments(self) -> int:
        return self.last - self.first + 1

    def covers(self, other: LogObject) -> bool:
        return self.first <= other.first and other.last <= self.last and self.segments > other.segments


def list_objects(store: Store) -> list[LogObject]:
    """The objects ordered by first id; of those with the same first id, larger ones first."""
    spans = ((segment.ids(info.key), info) for info in store.list(segment.PREFIX))
    return sorted((LogObject(*span, info) for span, info in spans if span), key=lambda o: (o.first, -o.last))


def find_covered(objects: Sequence[LogObject]) -> dict[LogObject, LogObject]:
    """Objects whose segments are all in a larger object, which is the value. Interrupted merges leave them."""
    found: dict[LogObject, LogObject] = {}
    widest: LogObject | None = None
    for o in objects:
        if widest is not None and widest.covers(o):
            found[o] = widest
        if widest is None or o.last > widest.last:
            widest = o
    return found
