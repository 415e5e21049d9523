"""How values become MySQL's text, and how PostgreSQL's text is restored: the interface, texts, booleans and bytes.

A column's type in MySQL has one conversion. Arrays of strings hold PostgreSQL's text, as `tailrace.log.decoding` gives
it with `as_text`. NULL stays NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Column
from tailrace.pgoutput import cell
from tailrace.state.postgres_text import to_text

Rows = npt.NDArray[np.intp]

NO_ROWS: Final[Rows] = np.empty(0, np.intp)


@dataclass(frozen=True)
class Conversion:
    """The conversion of a type whose text is the same in both databases."""

    def unrepresentable(self, texts: pa.Array) -> Rows:  # noqa: ARG002
        """The rows with values that MySQL's type cannot hold."""
        return NO_ROWS

    def nearest(self, text: str) -> str | None:  # noqa: ARG002
        """PostgreSQL's text of the value nearest to one that MySQL's type cannot hold; None if there is none."""
        return None

    def encode(self, texts: pa.Array) -> pa.Array:
        """MySQL's text of values that its type can hold, or bytes."""
        return texts

    def decode(self, values: Sequence[Any], column: Column) -> pa.Array:
        """PostgreSQL's text of values, from what PyMySQL reads."""
        return to_text(pa.array(values, types.mapping(column).arrow), column)

    def comparable(self, texts: pa.Array) -> pa.Array:
        """PostgreSQL's text with what MySQL's type does not hold removed, such as zeros at the end of numbers.

        It equals what `decode` returns.
        """
        return texts


@dataclass(frozen=True)
class TextConversion(Conversion):
    """Any type as PostgreSQL prints it."""

    max_characters: int | None = None
    """In a key. Other columns hold every text."""

    def unrepresentable(self, texts: pa.Array) -> Rows:
        if self.max_characters is None or (pc.max(pc.binary_length(texts)).as_py() or 0) <= self.max_characters:
            return NO_ROWS
        return true_rows(pc.greater(pc.utf8_length(texts), self.max_characters))

    def decode(self, values: Sequence[Any], column: Column) -> pa.Array:  # noqa: ARG002
        return pa.array(values, pa.string())


@dataclass(frozen=True)
class WideIntegerConversion(Conversion):
    """Integers that Tailrace represents as text, such as xid8."""

    def decode(self, values: Sequence[Any], column: Column) -> pa.Array:  # noqa: ARG002
        return pa.array([None if value is None else str(value) for value in values], pa.string())


@dataclass(frozen=True)
class BooleanConversion(Conversion):
    def encode(self, texts: pa.Array) -> pa.Array:
        return pc.if_else(pc.equal(texts, "t"), "1", "0")

    def decode(self, values: Sequence[Any], column: Column) -> pa.Array:
        return super().decode([None if value is None else bool(value) for value in values], column)


@dataclass(frozen=True)
class BinaryConversion(Conversion):
    """bytea as bytes."""

    max_bytes: int | None = None
    """In a key."""

    def unrepresentable(self, texts: pa.Array) -> Rows:
        if self.max_bytes is None:
            return NO_ROWS
        # PostgreSQL prints \x and two digits for each byte.
        return true_rows(pc.greater(pc.binary_length(texts), 2 + 2 * self.max_bytes))

    def encode(self, texts: pa.Array) -> pa.Array:
        values, _ = cell.read(cell.Cells.of(texts), types.BINARY)
        return values


TEXT: Final = TextConversion()


def true_rows(mask: pa.Array) -> Rows:
    """The rows in which a mask is true; NULL is not."""
    return np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
