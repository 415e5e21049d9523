"""The source's rows in the form in which a destination holds them. Picklable: tasks convert rows, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tailrace.change import Relation
from tailrace.delivery.transforms import Shaping
from tailrace.images import Images
from tailrace.log.decoding import TableChanges
from tailrace.state import table_state
from tailrace.verify.column_match import ColumnMatch
from tailrace.verify.range_hash import columns_of

Comparable = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Rows without what a destination does not hold."""


@dataclass(frozen=True)
class RowForm:
    shaping: Shaping
    stored: Relation
    """The relation that the destination has."""
    match: ColumnMatch

    def of(
        self, rows: Iterable[tuple[Relation, Images]], comparable: Comparable = lambda batch: batch
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the source, as texts, shaped as delivery shapes them, in the columns that are compared."""
        for relation, images in rows:
            for changes in self.shaping.apply([table_state.snapshot_changes(relation, images)]):
                assert isinstance(changes, TableChanges)
                batch = comparable(self._in_stored_columns(changes.new.batch))
                yield columns_of(batch, self.match.stored, self.match.names)

    def _in_stored_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows in the destination's columns; NULL in those that are not compared."""
        source_of = dict(zip(self.match.stored, self.match.source, strict=True))
        arrays = [
            batch.column(source_of[index]) if index in source_of else pa.nulls(len(batch), pa.string())
            for index in range(len(self.stored.columns))
        ]
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in self.stored.columns])
