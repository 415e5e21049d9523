"""The changes of a part as rows of the table `changes`, with their contexts, as many at a time as memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.change import Relation
from tailrace.delivery.coalesce import HELD_BYTES
from tailrace.delivery.context import ContextRange, Contexts, as_jsonb
from tailrace.log.decoding import ChangePositions, Chunk, LogicalMessages, TableChanges
from tailrace.sinks.audit import change_row
from tailrace.sinks.audit.change_row import FIELDS, KEY_BEFORE, UNSENT, RowFormat
from tailrace.sinks.audit.changes_table import month_of
from tailrace.sinks.database.staged_rows import Positions, RowBatch, StagedRows, StagingField
from tailrace.state import fold

_ROW_BYTES: Final = 400
"""About the size of a row of `changes` without its images."""


@dataclass(frozen=True)
class StagedChanges:
    """Some changes, staged in log order."""

    relations: tuple[tuple[Relation, int], ...]
    """The relations of the changes, each with the LSN of its first commit."""
    complete: StagedRows | None
    """Rows without unknown values."""
    incomplete: tuple[tuple[int, StagedRows], ...]
    """By the table's oid: rows with unsent values that these changes do not contain."""
    months: frozenset[int]

    def rows(self) -> Iterator[StagedRows]:
        if self.complete is not None:
            yield self.complete
        yield from (rows for _, rows in self.incomplete)


@dataclass(frozen=True)
class DecodedChanges:
    """Changes and messages that are rendered at once."""

    runs: tuple[TableChanges, ...]
    messages: tuple[LogicalMessages, ...]

    @property
    def ats(self) -> list[ChangePositions]:
        return [*(run.at for run in self.runs), *(part.at for part in self.messages)]


def _group_chunks(chunks: Iterable[Chunk]) -> Iterator[DecodedChanges]:
    """The chunks in groups that fit in memory. Large transactions are split."""
    runs: list[TableChanges] = []
    messages: list[LogicalMessages] = []
    size = 0
    for chunk in chunks:
        for part in chunk:
            if isinstance(part, LogicalMessages):
                messages.append(part)
            elif len(part):
                runs.append(part)
                size += part.new.batch.nbytes + part.old.batch.nbytes + _ROW_BYTES * len(part)
        if size > HELD_BYTES:
            yield DecodedChanges(tuple(runs), tuple(messages))
            runs, messages, size = [], [], 0
    if runs or messages:
        yield DecodedChanges(tuple(runs), tuple(messages))


@dataclass
class ContextStitcher:
    """Finds the contexts of one group of changes after the other. For a split transaction, changes may be read late."""

    late: list[ContextRange] = field(default_factory=list)
    """Contexts of changes that were returned before these contexts were read."""
    _commit_lsn: int = -1
    _contexts: Contexts = field(default_factory=lambda: Contexts.of([]))
    _is_split: bool = False

    def contexts(self, changes: DecodedChanges) -> Contexts:
        """The contexts of a group, including earlier contexts of its first transaction."""
        lsns = [int(edge) for at in changes.ats for edge in (at.commit_lsn.min(), at.commit_lsn.max())]
        found = Contexts.of(changes.messages, as_jsonb)
        if min(lsns) == self._commit_lsn:
            self._is_split = True
            found = self._contexts.joined(found)
            self._contexts = found.of_transaction(self._commit_lsn)
        if max(lsns) != self._commit_lsn:
            self.finish()
            self._commit_lsn, self._contexts = max(lsns), found.of_transaction(max(lsns))
        return found

    def finish(self) -> None:
        """The last transaction is complete."""
        if self._is_split and not self._contexts.begin_transaction:
            self.late += self._contexts.ranges()
        self._is_split = False


