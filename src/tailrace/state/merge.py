"""Merges a snapshot's rows with the changes since, one part at a time.

The index has the keys of changed rows, not the rows: a row is read from the log once its last change is known. A reader
of one part builds the whole index; retains, replaces or drops the rows of its own chunks; and adds its share of the
rows inserted since. Values that PostgreSQL did not send again are spilled until their row is complete.
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
from tailrace.images import Images, record_batch
from tailrace.log.decoding import UPDATE, Mask, TableChanges
from tailrace.state import fold
from tailrace.state.evolution import origins_along, project
from tailrace.state.fold import I64, NetChanges
from tailrace.state.key_index import KeyIndex, row_hashes
from tailrace.state.postgres_text import snapshot_images
from tailrace.state.retyping import project_texts, to_typed
from tailrace.state.spill import Spill


@dataclass(frozen=True)
class ChangeIndex:
    """The keys of the rows that changed since a snapshot, and the net effect of the changes."""

    snapshot: Relation
    """The snapshot's relation."""
    relation: Relation
    """The state's relation."""
    chain: tuple[Relation, ...]
    """The relations from the snapshot's to the state's."""
    key: tuple[int, ...]
    """Indexes of the key's columns in the snapshot's relation."""
    is_void: bool
    """The table was truncated since, so that no row of the snapshot remains."""
    first_run: int
    """The first run after the last TRUNCATE. Earlier runs have no effect."""
    net: NetChanges
    changed_keys: KeyIndex
    """Keys of the snapshot's rows that the changes affected."""
    entries: I64
    """For each of these keys, its entry in `net`."""

    @classmethod
    def of(cls, changes: Iterable[TableChanges], snapshot: Relation, relation: Relation) -> ChangeIndex | None:
        """The index of these changes; None if keys do not identify the affected rows."""
        builder = _IndexBuilder(snapshot)
        for run in changes:
            if not builder.add(run):
                return None
        return builder.build(relation)


@dataclass
class _RunKeys:
    """The keys of a run, and what else the index needs of it."""

    step: int
    """The index of its relation in the chain."""
    operation: npt.NDArray[np.uint8]
    with_old: I64
    with_new: I64
    old_keys: pa.Array
    new_keys: pa.Array
    unsent: dict[int, tuple[Mask, Mask]]
    row_hashes: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]] | None


