"""What messages say, as a tree of typed columns. An envelope builds it, an encoding turns it into bytes.

The tree of a run of changes has one value of each column for each message. Its names and types depend on the envelope
and the table's definition alone, so it also gives the schema of the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.change import Column

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Texts:
    values: pa.Array | str
    """A column, or the same text in all messages. Never null."""


@dataclass(frozen=True)
class Integers:
    values: pa.Array | int
    """A column of 64-bit integers, or the same integer in all messages. Never null."""


@dataclass(frozen=True)
class ColumnValues:
    """The values of a table's column."""

    texts: pa.Array
    """As PostgreSQL prints them."""
    column: Column


@dataclass(frozen=True)
class NameLists:
    """A list of names in each message, such as the columns that PostgreSQL did not send."""

    items: Sequence[tuple[str, Mask | None]]
    """A name, and the messages whose list has it (None: all)."""


@dataclass(frozen=True)
class Nulls:
    """A value that Tailrace never has, of a field that others' consumers expect."""


@dataclass(frozen=True)
class Field:
    name: str
    value: Value
    present: Mask | None = None
    """The messages that have the field (None: all). In the others it is left out, or null if the encoding cannot leave
    a field out."""
    is_optional: bool = False
    """Whether a message may lack the field, or have null in it."""
    is_supplement: bool = False
    """Only for encodings that cannot leave a field out: it says which fields of a row are null for that reason."""


@dataclass(frozen=True)
class Record:
    name: tuple[str, ...]
    """Unique among the records of different shape that a sink sends, such as `("public", "orders", "Row")`."""
    fields: Sequence[Field]
    present: Mask | None = None
    """The messages that have the record (None: all). In the others it is null; a message whose whole value is null is a
    tombstone."""
    is_empty_if_absent: bool = False
    """Encodings without schemas write an empty map instead of null."""


Value = Texts | Integers | ColumnValues | NameLists | Nulls | Record
