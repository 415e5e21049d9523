"""The net effect of a run of changes: for each row affected, the row before and the row after. Pure, vectorised.

`fold` is for tables with a key, `fold_copies` for tables without one, where only the number of equal rows matters. Both
return indexes into the run, so that nothing is copied before a consumer needs it; `final_images` and `copied_rows`
return the rows. Keys and rows are compared by PostgreSQL's text, which is always the same for the same value, so that
changes must be decoded with `as_text`.

A TRUNCATE is a run of its own; consumers handle it, and relations that change from run to run, themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import MERGED, OPERAND, Relation
from tailrace.errors import DecodeError, PoisonError, SinkRefused
from tailrace.images import Images, record_batch
from tailrace.log.decoding import DELETE, INSERT, SNAPSHOT, UPDATE, ChangePositions, Mask, TableChanges

I64 = npt.NDArray[np.int64]
Operations = npt.NDArray[np.uint8]

_MAX_COMBINATIONS = 1 << 62


@dataclass(frozen=True)
class NetChanges:
    """One entry for each row that the changes affected. A row that was inserted and deleted again has no entry."""

    origin: I64
    """The change whose key image (the old one if sent, else the new one) identifies the row before; -1 if the row was
    inserted. No two entries identify the same row."""
    final: I64
    """The change whose new image is the row after; -1 if the row was deleted. No two entries have the same key."""
    is_moved: Mask
    """The row was updated and its key changed. Another entry's row may have had the new key before."""
    fills: Mapping[int, tuple[I64, I64]] = field(default_factory=dict)
    """By column: entries whose final image lacks the value (PostgreSQL did not send it), and for each the change that
    has it, in its new image or else in its old one; -1 if only the row before has it."""

    def __len__(self) -> int:
        return len(self.final)

    @property
    def is_inserted(self) -> Mask:
        return self.origin < 0

    @property
    def is_deleted(self) -> Mask:
        return self.final < 0


@dataclass(frozen=True)
class CopyCounts:
    """One entry for each distinct row whose number of copies changed."""

    change: I64
    """A change that has the row: as its new image if copies were added, as its old image if they were removed."""
    delta: I64
    """How many copies were added; negative if they were removed."""


def has_key(relation: Relation) -> bool:
    """Whether changes identify their row by a key.

    With the replica identity `nothing`, only inserts are published. A key may then be inserted again, because updates
    and deletes of the earlier row are not published.
    """
    return bool(relation.key) and relation.identity != "n"


def join_runs(runs: Sequence[TableChanges]) -> TableChanges:
    """Consecutive runs of one table under one relation, joined into one."""
    if len(runs) == 1:
        return runs[0]
    return TableChanges(
        runs[0].relation,
        ChangePositions.joined([r.at for r in runs]),
        np.concatenate([r.operation for r in runs]),
        _join_images([r.old for r in runs]),
        np.concatenate([r.old_is_key for r in runs]),
        _join_images([r.new for r in runs]),
        target=runs[0].target,
    )


def fold(changes: TableChanges) -> NetChanges:
    """The net effect on a table with a key."""
    operation = changes.operation
    if not _is_any(operation, UPDATE, DELETE):
        return NetChanges(_none(len(changes)), np.arange(len(changes)), np.zeros(len(changes), np.bool_))
    require_values(changes)
    before, after = keys(changes)
    rows = partial(_whole_row_codes, changes) if changes.relation.identity == "f" else None
    return fold_keys(operation, before, after, unsent_columns(changes), rows)


RowCodes = Callable[[I64], tuple[I64, I64]]
"""For the given changes, codes of the whole rows before and after them: equal for equal rows."""


