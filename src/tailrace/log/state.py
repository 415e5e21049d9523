"""A table as it was at an LSN: the newest snapshot before it, and what changed since.

`find` works out what has to be read, `rows` reads one part of it, wherever that is wanted: parts know nothing of each
other, and together they give every row once. Bootstrap, time travel and restore are this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tailrace.change import Lsn, Relation
from tailrace.errors import ConfigError, GapError, SnapshotError
from tailrace.log import decoding, plan, printing, replaying, touched
from tailrace.log.decoding import SNAPSHOT, Admission, At, TableChanges, no_images
from tailrace.log.plan import Slice
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import Chunk, Snapshot, SnapshotReader
from tailrace.pgoutput.columns import Images

# Of changes: so many stay in memory, more are read once for their keys and once again for their rows.
_KEPT_BYTES = 32 << 20


@dataclass(frozen=True)
class TableState:
    """What makes up the state: picklable, and the same at every reading."""

    relation: Relation
    """The table's shape at that LSN, as far as the log tells: PostgreSQL describes a new one with the next change."""
    lsn: Lsn
    """Every transaction that commits below it is in the state, and none at or above it."""
    snapshot: Snapshot
    slices: tuple[Slice, ...]
    """Those that hold changes of the table."""


def find(reader: LogReader, schema: str, table: str, as_of: Lsn | None = None) -> TableState:
    """The state of the table that had this name at an LSN; None is the newest that the log tells of."""
    snapshots = SnapshotReader(reader.store)
    named = [s for s in snapshots.list(schema, table) if as_of is None or s.lsn <= as_of]
    end = reader.end_lsn()
    lsn = as_of if as_of is not None else max([end, *(s.lsn for s in named)])
    if lsn > end and not any(s.lsn == lsn for s in named):
        raise ConfigError(
            f"{schema}.{table} as of {lsn} is not known yet: the log ends at {end}", "wait until capture is there"
        )
    slices = _slices(reader, named[-1].lsn if named else None, lsn, across_gaps=True)
    oid, relation = _named(reader, slices, lsn, schema, table, named[-1] if named else None)
    snapshot = snapshots.newest(oid=oid, before=lsn) if oid is not None else None
    if snapshot is None:
        raise SnapshotError(
            f"{schema}.{table} has no snapshot at or before {lsn}, which its state would start from",
            f"take one, `tailrace snapshot {schema}.{table}`: states after it can be read from then on",
        )
    _check_begin(reader, snapshot)
    slices = [s for s in _slices(reader, snapshot.lsn, lsn) if _uses(reader, s, snapshot.relation.oid)]
    return TableState(relation or snapshot.relation, lsn, replace(snapshot, store=None), tuple(slices))


def rows(state: TableState, reader: LogReader, part: int = 0, parts: int = 1) -> Iterator[Images]:
    """One of several parts of the state's rows, typed, as `state.relation` describes them."""
    snapshot = replace(state.snapshot, store=reader.store)
    since: Iterable[TableChanges] = _Since(state, reader)
    if sum(s.bytes for s in state.slices) <= _KEPT_BYTES:
        since = list(since)
    index = touched.Index.of(since, snapshot.relation, state.relation)
    if index is None:
        # Rows that no key tells apart, or whose key became another, have to be together in one place.
        yield from replaying.rows(snapshot, since, state.relation) if part == 0 else ()
        return
    batches = (batch for chunk in snapshot.manifest[part::parts] for batch in snapshot.chunk(chunk))
    yield from touched.rows(index, batches, since, part, parts)


def as_changes(relation: Relation, images: Images) -> TableChanges:
    """Rows that `rows` gave, their values as texts, as shaping and sinks take them: they are there, nothing more."""
    count = len(images)
    none = np.zeros(count, np.int64)
    at = At(none, none, none, none, none, none.astype(np.bool_))
    operations = np.full(count, SNAPSHOT, np.uint8)
    old = no_images(relation, count, as_text=True)
    return TableChanges(relation, at, operations, old, none.astype(np.bool_), printing.texts(images, relation))


