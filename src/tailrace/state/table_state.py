"""The state of a table at an LSN: the newest snapshot before it, and the changes since.

`find` determines what to read, and `rows` reads one part of it. Parts are independent, so that any process can read
them, and together have every row once. Bootstrap, time travel and restore use this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tailrace.change import Lsn, Relation
from tailrace.errors import ConfigError, GapError, SnapshotError
from tailrace.images import Images
from tailrace.log import decoding, planner
from tailrace.log.decoding import SNAPSHOT, ChangeFilter, ChangePositions, TableChanges, no_images
from tailrace.log.planner import Slice
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotChunk, SnapshotReader, TableSnapshot
from tailrace.state import merge, postgres_text, replay

# Up to this size, changes stay in memory. More are read twice: for their keys, then for their rows.
_IN_MEMORY_BYTES = 32 << 20


@dataclass(frozen=True)
class TableState:
    """What has to be read for the state. Picklable, and does not change as the log grows."""

    relation: Relation
    """The table's relation at that LSN, as far as known: PostgreSQL sends a new relation with the next change."""
    lsn: Lsn
    """The state includes all transactions that commit below this LSN, and none at or above it."""
    snapshot: TableSnapshot
    slices: tuple[Slice, ...]
    """The slices of the log with changes of the table."""


def find(reader: LogReader, schema: str, table: str, as_of: Lsn | None = None) -> TableState:
    """The state of the table that had this name at an LSN; None is the end of the log."""
    snapshots = SnapshotReader(reader.store)
    named = [s for s in snapshots.list(schema, table) if as_of is None or s.lsn <= as_of]
    end = reader.end_lsn()
    lsn = as_of if as_of is not None else max([end, *(s.lsn for s in named)])
    if lsn > end and not any(s.lsn == lsn for s in named):
        raise ConfigError(
            f"{schema}.{table} as of {lsn} is not known yet: the log ends at {end}",
            "wait until capture reaches the LSN",
        )
    slices = slices_between(reader, named[-1].lsn if named else None, lsn, across_gaps=True)
    oid, relation = _find_table(reader, slices, lsn, schema, table, named[-1] if named else None)
    snapshot = snapshots.newest(oid=oid, before=lsn) if oid is not None else None
    if snapshot is None:
        raise SnapshotError(
            f"{schema}.{table} has no snapshot at or before {lsn}, so its state at that LSN is not known",
            f"run `tailrace snapshot {schema}.{table}`: states after that snapshot can be read",
        )
    _check_begin(reader, snapshot)
    slices = [s for s in slices_between(reader, snapshot.lsn, lsn) if _uses(reader, s, snapshot.relation.oid)]
    return TableState(relation or snapshot.relation, lsn, replace(snapshot, store=None), tuple(slices))


def rows(state: TableState, reader: LogReader, part: int = 0, parts: int = 1) -> Iterator[Images]:
    """One of several parts of the state's rows, typed, in the columns of `state.relation`."""
    snapshot = replace(state.snapshot, store=reader.store)
    since: Iterable[TableChanges] = _ChangesSince(state, reader)
    if sum(s.bytes for s in state.slices) <= _IN_MEMORY_BYTES:
        since = list(since)
    index = merge.ChangeIndex.of(since, snapshot.relation, state.relation)
    if index is None:
        # Without a key, or with one that changed, rows can only be matched if all of them are in one part.
        yield from replay.rows(snapshot.relation, snapshot.chunks(), since, state.relation) if part == 0 else ()
        return
    batches = (batch for chunk in snapshot.manifest[part::parts] for batch in snapshot.chunk(chunk))
    yield from merge.rows(index, batches, since, part, parts)


def as_changes(relation: Relation, images: Images) -> TableChanges:
    """Rows from `rows` as changes with the operation SNAPSHOT and values as texts, the form that sinks accept."""
    return snapshot_changes(relation, postgres_text.image_texts(images, relation))


def snapshot_changes(relation: Relation, texts: Images) -> TableChanges:
    """Rows, given as texts, as changes with the operation SNAPSHOT."""
    count = len(texts)
    none = np.zeros(count, np.int64)
    at = ChangePositions(none, none, none, none, none, none.astype(np.bool_))
    operations = np.full(count, SNAPSHOT, np.uint8)
    old = no_images(relation, count, as_text=True)
    return TableChanges(relation, at, operations, old, none.astype(np.bool_), texts)