def fold_keys(
    operation: Operations,
    before: I64,
    after: I64,
    unsent: Mapping[int, tuple[Mask, Mask]] | None = None,
    rows: RowCodes | None = None,
) -> NetChanges:
    """The net effect, from the keys of the rows before and after each change, given as codes from 0 (-1 for no row).

    `unsent`: by column, changes that did not send its value, and changes that have it. `rows` is needed if two rows may
    temporarily have the same key. Deferrable constraints allow that, and those require the replica identity `full`.
    """
    chain, count = chains(operation, before, after, rows)
    changes = np.arange(len(operation))
    first, last = _none(count), _none(count)
    # For repeated indexes, the last assignment wins.
    first[chain[::-1]] = changes[::-1]
    last[chain] = changes
    origin = np.where((first >= 0) & (before[first] >= 0), first, -1)
    final = np.where((last >= 0) & (after[last] >= 0), last, -1)
    is_entry = (origin >= 0) | (final >= 0)
    fills = {}
    for column, (is_unsent, has_value) in (unsent or {}).items():
        lacks_value = is_entry & (final >= 0) & is_unsent[final]
        if lacks_value.any():
            source = _none(count)
            candidates = np.flatnonzero(has_value)
            source[chain[candidates]] = candidates
            entry = np.cumsum(is_entry) - 1
            fills[column] = (entry[lacks_value], source[lacks_value])
    origin, final = origin[is_entry], final[is_entry]
    is_moved = (origin >= 0) & (final >= 0) & (before[origin] != after[final])
    return NetChanges(origin, final, is_moved, fills)


def chains(operation: Operations, before: I64, after: I64, rows: RowCodes | None = None) -> tuple[I64, int]:
    """A chain number for each change, equal for changes of the same row even if its key changed; and their count."""
    count = int(max(before.max(initial=-1), after.max(initial=-1))) + 1
    chain = np.where(after >= 0, after, before)
    involved = _involved_changes(operation, before, after, chain, count, rows)
    if len(involved):
        count = _follow(chain, before, after, involved, count, rows)
    return chain, count


def fill_unsent(changes: TableChanges, *, by_key: bool) -> tuple[TableChanges, I64]:
    """The changes with unsent values filled in, and for each change the first change of its row.

    A value comes from the change's own old image, or from the last earlier change of the same row that has it. A value
    that stays unsent is only in the row before all changes. Without a key, only a change's own old image is used.
    """
    require_values(changes)
    chain, count = np.arange(len(changes)), len(changes)
    if by_key:
        before, after = keys(changes)
        rows = partial(_whole_row_codes, changes) if changes.relation.identity == "f" else None
        chain, count = chains(changes.operation, before, after, rows)
    first = _none(count)
    first[chain[::-1]] = np.arange(len(changes))[::-1]
    order = np.argsort(chain, kind="stable")
    begins = np.zeros(len(order), np.int64)
    is_first = np.append(True, chain[order][1:] != chain[order][:-1])
    begins[is_first] = np.flatnonzero(is_first)
    begins = np.maximum.accumulate(begins)
    arrays, unchanged = list(changes.new.batch.columns), {}
    for column, (unsent, has_value) in unsent_columns(changes).items():
        latest = np.maximum.accumulate(np.where(has_value[order], np.arange(len(order)), -1))
        source = _none(len(changes))
        source[order] = np.where(latest >= begins, order[latest], -1)
        found = unsent & (source >= 0)
        if found.any():
            values = new_values(changes, column).take(pa.array(source[found]))
            arrays[column] = pc.replace_with_mask(arrays[column], pa.array(found), values)
        if (unsent & ~found).any():
            unchanged[column] = unsent & ~found
    new = replace(changes.new, batch=record_batch(arrays, changes.new.batch.schema, len(changes)), unchanged=unchanged)
    return replace(changes, new=new), first[chain]


def fold_copies(changes: TableChanges) -> CopyCounts:
    """The net effect on a table without a key: how many copies of each distinct row were added or removed."""
    has_old, has_new = changes.operation != INSERT, changes.operation != DELETE
    has_old &= changes.operation != SNAPSHOT
    if not has_old.any():
        return CopyCounts(np.arange(len(changes)), np.ones(len(changes), np.int64))
    if (has_old & (~changes.old.present | changes.old_is_key)).any():
        raise DecodeError(
            f"{changes.relation.qualified_name}: an update or delete does not identify its row",
            "run ALTER TABLE … REPLICA IDENTITY FULL or add a primary key, then take a new snapshot",
        )
    old, new = np.flatnonzero(has_old), np.flatnonzero(has_new)
    columns = []
    for index in range(len(changes.relation.columns)):
        sent = new_values(changes, index)
        columns.append(
            pa.concat_arrays([changes.old.batch.column(index).take(pa.array(old)), sent.take(pa.array(new))])
        )
    code, count = row_codes(columns, len(old) + len(new))
    delta = np.bincount(code[len(old) :], minlength=count) - np.bincount(code[: len(old)], minlength=count)
    fewer, more = _none(count), _none(count)
    fewer[code[: len(old)]] = old
    more[code[len(old) :]] = new
    differing = np.flatnonzero(delta)
    return CopyCounts(np.where(delta > 0, more, fewer)[differing], delta[differing].astype(np.int64))


