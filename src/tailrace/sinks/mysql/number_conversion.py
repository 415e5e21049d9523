"""Numbers: DECIMAL has 65 digits, 30 of them after the point; neither it nor DOUBLE has NaN and infinity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.log.decoding import Mask
from tailrace.sinks.mysql.value_conversion import NO_ROWS, Conversion, Rows

NOT_FINITE: Final = pa.array(["NaN", "Infinity", "-Infinity"])
MAX_DIGITS: Final = 65
MAX_SCALE: Final = 30


@dataclass(frozen=True)
class DecimalConversion(Conversion):
    """numeric as DECIMAL."""

    precision: int
    scale: int
    declared_scale: int | None = None
    """The digits after the point that PostgreSQL prints; None if each value has its own number of them."""

    def unrepresentable(self, texts: pa.Array) -> Rows:
        suspects = self._has_more_digits(texts)
        if _has_words(texts):
            suspects |= _is_not_finite(texts)
        rows = np.flatnonzero(suspects)
        fits = [self._fits(text) for text in texts.take(pa.array(rows)).to_pylist()]
        return rows[~np.array(fits, np.bool_)]

    def nearest(self, text: str) -> str | None:
        if text == "NaN":
            return None
        largest = Decimal(10**self.precision - 1).scaleb(-self.scale, _CONTEXT)
        value = Decimal(text)
        if value.is_finite():
            value = value.quantize(Decimal(1).scaleb(-self.scale), ROUND_HALF_UP, _CONTEXT)
        # Not -largest, which Python would round.
        nearest = max(largest.copy_negate(), min(largest, value))
        # PostgreSQL has no negative zero, and prints all digits that are declared.
        return format(nearest if nearest else abs(nearest), "f") + "0" * self._missing_digits

    def encode(self, texts: pa.Array) -> pa.Array:
        has_more = self._has_more_digits(texts)
        # Digits that do not fit are zeros, and the server would report that it cuts them off.
        return pc.if_else(pa.array(has_more), _without_zeros(texts), texts) if has_more.any() else texts

    def decode(self, values: Sequence[Any], column: Column) -> pa.Array:  # noqa: ARG002
        texts = pa.array([None if value is None else format(value, "f") for value in values], pa.string())
        if self.declared_scale is None:
            return _without_zeros(texts)
        return pc.binary_join_element_wise(texts, "0" * self._missing_digits, "") if self._missing_digits else texts

    def comparable(self, texts: pa.Array) -> pa.Array:
        return _without_zeros(texts) if self.declared_scale is None else texts

    def _has_more_digits(self, texts: pa.Array) -> Mask:
        """Whether texts have more digits than the type before the point or after it, though some may be zeros."""
        lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
        whole = self.precision - self.scale
        if not len(lengths) or lengths.max() <= min(whole, self.scale) or not self._is_narrower:
            return np.zeros(len(lengths), np.bool_)
        points = pc.fill_null(pc.find_substring(texts, "."), -1).to_numpy(zero_copy_only=False)
        points = np.where(points < 0, lengths, points)
        found: Mask = (points > whole) | (lengths - points - 1 > self.scale)
        return found

    @property
    def _missing_digits(self) -> int:
        """How many of the digits after the point that PostgreSQL prints MySQL's type does not have."""
        return 0 if self.declared_scale is None else self.declared_scale - self.scale

    @property
    def _is_narrower(self) -> bool:
        """Whether PostgreSQL's type may have more digits."""
        return self.declared_scale is None or self._missing_digits > 0 or self.precision == MAX_DIGITS

    def _fits(self, text: str | None) -> bool:
        if text is None:
            return True
        if text[-1] in "Ny":  # NaN, Infinity
            return False
        whole, _, fraction = text.removeprefix("-").partition(".")
        return len(whole.lstrip("0")) <= self.precision - self.scale and len(fraction.rstrip("0")) <= self.scale


@dataclass(frozen=True)
class FloatConversion(Conversion):
    """float4 and float8 as DOUBLE.

    Both get PostgreSQL's digits, which are those that identify the number. MySQL's FLOAT would print only six of them.
    """

    largest: str
    """PostgreSQL's text of the largest finite value."""

    def unrepresentable(self, texts: pa.Array) -> Rows:
        return np.flatnonzero(_is_not_finite(texts)) if _has_words(texts) else NO_ROWS

    def nearest(self, text: str) -> str | None:
        return {"Infinity": self.largest, "-Infinity": f"-{self.largest}"}.get(text)


@dataclass(frozen=True)
class MoneyConversion(Conversion):
    """money as DECIMAL, without the currency and the commas that the C locale prints."""

    def encode(self, texts: pa.Array) -> pa.Array:
        return pc.replace_substring(pc.replace_substring(texts, "$", ""), ",", "")


FLOAT4: Final = FloatConversion("3.4028235e+38")
FLOAT8: Final = FloatConversion("1.7976931348623157e+308")
_CONTEXT: Final = Context(prec=200_000)
"""More digits than a numeric has."""


def _without_zeros(texts: pa.Array) -> pa.Array:
    """Numbers without zeros at the end of the fraction."""
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, characters="0"), characters=".")
    return pc.if_else(pc.match_substring(texts, "."), trimmed, texts)


def _has_words(texts: pa.Array) -> bool:
    """Whether some text could be NaN or Infinity."""
    _, _, data = texts.buffers()
    if data is None:
        return False
    content = np.frombuffer(data, np.uint8)
    return bool(((content == ord("N")) | (content == ord("I"))).any())


def _is_not_finite(texts: pa.Array) -> Mask:
    found: Mask = pc.is_in(texts, NOT_FINITE).to_numpy(zero_copy_only=False)
    return found
