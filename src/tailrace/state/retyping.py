"""Converts rows given as texts to a later relation, and to the typed columns of a relation. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tailrace import text, types
from tailrace.change import Relation
from tailrace.errors import DecodeError
from tailrace.images import Images, record_batch
from tailrace.pgoutput.cell import Cells, UnreadableError, read
from tailrace.state.cast import column_texts, recast
from tailrace.state.evolution import origins_along, project, special_map


def project_texts(images: Images, chain: Sequence[Relation]) -> Images:
    """Rows of the chain's first relation as rows of its last. Casts values of columns whose type changed."""
    old, new = chain[0], chain[-1]
    if len(chain) == 1 or (len(chain) == 2 and old == new):
        return images
    found = project(images, old, new, as_text=True, via=chain[1:-1])
    arrays = list(found.batch.columns)
    for index, (column, origin) in enumerate(zip(new.columns, origins_along(chain), strict=True)):
        if origin.index is not None and types.mapping(before := old.columns[origin.index]) != types.mapping(column):
            # A value that the new type cannot hold keeps its old text, which `to_typed` makes a special value.
            array, special_texts = recast(arrays[index], before, column)
            arrays[index] = column_texts(array, column, special_texts)
    return Images(
        record_batch(arrays, types.schema(new, as_text=True), len(found)), found.present, found.unchanged, None
    )


def to_typed(images: Images, relation: Relation) -> Images:
    """Rows given as texts, in the columns' mapped types, as if they had been decoded with those."""
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


def _read(array: pa.StringArray, mapping: types.TypeMapping) -> tuple[pa.Array, dict[int, str]]:
    try:
        values, special_rows = read(Cells.of(array), mapping)
    except UnreadableError:
        return _read_one_by_one(array, mapping)
    return values, {int(row): array[int(row)].as_py() for row in special_rows}


def _read_one_by_one(array: pa.StringArray, mapping: types.TypeMapping) -> tuple[pa.Array, dict[int, str]]:
    """Read a column that has values of another type which could not be cast: those become special values."""
    values, special_texts = [], {}
    for row, value in enumerate(array.to_pylist()):
        try:
            known = None if value is None else mapping.arrow_value(value.encode())
        except DecodeError:
            known = text.SPECIAL
        if known is text.SPECIAL:
            special_texts[row], known = value, None
        values.append(known)
    return pa.array(values, mapping.arrow), special_texts
