"""What a run of changes comes to in the lake: which rows go, which come, and which need what is there already. Pure.

A row that changes is one that goes and one that comes. Rows that go are told by fingerprints of their keys (of the
whole row where there is no key); rows that come are whole, except where PostgreSQL did not send a large value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Relation
from tailrace.log import typed
from tailrace.log.decoding import TableChanges
from tailrace.log.evolution import specials
from tailrace.log.fold import Folded, by_unsent, copied, fold, fold_copies, has_key, images, key_columns, whole
from tailrace.log.recast import texts
from tailrace.pgoutput.columns import Images, record_batch
from tailrace.sinks.iceberg.fingerprint import Prints, Seed, fingerprints
from tailrace.sinks.iceberg.schema import may_be_special, stored
from tailrace.types import Form

I64 = npt.NDArray[np.int64]

_TEXT_TO_COMPARE: Final = frozenset({Form.FLOAT, Form.INTERVAL})
"""What Arrow does not tell apart, bit by bit."""


@dataclass(frozen=True)
class Content:
    """Rows as data files have them."""

    arrays: list[pa.Array]
    special: pa.MapArray | None
    count: int
    more: tuple[pa.Array, ...] = ()
    """What a changelog says of each change."""

    @classmethod
    def of(cls, rows: Images, relation: Relation) -> Content:
        return cls(*stored(rows, relation), len(rows))

    def nulls(self, relation: Relation) -> tuple[str, ...]:
        """Columns of the key that hold NULL: a value that they cannot hold, or one from before they were the key."""
        return tuple([relation.columns[i].name for i in key_columns(relation) if self.arrays[i].null_count])


@dataclass(frozen=True)
class Lacking:
    """Rows without some of their values, which the rows that they replace have."""

    unsent: tuple[int, ...]
    """Columns, by their place in the relation."""
    replaced: Prints
    content: Content
    """NULL in those columns."""


@dataclass(frozen=True)
class Effect:
    """On one table, under one relation."""

    relation: Relation
    target: tuple[str, str]
    span: str
    last: str
    """The position of the last change in it."""
    is_truncate: bool = False
    gone: Prints | None = None
    copies: I64 | None = None
    """Of a table without a key: how many of each that is gone."""
    lacking: tuple[Lacking, ...] = ()
    born: Content | None = None

    @property
    def contents(self) -> list[Content]:
        return [*([self.born] if self.born else []), *(lacking.content for lacking in self.lacking)]


def mirrored(changes: TableChanges, seed: Seed, *, is_load: bool) -> Effect:
    about = _about(changes)
    if changes.is_truncate:
        return replace(about, is_truncate=True)
    if is_load:
        return replace(about, born=Content.of(changes.new, changes.relation))
    return _keyed(changes, about, seed) if has_key(changes.relation) else _keyless(changes, about, seed)


def told(changes: TableChanges) -> Effect:
    """Every change a row: as it was after it; of a delete what identified it, or all of it if that was sent."""
    rows = changes.new
    if changes.old.present.any():
        gone = changes.old.present & ~changes.new.present
        arrays = [
            pc.if_else(pa.array(gone), old, new)
            for old, new in zip(changes.old.batch.columns, rows.batch.columns, strict=True)
        ]
        special = rows.special
        if changes.old.special is not None:
            none = pa.nulls(len(changes), types.SPECIALS)
            special = pc.if_else(pa.array(gone), changes.old.special, none if special is None else special)
        rows = replace(rows, batch=record_batch(arrays, rows.batch.schema, len(changes)), special=special)
    born = replace(Content.of(rows, changes.relation), more=typed.about(changes))
    return replace(_about(changes), born=born)


def _about(changes: TableChanges) -> Effect:
    last = str(changes.at.position(len(changes) - 1))
    return Effect(changes.relation, changes.target, changes.span, last)


def _keyed(changes: TableChanges, about: Effect, seed: Seed) -> Effect:
    relation, folded = changes.relation, fold(_comparable(changes))
    is_lacking = np.zeros(len(folded), np.bool_)
    for entries, source in folded.fills.values():
        is_lacking[entries[source < 0]] = True
    is_lacking &= ~folded.is_born
    gone = ~folded.is_born & ~is_lacking
    born = ~folded.is_gone & ~is_lacking
    parts: dict[str, Any] = {}
    if gone.any():
        parts["gone"] = _keys(changes, folded.origin[gone], seed)
    if is_lacking.any():
        parts["lacking"] = tuple(_lacking(changes, folded, np.flatnonzero(is_lacking), seed))
    if born.any():
        is_all = folded.is_born.all() and len(folded) == len(changes)
        new = changes.new if is_all else images(changes, folded, born)
        whole(changes, new, folded.final[born])
        parts["born"] = Content.of(new, relation)
    return replace(about, **parts)


def _keyless(changes: TableChanges, about: Effect, seed: Seed) -> Effect:
    relation, copies = changes.relation, fold_copies(_comparable(changes))
    more, fewer = copies.delta > 0, copies.delta < 0
    parts: dict[str, Any] = {}
    if fewer.any():
        rows = Content.of(copied(changes, copies, fewer), relation)
        parts["gone"] = row_prints(rows.arrays, rows.special, relation, seed, rows.count)
        parts["copies"] = -copies.delta[fewer]
    if more.any():
        entries = np.repeat(np.flatnonzero(more), copies.delta[more])
        parts["born"] = Content.of(copied(changes, copies, entries), relation)
    return replace(about, **parts)


def _lacking(changes: TableChanges, folded: Folded, entries: I64, seed: Seed) -> Iterator[Lacking]:
    """Rows with the same columns unsent, together."""
    for unsent, which, rows in by_unsent(images(changes, folded, entries)):
        replaced = _keys(changes, folded.origin[entries[which]], seed)
        yield Lacking(unsent, replaced, Content.of(rows, changes.relation))


def _keys(changes: TableChanges, origin: I64, seed: Seed) -> Prints:
    """Fingerprints of the keys of the rows that these changes found."""
    told = changes.old.present[origin]
    prints = np.empty((len(origin), 2), np.uint64)
    for images_, mask in ((changes.old, told), (changes.new, ~told)):
        if mask.any():
            rows = images_.take(origin[mask])
            arrays, special = stored(rows, changes.relation)
            prints[mask] = row_prints(arrays, special, changes.relation, seed, len(rows))
    return prints


def row_prints(
    arrays: Sequence[pa.Array], special: pa.MapArray | None, relation: Relation, seed: Seed, count: int
) -> Prints:
    """What rows are found by: the key's values, or all; and their texts where they are special."""
    places = key_columns(relation) if has_key(relation) else range(len(relation.columns))
    found = []
    for place in places:
        column = relation.columns[place]
        found.append(arrays[place])
        if may_be_special(column):
            found.append(_special_texts(special, column.name, count))
    return fingerprints(found, count, seed)