def with_contexts(chunks: Iterable[Chunk], stitcher: ContextStitcher) -> Iterator[tuple[DecodedChanges, Contexts]]:
    """Groups of changes with their contexts. A long context is repeated in each row, so it counts as many rows."""
    for changes in _group_chunks(chunks):
        contexts = stitcher.contexts(changes)
        sizes = [contexts.sizes(run.at) for run in changes.runs]
        if sum(int(size.sum()) for size in sizes) <= HELD_BYTES:
            yield changes, contexts
            continue
        at = ChangePositions.joined([run.at for run in changes.runs])
        order = np.lexsort((at.ordinal, at.commit_lsn))
        number = np.empty(len(order), np.int64)
        number[order] = np.cumsum(np.concatenate(sizes)[order]) // HELD_BYTES
        numbers = np.split(number, np.cumsum([len(run) for run in changes.runs])[:-1])
        for group in np.unique(number):
            own = [run.take(n == group) for run, n in zip(changes.runs, numbers, strict=True) if (n == group).any()]
            yield DecodedChanges(tuple(own), ()), contexts


def stage(changes: DecodedChanges, contexts: Contexts, format: RowFormat, put: Put) -> StagedChanges | None:
    """Stage changes with `put`; None if there are only messages."""
    if not changes.runs:
        return None
    fields = (*FIELDS, UNSENT) if format.has_unsent else FIELDS
    complete: list[tuple[list[pa.Array], ChangePositions]] = []
    incomplete: list[tuple[int, StagedRows]] = []
    relations = []
    months = set()
    for run in _join(changes.runs):
        relations.append((run.relation, int(run.at.commit_lsn[0])))
        months |= {month_of(int(edge)) for edge in (run.at.committed_at_us.min(), run.at.committed_at_us.max())}
        unsent = [change_row.unchanged_columns(run)] if format.has_unsent else []
        run, first = _fill(run)
        columns = [*change_row.arrays(run, contexts.of_changes(run.at), format), *unsent]
        lacks = change_row.is_incomplete(run)
        if lacks.any():
            own_rows = pa.array(np.flatnonzero(lacks))
            key = change_row.keys_before(run).take(pa.array(first[lacks]))
            own = (*(c.take(own_rows) for c in columns), key)
            table = RowBatch((*fields, KEY_BEFORE), own, Positions.of(run.at.take(lacks)))
            incomplete.append((run.relation.oid, put(table)))
            rest = pa.array(np.flatnonzero(~lacks))
            columns = [c.take(rest) for c in columns]
        complete.append((columns, run.at.take(~lacks)))
    return StagedChanges(tuple(relations), _put_complete(complete, fields, put), tuple(incomplete), frozenset(months))


Put = Callable[[RowBatch], StagedRows]


def _put_complete(
    found: Sequence[tuple[list[pa.Array], ChangePositions]], fields: tuple[StagingField, ...], put: Put
) -> StagedRows | None:
    """Stage the rows of all tables in log order, so that the table's physical order is that of the transactions."""
    found = [(columns, at) for columns, at in found if len(at)]
    if not found:
        return None
    if len(found) == 1:
        columns, at = found[0]
        return put(RowBatch(fields, tuple(columns), Positions.of(at)))
    at = ChangePositions.joined([a for _, a in found])
    order = np.lexsort((at.ordinal, at.commit_lsn))
    columns = [pa.concat_arrays(parts).take(pa.array(order)) for parts in zip(*(c for c, _ in found), strict=True)]
    return put(RowBatch(fields, tuple(columns), Positions.of(at.take(order))))


def _join(runs: Sequence[TableChanges]) -> Iterator[TableChanges]:
    """Join runs of one table with the same relation: one change may contain the value that another did not send."""
    pending: dict[int, list[TableChanges]] = {}
    for run in runs:
        own = pending.setdefault(run.relation.oid, [])
        if own and (run.is_truncate or own[-1].relation != run.relation):
            yield fold.join_runs(own)
            own.clear()
        if run.is_truncate:
            yield run
        else:
            own.append(run)
    yield from (fold.join_runs(own) for own in pending.values() if own)


def _fill(run: TableChanges) -> tuple[TableChanges, np.ndarray]:
    if not run.new.unchanged:
        return run, np.arange(len(run))
    return fold.fill_unsent(run, by_key=change_row.has_key(run.relation))
