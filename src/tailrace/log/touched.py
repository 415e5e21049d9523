"""Which rows of a snapshot the changes since touched, and the state's rows made from both, one share at a time.

The index holds keys, never rows: one that was touched is read from the log when all that is to be known of it is known.
Whoever reads a share makes the whole index, has the rows of its own chunks kept, replaced or dropped, and takes its
part of the rows that were born since. Values that PostgreSQL did not send again wait on a shelf for their row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Column, Relation
from tailrace.log import fold
from tailrace.log.decoding import UPDATE, Mask, TableChanges
from tailrace.log.evolution import origins_along, project
from tailrace.log.fold import I64, Folded
from tailrace.log.keys import Keys, row_hashes
from tailrace.log.printing import snapshot_images
from tailrace.log.retyping import project_texts, typed
from tailrace.log.shelf import Shelf
from tailrace.pgoutput.columns import Images, record_batch


@dataclass(frozen=True)
class Index:
    snapshot: Relation
    relation: Relation
    """The state's."""
    chain: tuple[Relation, ...]
    """From the snapshot's relation to the state's."""
    key: tuple[int, ...]
    """Columns of the snapshot's relation."""
    is_void: bool
    """The table was truncated since: of the snapshot nothing is left."""
    first_run: int
    """The first run that counts: the one after the last TRUNCATE."""
    folded: Folded
    touched: Keys
    """Of rows that were there before."""
    entries: I64
    """Of each, its entry in `folded`."""

    @classmethod
    def of(cls, changes: Iterable[TableChanges], snapshot: Relation, relation: Relation) -> Index | None:
        """None: keys do not tell which rows were touched."""
        making = _Making(snapshot)
        for run in changes:
            if not making.add(run):
                return None
        return making.index(relation)


@dataclass
class _Run:
    """What is kept of a run."""

    place: int
    """Of its relation in the chain."""
    operation: npt.NDArray[np.uint8]
    told: I64
    left: I64
    told_keys: pa.Array
    left_keys: pa.Array
    unsent: dict[int, tuple[Mask, Mask]]
    row_hashes: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]] | None


