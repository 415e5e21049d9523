"""Converts changes of one table to typed rows with the columns of one relation, and with values that Spark can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Relation
from tailrace.images import Images
from tailrace.log import json_columns
from tailrace.log.decoding import TableChanges
from tailrace.spark import schema
from tailrace.spark.changes import names_where, position_columns
from tailrace.state import evolution
from tailrace.state.postgres_text import to_text
from tailrace.text import DAY_US
from tailrace.types import Form

Mask = npt.NDArray[np.bool_]
Special = dict[str, dict[int, str]]

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_RANGES: Final = {
    Form.DATE: (pa.int32(), _FIRST_DAY, _LAST_DAY),
    Form.TIMESTAMP: (pa.int64(), _FIRST_DAY * DAY_US, (_LAST_DAY + 1) * DAY_US - 1),
    Form.TIMESTAMPTZ: (pa.int64(), _FIRST_DAY * DAY_US, (_LAST_DAY + 1) * DAY_US - 1),
}
"""The years 1 to 9999, which Spark supports. It would accept other numbers, and show wrong dates and times for them."""


@dataclass(frozen=True)
class RowConverter:
    """Gives rows the columns of `target`. `chains` has all relations of its table and of other tables with its name."""

    target: Relation
    table: int
    """The oid of the table that the name refers to. All its changes count, including those made under other names."""
    names: tuple[str, str]
    chains: Mapping[int, Sequence[Relation]]

    def accepts(self, relation: Relation) -> bool:
        return relation.oid == self.table or (relation.schema, relation.name) == self.names

    def to_batch(self, changes: TableChanges) -> pa.RecordBatch:
        new, old = self.project(changes, changes.new), self.project(changes, changes.old, ~changes.old_is_key)
        own, special = self._fit(new, changes, changes.new)
        before, before_special = self._fit(old, changes, changes.old)
        wanted = schema.rows(self.target)
        position, *numbers, times = position_columns(changes.at)
        relation_id = pa.array(np.full(len(changes), changes.relation.oid, np.int64))
        about = [json_columns.operations(changes.operation), position, *numbers, times, relation_id]
        names = [column.name for column in self.target.columns]
        fields = list(wanted.field(len(names) + len(about)).type)
        return pa.RecordBatch.from_arrays(
            [
                *own,
                *about,
                _struct(before, fields, old.present),
                names_where(new.unchanged, names, len(changes)),
                special,
                before_special,
            ],
            schema=wanted,
        )

    def project(self, changes: TableChanges, images: Images, whole: Mask | None = None) -> Images:
        relation = changes.relation
        if relation == self.target:
            return images
        between, is_later = self._way(relation)
        if is_later:
            # A column that was dropped later is not one that had not been added yet.
            whole = np.zeros(len(images), np.bool_)
        return evolution.project(images, relation, self.target, via=between, whole=whole)

    def _way(self, relation: Relation) -> tuple[Sequence[Relation], bool]:
        """Return the relations between a relation and the target, and whether the relation is later than the target."""
        chain = list(self.chains.get(relation.oid, ()))
        if relation.oid != self.target.oid or relation not in chain:
            return (), False
        at = len(chain) - 1 - chain[::-1].index(relation)
        if self.target not in chain:
            return chain[at + 1 :], False
        to = len(chain) - 1 - chain[::-1].index(self.target)
        return chain[at + 1 : to], at > to

    def _fit(self, images: Images, changes: TableChanges, sent: Images) -> tuple[list[pa.Array], pa.Array]:
        return fit_to_spark(images, self.target, self._unseen(changes, sent))

    def _unseen(self, changes: TableChanges, images: Images) -> Special:
        """Return the texts of columns that were added after the target. A running query has fixed columns, but loses no
        values."""
        relation = changes.relation
        if relation.oid != self.target.oid or not self._way(relation)[1] or not images.present.any():
            return {}
        odd = evolution.specials(images)
        found: Special = {}
        for index in evolution.dropped_columns(relation, self.target):
            column = relation.columns[index]
            texts = _fill_texts(to_text(images.batch.column(index), column), odd.get(column.name, {}))
            of_rows = {row: text for row, text in enumerate(texts.to_pylist()) if text is not None}
            if of_rows:
                found[column.name] = of_rows
        return found


def fit_to_spark(images: Images, relation: Relation, more: Special | None = None) -> tuple[list[pa.Array], pa.Array]:
    """Return the columns with the values that Spark can hold, and the texts of the other values, including `more`."""
    count = len(images)
    special: Special = {}
    known: Special | None = None
    arrays = []
    for array, column in zip(images.batch.columns, relation.columns, strict=True):
        form = types.mapping(column).form
        if form is Form.TIME:
            known = evolution.specials(images) if known is None else known
            array = _fill_texts(to_text(array, column), known.pop(column.name, {}))
        elif form in _RANGES and (outside := _outside(array, form)) is not None:
            texts = to_text(array, column).filter(outside).to_pylist()
            special[column.name] = dict(zip(np.flatnonzero(outside).tolist(), texts, strict=True))
            array = pc.if_else(outside, pa.scalar(None, array.type), array)
        arrays.append(array)
    special |= more or {}
    if known is None and not special:
        return arrays, images.special if images.special is not None else pa.nulls(count, types.SPECIALS)
    for name, of_rows in (evolution.specials(images) if known is None else known).items():
        special[name] = special.get(name, {}) | of_rows
    found = evolution.special_map(special, count)
    return arrays, pa.nulls(count, types.SPECIALS) if found is None else found


def _outside(array: pa.Array, form: Form) -> pa.BooleanArray | None:
    plain, low, high = _RANGES[form]
    numbers = array.view(plain)
    extremes = pc.min_max(numbers)
    if not extremes["min"].is_valid or (extremes["min"].as_py() >= low and extremes["max"].as_py() <= high):
        return None
    return pc.fill_null(pc.or_(pc.less(numbers, low), pc.greater(numbers, high)), False)


def _fill_texts(texts: pa.StringArray, special: Mapping[int, str]) -> pa.StringArray:
    if not special:
        return texts
    return pc.coalesce(texts, pa.array([special.get(row) for row in range(len(texts))], pa.string()))


def _struct(arrays: list[pa.Array], fields: list[pa.Field], present: Mask) -> pa.StructArray:
    if not arrays:
        return pa.array([{} if there else None for there in present], pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~present))