def final_images(changes: TableChanges, net: NetChanges, entries: I64 | Mask | None = None) -> Images:
    """The final rows of these entries, none of which may be deleted. `unchanged` has values only in the row before."""
    final = net.final if entries is None else net.final[entries]
    output_row = _none(len(net))
    output_row[np.arange(len(net)) if entries is None else entries] = np.arange(len(final))
    batch = _take(changes.new.batch, final)
    unchanged: dict[int, Mask] = {}
    for column, (rows, source) in net.fills.items():
        at = output_row[rows]
        rows, source, at = rows[at >= 0], source[at >= 0], at[at >= 0]
        known = source >= 0
        if known.any():
            is_filled = np.zeros(len(final), np.bool_)
            is_filled[at[known]] = True
            values = new_values(changes, column).take(pa.array(source[known][np.argsort(at[known])]))
            filled = pc.replace_with_mask(batch.column(column), pa.array(is_filled), values)
            batch = batch.set_column(column, batch.schema.field(column), filled)
        if not known.all():
            unchanged[column] = np.zeros(len(final), np.bool_)
            unchanged[column][at[~known]] = True
    batch = rows_without_operands(changes.relation, batch)
    # Special values are never so large that PostgreSQL does not send them, so the final image has them.
    special = None if changes.new.special is None else changes.new.special.take(pa.array(final))
    return Images(batch, np.ones(len(final), np.bool_), unchanged, special)


def group_by_unsent(new: Images) -> Iterator[tuple[tuple[int, ...], I64, Images]]:
    """Rows grouped by their unsent columns: the columns, the rows' indexes, and the rows."""
    unsent = sorted(new.unchanged)
    if not unsent:
        yield (), np.arange(len(new)), new
        return
    masks = np.stack([new.unchanged[column] for column in unsent])
    combinations, which = np.unique(masks, axis=1, return_inverse=True)
    for number in range(combinations.shape[1]):
        some = np.flatnonzero(which.reshape(-1) == number)
        columns = tuple([c for c, is_unsent in zip(unsent, combinations[:, number], strict=True) if is_unsent])
        yield columns, some, replace(new.take(some), unchanged={})


def require_whole(changes: TableChanges, new: Images, change: I64) -> None:
    """Raise PoisonError if an inserted row lacks a value."""
    for column, unsent in new.unchanged.items():
        if unsent.any():
            found = [str(changes.at.position(int(change[row]))) for row in np.flatnonzero(unsent)]
            name = changes.relation.columns[column].name
            raise PoisonError(
                f"{changes.relation.qualified_name}: PostgreSQL did not send the value of {name} for a new row",
                "a row filter admits rows on update: set REPLICA IDENTITY FULL on the table, and load it again",
                tuple(found),
            )


def require_values(changes: TableChanges) -> None:
    """Raise SinkRefused if a change is a merge of which only the operand is known: nobody knows the row after it."""
    names = [column.name for column in changes.relation.columns]
    if not changes.relation.is_upsert or OPERAND not in names:
        return
    is_unknown = changes.new.batch.column(names.index(OPERAND)).is_valid()
    if MERGED in names:
        is_unknown = pc.and_(is_unknown, changes.new.batch.column(names.index(MERGED)).is_null())
    row = pc.index(is_unknown, True).as_py()
    if row >= 0:
        raise SinkRefused(
            f"{changes.relation.qualified_name}, {changes.at.position(row)}: the change is a merge, and its "
            "operand alone is not a row",
            'set [source] merge_operator = "module:function", then run `tailrace capture` and take a new snapshot; '
            "without it, deliver this table to sinks of changes: files, messages, or a changelog",
        )