class _Making:
    def __init__(self, snapshot: Relation) -> None:
        self.chain = [snapshot]
        self.key = sorted(fold.key_columns(snapshot)) if fold.has_key(snapshot) else []
        self.runs: list[_Run] = []
        self.is_void = False
        self.count = 0
        self.first_run = 0

    def add(self, run: TableChanges) -> bool:
        """Whether keys still tell."""
        if run.relation != self.chain[-1]:
            self.chain.append(run.relation)
        self.count += 1
        if run.is_truncate:
            self.runs, self.is_void, self.first_run = [], True, self.count
            return True
        columns = self._key_of(run.relation)
        if columns is None:
            return False
        told, left = np.flatnonzero(run.old.present), np.flatnonzero(run.new.present)
        old = fold.key_texts([run.old.batch.column(c) for c in columns])
        new = fold.key_texts([fold.value(run, c) for c in columns])
        self.runs.append(
            _Run(
                len(self.chain) - 1,
                run.operation,
                told,
                left,
                old.take(pa.array(told)),
                new.take(pa.array(left)),
                fold.sources(run),
                _row_hashes(run) if run.relation.identity == "f" else None,
            )
        )
        return True

    def _key_of(self, relation: Relation) -> list[int] | None:
        """The relation's columns that are the snapshot's key, in its order; None if the key is another one now."""
        if not fold.has_key(relation) or not self.key:
            return None
        origins = origins_along(self.chain)
        of_key = {origins[c].index: c for c in fold.key_columns(relation)}
        if sorted(-1 if index is None else index for index in of_key) != self.key:
            return None
        columns = [of_key[index] for index in self.key]
        then, now = self.chain[0].columns, relation.columns
        if any(_kind(then[i]) != _kind(now[c]) for i, c in zip(self.key, columns, strict=True)):
            return None
        return columns

    def index(self, relation: Relation) -> Index:
        if self.chain[-1] != relation:
            self.chain.append(relation)
        operation = _joined([r.operation for r in self.runs], np.uint8)
        bases = np.cumsum([0, *(len(r.operation) for r in self.runs)])
        left = _joined([r.left + base for r, base in zip(self.runs, bases[:-1], strict=True)], np.int64)
        told = _joined([r.told + base for r, base in zip(self.runs, bases[:-1], strict=True)], np.int64)
        texts = [r.left_keys for r in self.runs] + [r.told_keys for r in self.runs]
        # All keys together may be larger than what 32-bit offsets reach.
        keys = pa.chunked_array([k.cast(pa.large_string()) for k in texts], pa.large_string()).combine_chunks()
        encoded = keys.dictionary_encode()
        code = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        before, after = np.full(len(operation), -1, np.int64), np.full(len(operation), -1, np.int64)
        after[left] = code[: len(left)]
        updates = operation == UPDATE
        before[updates] = after[updates]
        before[told] = code[len(left) :]
        folded = fold.fold_keys(operation, before, after, self._unsent(), self._rows())
        entries = np.flatnonzero(~folded.is_born)
        origins = encoded.dictionary.take(pa.array(before[folded.origin[entries]]))
        return Index(
            self.chain[0],
            relation,
            tuple(self.chain),
            tuple(self.key),
            self.is_void,
            self.first_run,
            folded,
            Keys(origins),
            entries,
        )

    def _unsent(self) -> dict[int, tuple[Mask, Mask]]:
        """By columns of the state's relation, over all runs."""
        own: dict[int, dict[int, int]] = {}
        for place in {r.place for r in self.runs}:
            origins = origins_along([*self.chain[place:]])
            own[place] = {o.index: c for c, o in enumerate(origins) if o.index is not None}
        wanted = {own[r.place][c] for r in self.runs for c in r.unsent if c in own[r.place]}
        found = {}
        for column in wanted:
            masks = []
            for run in self.runs:
                mine = next((m for c, m in run.unsent.items() if own[run.place].get(c) == column), None)
                has_new = np.zeros(len(run.operation), np.bool_)
                has_new[run.left] = True
                masks.append(mine if mine is not None else (np.zeros(len(run.operation), np.bool_), has_new))
            found[column] = (np.concatenate([m[0] for m in masks]), np.concatenate([m[1] for m in masks]))
        return found

    def _rows(self) -> fold.RowCodes | None:
        """Only within one shape: rows of another one have other texts."""
        hashes = [r.row_hashes for r in self.runs if r.row_hashes is not None]
        if len(hashes) < len(self.runs) or not hashes or len({r.place for r in self.runs}) > 1:
            return None
        found, left = (np.concatenate([h[i] for h in hashes]).view(np.int64) for i in (0, 1))
        return lambda places: (found[places], left[places])


def rows(
    index: Index, batches: Iterable[pa.RecordBatch], changes: Iterable[TableChanges], part: int, parts: int
) -> Iterator[Images]:
    """The rows of one share: of the snapshot's batches given, and every so many-th of those born since."""
    folded, relation = index.folded, index.relation
    born = np.flatnonzero(folded.is_born)
    mine = [born[part::parts]]
    with closing(Shelf(len(folded))) as shelf:
        for batch in () if index.is_void else batches:
            entry = _entries(index, batch)
            untouched = snapshot_images(batch, index.snapshot, as_text=False)
            is_touched = entry >= 0
            if is_touched.any():
                mine.append(entry[is_touched])
                _put_aside(index, shelf, batch, entry)
                untouched = untouched.take(~is_touched)
            if len(untouched):
                yield project(untouched, index.snapshot, relation, via=index.chain[1:-1])
        entries = np.concatenate(mine)
        entries = entries[~folded.is_gone[entries]]
        yield from _replaced(index, shelf, changes, entries)


def _entries(index: Index, batch: pa.RecordBatch) -> I64:
    """The entry that each of a snapshot's rows has in the index; -1 for one that no change touched."""
    if not len(index.entries):
        return np.full(len(batch), -1, np.int64)
    own = replace(index.snapshot, columns=tuple([index.snapshot.columns[c] for c in index.key]))
    slim = pa.RecordBatch.from_arrays(
        [*(batch.column(c) for c in index.key), batch.column(batch.num_columns - 1)],
        names=[*(c.name for c in own.columns), "special"],
    )
    keys = fold.key_texts(snapshot_images(slim, own, as_text=True).batch.columns)
    found = index.touched.find(keys)
    return np.where(found >= 0, index.entries[found], -1)


