"""The row versions that a run of changes adds to a history, and the current versions that it ends. Pure, vectorised.

Each insert and each update creates a version. It is valid until the change that updates or deletes the row. This module
pairs such changes within a run. A change of a row from before the run ends a version that is in the history already.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Lsn
from tailrace.images import Images
from tailrace.log.decoding import DELETE, OPERATIONS, ChangePositions, TableChanges
from tailrace.sinks.database.staged_rows import Positions, RowBatch, StagingField, key_fields, value_fields
from tailrace.sinks.database.table_write import RowGroup, TableWrite
from tailrace.state.fold import (
    group_by_unsent,
    has_key,
    key_columns,
    keys,
    new_values,
    require_values,
    require_whole,
    row_codes,
)

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FROM = (StagingField("from_time", "timestamptz"), StagingField("from_position", "text"))
TO = (StagingField("to_time", "timestamptz"), StagingField("to_position", "text"))
OPERATION = StagingField("operation", "text")


def of_snapshot(changes: TableChanges) -> TableWrite[RowBatch]:
    """The rows of a snapshot: versions that are valid from then on."""
    rows = _versions(changes, np.arange(len(changes)), np.full(len(changes), -1), changes.new)
    when = time_and_position(changes.at, 0)
    return TableWrite.of(changes, is_load=True, time_and_position=when, versions=(RowGroup((), rows),))


def of_changes(changes: TableChanges) -> TableWrite[RowBatch]:
    """The versions that changes create and end."""
    require_values(changes)
    found, left = _numbers(changes)
    made_by = pairs(found, left)
    """For each change, the one that created the version it ends; -1 if none in this run did, or if it ends none."""
    ended_by = np.full(len(changes), -1, np.int64)
    linked = np.flatnonzero(made_by >= 0)
    ended_by[made_by[linked]] = linked
    makes = np.flatnonzero(changes.operation != DELETE)
    ends = np.flatnonzero((found >= 0) & (made_by < 0))
    new, first = _complete_images(changes, made_by)
    versions = tuple(_row_groups(changes, makes, ended_by, new, first)) if len(makes) else ()
    ended = _ended_versions(changes, ends) if len(ends) else None
    return TableWrite.of(changes, versions=versions, ended=ended)


def pairs(found: I64, left: I64) -> I64:
    """For each change, the last earlier one that left the row it found and that is not paired yet; or -1.

    Of equal rows the youngest is paired first, as brackets are matched: the nesting depth says which belong together.

    Args:
        found: The number of the row that each change found; -1 for none.
        left: The number of the row that each change left; -1 for none.
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
    """The row that each change found and the one it left: by key, or by the whole row if changes contain it."""
    if has_key(changes.relation) and changes.relation.identity != "f":
        return keys(changes)
    found = np.flatnonzero(changes.old.present)
    left = np.flatnonzero(changes.new.present)
    columns = [
        pa.concat_arrays(
            [changes.old.batch.column(c).take(pa.array(found)), new_values(changes, c).take(pa.array(left))]
        )
        for c in range(len(changes.relation.columns))
    ]
    code, _ = row_codes(columns, len(found) + len(left))
    before, after = np.full(len(changes), -1, np.int64), np.full(len(changes), -1, np.int64)
    before[found], after[left] = code[: len(found)], code[len(found) :]
    return before, after


def _complete_images(changes: TableChanges, made_by: I64) -> tuple[Images, I64]:
    """New images, with unsent values from earlier versions in the run; and the first change of each change's chain.

    The first change of a chain found the row that has the values which the run does not contain.
    """
    first = np.arange(len(changes))
    arrays, unchanged = list(changes.new.batch.columns), {}
    if changes.new.unchanged:
        first = _ends(np.where(made_by >= 0, made_by, first))
    for column, unsent in changes.new.unchanged.items():
        known = changes.old.present & (~changes.old_is_key | changes.relation.columns[column].is_identity)
        lacks = unsent & ~known
        here = np.arange(len(changes))
        source = _ends(np.where(lacks & (made_by >= 0), made_by, here))
        arrays[column] = new_values(changes, column).take(pa.array(source))
        if lacks[source].any():
            unchanged[column] = lacks[source]
    if not arrays:
        return changes.new, first
    batch = pa.RecordBatch.from_arrays(arrays, schema=changes.new.batch.schema)
    return Images(batch, changes.new.present, unchanged, None), first


