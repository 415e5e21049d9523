"""Rows as texts under one relation → rows as texts, or typed, under a later one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tailrace import text, types
from tailrace.change import Relation
from tailrace.errors import DecodeError
from tailrace.log.evolution import origins_along, project, special_map
from tailrace.log.recast import recast, texts
from tailrace.pgoutput.cells import Cells, UnreadableError, read
from tailrace.pgoutput.columns import Images, record_batch


def project_texts(images: Images, chain: Sequence[Relation]) -> Images:
    """Rows of the chain's first relation as rows of its last; values of columns whose type changed are cast."""
    old, new = chain[0], chain[-1]
    if len(chain) == 1 or (len(chain) == 2 and old == new):
        return images
    found = project(images, old, new, as_text=True, via=chain[1:-1])
    arrays = list(found.batch.columns)
    for index, (column, origin) in enumerate(zip(new.columns, origins_along(chain), strict=True)):
        if origin.index is not None and types.mapping(before := old.columns[origin.index]) != types.mapping(column):
            # What has no place in the new type stays the text it was; `typed` takes it for a special value.
            array, odd = recast(arrays[index], before, column)
            arrays[index] = texts(array, column, odd)
    return Images(
        record_batch(arrays, types.schema(new, as_text=True), len(found)), found.present, found.unchanged, None
    )


def typed(images: Images, relation: Relation) -> Images:
    """Rows given as texts, in the columns' mapped types, as if they had been decoded so."""
    arrays: list[pa.Array] = []
    special: dict[str, dict[int, str]] = {}
    for column, array in zip(relation.columns, images.batch.columns, strict=True):
        mapping = types.mapping(column)
        values, found = (array, {}) if mapping.arrow == array.type else _read(array, mapping)
        arrays.append(values)
        if found:
            special[column.name] = found
    batch = record_batch(arrays, types.schema(relation), len(images))
    return Images(batch, images.present, images.unchanged, special_map(special, len(images)))


def _read(array: pa.StringArray, mapping: types.Mapping) -> tuple[pa.Array, dict[int, str]]:
    try:
        values, odd = read(Cells.of(array), mapping)
    except UnreadableError:
        return _one_by_one(array, mapping)
    return values, {int(row): array[int(row)].as_py() for row in odd}


def _one_by_one(array: pa.StringArray, mapping: types.Mapping) -> tuple[pa.Array, dict[int, str]]:
    """For a column with values of another type, that no cast took to this one: those are special."""
    values, odd = [], {}
    for row, value in enumerate(array.to_pylist()):
        try:
            known = None if value is None else mapping.arrow_value(value.encode())
        except DecodeError:
            known = text.SPECIAL
        if known is text.SPECIAL:
            odd[row], known = value, None
        values.append(known)
    return pa.array(values, mapping.arrow), odd