class _IndexBuilder:
    def __init__(self, snapshot: Relation) -> None:
        self.chain = [snapshot]
        self.key = sorted(fold.key_columns(snapshot)) if fold.has_key(snapshot) else []
        self.runs: list[_RunKeys] = []
        self.is_void = False
        self.count = 0
        self.first_run = 0

    def add(self, run: TableChanges) -> bool:
        """Add a run. Returns False if its keys do not identify rows of the snapshot."""
        if run.relation != self.chain[-1]:
            self.chain.append(run.relation)
        self.count += 1
        if run.is_truncate:
            self.runs, self.is_void, self.first_run = [], True, self.count
            return True
        columns = self._key_columns(run.relation)
        if columns is None:
            return False
        fold.require_values(run)
        with_old, with_new = np.flatnonzero(run.old.present), np.flatnonzero(run.new.present)
        old = fold.key_texts([run.old.batch.column(c) for c in columns])
        new = fold.key_texts([fold.new_values(run, c) for c in columns])
        self.runs.append(
            _RunKeys(
                len(self.chain) - 1,
                run.operation,
                with_old,
                with_new,
                old.take(pa.array(with_old)),
                new.take(pa.array(with_new)),
                fold.unsent_columns(run),
                _row_hashes(run) if run.relation.identity == "f" else None,
            )
        )
        return True

    def _key_columns(self, relation: Relation) -> list[int] | None:
        """Indexes in the relation of the snapshot's key columns, in their order; None if the key changed since."""
        if not fold.has_key(relation) or not self.key:
            return None
        origins = origins_along(self.chain)
        by_origin = {origins[c].index: c for c in fold.key_columns(relation)}
        if sorted(-1 if index is None else index for index in by_origin) != self.key:
            return None
        columns = [by_origin[index] for index in self.key]
        then, now = self.chain[0].columns, relation.columns
        if any(_type_name(then[i]) != _type_name(now[c]) for i, c in zip(self.key, columns, strict=True)):
            return None
        return columns

    def build(self, relation: Relation) -> ChangeIndex:
        if self.chain[-1] != relation:
            self.chain.append(relation)
        operation = _concat([r.operation for r in self.runs], np.uint8)
        bases = np.cumsum([0, *(len(r.operation) for r in self.runs)])
        with_new = _concat([r.with_new + base for r, base in zip(self.runs, bases[:-1], strict=True)], np.int64)
        with_old = _concat([r.with_old + base for r, base in zip(self.runs, bases[:-1], strict=True)], np.int64)
        texts = [r.new_keys for r in self.runs] + [r.old_keys for r in self.runs]
        # All keys together may be too large for 32-bit offsets.
        keys = pa.chunked_array([k.cast(pa.large_string()) for k in texts], pa.large_string()).combine_chunks()
        encoded = keys.dictionary_encode()
        code = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        before, after = np.full(len(operation), -1, np.int64), np.full(len(operation), -1, np.int64)
        after[with_new] = code[: len(with_new)]
        updates = operation == UPDATE
        before[updates] = after[updates]
        before[with_old] = code[len(with_new) :]
        net = fold.fold_keys(operation, before, after, self._unsent_columns(), self._row_codes())
        entries = np.flatnonzero(~net.is_inserted)
        origins = encoded.dictionary.take(pa.array(before[net.origin[entries]]))
        return ChangeIndex(
            self.chain[0],
            relation,
            tuple(self.chain),
            tuple(self.key),
            self.is_void,
            self.first_run,
            net,
            KeyIndex(origins),
            entries,
        )

    def _unsent_columns(self) -> dict[int, tuple[Mask, Mask]]:
        """Unsent values over all runs, as in `fold_keys`, by column of the state's relation."""
        targets: dict[int, dict[int, int]] = {}
        for step in {r.step for r in self.runs}:
            origins = origins_along([*self.chain[step:]])
            targets[step] = {o.index: c for c, o in enumerate(origins) if o.index is not None}
        columns = {targets[r.step][c] for r in self.runs for c in r.unsent if c in targets[r.step]}
        found = {}
        for column in columns:
            masks = []
            for run in self.runs:
                mine = next((m for c, m in run.unsent.items() if targets[run.step].get(c) == column), None)
                has_new = np.zeros(len(run.operation), np.bool_)
                has_new[run.with_new] = True
                masks.append(mine if mine is not None else (np.zeros(len(run.operation), np.bool_), has_new))
            found[column] = (np.concatenate([m[0] for m in masks]), np.concatenate([m[1] for m in masks]))
        return found

    def _row_codes(self) -> fold.RowCodes | None:
        """Row codes over all runs; None unless all runs have one relation, because others have other texts."""
        hashes = [r.row_hashes for r in self.runs if r.row_hashes is not None]
        if len(hashes) < len(self.runs) or not hashes or len({r.step for r in self.runs}) > 1:
            return None
        before, after = (np.concatenate([h[i] for h in hashes]).view(np.int64) for i in (0, 1))
        return lambda changes: (before[changes], after[changes])


def rows(
    index: ChangeIndex, batches: Iterable[pa.RecordBatch], changes: Iterable[TableChanges], part: int, parts: int
) -> Iterator[Images]:
    """The rows of one part: those of the snapshot's batches given, and every `parts`-th of those inserted since."""
    net, relation = index.net, index.relation
    # A source of upserts does not say which rows exist: all that changed count as inserted, and the snapshot's do not.
    inserted = np.flatnonzero(~net.is_deleted if index.snapshot.is_upsert else net.is_inserted)
    mine = [inserted[part::parts]]
    with closing(Spill(len(net))) as spill:
        for batch in () if index.is_void else batches:
            entry = _entries(index, batch)
            unchanged = snapshot_images(batch, index.snapshot, as_text=False)
            is_changed = entry >= 0
            if is_changed.any():
                if not index.snapshot.is_upsert:
                    mine.append(entry[is_changed])
                    _spill_unsent(index, spill, batch, entry)
                unchanged = unchanged.take(~is_changed)
            if len(unchanged):
                yield project(unchanged, index.snapshot, relation, via=index.chain[1:-1])
        entries = np.concatenate(mine)
        entries = entries[~net.is_deleted[entries]]
        yield from _final_rows(index, spill, changes, entries)


def _entries(index: ChangeIndex, batch: pa.RecordBatch) -> I64:
    """The entry in the index of each of a snapshot's rows; -1 for rows that did not change."""
    if not len(index.entries):
        return np.full(len(batch), -1, np.int64)
    own = replace(index.snapshot, columns=tuple([index.snapshot.columns[c] for c in index.key]))
    key_batch = pa.RecordBatch.from_arrays(
        [*(batch.column(c) for c in index.key), batch.column(batch.num_columns - 1)],
        names=[*(c.name for c in own.columns), "special"],
    )
    keys = fold.key_texts(snapshot_images(key_batch, own, as_text=True).batch.columns)
    found = index.changed_keys.find(keys)
    return np.where(found >= 0, index.entries[found], -1)


