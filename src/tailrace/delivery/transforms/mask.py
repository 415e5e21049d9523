"""Masks values that a sink must not receive."""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.images import Images
from tailrace.state import postgres_text

REDACTED: Final = "***"


class Mask(Enum):
    """How a column's values are masked."""

    NULL = "null"
    HASH = "hash"
    REDACT = "redact"

    def of(self, text: str) -> str | None:
        """The masked form of one value, given as PostgreSQL's text."""
        match self:
            case Mask.NULL:
                return None
            case Mask.HASH:
                return hashlib.sha256(text.encode()).hexdigest()
            case Mask.REDACT:
                return REDACTED

    def column(self, images: Images, place: int, column: Column) -> pa.Array:
        """The masked values of a column. NULL remains NULL: masks do not hide the absence of a value."""
        values = images.batch.column(place)
        if self is Mask.NULL:
            return pa.nulls(len(values), values.type)
        texts = _texts(images, place, column)
        if self is Mask.REDACT:
            has_value = texts.is_valid().to_numpy(zero_copy_only=False)
            if place in images.unchanged:
                has_value = has_value | images.unchanged[place]
            return pc.if_else(pa.array(has_value), REDACTED, pa.scalar(None, pa.string()))
        # Hash each distinct value once: values that are worth masking are often repeated.
        encoded = texts.dictionary_encode()
        hashed = pa.array([self.of(text) for text in encoded.dictionary.to_pylist()], pa.string())
        return hashed.take(encoded.indices)

    @property
    def hides_unchanged(self) -> bool:
        """Whether an unsent value has the same masked form as any other."""
        return self is not Mask.HASH


def _texts(images: Images, place: int, column: Column) -> pa.StringArray:
    values = images.batch.column(place)
    if not pa.types.is_string(values.type):
        values = postgres_text.to_text(values, column)
    if images.special is None:
        return values
    rows = np.flatnonzero(images.special.is_valid().to_numpy(zero_copy_only=False))
    texts = values.to_pylist()
    for row in rows:
        texts[row] = dict(images.special[int(row)].as_py()).get(column.name, texts[row])
    return pa.array(texts, pa.string())
