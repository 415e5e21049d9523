"""Compares a table with documents, of which there is no snapshot: the sink writes them while they are read.

A row is compared if the log has no change of it between the source's snapshot and the end of the log after its document
was read: whatever the sink wrote meanwhile, it did not write this one. The others are looked up again, with a new
snapshot of the source, until they rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa

from tailrace.change import Lsn
from tailrace.delivery.row_reader import FindsRows
from tailrace.errors import SinkError
from tailrace.log.decoding import TableChanges
from tailrace.log.reader import LogReader
from tailrace.state import fold, log_window
from tailrace.verify.column_match import ColumnMatch
from tailrace.verify.range_hash import RangeHash, columns_of, range_count
from tailrace.verify.table_comparison import RowPair, TableComparison, UnchangedRows


@dataclass
class DocumentComparison(TableComparison):
    """One table. `changes` has none: rows that changed are not compared."""

    log: LogReader | None = None
    changed: pa.RecordBatch | None = field(default=None, init=False)
    """The keys of rows that changed while they were read; None if there are none."""
    only: pa.RecordBatch | None = field(default=None, init=False)
    """Keys: only the rows that have them are compared."""

    def compare(self, match: ColumnMatch) -> None:
        if self.only is not None:
            self._look_up(match, self.only)
            return
        ranges = range_count(self.source.tables[self.oid].estimated_rows)
        hash_ = RangeHash(match.key, ranges, secrets.randbits(63))
        found = hash_.rows(self.stored_rows(match))
        unchanged = self._unchanged(match)
        self.count(found.sums(), ranges)
        expected = hash_.rows(self.expected_rows(match))
        changed = unchanged.hashes(hash_)

        def read(wanted: Collection[int]) -> RowPair:
            # They are read again, and more rows may have changed since.
            expected = [*hash_.select(self.expected_rows(match), wanted)]
            found = [*hash_.select(self.stored_rows(match), wanted)]
            still = self._unchanged(match)
            return [still.of(batch) for batch in expected], [still.of(batch) for batch in found]

        self.drill_down(match, expected.sums(changed), found.sums(changed), read)

    def _look_up(self, match: ColumnMatch, keys: pa.RecordBatch) -> None:
        """Compare the rows with these keys only."""
        assert isinstance(self.reader, FindsRows)
        found = [columns_of(batch, match.stored, match.names) for batch in self.reader.find(self.oid, keys)]
        unchanged = self._unchanged(match)
        with self.source.query(self.oid) as query:
            images = [rows for rows, _ in query.find(keys, self.source.key_types(self.oid), as_text=True)]
            expected = [*self.as_stored(match, iter([(self.then, rows) for rows in images]))]
        self.find_differences(
            match, [unchanged.of(batch) for batch in expected], [unchanged.of(batch) for batch in found]
        )
        self.changed = _among(self.changed, keys)

    def _unchanged(self, match: ColumnMatch) -> UnchangedRows:
        """What leaves out the rows that may have been written since the source's snapshot."""
        assert self.log is not None
        end = max(self.log.end_lsn(), self.source.lsn)
        changes = log_window.changes_between(self.log, self.source.lsn, {self.oid: Lsn(end)}).get(self.oid, [])
        if not self._are_identified(match, changes):
            raise SinkError(f"{self.stored.name} was emptied or altered while it was read", "verify it again")
        keys = log_window.changed_keys(self.then, changes) if changes else None
        self.changed = keys if keys is not None and len(keys) else None
        return UnchangedRows(keys, match.key)

    def _are_identified(self, match: ColumnMatch, changes: list[TableChanges]) -> bool:
        if not changes:
            return True
        shape = self.shaping.shape(self.then)
        assert shape is not None
        names = [shape.relation.columns[match.source[index]].name for index in match.key]
        is_masked = any(self.then.columns[index].name in names for index in shape.masks)
        is_keyed = match.has_key and fold.has_key(self.then) and tuple(names) == self.then.key
        return is_keyed and not is_masked and log_window.are_of_rows(self.then, changes)


def _among(keys: pa.RecordBatch | None, others: pa.RecordBatch) -> pa.RecordBatch | None:
    """Those keys that are among others."""
    if keys is None:
        return None
    found = keys.filter(UnchangedRows(others, range(len(keys.columns))).is_changed(keys))
    return found if len(found) else None
