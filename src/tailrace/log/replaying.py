"""A table put together in memory: a snapshot's rows, then the net effect of each run of changes on all of them.

For tables without a key, and for those whose key became another one: there a row can be anywhere. All of them are in
memory at once, as texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Relation
from tailrace.errors import CorruptError
from tailrace.log import fold
from tailrace.log.decoding import Mask, TableChanges
from tailrace.log.printing import snapshot_images
from tailrace.log.retyping import project_texts, typed
from tailrace.log.snapshot import Snapshot
from tailrace.pgoutput.columns import Images, record_batch

# So that one pass over the table serves many changes.
_GATHERED_BYTES = 64 << 20


def rows(snapshot: Snapshot, changes: Iterable[TableChanges], relation: Relation) -> Iterator[Images]:
    """Every row once, typed, as the relation describes it."""
    table = Table(snapshot.relation)
    for batch in snapshot.chunks():
        table.add(snapshot_images(batch, snapshot.relation, as_text=True))
    for run in _gathered(changes):
        table.apply(run)
    table.become(relation)
    yield from (typed(piece, relation) for piece in table.pieces)


class Table:
    """Rows as texts, in pieces: no array has to hold all of a column."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.pieces: list[Images] = []

    def add(self, images: Images) -> None:
        if len(images):
            self.pieces.append(images)

    def become(self, relation: Relation) -> None:
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
            self._apply_copies(changes)

    def _apply_by_key(self, changes: TableChanges) -> None:
        folded = fold.fold(changes)
        found = np.flatnonzero(~folded.is_born)
        keys = fold.key_columns(self.relation)
        wanted = fold.key_texts([_key_image(changes, c, folded.origin[found]) for c in keys])
        final = fold.images(changes, folded, ~folded.is_gone)
        place = np.cumsum(~folded.is_gone) - 1
        matched = 0
        for number, piece in enumerate(self.pieces):
            own = fold.key_texts([piece.batch.column(c) for c in keys])
            entry = pc.index_in(own, value_set=wanted).fill_null(-1).to_numpy(zero_copy_only=False)
            touched = np.flatnonzero(entry >= 0)
            entries = found[entry[touched]]
            stays = ~folded.is_gone[entries]
            final = _filled(final, place[entries[stays]], piece, touched[stays])
            matched += len(touched)
            self.pieces[number] = piece.take(np.flatnonzero(entry < 0)) if len(touched) else piece
        if matched != len(found):
            raise _missing(changes, len(found) - matched)
        self.pieces = [piece for piece in self.pieces if len(piece)]
        self.add(Images(final.batch, final.present, {}, None))

    def _apply_copies(self, changes: TableChanges) -> None:
        copies = fold.fold_copies(changes)
        fewer, more = np.flatnonzero(copies.delta < 0), np.flatnonzero(copies.delta > 0)
        left = -copies.delta[fewer]
        removed = fold.copied(changes, copies, fewer).batch
        for number, piece in enumerate(self.pieces):
            if not left.any():
                break
            goes = _first_copies(piece.batch, removed, left)
            self.pieces[number] = piece.take(np.flatnonzero(~goes))
        if left.any():
            raise _missing(changes, int(left.sum()))
        self.pieces = [piece for piece in self.pieces if len(piece)]
        added = fold.copied(changes, copies, more)
        self.add(added.take(np.repeat(np.arange(len(more)), copies.delta[more])))


def _first_copies(there: pa.RecordBatch, removed: pa.RecordBatch, left: fold.I64) -> Mask:
    """Which rows go: of each removed one as many as are left to go, and are there. Counts `left` down."""
    pairs = [pa.concat_arrays(pair) for pair in zip(removed.columns, there.columns, strict=True)]
    code, count = fold.codes(pairs, len(removed) + len(there))
    entry = np.full(count, -1, np.int64)
    entry[code[: len(removed)]] = np.arange(len(removed))
    of = entry[code[len(removed) :]]
    order = np.argsort(of, kind="stable")
    begins = np.append(True, of[order][1:] != of[order][:-1])
    rank = np.empty(len(of), np.int64)
    rank[order] = np.arange(len(of)) - np.maximum.accumulate(np.where(begins, np.arange(len(of)), 0))
    goes: Mask = (of >= 0) & (rank < left[of])
    left -= np.bincount(of[goes], minlength=len(left))
    return goes


def _key_image(changes: TableChanges, column: int, places: fold.I64) -> pa.Array:
    """The key that each change found: the old one if it was sent, else the new one."""
    old, new = changes.old.batch.column(column), changes.new.batch.column(column)
    return pc.if_else(pa.array(changes.old.present), old, new).take(pa.array(places))


def _filled(final: Images, places: fold.I64, piece: Images, rows: fold.I64) -> Images:
    """What the row that was there before has, and nothing else, from there."""
    arrays = list(final.batch.columns)
    for column, mask in final.unchanged.items():
        lacks = mask[places]
        if lacks.any():
            there = np.zeros(len(final), np.bool_)
            there[places[lacks]] = True
            order = np.argsort(places[lacks])
            values = piece.batch.column(column).take(pa.array(rows[lacks][order]))
            arrays[column] = pc.replace_with_mask(arrays[column], pa.array(there), values)
    return Images(record_batch(arrays, final.batch.schema, len(final)), final.present, final.unchanged, None)


def _gathered(changes: Iterable[TableChanges]) -> Iterator[TableChanges]:
    """Runs of one relation that follow each other, together."""
    held: list[TableChanges] = []
    size = 0
    for run in changes:
        if held and (
            run.is_truncate or held[0].is_truncate or run.relation != held[0].relation or size > _GATHERED_BYTES
        ):
            yield fold.joined(held)
            held, size = [], 0
        held.append(run)
        size += run.new.batch.nbytes + run.old.batch.nbytes
    if held:
        yield fold.joined(held)


def _missing(changes: TableChanges, count: int) -> CorruptError:
    first, last = changes.at.position(0), changes.at.position(len(changes) - 1)
    return CorruptError(
        f"{changes.relation.qualified_name}: changes from {first} to {last} are of {count} rows that are not there",
        f"take a new snapshot: `tailrace snapshot {changes.relation.qualified_name}`",
    )
