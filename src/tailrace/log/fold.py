"""The net effect of a run of changes: for each row that they touch, where it was and what it is now. Pure, vectorised.

`fold` is for tables with a key, `fold_copies` for those without one, where only the number of equal rows counts. Both
answer with indexes into the run, so that nothing is copied before a consumer knows what it wants; `images` and
`copied` fetch the rows. Keys and rows are compared by PostgreSQL's own text, which is the same whenever it prints a
value: give them changes that were decoded with `as_text`.

A TRUNCATE is a run of its own, and its consumer's business; so is a relation that changes from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Relation
from tailrace.errors import DecodeError, PoisonError
from tailrace.log.decoding import DELETE, INSERT, SNAPSHOT, UPDATE, At, Mask, TableChanges
from tailrace.pgoutput.columns import Images, record_batch

I64 = npt.NDArray[np.int64]
Operations = npt.NDArray[np.uint8]

_MOST_COMBINATIONS = 1 << 62


@dataclass(frozen=True)
class Folded:
    """One entry for each row that the changes touched; one that came and went again is absent."""

    origin: I64
    """The change whose key image (the old one if sent, else the new one) names the row that was there before; -1: there
    was none. No two entries name the same."""
    final: I64
    """The change whose new image is the row now; -1: it is gone. No two entries have the same key."""
    is_moved: Mask
    """There was a row, there is one, and their keys differ. Another entry's row may have had the key it has now."""
    fills: Mapping[int, tuple[I64, I64]] = field(default_factory=dict)
    """Column → entries whose final image lacks its value (PostgreSQL did not send it), and for each the change that has
    it, in its new image or else in its old one; -1: only the row that was there before has it."""

    def __len__(self) -> int:
        return len(self.final)

    @property
    def is_born(self) -> Mask:
        return self.origin < 0

    @property
    def is_gone(self) -> Mask:
        return self.final < 0


@dataclass(frozen=True)
class Copies:
    """One entry for each distinct row of which there are more or fewer now."""

    change: I64
    """One that has the row: as its new image where there are more, as its old one where there are fewer."""
    delta: I64


def has_key(relation: Relation) -> bool:
    """Whether changes say which row they are of. With the identity `nothing` there are inserts alone, though rows that
    were updated or deleted unheard may come again."""
    return bool(relation.key) and relation.identity != "n"


def joined(runs: Sequence[TableChanges]) -> TableChanges:
    """Runs of one table under one relation, that follow each other, as one."""
    if len(runs) == 1:
        return runs[0]
    return TableChanges(
        runs[0].relation,
        At.joined([r.at for r in runs]),
        np.concatenate([r.operation for r in runs]),
        _joined_images([r.old for r in runs]),
        np.concatenate([r.old_is_key for r in runs]),
        _joined_images([r.new for r in runs]),
        target=runs[0].target,
    )


def fold(changes: TableChanges) -> Folded:
    """The net effect on a table with a key."""
    operation = changes.operation
    if not _is_any(operation, UPDATE, DELETE):
        return Folded(_none(len(changes)), np.arange(len(changes)), np.zeros(len(changes), np.bool_))
    before, after = keys(changes)
    rows = partial(_row_codes, changes) if changes.relation.identity == "f" else None
    return fold_keys(operation, before, after, sources(changes), rows)


RowCodes = Callable[[I64], tuple[I64, I64]]
"""For some changes, numbers of the whole rows that they found and of those that they left: equal where these are."""


def fold_keys(
    operation: Operations,
    before: I64,
    after: I64,
    unsent: Mapping[int, tuple[Mask, Mask]] | None = None,
    rows: RowCodes | None = None,
) -> Folded:
    """The same for keys as numbers below their count: of the row each change found, and of the one it left.

    `unsent`: column → changes that did not send its value, and changes that have it. `rows` is needed where two
    rows may have one key for a while: that of a deferrable constraint, which goes with the identity `full` alone.
    """
    chain, count = chains(operation, before, after, rows)
    changes = np.arange(len(operation))
    first, last = _none(count), _none(count)
    # Of equal places the last assignment stays.
    first[chain[::-1]] = changes[::-1]
    last[chain] = changes
    origin = np.where((first >= 0) & (before[first] >= 0), first, -1)
    final = np.where((last >= 0) & (after[last] >= 0), last, -1)
    kept = (origin >= 0) | (final >= 0)
    fills = {}
    for column, (is_unsent, has_it) in (unsent or {}).items():
        lacking = kept & (final >= 0) & is_unsent[final]
        if lacking.any():
            source = _none(count)
            having = np.flatnonzero(has_it)
            source[chain[having]] = having
            entry = np.cumsum(kept) - 1
            fills[column] = (entry[lacking], source[lacking])
    origin, final = origin[kept], final[kept]
    is_moved = (origin >= 0) & (final >= 0) & (before[origin] != after[final])
    return Folded(origin, final, is_moved, fills)