@dataclass(frozen=True)
class _Since:
    """The table's changes since the snapshot, as texts, as often as they are asked for."""

    state: TableState
    reader: LogReader

    def __iter__(self) -> Iterator[TableChanges]:
        start, oid = self.state.snapshot.lsn, self.state.snapshot.relation.oid
        admission = Admission(start, {oid: start}, others=False, end=self.state.lsn)
        for _, found in decoding.chunks(self.reader, self.state.slices, admission, as_text=True):
            yield from (run for run in found if isinstance(run, TableChanges))


def _slices(reader: LogReader, start: Lsn | None, end: Lsn, *, across_gaps: bool = False) -> list[Slice]:
    """What may hold transactions that commit from `start` on and below `end`."""
    begin = plan.begin(reader, start)
    if begin.lsn >= end:
        return []
    last = begin.segment + 1
    while (header := reader.awaited_header(last)) is not None and header.end_lsn < end:
        last += 1
    batch = plan.following(reader, begin, plan.UNLIMITED, last, across_gaps=across_gaps)
    return list(batch.slices)


def _uses(reader: LogReader, s: Slice, oid: int) -> bool:
    return any(use.relation_id == oid for use, _ in reader.relations(s.segment))


def _check_begin(reader: LogReader, snapshot: Snapshot) -> None:
    first = reader.first()
    header = first.metadata() if first else None
    # Segment 1 has no rows: it says where the log begins.
    if header is not None and header.id == 1 and not header.rows and snapshot.lsn < header.end_lsn:
        raise GapError(
            f"changes of {snapshot.relation.qualified_name} from {snapshot.lsn} to {header.end_lsn} are not in the log",
            f"take a new snapshot: `tailrace snapshot {snapshot.relation.qualified_name}`",
        )


def _named(
    reader: LogReader, slices: list[Slice], lsn: Lsn, schema: str, table: str, snapshot: Snapshot | None
) -> tuple[int | None, Relation | None]:
    """Whose name it was, and the shape that this table had, as the log since the snapshot of that name tells.

    A table keeps its oid when it is renamed, and a name may go from table to table. Of two tables that were last heard
    of under one name, the one heard of later has it: no two can have it at once.
    """
    last: dict[int, tuple[int, int, Relation]] = {}
    for s in slices:
        for first_row, relation in _seen(reader, s, lsn):
            last[relation.oid] = (s.segment, first_row, relation)
    heard = [entry for entry in last.values() if (entry[2].schema, entry[2].name) == (schema, table)]
    if heard:
        _, _, found = max(heard, key=lambda entry: entry[:2])
        return found.oid, found
    if snapshot is None or snapshot.relation.oid in last:
        return None, None
    return snapshot.relation.oid, None


def _seen(reader: LogReader, s: Slice, lsn: Lsn) -> Iterator[tuple[int, Relation]]:
    """The relations under which changes of a slice that commit below the LSN were made, in order."""
    header = reader.awaited_header(s.segment)
    if header is None or header.last is None:
        return
    if header.last.commit_lsn < lsn:
        yield from ((use.first_row, r) for use, r in reader.relations(s.segment) if use.first_row < s.stop)
        return
    for _, found in decoding.chunks(reader, [s], Admission(end=lsn), as_text=True):
        for run in found:
            if isinstance(run, TableChanges):
                yield int(run.at.ordinal[0]), run.relation


def snapshot_chunks(snapshot: Snapshot, chunk: Chunk, first_ordinal: int, *, as_text: bool) -> Iterator[decoding.Chunk]:
    """Rows of one of a snapshot's chunks as changes: all stand at the snapshot's LSN, numbered from an ordinal on."""
    relation = snapshot.relation
    taken_at_us = round(snapshot.taken_at.timestamp() * 1_000_000)
    for batch in snapshot.chunk(chunk):
        count = len(batch)
        lsn = np.full(count, snapshot.lsn, np.int64)
        at = At(
            lsn,
            np.arange(first_ordinal, first_ordinal + count),
            lsn,
            np.zeros(count, np.int64),
            np.full(count, taken_at_us, np.int64),
            np.zeros(count, np.bool_),
        )
        first_ordinal += count
        yield [
            TableChanges(
                relation,
                at,
                np.full(count, SNAPSHOT, np.uint8),
                no_images(relation, count, as_text),
                np.zeros(count, np.bool_),
                printing.snapshot_images(batch, relation, as_text=as_text),
                target=(relation.schema, relation.name),
            )
        ]