def _put_aside(index: Index, shelf: Shelf, batch: pa.RecordBatch, entry: I64) -> None:
    """Values that rows of the snapshot have and no change since sent."""
    for column, (entries, source) in index.folded.fills.items():
        waiting = np.zeros(len(index.folded), np.bool_)
        waiting[entries[source < 0]] = True
        places = np.flatnonzero((entry >= 0) & waiting[entry])
        if len(places):
            images = snapshot_images(batch.take(pa.array(places)), index.snapshot, as_text=True)
            shelf.put(column, entry[places], project_texts(images, index.chain).batch.column(column))


def _replaced(index: Index, shelf: Shelf, changes: Iterable[TableChanges], entries: I64) -> Iterator[Images]:
    """The final rows of these entries, in the log's order."""
    folded = index.folded
    final = folded.final[entries]
    entries, final = entries[np.argsort(final)], np.sort(final)
    fills = {c: _Fill.of(folded, c, entries) for c in folded.fills}
    base = 0
    chain = list(index.chain)
    for number, run in enumerate(changes):
        while chain[0] != run.relation:
            chain.pop(0)
        if number < index.first_run:
            continue
        own = slice(*np.searchsorted(final, [base, base + len(run)]))
        asked = {c: fill.asked(base, base + len(run)) for c, fill in fills.items()}
        wanted = np.unique(np.concatenate([final[own], *(source for _, source in asked.values())]))
        if len(wanted):
            images = project_texts(_whole(run.take(wanted - base)), chain)
            for column, (waiting, source) in asked.items():
                places = pa.array(np.searchsorted(wanted, source))
                shelf.put(column, waiting, images.batch.column(column).take(places))
            mine = images.take(np.searchsorted(wanted, final[own]))
            if len(mine):
                yield typed(_filled(mine, entries[own], fills, shelf), index.relation)
        base += len(run)


@dataclass(frozen=True)
class _Fill:
    """One column's values that are missing from final rows."""

    is_lacking: Mask
    """By entry."""
    waiting: I64
    """Entries whose value is in a change before their final one, by that change."""
    source: I64

    @classmethod
    def of(cls, folded: Folded, column: int, mine: I64) -> _Fill:
        entries, source = folded.fills[column]
        is_mine = np.zeros(len(folded), np.bool_)
        is_mine[mine] = True
        # A change that has the value itself, in its old image, waits for nothing.
        kept = is_mine[entries] & (source != folded.final[entries])
        entries, source = entries[kept], source[kept]
        is_lacking = np.zeros(len(folded), np.bool_)
        is_lacking[entries] = True
        order = np.argsort(source, kind="stable")
        order = order[source[order] >= 0]
        return cls(is_lacking, entries[order], source[order])

    def asked(self, low: int, high: int) -> tuple[I64, I64]:
        own = slice(*np.searchsorted(self.source, [low, high]))
        return self.waiting[own], self.source[own]


def _whole(run: TableChanges) -> Images:
    """New images, with what was not sent taken from the change's own old image where that has it."""
    arrays = [fold.value(run, c) for c in range(len(run.relation.columns))]
    return Images(record_batch(arrays, run.new.batch.schema, len(run)), run.new.present, {}, None)


def _filled(images: Images, entries: I64, fills: dict[int, _Fill], shelf: Shelf) -> Images:
    arrays = list(images.batch.columns)
    for column, fill in fills.items():
        lacks = fill.is_lacking[entries]
        if lacks.any():
            values = shelf.get(column, entries[lacks])
            arrays[column] = pc.replace_with_mask(arrays[column], pa.array(lacks), values)
    return Images(record_batch(arrays, images.batch.schema, len(images)), images.present, {}, None)


def _row_hashes(run: TableChanges) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Numbers for whole rows, old and new; with identity full, old images are whole."""
    columns = range(len(run.relation.columns))
    return row_hashes(run.old.batch.columns), row_hashes([fold.value(run, c) for c in columns])


def _kind(column: Column) -> str:
    return types.sql_name(column.type, column.modifier)


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
