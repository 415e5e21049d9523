"""Reads the rows of a destination back, to compare them with the source's: what a sink offers to `tailrace verify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from tailrace.change import Relation
from tailrace.delivery.contract import State


@dataclass(frozen=True)
class DeliveredTable:
    """A table, as the destination has it."""

    relation: Relation
    """As delivered: shaped as the settings say. The source may have a newer one, which it sends with a change."""
    target: tuple[str, str]

    @property
    def name(self) -> str:
        return ".".join(self.target)


class RowReader(Protocol):
    """One view of a destination. Rows are batches of strings: PostgreSQL's text of each value, in the columns of the
    table's relation and in their order."""

    is_snapshot: bool
    """Whether all rows are those at `state`. Otherwise the sink may have written any of them since."""
    can_repair: bool
    """Whether single rows can be corrected: see `tailrace.delivery.repair`."""

    @property
    def state(self) -> State:
        """The sink's state: of the rows, if this is a snapshot, else when the reader was opened."""

    @property
    def tables(self) -> Mapping[int, DeliveredTable]:
        """The destination's tables, by the source's oid."""

    def rows(self, oid: int) -> Iterator[pa.RecordBatch]:
        """All rows of a table. Raises SinkError if it was replaced while it was read."""

    def comparable(self, oid: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The source's rows in the form in which `rows` returns them: without what the destination does not hold, such
        as zeros at the end of a number."""


@runtime_checkable
class FindsRows(Protocol):
    """What a reader without a snapshot offers, too."""

    def find(self, oid: int, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that have these keys now. The keys' columns are those of the relation's key, in its order."""
