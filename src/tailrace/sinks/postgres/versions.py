"""What a run of changes adds to a history: a version for each row that came or changed, and the end of those before.

A version is valid from the change that made it to the change that found it. Within a run these are paired here; a
change that found a row from before the run ends a version that is in the history already. Pure, vectorised.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Lsn
from tailrace.log.decoding import DELETE, OPERATIONS, At, TableChanges
from tailrace.log.fold import by_unsent, codes, has_key, key_columns, keys, value, whole
from tailrace.pgoutput.columns import Images
from tailrace.sinks.database.rows import Field, Positions, Table, key_fields, value_fields
from tailrace.sinks.postgres.effect import Effect, Some

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FROM = (Field("from_time", "timestamptz"), Field("from_position", "text"))
TO = (Field("to_time", "timestamptz"), Field("to_position", "text"))
OPERATION = Field("operation", "text")


def loaded(changes: TableChanges) -> Effect[Table]:
    """Rows of a snapshot: versions that are valid from then on."""
    rows = _versions(changes, np.arange(len(changes)), np.full(len(changes), -1), changes.new)
    return Effect(
        changes.relation,
        changes.target,
        changes.span,
        is_load=True,
        moment=moment(changes.at, 0),
        versions=(Some((), rows),),
    )


def versioned(changes: TableChanges) -> Effect[Table]:
    found, left = _numbers(changes)
    made_by = pairs(found, left)
    """For each change, the one that made the row it found; -1: none in this run, or it found none."""
    ended_by = np.full(len(changes), -1, np.int64)
    linked = np.flatnonzero(made_by >= 0)
    ended_by[made_by[linked]] = linked
    makes = np.flatnonzero(changes.operation != DELETE)
    ends = np.flatnonzero((found >= 0) & (made_by < 0))
    new, first = _completed(changes, made_by)
    versions = tuple(_grouped(changes, makes, ended_by, new, first)) if len(makes) else ()
    closed = _closed(changes, ends) if len(ends) else None
    return Effect(changes.relation, changes.target, changes.span, versions=versions, closed=closed)


def pairs(found: I64, left: I64) -> I64:
    """For each change, the last one before it that left the row it found and that no other has found since; or -1.

    Rows are numbers, -1 is none. Of equal rows the youngest goes first, as brackets are matched: how many are open says
    which belong together.
    """
    finds, leaves = np.flatnonzero(found >= 0), np.flatnonzero(left >= 0)
    row = np.concatenate([found[finds], left[leaves]])
    time = np.concatenate([2 * finds, 2 * leaves + 1])
    opens = np.concatenate([np.zeros(len(finds), np.int64), np.ones(len(leaves), np.int64)])
    order = np.lexsort((time, row))
    row, time, opens = row[order], time[order], opens[order]
    depth = np.cumsum(2 * opens - 1)
    begins = np.flatnonzero(np.append(True, row[1:] != row[:-1])) if len(row) else np.empty(0, np.int64)
    depth -= np.repeat(np.where(begins > 0, depth[begins - 1], 0), np.diff(np.append(begins, len(row))))
    level = np.where(opens == 1, depth, depth + 1)
    order = np.lexsort((time, level, row))
    row, time, opens, level = row[order], time[order], opens[order], level[order]
    made_by = np.full(len(found), -1, np.int64)
    is_pair = (row[1:] == row[:-1]) & (level[1:] == level[:-1]) & (opens[1:] == 0) & (opens[:-1] == 1)
    made_by[time[1:][is_pair] // 2] = time[:-1][is_pair] // 2
    return made_by


def _numbers(changes: TableChanges) -> tuple[I64, I64]:
    """Which row each change found and which it left: by key, or by the whole row where changes tell it."""
    if has_key(changes.relation) and changes.relation.identity != "f":
        return keys(changes)
    found = np.flatnonzero(changes.old.present)
    left = np.flatnonzero(changes.new.present)
    columns = [
        pa.concat_arrays([changes.old.batch.column(c).take(pa.array(found)), value(changes, c).take(pa.array(left))])
        for c in range(len(changes.relation.columns))
    ]
    code, _ = codes(columns, len(found) + len(left))
    before, after = np.full(len(changes), -1, np.int64), np.full(len(changes), -1, np.int64)
    before[found], after[left] = code[: len(found)], code[len(found) :]
    return before, after


def _completed(changes: TableChanges, made_by: I64) -> tuple[Images, I64]:
    """New images with values that were not sent taken from the row that was found, as far as the run has it; and for
    each change the first of those that made its row, which found what the run does not have."""
    first = np.arange(len(changes))
    arrays, unchanged = list(changes.new.batch.columns), {}
    if changes.new.unchanged:
        first = _ends(np.where(made_by >= 0, made_by, first))
    for column, unsent in changes.new.unchanged.items():
        told = changes.old.present & (~changes.old_is_key | changes.relation.columns[column].is_identity)
        lacks = unsent & ~told
        here = np.arange(len(changes))
        source = _ends(np.where(lacks & (made_by >= 0), made_by, here))
        arrays[column] = value(changes, column).take(pa.array(source))
        if lacks[source].any():
            unchanged[column] = lacks[source]
    if not arrays:
        return changes.new, first
    batch = pa.RecordBatch.from_arrays(arrays, schema=changes.new.batch.schema)
    return Images(batch, changes.new.present, unchanged, None), first


def _ends(step: I64) -> I64:
    """Where each place leads when steps are followed as far as they go."""
    while not np.array_equal(further := step[step], step):
        step = further
    return step


def _grouped(changes: TableChanges, makes: I64, ended_by: I64, new: Images, first: I64) -> Iterator[Some[Table]]:
    taken = Images(_take(new.batch, makes), new.present[makes], {c: m[makes] for c, m in new.unchanged.items()}, None)
    finds = (changes.old.present | (changes.operation == ord("U")))[first[makes]]
    strays = ~finds
    whole(
        changes,
        Images(taken.batch, taken.present, {c: m & strays for c, m in taken.unchanged.items()}, None),
        makes,
    )
    for unsent, some, images in by_unsent(taken):
        changes_of = makes[some]
        rows = _versions(changes, changes_of, ended_by[changes_of], images, unsent)
        if unsent:
            old = _old_keys(changes, first[changes_of])
            rows = Table((*old.fields, *rows.fields), (*old.arrays, *rows.arrays), rows.positions)
        yield Some(unsent, rows)


def _versions(changes: TableChanges, made: I64, ended: I64, images: Images, unsent: tuple[int, ...] = ()) -> Table:
    """`images` has a row for each of `made`."""
    sent = [i for i in range(len(changes.relation.columns)) if i not in unsent]
    names = pa.array([OPERATIONS[int(letter)] for letter in range(256) if letter in OPERATIONS])
    letters = {letter: place for place, letter in enumerate(sorted(OPERATIONS))}
    lookup = np.zeros(256, np.int64)
    for letter, place in letters.items():
        lookup[letter] = place
    operation = names.take(pa.array(lookup[changes.operation[made]]))
    fields = (*value_fields(changes.relation, sent), *FROM, *TO, OPERATION)
    arrays = (
        *(images.batch.column(i) for i in sent),
        *_times(changes.at, made),
        *_times(changes.at, ended),
        operation,
    )
    return Table(fields, arrays, Positions.of(changes.at, made))


def _closed(changes: TableChanges, ends: I64) -> Table:
    """The rows that were found and are no more, and when."""
    if has_key(changes.relation):
        rows = _old_keys(changes, ends)
    else:
        arrays = tuple([column.take(pa.array(ends)) for column in changes.old.batch.columns])
        rows = Table(tuple(value_fields(changes.relation)), arrays, Positions.of(changes.at, ends))
    return Table((*rows.fields, *TO), (*rows.arrays, *_times(changes.at, ends)), rows.positions)


def _old_keys(changes: TableChanges, places: I64) -> Table:
    key = key_columns(changes.relation)
    told = pa.array(changes.old.present[places])
    at = pa.array(places)
    arrays = [pc.if_else(told, changes.old.batch.column(c).take(at), changes.new.batch.column(c).take(at)) for c in key]
    return Table(tuple(key_fields(changes.relation, key)), tuple(arrays), Positions.of(changes.at, places))


def moment(at: At, row: int) -> tuple[str, str]:
    """A change's time and position, as texts."""
    time, position = _times(at, np.array([row]))
    return time[0].as_py(), position[0].as_py()


def _times(at: At, places: I64) -> tuple[pa.Array, pa.Array]:
    """Time and position of these changes, as texts; NULL for -1."""
    none = places < 0
    time = pa.array(at.committed_at_us[places], pa.timestamp("us", "UTC"), mask=none).cast(pa.string())
    lsns, which = np.unique(at.commit_lsn[places], return_inverse=True)
    texts = pa.array([str(Lsn(lsn)) for lsn in lsns], pa.string()).take(pa.array(which.reshape(-1), mask=none))
    ordinal = pa.array(at.ordinal[places]).cast(pa.string())
    return time, pc.binary_join_element_wise(texts, ordinal, ":")


def _take(batch: pa.RecordBatch, places: I64) -> pa.RecordBatch:
    if not batch.num_columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(places), pa.struct([])))
    return batch.take(pa.array(places))
