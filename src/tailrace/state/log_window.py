"""The changes that the log has between the source's snapshot and the destination's cursor, and what rows become."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tailrace import types
from tailrace.change import Column, Lsn, Relation
from tailrace.images import Images
from tailrace.log import decoding
from tailrace.log.decoding import ChangeFilter, TableChanges
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import chunk_schema
from tailrace.state import fold, merge, replay
from tailrace.state.postgres_text import image_texts
from tailrace.state.table_state import slices_between


def changes_between(reader: LogReader, start: Lsn, ends: Mapping[int, Lsn]) -> dict[int, list[TableChanges]]:
    """The changes of some tables, by oid, of transactions that commit at or above `start`.

    Args:
        reader: The log.
        start: Where the changes start.
        ends: By oid, the LSN at and above which a table's changes are left out.
    """
    found: defaultdict[int, list[TableChanges]] = defaultdict(list)
    # Nearly always, all tables end at the cursor.
    for end in sorted(set(ends.values())):
        own = {oid: start for oid, lsn in ends.items() if lsn == end}
        wanted = ChangeFilter(start, own, others=False, messages=False, end=end)
        for _, chunk in decoding.chunks(reader, slices_between(reader, start, end), wanted, as_text=True):
            for run in chunk:
                if isinstance(run, TableChanges):
                    found[run.relation.oid].append(run)
    return found


def rows_after(
    then: Relation, images: Iterable[Images], changes: Sequence[TableChanges], part: int = 0, parts: int = 1
) -> Iterator[tuple[Relation, Images]]:
    """Rows as texts, after changes, with their relation.

    Args:
        then: The relation of the rows before the changes.
        images: These rows, typed; of a table with a key, at least those that the changes affect.
        changes: The changes, as texts.
        part: Which part of the rows these are; rows that the changes insert are divided between the parts.
        parts: How many parts there are: more than one only if `are_of_keys` holds.
    """
    now = changes[-1].relation if changes else then
    if not fold.has_key(then) and are_of_rows(then, changes):
        assert parts == 1
        texts = (image_texts(piece, then) for piece in images)
        yield from ((now, piece) for piece in replay.copies_after(texts, changes))
        return
    batches = (_snapshot_batch(then, piece) for piece in images)
    index = merge.ChangeIndex.of(changes, then, now)
    found = (
        replay.rows(then, batches, changes, now) if index is None else merge.rows(index, batches, changes, part, parts)
    )
    for piece in found:
        yield now, image_texts(piece, now)


def are_of_rows(relation: Relation, changes: Sequence[TableChanges]) -> bool:
    """Whether changes affect single rows of this definition: none of them empties the table, or has other columns."""
    columns = [_signature(column) for column in relation.columns]
    return all(
        not run.is_truncate
        and run.relation.key == relation.key
        and [_signature(column) for column in run.relation.columns] == columns
        for run in changes
    )


def are_of_keys(relation: Relation, changes: Sequence[TableChanges]) -> bool:
    """Whether the key of each change says which row it affects, wherever that row is."""
    return fold.has_key(relation) and are_of_rows(relation, changes)


def changed_keys(relation: Relation, changes: Sequence[TableChanges]) -> pa.RecordBatch:
    """The distinct keys of the rows before and after changes, for which `are_of_rows` holds, in the order of the
    relation's key."""
    key = fold.key_columns(relation)
    pieces: list[list[pa.Array]] = []
    for run in changes:
        pieces.append([run.old.batch.column(c).filter(pa.array(run.old.present)) for c in key])
        pieces.append([fold.new_values(run, c).filter(pa.array(run.new.present)) for c in key])
    names = [f"k{n}" for n in range(len(key))]
    none = pa.array([], pa.string())
    joined = [pa.concat_arrays([none, *(piece[n] for piece in pieces)]) for n in range(len(key))]
    distinct = pa.table(joined, names=names).group_by(names).aggregate([]).combine_chunks()
    return pa.RecordBatch.from_arrays([pa.concat_arrays([none, *c.chunks]) for c in distinct.columns], names=names)


def has_transactions(reader: LogReader, start: Lsn, end: Lsn) -> bool:
    """Whether a transaction, or a message, commits at or above `start` and below `end`."""
    for s in slices_between(reader, start, end):
        content = reader.content(s.segment)
        lsns = content.rows.commit_lsn[s.start : s.stop] if content is not None else np.zeros(0, np.int64)
        if bool(((lsns >= start) & (lsns < end)).any()):
            return True
    return False


def _signature(column: Column) -> tuple[str, int, int]:
    return column.name, column.type.oid, column.modifier


def _snapshot_batch(relation: Relation, images: Images) -> pa.RecordBatch:
    """Rows in the form that snapshots have."""
    special = images.special if images.special is not None else pa.nulls(len(images), types.SPECIALS)
    return pa.RecordBatch.from_arrays([*images.batch.columns, special], schema=chunk_schema(relation))