def _special_texts(special: pa.MapArray | None, name: str, count: int) -> pa.StringArray:
    if special is None or special.null_count == count:
        return pa.nulls(count, pa.string())
    return pc.map_lookup(special, pa.scalar(name, special.type.key_type), "first").cast(pa.string())


def _comparable(changes: TableChanges) -> TableChanges:
    """Such that equal values are the same to Arrow, and others are not: texts, where it cannot tell."""
    relation = changes.relation
    whole = relation.identity == "f" or not has_key(relation)
    places = range(len(relation.columns)) if whole else key_columns(relation)
    return replace(changes, old=_as_texts(changes.old, relation, places), new=_as_texts(changes.new, relation, places))


def _as_texts(rows: Images, relation: Relation, places: Sequence[int]) -> Images:
    odd = specials(rows)
    arrays = list(rows.batch.columns)
    for place in places:
        column = relation.columns[place]
        # Both images of a column, and those of other runs, must be of one kind: it follows from the type alone.
        if types.mapping(column).form in _TEXT_TO_COMPARE or may_be_special(column):
            arrays[place] = texts(arrays[place], column, odd.get(column.name))
    schema = pa.schema([f.with_type(a.type) for f, a in zip(rows.batch.schema, arrays, strict=True)])
    return replace(rows, batch=record_batch(arrays, schema, len(rows)))