def rows_without_operands(relation: Relation, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as they are after changes: an operand belongs to a change, and a row that was scanned has none."""
    names = [column.name for column in relation.columns]
    if not relation.is_upsert or OPERAND not in names:
        return batch
    column = names.index(OPERAND)
    field = batch.schema.field(column)
    return batch.set_column(column, field, pa.nulls(len(batch), field.type))


def copied_rows(changes: TableChanges, copies: CopyCounts, entries: I64 | Mask) -> Images:
    """The rows of these entries, which must be all additions or all removals."""
    indexes, delta = copies.change[entries], copies.delta[entries]
    columns = range(len(changes.relation.columns))
    if len(delta) and delta[0] > 0:
        arrays, special = [new_values(changes, index).take(pa.array(indexes)) for index in columns], changes.new.special
    else:
        arrays = [changes.old.batch.column(index).take(pa.array(indexes)) for index in columns]
        special = changes.old.special
    batch = record_batch(arrays, changes.new.batch.schema, len(indexes))
    special = None if special is None else special.take(pa.array(indexes))
    return Images(batch, np.ones(len(indexes), np.bool_), {}, special)


def row_codes(columns: Sequence[pa.Array], count: int) -> tuple[I64, int]:
    """A code for each row, equal for equal rows, and the number of codes. NULL equals NULL."""
    code, distinct = np.zeros(count, np.int64), 1 if count else 0
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        of_column = len(encoded.dictionary)
        if distinct * of_column >= _MAX_COMBINATIONS:  # pragma: no cover (more rows than memory holds)
            raise DecodeError("too many distinct rows to compare at once")
        code = code * of_column + encoded.indices.to_numpy(zero_copy_only=False)
        distinct *= of_column
        if distinct > of_column:
            again = pa.array(code).dictionary_encode()
            code, distinct = again.indices.to_numpy().astype(np.int64), len(again.dictionary)
    return code, distinct


def key_columns(relation: Relation) -> list[int]:
    """The indexes of the key's columns."""
    indexes = {column.name: index for index, column in enumerate(relation.columns)}
    return [indexes[name] for name in relation.key]


def key_texts(columns: Sequence[pa.Array]) -> pa.Array:
    """Keys of one or more columns as one text, joined with NUL, which PostgreSQL's texts never contain."""
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "\0")


def keys(changes: TableChanges) -> tuple[I64, I64]:
    """Codes of the keys before and after each change; -1 for no row."""
    old, new = changes.old, changes.new
    with_old = np.flatnonzero(old.present)
    with_new = np.flatnonzero(new.present)
    pairs = [
        pa.concat_arrays([_take_array(new_values(changes, c), with_new), _take_array(old.batch.column(c), with_old)])
        for c in key_columns(changes.relation)
    ]
    code, _ = row_codes(pairs, len(with_new) + len(with_old))
    before, after = _none(len(changes)), _none(len(changes))
    after[with_new] = code[: len(with_new)]
    updates = changes.operation == UPDATE
    before[updates] = after[updates]
    before[with_old] = code[len(with_new) :]
    return before, after


def new_values(changes: TableChanges, column: int) -> pa.Array:
    """A column of the new images, with unsent values taken from the same change's old image if that has them."""
    new = changes.new.batch.column(column)
    unsent = changes.new.unchanged.get(column)
    if unsent is None or not changes.old.present.any():
        return new
    return pc.if_else(pa.array(unsent), changes.old.batch.column(column), new)


def unsent_columns(changes: TableChanges) -> dict[int, tuple[Mask, Mask]]:
    """By column: changes that did not send its value, and changes that have it in their new image or their old one."""
    found = {}
    for column, unsent in changes.new.unchanged.items():
        is_whole = changes.old.present & (~changes.old_is_key | changes.relation.columns[column].is_identity)
        if (in_old := changes.old.unchanged.get(column)) is not None:
            is_whole &= ~in_old
        found[column] = (unsent, changes.new.present & (~unsent | is_whole))
    return found


def _whole_row_codes(changes: TableChanges, indexes: I64) -> tuple[I64, I64]:
    """Codes of whole rows before and after changes. With replica identity full, old images are whole rows."""
    pairs = [
        pa.concat_arrays(
            [_take_array(changes.old.batch.column(c), indexes), _take_array(new_values(changes, c), indexes)]
        )
        for c in range(len(changes.relation.columns))
    ]
    code, _ = row_codes(pairs, 2 * len(indexes))
    return code[: len(indexes)], code[len(indexes) :]


def _involved_changes(
    operation: Operations, before: I64, after: I64, chain: I64, count: int, rows: RowCodes | None
) -> I64:
    """Changes whose rows cannot be identified by the key alone: those of keys that an update set or replaced."""
    moved = (before >= 0) & (after >= 0) & (before != after)
    keys = np.zeros(count + 1, np.bool_)  # one more for -1, which stands for no key
    keys[before[moved]] = True
    keys[after[moved]] = True
    if rows is not None:
        keys[_duplicate_keys(operation, chain, moved, rows)] = True
    return np.flatnonzero(keys[before] | keys[after]) if keys.any() else np.empty(0, np.int64)


