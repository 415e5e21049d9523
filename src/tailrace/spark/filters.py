"""What a query asks for, as far as headers can tell that a segment has none of it. Spark filters the rows itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import datasource as pushed

from tailrace.change import Relation
from tailrace.log.segment import Header

Bound = int | None


@dataclass(frozen=True)
class Wanted:
    """Bounds, each included; None where there is none."""

    first_lsn: Bound = None
    last_lsn: Bound = None
    first_us: Bound = None
    last_us: Bound = None
    schemas: frozenset[str] | None = None
    tables: frozenset[str] | None = None

    def may_have(self, header: Header) -> bool:
        """Whether a segment may have rows within the bounds."""
        if header.first is None or header.last is None:
            return False
        lsns = _overlap(header.first.commit_lsn, header.last.commit_lsn, self.first_lsn, self.last_lsn)
        first, last = header.first_committed_at_us, header.last_committed_at_us
        return lsns and (first is None or last is None or _overlap(first, last, self.first_us, self.last_us))

    def names(self, relation: Relation) -> bool:
        """Whether changes of a relation may be wanted."""
        return (self.schemas is None or relation.schema in self.schemas) and (
            self.tables is None or relation.name in self.tables
        )

    @property
    def is_of_tables(self) -> bool:
        return self.schemas is not None or self.tables is not None

    def narrowed(self, filter: pushed.Filter, prefix: str = "") -> Wanted:
        """With one filter more. `prefix` is what the columns' names begin with in reads of a table."""
        attribute: tuple[str, ...] = getattr(filter, "attribute", ())
        name = attribute[0] if len(attribute) == 1 else ""
        if isinstance(filter, pushed.EqualNullSafe) and filter.value is None:
            return self  # messages are of no table
        if name == f"{prefix}commit_lsn":
            low, high = _within(self.first_lsn, self.last_lsn, filter, int)
            return replace(self, first_lsn=low, last_lsn=high)
        if name == f"{prefix}committed_at":
            low, high = _within(self.first_us, self.last_us, filter, _microseconds)
            return replace(self, first_us=low, last_us=high)
        if not prefix and name in ("schema", "table") and (values := _values(filter)) is not None:
            texts = frozenset(str(value) for value in values if value is not None)
            if name == "schema":
                return replace(self, schemas=texts if self.schemas is None else self.schemas & texts)
            return replace(self, tables=texts if self.tables is None else self.tables & texts)
        return self


def _within(first: Bound, last: Bound, filter: pushed.Filter, number: Callable[[Any], int]) -> tuple[Bound, Bound]:
    """The bounds, drawn together by a filter."""
    low = high = None
    values = _values(filter)
    if values is not None:
        numbers = [number(value) for value in values if value is not None]
        low, high = (min(numbers), max(numbers)) if numbers else (1, 0)
    match filter:
        case pushed.GreaterThan() | pushed.GreaterThanOrEqual():
            low = number(filter.value)
        case pushed.LessThan() | pushed.LessThanOrEqual():
            high = number(filter.value)
    lows, highs = ([b for b in pair if b is not None] for pair in ((first, low), (last, high)))
    return max(lows, default=None), min(highs, default=None)


def _values(filter: pushed.Filter) -> Iterable[Any] | None:
    match filter:
        case pushed.EqualTo(value=value) | pushed.EqualNullSafe(value=value):
            return [value]
        case pushed.In(value=values):
            return values
    return None


def _overlap(first: int, last: int, low: Bound, high: Bound) -> bool:
    return (low is None or last >= low) and (high is None or first <= high)


def _microseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
