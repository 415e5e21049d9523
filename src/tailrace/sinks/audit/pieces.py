"""The changes of a part as pieces of the table `changes`: as many as memory allows at a time, each with its context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.change import Relation
from tailrace.log import fold
from tailrace.log.decoding import At, Chunk, Messages, TableChanges
from tailrace.sinks.audit import rows
from tailrace.sinks.audit.context import Contexts, Range
from tailrace.sinks.audit.rows import FIELDS, KEY_BEFORE, UNSENT, Manner
from tailrace.sinks.audit.table import month_of
from tailrace.sinks.database.rows import Field, Positions, Rows, Table
from tailrace.sinks.gathering import HELD_BYTES

_ROW_BYTES: Final = 400
"""About what a row of `changes` has beside its images."""


@dataclass(frozen=True)
class Piece:
    """Some changes on their way, in the log's order."""

    relations: tuple[tuple[Relation, int], ...]
    """Under which they were made, each with its first commit."""
    plain: Rows | None
    lacking: tuple[tuple[int, Rows], ...]
    """By table's oid: rows with values that were not sent, and that are not known from here."""
    months: frozenset[int]

    def rows(self) -> Iterator[Rows]:
        if self.plain is not None:
            yield self.plain
        yield from (lacking for _, lacking in self.lacking)


@dataclass(frozen=True)
class Held:
    runs: tuple[TableChanges, ...]
    messages: tuple[Messages, ...]

    @property
    def ats(self) -> list[At]:
        return [*(run.at for run in self.runs), *(said.at for said in self.messages)]


def held(chunks: Iterable[Chunk]) -> Iterator[Held]:
    """As much as is decoded and rendered at once. Large transactions are cut."""
    runs: list[TableChanges] = []
    messages: list[Messages] = []
    size = 0
    for chunk in chunks:
        for part in chunk:
            if isinstance(part, Messages):
                messages.append(part)
            elif len(part):
                runs.append(part)
                size += part.new.batch.nbytes + part.old.batch.nbytes + _ROW_BYTES * len(part)
        if size > HELD_BYTES:
            yield Held(tuple(runs), tuple(messages))
            runs, messages, size = [], [], 0
    if runs or messages:
        yield Held(tuple(runs), tuple(messages))


@dataclass
class Stitching:
    """Contexts for what is held, one after the other. Of a transaction that is cut, some may come late."""

    late: list[Range] = field(default_factory=list)
    """Contexts of changes that were handed out before these were read."""
    _commit_lsn: int = -1
    _said: Contexts = field(default_factory=lambda: Contexts.of([]))
    _is_cut: bool = False

    def contexts(self, some: Held) -> Contexts:
        """Those of the changes held, with what their first transaction said before."""
        lsns = [int(edge) for at in some.ats for edge in (at.commit_lsn.min(), at.commit_lsn.max())]
        found = Contexts.of(some.messages)
        if min(lsns) == self._commit_lsn:
            self._is_cut = True
            found = self._said.joined(found)
            self._said = found.within(self._commit_lsn)
        if max(lsns) != self._commit_lsn:
            self.finish()
            self._commit_lsn, self._said = max(lsns), found.within(max(lsns))
        return found

    def finish(self) -> None:
        """What was open is over."""
        if self._is_cut and not self._said.lead:
            self.late += self._said.ranges()
        self._is_cut = False


def stitched(chunks: Iterable[Chunk], stitching: Stitching) -> Iterator[tuple[Held, Contexts]]:
    """What is rendered at once, with its contexts: a long one, written out for each row, takes as much as many rows."""
    for some in held(chunks):
        contexts = stitching.contexts(some)
        sizes = [contexts.sizes(run.at) for run in some.runs]
        if sum(int(size.sum()) for size in sizes) <= HELD_BYTES:
            yield some, contexts
            continue
        at = At.joined([run.at for run in some.runs])
        order = np.lexsort((at.ordinal, at.commit_lsn))
        number = np.empty(len(order), np.int64)
        number[order] = np.cumsum(np.concatenate(sizes)[order]) // HELD_BYTES
        numbers = np.split(number, np.cumsum([len(run) for run in some.runs])[:-1])
        for one in np.unique(number):
            own = [run.take(mine == one) for run, mine in zip(some.runs, numbers, strict=True) if (mine == one).any()]
            yield Held(tuple(own), ()), contexts


def piece(some: Held, contexts: Contexts, manner: Manner, put: Put) -> Piece | None:
    """None where there is nothing but messages."""
    if not some.runs:
        return None
    fields = (*FIELDS, UNSENT) if manner.is_proof else FIELDS
    plain: list[tuple[list[pa.Array], At]] = []
    lacking: list[tuple[int, Rows]] = []
    relations = []
    months = set()
    for run in _joined(some.runs):
        relations.append((run.relation, int(run.at.commit_lsn[0])))
        months |= {month_of(int(edge)) for edge in (run.at.committed_at_us.min(), run.at.committed_at_us.max())}
        unsent = [rows.unchanged(run)] if manner.is_proof else []
        run, first = _filled(run)
        columns = [*rows.arrays(run, contexts.stitched(run.at), manner), *unsent]
        lacks = rows.lacking(run)
        if lacks.any():
            some_of = pa.array(np.flatnonzero(lacks))
            key = rows.keys_before(run).take(pa.array(first[lacks]))
            own = (*(c.take(some_of) for c in columns), key)
            table = Table((*fields, KEY_BEFORE), own, Positions.of(run.at.take(lacks)))
            lacking.append((run.relation.oid, put(table)))
            rest = pa.array(np.flatnonzero(~lacks))
            columns = [c.take(rest) for c in columns]
        plain.append((columns, run.at.take(~lacks)))
    return Piece(tuple(relations), _put_plain(plain, fields, put), tuple(lacking), frozenset(months))


Put = Callable[[Table], Rows]


def _put_plain(found: Sequence[tuple[list[pa.Array], At]], fields: tuple[Field, ...], put: Put) -> Rows | None:
    """All tables' together, in the log's order: who reads the table as it lies sees transactions as they were."""
    found = [(columns, at) for columns, at in found if len(at)]
    if not found:
        return None
    if len(found) == 1:
        columns, at = found[0]
        return put(Table(fields, tuple(columns), Positions.of(at)))
    at = At.joined([a for _, a in found])
    order = np.lexsort((at.ordinal, at.commit_lsn))
    columns = [pa.concat_arrays(parts).take(pa.array(order)) for parts in zip(*(c for c, _ in found), strict=True)]
    return put(Table(fields, tuple(columns), Positions.of(at.take(order))))


def _joined(runs: Sequence[TableChanges]) -> Iterator[TableChanges]:
    """Runs of one table as one, as long as its relation stays: what one change did not send, another may have."""
    waiting: dict[int, list[TableChanges]] = {}
    for run in runs:
        own = waiting.setdefault(run.relation.oid, [])
        if own and (run.is_truncate or own[-1].relation != run.relation):
            yield fold.joined(own)
            own.clear()
        if run.is_truncate:
            yield run
        else:
            own.append(run)
    yield from (fold.joined(own) for own in waiting.values() if own)


def _filled(run: TableChanges) -> tuple[TableChanges, np.ndarray]:
    if not run.new.unchanged:
        return run, np.arange(len(run))
    return fold.filled(run, by_key=rows.has_key(run.relation))
