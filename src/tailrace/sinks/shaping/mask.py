"""Values that a sink must not see, made unreadable."""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.log import printing
from tailrace.pgoutput.columns import Images

REDACTED: Final = "***"


class Mask(Enum):
    NULL = "null"
    HASH = "hash"
    REDACT = "redact"

    def of(self, text: str) -> str | None:
        """What stands for one value, given as PostgreSQL's text."""
        match self:
            case Mask.NULL:
                return None
            case Mask.HASH:
                return hashlib.sha256(text.encode()).hexdigest()
            case Mask.REDACT:
                return REDACTED

    def column(self, images: Images, place: int, column: Column) -> pa.Array:
        """What stands for a column's values. NULL stays NULL: that there is no value is not hidden."""
        values = images.batch.column(place)
        if self is Mask.NULL:
            return pa.nulls(len(values), values.type)
        texts = _texts(images, place, column)
        if self is Mask.REDACT:
            there = texts.is_valid().to_numpy(zero_copy_only=False)
            if place in images.unchanged:
                there = there | images.unchanged[place]
            return pc.if_else(pa.array(there), REDACTED, pa.scalar(None, pa.string()))
        # Each distinct value once: what is worth hashing is often repeated.
        encoded = texts.dictionary_encode()
        hashed = pa.array([self.of(text) for text in encoded.dictionary.to_pylist()], pa.string())
        return hashed.take(encoded.indices)

    @property
    def hides_unchanged(self) -> bool:
        """Whether a value that was not sent shows the same as one that was."""
        return self is not Mask.HASH


def _texts(images: Images, place: int, column: Column) -> pa.StringArray:
    values = images.batch.column(place)
    if not pa.types.is_string(values.type):
        values = printing.to_text(values, column)
    if images.special is None:
        return values
    rows = np.flatnonzero(images.special.is_valid().to_numpy(zero_copy_only=False))
    texts = values.to_pylist()
    for row in rows:
        texts[row] = dict(images.special[int(row)].as_py()).get(column.name, texts[row])
    return pa.array(texts, pa.string())