def chains(operation: Operations, before: I64, after: I64, rows: RowCodes | None = None) -> tuple[I64, int]:
    """Equal numbers for changes of one and the same row, whatever its keys were, and how many rows there are."""
    count = int(max(before.max(initial=-1), after.max(initial=-1))) + 1
    chain = np.where(after >= 0, after, before)
    involved = _involved(operation, before, after, chain, count, rows)
    if len(involved):
        count = _follow(chain, before, after, involved, count, rows)
    return chain, count


def filled(changes: TableChanges, *, by_key: bool) -> tuple[TableChanges, I64]:
    """Every change with what was not sent taken from its own old image, or from the last change of the same row that
    has it; and for each the first change of its row. What is still unknown, only the row that was there before has.

    Without a key each change stands alone.
    """
    chain, count = np.arange(len(changes)), len(changes)
    if by_key:
        before, after = keys(changes)
        rows = partial(_row_codes, changes) if changes.relation.identity == "f" else None
        chain, count = chains(changes.operation, before, after, rows)
    first = _none(count)
    first[chain[::-1]] = np.arange(len(changes))[::-1]
    order = np.argsort(chain, kind="stable")
    begins = np.zeros(len(order), np.int64)
    is_first = np.append(True, chain[order][1:] != chain[order][:-1])
    begins[is_first] = np.flatnonzero(is_first)
    begins = np.maximum.accumulate(begins)
    arrays, unchanged = list(changes.new.batch.columns), {}
    for column, (unsent, has_it) in sources(changes).items():
        place = np.maximum.accumulate(np.where(has_it[order], np.arange(len(order)), -1))
        source = _none(len(changes))
        source[order] = np.where(place >= begins, order[place], -1)
        found = unsent & (source >= 0)
        if found.any():
            values = value(changes, column).take(pa.array(source[found]))
            arrays[column] = pc.replace_with_mask(arrays[column], pa.array(found), values)
        if (unsent & ~found).any():
            unchanged[column] = unsent & ~found
    new = replace(changes.new, batch=record_batch(arrays, changes.new.batch.schema, len(changes)), unchanged=unchanged)
    return replace(changes, new=new), first[chain]


def fold_copies(changes: TableChanges) -> Copies:
    """The net effect on a table without a key: how many more or fewer there are of each distinct row."""
    found, left = changes.operation != INSERT, changes.operation != DELETE
    found &= changes.operation != SNAPSHOT
    if not found.any():
        return Copies(np.arange(len(changes)), np.ones(len(changes), np.int64))
    if (found & (~changes.old.present | changes.old_is_key)).any():
        raise DecodeError(
            f"{changes.relation.qualified_name}: an update or delete does not say which row it is of",
            "ALTER TABLE … REPLICA IDENTITY FULL, or give the table a primary key, then take a new snapshot",
        )
    old, new = np.flatnonzero(found), np.flatnonzero(left)
    columns = []
    for index in range(len(changes.relation.columns)):
        sent = value(changes, index)
        columns.append(
            pa.concat_arrays([changes.old.batch.column(index).take(pa.array(old)), sent.take(pa.array(new))])
        )
    code, count = codes(columns, len(old) + len(new))
    delta = np.bincount(code[len(old) :], minlength=count) - np.bincount(code[: len(old)], minlength=count)
    fewer, more = _none(count), _none(count)
    fewer[code[: len(old)]] = old
    more[code[len(old) :]] = new
    differing = np.flatnonzero(delta)
    return Copies(np.where(delta > 0, more, fewer)[differing], delta[differing].astype(np.int64))


def images(changes: TableChanges, folded: Folded, entries: I64 | Mask | None = None) -> Images:
    """The final rows of these entries, none of them gone; `unchanged`: what only the row that was there has."""
    final = folded.final if entries is None else folded.final[entries]
    place = _none(len(folded))
    place[np.arange(len(folded)) if entries is None else entries] = np.arange(len(final))
    batch = _take(changes.new.batch, final)
    unchanged: dict[int, Mask] = {}
    for column, (rows, source) in folded.fills.items():
        at = place[rows]
        rows, source, at = rows[at >= 0], source[at >= 0], at[at >= 0]
        known = source >= 0
        if known.any():
            there = np.zeros(len(final), np.bool_)
            there[at[known]] = True
            values = value(changes, column).take(pa.array(source[known][np.argsort(at[known])]))
            filled = pc.replace_with_mask(batch.column(column), pa.array(there), values)
            batch = batch.set_column(column, batch.schema.field(column), filled)
        if not known.all():
            unchanged[column] = np.zeros(len(final), np.bool_)
            unchanged[column][at[~known]] = True
    # Nothing that is special is ever so large that it is not sent: it is in the final image.
    special = None if changes.new.special is None else changes.new.special.take(pa.array(final))
    return Images(batch, np.ones(len(final), np.bool_), unchanged, special)