def _ends(step: I64) -> I64:
    """The last index that is reached from each one by following steps."""
    while not np.array_equal(further := step[step], step):
        step = further
    return step


def _row_groups(
    changes: TableChanges, makes: I64, ended_by: I64, new: Images, first: I64
) -> Iterator[RowGroup[RowBatch]]:
    created = Images(_take(new.batch, makes), new.present[makes], {c: m[makes] for c, m in new.unchanged.items()}, None)
    finds = (changes.old.present | (changes.operation == ord("U")))[first[makes]]
    lacks_row = ~finds
    require_whole(
        changes,
        Images(created.batch, created.present, {c: m & lacks_row for c, m in created.unchanged.items()}, None),
        makes,
    )
    for unsent, group, images in group_by_unsent(created):
        changes_of = makes[group]
        rows = _versions(changes, changes_of, ended_by[changes_of], images, unsent)
        if unsent:
            old = _old_keys(changes, first[changes_of])
            rows = RowBatch((*old.fields, *rows.fields), (*old.arrays, *rows.arrays), rows.positions)
        yield RowGroup(unsent, rows)


def _versions(
    changes: TableChanges, creating: I64, ending: I64, images: Images, unsent: tuple[int, ...] = ()
) -> RowBatch:
    """`images` has a row for each creating change; `ending` has the change that ends the version, or -1."""
    sent = [i for i in range(len(changes.relation.columns)) if i not in unsent]
    names = pa.array([OPERATIONS[int(letter)] for letter in range(256) if letter in OPERATIONS])
    letters = {letter: place for place, letter in enumerate(sorted(OPERATIONS))}
    lookup = np.zeros(256, np.int64)
    for letter, place in letters.items():
        lookup[letter] = place
    operation = names.take(pa.array(lookup[changes.operation[creating]]))
    fields = (*value_fields(changes.relation, sent), *FROM, *TO, OPERATION)
    arrays = (
        *(images.batch.column(i) for i in sent),
        *_times(changes.at, creating),
        *_times(changes.at, ending),
        operation,
    )
    return RowBatch(fields, arrays, Positions.of(changes.at, creating))


def _ended_versions(changes: TableChanges, ends: I64) -> RowBatch:
    """Keys or rows whose versions ended, and when."""
    if has_key(changes.relation):
        rows = _old_keys(changes, ends)
    else:
        arrays = tuple([column.take(pa.array(ends)) for column in changes.old.batch.columns])
        rows = RowBatch(tuple(value_fields(changes.relation)), arrays, Positions.of(changes.at, ends))
    return RowBatch((*rows.fields, *TO), (*rows.arrays, *_times(changes.at, ends)), rows.positions)


def _old_keys(changes: TableChanges, places: I64) -> RowBatch:
    key = key_columns(changes.relation)
    has_old = pa.array(changes.old.present[places])
    at = pa.array(places)
    arrays = [
        pc.if_else(has_old, changes.old.batch.column(c).take(at), changes.new.batch.column(c).take(at)) for c in key
    ]
    return RowBatch(tuple(key_fields(changes.relation, key)), tuple(arrays), Positions.of(changes.at, places))


def time_and_position(at: ChangePositions, row: int) -> tuple[str, str]:
    """A change's time and position, as text."""
    time, position = _times(at, np.array([row]))
    return time[0].as_py(), position[0].as_py()


def _times(at: ChangePositions, places: I64) -> tuple[pa.Array, pa.Array]:
    """Times and positions of changes, as text; NULL for -1."""
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