def _spill_unsent(index: ChangeIndex, spill: Spill, batch: pa.RecordBatch, entry: I64) -> None:
    """Spill values of the snapshot's rows that no change since has sent."""
    for column, (entries, source) in index.net.fills.items():
        is_needed = np.zeros(len(index.net), np.bool_)
        is_needed[entries[source < 0]] = True
        rows = np.flatnonzero((entry >= 0) & is_needed[entry])
        if len(rows):
            images = snapshot_images(batch.take(pa.array(rows)), index.snapshot, as_text=True)
            spill.put(column, entry[rows], project_texts(images, index.chain).batch.column(column))


def _final_rows(index: ChangeIndex, spill: Spill, changes: Iterable[TableChanges], entries: I64) -> Iterator[Images]:
    """The final rows of these entries, in log order."""
    net = index.net
    final = net.final[entries]
    entries, final = entries[np.argsort(final)], np.sort(final)
    fills = {c: _ColumnFill.of(net, c, entries) for c in net.fills}
    base = 0
    chain = list(index.chain)
    for number, run in enumerate(changes):
        while chain[0] != run.relation:
            chain.pop(0)
        if number < index.first_run:
            continue
        own = slice(*np.searchsorted(final, [base, base + len(run)]))
        sent = {c: fill.sent_between(base, base + len(run)) for c, fill in fills.items()}
        needed = np.unique(np.concatenate([final[own], *(source for _, source in sent.values())]))
        if len(needed):
            images = project_texts(_new_images(run.take(needed - base)), chain)
            for column, (waiting, source) in sent.items():
                rows = pa.array(np.searchsorted(needed, source))
                spill.put(column, waiting, images.batch.column(column).take(rows))
            mine = images.take(np.searchsorted(needed, final[own]))
            if len(mine):
                yield to_typed(_fill(mine, entries[own], fills, spill), index.relation)
        base += len(run)


@dataclass(frozen=True)
class _ColumnFill:
    """Where the values of one column are that final rows lack."""

    is_lacking: Mask
    """By entry, whether its final row lacks the value."""
    waiting: I64
    """Entries whose value is in an earlier change than their final one, ordered by that change."""
    source: I64
    """The change that has the value, for each of `waiting`."""

    @classmethod
    def of(cls, net: NetChanges, column: int, mine: I64) -> _ColumnFill:
        entries, source = net.fills[column]
        is_mine = np.zeros(len(net), np.bool_)
        is_mine[mine] = True
        # If the final change has the value in its own old image, nothing has to be filled in.
        is_needed = is_mine[entries] & (source != net.final[entries])
        entries, source = entries[is_needed], source[is_needed]
        is_lacking = np.zeros(len(net), np.bool_)
        is_lacking[entries] = True
        order = np.argsort(source, kind="stable")
        order = order[source[order] >= 0]
        return cls(is_lacking, entries[order], source[order])

    def sent_between(self, low: int, high: int) -> tuple[I64, I64]:
        """The entries, and the changes, of the values that changes from `low` to `high` have."""
        own = slice(*np.searchsorted(self.source, [low, high]))
        return self.waiting[own], self.source[own]


def _new_images(run: TableChanges) -> Images:
    """New images, with unsent values taken from the change's own old image if that has them."""
    arrays = [fold.new_values(run, c) for c in range(len(run.relation.columns))]
    batch = fold.rows_without_operands(run.relation, record_batch(arrays, run.new.batch.schema, len(run)))
    return Images(batch, run.new.present, {}, None)


def _fill(images: Images, entries: I64, fills: dict[int, _ColumnFill], spill: Spill) -> Images:
    """The images with the values filled in that they lack."""
    arrays = list(images.batch.columns)
    for column, fill in fills.items():
        lacks = fill.is_lacking[entries]
        if lacks.any():
            values = spill.get(column, entries[lacks])
            arrays[column] = pc.replace_with_mask(arrays[column], pa.array(lacks), values)
    return Images(record_batch(arrays, images.batch.schema, len(images)), images.present, {}, None)


def _row_hashes(run: TableChanges) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Hashes of whole rows, old and new. With replica identity full, old images are whole rows."""
    columns = range(len(run.relation.columns))
    return row_hashes(run.old.batch.columns), row_hashes([fold.new_values(run, c) for c in columns])


def _type_name(column: Column) -> str:
    return types.sql_name(column.type, column.modifier)


def _concat(arrays: Sequence[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
