"""Selects and masks columns of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tailrace import types
from tailrace.change import Relation
from tailrace.delivery.transforms.mask import Mask
from tailrace.images import Images, record_batch


def project(
    images: Images, relation: Relation, shaped: Relation, places: Sequence[int], masks: Mapping[int, Mask]
) -> Images:
    """Images with only the delivered columns, masked.

    Args:
        images: The images.
        relation: Their relation.
        shaped: The delivered relation.
        places: The index in `relation` of each column of `shaped`.
        masks: Masks, by the index in `relation`.
    """
    arrays, fields, unchanged = [], [], {}
    for target, place in enumerate(places):
        mask = masks.get(place)
        array = images.batch.column(place) if mask is None else mask.column(images, place, relation.columns[place])
        arrays.append(array)
        fields.append(types.field(shaped.columns[target]).with_type(array.type))
        if place in images.unchanged and not (mask is not None and mask.hides_unchanged):
            unchanged[target] = images.unchanged[place]
    visible = {relation.columns[place].name for place in places if place not in masks}
    special = None if images.special is None else _special(images.special, visible)
    return Images(record_batch(arrays, pa.schema(fields), len(images)), images.present, unchanged, special)


def _special(special: pa.MapArray, visible: set[str]) -> pa.MapArray | None:
    """Special values without those of excluded or masked columns, which they would reveal."""
    rows = [None if row is None else [(name, text) for name, text in row if name in visible] for row in _pairs(special)]
    if not any(rows):
        return None
    return pa.array([row or None for row in rows], types.SPECIALS)


def _pairs(special: pa.MapArray) -> list[list[tuple[str, str]] | None]:
    return special.to_pylist()  # type: ignore[no-any-return]