def by_unsent(new: Images) -> Iterator[tuple[tuple[int, ...], I64, Images]]:
    """Rows with the same columns unsent, together: which columns, which rows, and these."""
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


def whole(changes: TableChanges, new: Images, change: I64) -> None:
    """A row that comes has all its values."""
    for column, unsent in new.unchanged.items():
        if unsent.any():
            found = [str(changes.at.position(int(change[row]))) for row in np.flatnonzero(unsent)]
            name = changes.relation.columns[column].name
            raise PoisonError(
                f"{changes.relation.qualified_name}: a row comes without its value of {name}, which was not sent",
                "a row filter lets rows in as they are updated: set REPLICA IDENTITY FULL on the table, load it anew",
                tuple(found),
            )


def copied(changes: TableChanges, copies: Copies, entries: I64 | Mask) -> Images:
    """The rows of these entries, all of which are more, or all fewer."""
    places, delta = copies.change[entries], copies.delta[entries]
    columns = range(len(changes.relation.columns))
    if len(delta) and delta[0] > 0:
        arrays, special = [value(changes, index).take(pa.array(places)) for index in columns], changes.new.special
    else:
        arrays = [changes.old.batch.column(index).take(pa.array(places)) for index in columns]
        special = changes.old.special
    batch = record_batch(arrays, changes.new.batch.schema, len(places))
    special = None if special is None else special.take(pa.array(places))
    return Images(batch, np.ones(len(places), np.bool_), {}, special)


def codes(columns: Sequence[pa.Array], count: int) -> tuple[I64, int]:
    """Equal numbers for equal rows, and how many there are. Rows are told apart whatever values hold; NULL is NULL."""
    code, distinct = np.zeros(count, np.int64), 1 if count else 0
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        of_column = len(encoded.dictionary)
        if distinct * of_column >= _MOST_COMBINATIONS:  # pragma: no cover (more rows than memory holds)
            raise DecodeError("too many distinct rows to tell apart at once")
        code = code * of_column + encoded.indices.to_numpy(zero_copy_only=False)
        distinct *= of_column
        if distinct > of_column:
            again = pa.array(code).dictionary_encode()
            code, distinct = again.indices.to_numpy().astype(np.int64), len(again.dictionary)
    return code, distinct


def key_columns(relation: Relation) -> list[int]:
    places = {column.name: index for index, column in enumerate(relation.columns)}
    return [places[name] for name in relation.key]


def key_texts(columns: Sequence[pa.Array]) -> pa.Array:
    """Keys of several columns as one text: PostgreSQL's texts never hold a NUL."""
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "\0")


def keys(changes: TableChanges) -> tuple[I64, I64]:
    """The key each change found and the one it left, as numbers; -1 where it found or left no row."""
    old, new = changes.old, changes.new
    told = np.flatnonzero(old.present)
    left = np.flatnonzero(new.present)
    pairs = [
        pa.concat_arrays([_take_array(value(changes, c), left), _take_array(old.batch.column(c), told)])
        for c in key_columns(changes.relation)
    ]
    code, _ = codes(pairs, len(left) + len(told))
    before, after = _none(len(changes)), _none(len(changes))
    after[left] = code[: len(left)]
    updates = changes.operation == UPDATE
    before[updates] = after[updates]
    before[told] = code[len(left) :]
    return before, after


def value(changes: TableChanges, column: int) -> pa.Array:
    """A column of the new images, with what was not sent taken from the old image of the same change, if it has it."""
    new = changes.new.batch.column(column)
    unsent = changes.new.unchanged.get(column)
    if unsent is None or not changes.old.present.any():
        return new
    return pc.if_else(pa.array(unsent), changes.old.batch.column(column), new)


def sources(changes: TableChanges) -> dict[int, tuple[Mask, Mask]]:
    """Column → changes that did not send its value, and changes that have it, in their new image or their old one."""
    found = {}
    for column, unsent in changes.new.unchanged.items():
        is_whole = changes.old.present & (~changes.old_is_key | changes.relation.columns[column].is_identity)
        if (in_old := changes.old.unchanged.get(column)) is not None:
            is_whole &= ~in_old
        found[column] = (unsent, changes.new.present & (~unsent | is_whole))
    return found


