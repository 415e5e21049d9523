"""Replays a table in memory: a snapshot's rows, to which the net effect of each run of changes is applied.

For tables without a key and tables whose key changed, because there a changed row can be in any part. The whole table
is in memory, as texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Relation
from tailrace.errors import CorruptError
from tailrace.images import Images, record_batch
from tailrace.log.decoding import Mask, TableChanges
from tailrace.state import fold
from tailrace.state.postgres_text import snapshot_images
from tailrace.state.retyping import project_texts, to_typed

# Consecutive runs are joined up to this size, so that one pass over the table applies many changes.
_JOIN_BYTES = 64 << 20


def rows(
    then: Relation, batches: Iterable[pa.RecordBatch], changes: Iterable[TableChanges], relation: Relation
) -> Iterator[Images]:
    """All rows, typed, in the columns of the relation: those of a snapshot's batches, and what changes made of them."""
    table = ReplayedTable(then)
    for batch in batches:
        table.add(snapshot_images(batch, then, as_text=True))
    for run in _join_consecutive(changes):
        table.apply(run)
    table.become(relation)
    yield from (to_typed(piece, relation) for piece in table.pieces)


def copies_after(pieces: Iterator[Images], changes: Iterable[TableChanges]) -> Iterator[Images]:
    """Rows of a table without a key, after changes of single rows under one relation. Only the changes are in memory.

    Args:
        pieces: The rows before the changes, as texts.
        changes: The changes, as texts.
    """
    for run in _join_consecutive(changes):
        pieces = _apply_copies(pieces, run)
    yield from pieces


class ReplayedTable:
    """Rows as texts, in pieces, so that no array has to hold a whole column."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.pieces: list[Images] = []

    def add(self, images: Images) -> None:
        if len(images):
            self.pieces.append(images)

    def become(self, relation: Relation) -> None:
        """Convert all rows to another relation."""
        if relation != self.relation:
            self.pieces = [project_texts(piece, [self.relation, relation]) for piece in self.pieces]
            self.relation = relation

    def apply(self, changes: TableChanges) -> None:
        self.become(changes.relation)
        if changes.is_truncate:
            self.pieces = []
        elif fold.has_key(changes.relation):
            self._apply_by_key(changes)
        else:
            self.pieces = [*_apply_copies(iter(self.pieces), changes)]

    def _apply_by_key(self, changes: TableChanges) -> None:
        net = fold.fold(changes)
        existing = np.flatnonzero(~net.is_inserted)
        keys = fold.key_columns(self.relation)
        wanted = fold.key_texts([_key_image(changes, c, net.origin[existing]) for c in keys])
        final = fold.final_images(changes, net, ~net.is_deleted)
        final_index = np.cumsum(~net.is_deleted) - 1
        matched = 0
        for number, piece in enumerate(self.pieces):
            own = fold.key_texts([piece.batch.column(c) for c in keys])
            entry = pc.index_in(own, value_set=wanted).fill_null(-1).to_numpy(zero_copy_only=False)
            changed = np.flatnonzero(entry >= 0)
            entries = existing[entry[changed]]
            is_updated = ~net.is_deleted[entries]
            final = _fill(final, final_index[entries[is_updated]], piece, changed[is_updated])
            matched += len(changed)
            self.pieces[number] = piece.take(np.flatnonzero(entry < 0)) if len(changed) else piece
        if matched != len(existing) and not changes.relation.is_upsert:
            raise _missing_rows(changes, len(existing) - matched)
        self.pieces = [piece for piece in self.pieces if len(piece)]
        self.add(Images(final.batch, final.present, {}, None))


def _apply_copies(pieces: Iterator[Images], changes: TableChanges) -> Iterator[Images]:
    copies = fold.fold_copies(changes)
    fewer, more = np.flatnonzero(copies.delta < 0), np.flatnonzero(copies.delta > 0)
    remaining = -copies.delta[fewer]
    removed = fold.copied_rows(changes, copies, fewer).batch
    for piece in pieces:
        kept = piece
        if remaining.any():
            kept = piece.take(np.flatnonzero(~_remove_copies(piece.batch, removed, remaining)))
        if len(kept):
            yield kept
    if remaining.any():
        raise _missing_rows(changes, int(remaining.sum()))
    if len(more):
        yield fold.copied_rows(changes, copies, more).take(np.repeat(np.arange(len(more)), copies.delta[more]))


def _remove_copies(rows: pa.RecordBatch, removed: pa.RecordBatch, remaining: fold.I64) -> Mask:
    """A mask of the rows to remove: of each removed row, up to the remaining number of copies. Updates `remaining`."""
    pairs = [pa.concat_arrays(pair) for pair in zip(removed.columns, rows.columns, strict=True)]
    code, count = fold.row_codes(pairs, len(removed) + len(rows))
    entry = np.full(count, -1, np.int64)
    entry[code[: len(removed)]] = np.arange(len(removed))
    of = entry[code[len(removed) :]]
    order = np.argsort(of, kind="stable")
    begins = np.append(True, of[order][1:] != of[order][:-1])
    rank = np.empty(len(of), np.int64)
    rank[order] = np.arange(len(of)) - np.maximum.accumulate(np.where(begins, np.arange(len(of)), 0))
    is_removed: Mask = (of >= 0) & (rank < remaining[of])
    remaining -= np.bincount(of[is_removed], minlength=len(remaining))
    return is_removed


def _key_image(changes: TableChanges, column: int, indexes: fold.I64) -> pa.Array:
    """The key of the row before each change: the old one if it was sent, else the new one."""
    old, new = changes.old.batch.column(column), changes.new.batch.column(column)
    return pc.if_else(pa.array(changes.old.present), old, new).take(pa.array(indexes))


def _fill(final: Images, indexes: fold.I64, piece: Images, rows: fold.I64) -> Images:
    """The final images, with values that only the row before has filled in from the piece."""
    arrays = list(final.batch.columns)
    for column, mask in final.unchanged.items():
        lacks = mask[indexes]
        if lacks.any():
            is_filled = np.zeros(len(final), np.bool_)
            is_filled[indexes[lacks]] = True
            order = np.argsort(indexes[lacks])
            values = piece.batch.column(column).take(pa.array(rows[lacks][order]))
            arrays[column] = pc.replace_with_mask(arrays[column], pa.array(is_filled), values)
    return Images(record_batch(arrays, final.batch.schema, len(final)), final.present, final.unchanged, None)


def _join_consecutive(changes: Iterable[TableChanges]) -> Iterator[TableChanges]:
    """Consecutive runs of one relation, joined."""
    pending: list[TableChanges] = []
    size = 0
    for run in changes:
        if pending and (
            run.is_truncate or pending[0].is_truncate or run.relation != pending[0].relation or size > _JOIN_BYTES
        ):
            yield fold.join_runs(pending)
            pending, size = [], 0
        pending.append(run)
        size += run.new.batch.nbytes + run.old.batch.nbytes
    if pending:
        yield fold.join_runs(pending)


def _missing_rows(changes: TableChanges, count: int) -> CorruptError:
    first, last = changes.at.position(0), changes.at.position(len(changes) - 1)
    return CorruptError(
        f"{changes.relation.qualified_name}: changes from {first} to {last} refer to {count} rows that do not exist",
        f"take a new snapshot: `tailrace snapshot {changes.relation.qualified_name}`",
    )