def _duplicate_keys(operation: Operations, chain: I64, moved: Mask, rows: RowCodes) -> I64:
    """Keys that were inserted while another row still had them."""
    order = np.argsort(chain, kind="stable")
    order = order[~moved[order]]
    is_same = chain[order][1:] == chain[order][:-1]
    earlier, later = order[:-1][is_same], order[1:][is_same]
    is_insert = (operation == INSERT) | (operation == SNAPSHOT)
    is_duplicate = is_insert[later] & (operation[earlier] != DELETE)
    # Only if the first change of a key is an insert, a row with that key may exist that no change has affected yet.
    begins = np.zeros(int(chain.max(initial=-1)) + 1, np.bool_)
    first = order[np.append(True, ~is_same)] if len(order) else order
    begins[chain[first[is_insert[first]]]] = True
    unsure = np.flatnonzero(begins[chain[later]] & ~is_insert[later])
    if len(unsure):
        row_before, row_after = rows(np.concatenate([earlier[unsure], later[unsure]]))
        is_duplicate[unsure] = row_after[: len(unsure)] != row_before[len(unsure) :]
    duplicates: I64 = chain[later[is_duplicate]]
    return duplicates


def _follow(chain: I64, before: I64, after: I64, involved: I64, count: int, rows: RowCodes | None) -> int:
    """Write the chain of each involved change, one change at a time. Returns the number of chains."""
    keys = before[involved].tolist(), after[involved].tolist()
    images = [row.tolist() for row in rows(involved)] if rows is not None else keys
    present: dict[int, list[tuple[int, int]]] = {}
    deleted: dict[int, int] = {}
    chains, first = [], count
    for old_key, new_key, old_row, new_row in zip(*keys, *images, strict=True):
        if old_key >= 0:
            own = _pop_chain(present.get(old_key), old_row if rows is not None else None)
        else:
            # A row that is deleted and inserted again counts as replaced.
            own = deleted.pop(new_key, None)
        if own is None:
            own, count = count, count + 1
        if new_key >= 0:
            present.setdefault(new_key, []).append((own, new_row))
        else:
            deleted[old_key] = own
        chains.append(own)
    if rows is not None and any(len(candidates) > 1 for candidates in present.values()):
        # Rows were rewritten between their changes, as ALTER TABLE … USING does: only the key identifies them.
        return _follow(chain, before, after, involved, first, None)
    chain[involved] = chains
    return count


def _pop_chain(candidates: list[tuple[int, int]] | None, row: int | None) -> int | None:
    """Remove and return the chain of a change's old row, matched by code if given; None if no change affected it."""
    for index, (own, new_row) in enumerate(candidates or ()):
        if row is None or row == new_row:
            assert candidates is not None
            del candidates[index]
            return own
    return None


def _join_images(parts: Sequence[Images]) -> Images:
    present = np.concatenate([p.present for p in parts])
    unchanged = {}
    for column in {c for p in parts for c in p.unchanged}:
        masks = [p.unchanged.get(column, np.zeros(len(p), np.bool_)) for p in parts]
        unchanged[column] = np.concatenate(masks)
    special = None
    if any(p.special is not None for p in parts):
        kind = next(p.special.type for p in parts if p.special is not None)
        special = pa.concat_arrays([pa.nulls(len(p), kind) if p.special is None else p.special for p in parts])
    arrays = [pa.concat_arrays(columns) for columns in zip(*(p.batch.columns for p in parts), strict=True)]
    return Images(record_batch(arrays, parts[0].batch.schema, len(present)), present, unchanged, special)


def _take(batch: pa.RecordBatch, indexes: I64) -> pa.RecordBatch:
    if len(indexes) == len(batch) and (indexes == np.arange(len(batch))).all():
        return batch
    indices = pa.array(indexes)
    return record_batch([column.take(indices) for column in batch.columns], batch.schema, len(indexes))


def _take_array(array: pa.Array, indexes: I64) -> pa.Array:
    return array if len(indexes) == len(array) else array.take(pa.array(indexes))


def _is_any(operation: Operations, *letters: int) -> bool:
    return bool(np.isin(operation, letters).any())


def _none(count: int) -> I64:
    return np.full(count, -1, np.int64)