@dataclass(frozen=True)
class _ChangesSince:
    """The table's changes since the snapshot, as texts. Each iteration reads them from the log."""

    state: TableState
    reader: LogReader

    def __iter__(self) -> Iterator[TableChanges]:
        start, oid = self.state.snapshot.lsn, self.state.snapshot.relation.oid
        change_filter = ChangeFilter(start, {oid: start}, others=False, end=self.state.lsn)
        for _, found in decoding.chunks(self.reader, self.state.slices, change_filter, as_text=True):
            yield from (run for run in found if isinstance(run, TableChanges))


def slices_between(reader: LogReader, start: Lsn | None, end: Lsn, *, across_gaps: bool = False) -> list[Slice]:
    """Slices that may have transactions that commit at or above `start` and below `end`."""
    begin = planner.start_offset(reader, start)
    if begin.lsn >= end:
        return []
    last = begin.segment + 1
    while (header := reader.header(last)) is not None and header.end_lsn < end:
        last += 1
    batch = planner.next_batch(reader, begin, planner.UNLIMITED, last, across_gaps=across_gaps)
    return list(batch.slices)


def _uses(reader: LogReader, s: Slice, oid: int) -> bool:
    return any(use.relation_id == oid for use, _ in reader.relations(s.segment))


def _check_begin(reader: LogReader, snapshot: TableSnapshot) -> None:
    first = reader.first()
    header = first.metadata() if first else None
    # Segment 1 has no rows: it records where the log begins.
    if header is not None and header.id == 1 and not header.rows and snapshot.lsn < header.end_lsn:
        raise GapError(
            f"changes of {snapshot.relation.qualified_name} from {snapshot.lsn} to {header.end_lsn} are not in the log",
            f"take a new snapshot: `tailrace snapshot {snapshot.relation.qualified_name}`",
        )


def _find_table(
    reader: LogReader, slices: list[Slice], lsn: Lsn, schema: str, table: str, snapshot: TableSnapshot | None
) -> tuple[int | None, Relation | None]:
    """The oid of the table with the name, and its relation, from the log since the newest snapshot of that name.

    A renamed table keeps its oid, and a name may pass from table to table. If two tables were last seen with the same
    name, the one seen later has it, because no two tables have it at once.
    """
    last: dict[int, tuple[int, int, Relation]] = {}
    for s in slices:
        for first_row, relation in _relations(reader, s, lsn):
            last[relation.oid] = (s.segment, first_row, relation)
    seen = [entry for entry in last.values() if (entry[2].schema, entry[2].name) == (schema, table)]
    if seen:
        _, _, found = max(seen, key=lambda entry: entry[:2])
        return found.oid, found
    if snapshot is None or snapshot.relation.oid in last:
        return None, None
    return snapshot.relation.oid, None


def _relations(reader: LogReader, s: Slice, lsn: Lsn) -> Iterator[tuple[int, Relation]]:
    """The relations of a slice's changes that commit below the LSN, in order."""
    header = reader.header(s.segment)
    if header is None or header.last is None:
        return
    if header.last.commit_lsn < lsn:
        yield from ((use.first_row, r) for use, r in reader.relations(s.segment) if use.first_row < s.stop)
        return
    for _, found in decoding.chunks(reader, [s], ChangeFilter(end=lsn), as_text=True):
        for run in found:
            if isinstance(run, TableChanges):
                yield int(run.at.ordinal[0]), run.relation


def snapshot_chunks(
    snapshot: TableSnapshot, chunk: SnapshotChunk, first_ordinal: int, *, as_text: bool
) -> Iterator[decoding.Chunk]:
    """Rows of one of a snapshot's chunks as changes at the snapshot's LSN, with ordinals from `first_ordinal` on."""
    relation = snapshot.relation
    taken_at_us = round(snapshot.taken_at.timestamp() * 1_000_000)
    for batch in snapshot.chunk(chunk):
        count = len(batch)
        lsn = np.full(count, snapshot.lsn, np.int64)
        at = ChangePositions(
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
                postgres_text.snapshot_images(batch, relation, as_text=as_text),
                target=(relation.schema, relation.name),
            )
        ]