def _row_codes(changes: TableChanges, places: I64) -> tuple[I64, I64]:
    """With identity full, old images are whole rows."""
    pairs = [
        pa.concat_arrays([_take_array(changes.old.batch.column(c), places), _take_array(value(changes, c), places)])
        for c in range(len(changes.relation.columns))
    ]
    code, _ = codes(pairs, 2 * len(places))
    return code[: len(places)], code[len(places) :]


def _involved(operation: Operations, before: I64, after: I64, chain: I64, count: int, rows: RowCodes | None) -> I64:
    """Changes of keys whose rows cannot be told from the key alone: the keys that updates left or came to."""
    moved = (before >= 0) & (after >= 0) & (before != after)
    keys = np.zeros(count + 1, np.bool_)  # one more, for the key -1
    keys[before[moved]] = True
    keys[after[moved]] = True
    if rows is not None:
        keys[_doubtful(operation, chain, moved, rows)] = True
    return np.flatnonzero(keys[before] | keys[after]) if keys.any() else np.empty(0, np.int64)


def _doubtful(operation: Operations, chain: I64, moved: Mask, rows: RowCodes) -> I64:
    """Keys to which a row came while another, that was there before, had not gone yet."""
    order = np.argsort(chain, kind="stable")
    order = order[~moved[order]]
    is_same = chain[order][1:] == chain[order][:-1]
    earlier, later = order[:-1][is_same], order[1:][is_same]
    is_insert = (operation == INSERT) | (operation == SNAPSHOT)
    is_doubled = is_insert[later] & (operation[earlier] != DELETE)
    # Only behind an insert that is the first of its key, something may be there that no change has touched yet.
    begins = np.zeros(int(chain.max(initial=-1)) + 1, np.bool_)
    first = order[np.append(True, ~is_same)] if len(order) else order
    begins[chain[first[is_insert[first]]]] = True
    unsure = np.flatnonzero(begins[chain[later]] & ~is_insert[later])
    if len(unsure):
        found, left = rows(np.concatenate([earlier[unsure], later[unsure]]))
        is_doubled[unsure] = left[: len(unsure)] != found[len(unsure) :]
    doubled: I64 = chain[later[is_doubled]]
    return doubled


def _follow(chain: I64, before: I64, after: I64, involved: I64, count: int, rows: RowCodes | None) -> int:
    """Writes the chain of each involved change, row by row; gives how many chains there are."""
    keys = before[involved].tolist(), after[involved].tolist()
    images = [row.tolist() for row in rows(involved)] if rows is not None else keys
    present: dict[int, list[tuple[int, int]]] = {}
    gone: dict[int, int] = {}
    chains, first = [], count
    for found_key, left_key, found_row, left_row in zip(*keys, *images, strict=True):
        if found_key >= 0:
            own = _taken(present.get(found_key), found_row if rows is not None else None)
        else:
            # A row deleted and inserted anew is one that was replaced.
            own = gone.pop(left_key, None)
        if own is None:
            own, count = count, count + 1
        if left_key >= 0:
            present.setdefault(left_key, []).append((own, left_row))
        else:
            gone[found_key] = own
        chains.append(own)
    if rows is not None and any(len(there) > 1 for there in present.values()):
        # Rows were rewritten between their changes, as ALTER TABLE … USING does: the key alone tells.
        return _follow(chain, before, after, involved, first, None)
    chain[involved] = chains
    return count


def _taken(there: list[tuple[int, int]] | None, row: int | None) -> int | None:
    """The chain of the row that a change found, by the row's number if there is one; None: no change touched it yet."""
    for place, (own, left_row) in enumerate(there or ()):
        if row is None or row == left_row:
            assert there is not None
            del there[place]
            return own
    return None


def _joined_images(parts: Sequence[Images]) -> Images:
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


def _take(batch: pa.RecordBatch, places: I64) -> pa.RecordBatch:
    if len(places) == len(batch) and (places == np.arange(len(batch))).all():
        return batch
    indices = pa.array(places)
    return record_batch([column.take(indices) for column in batch.columns], batch.schema, len(places))


def _take_array(array: pa.Array, places: I64) -> pa.Array:
    return array if len(places) == len(array) else array.take(pa.array(places))


def _is_any(operation: Operations, *letters: int) -> bool:
    return bool(np.isin(operation, letters).any())


def _none(count: int) -> I64:
    return np.full(count, -1, np.int64)
