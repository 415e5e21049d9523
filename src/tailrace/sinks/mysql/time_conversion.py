"""Dates and times: MySQL's years are 1 to 9999, and nothing is infinite. A DATETIME has no time zone: it is UTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.sinks.mysql.value_conversion import Conversion, Rows

_DATE_CHARACTERS: Final = len("2026-01-31")
_TIMESTAMP_CHARACTERS: Final = len("2026-01-31 12:00:00")
_YEAR_CHARACTERS: Final = 4
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True)
class DateConversion(Conversion):
    def unrepresentable(self, texts: pa.Array) -> Rows:
        """Other values have fewer characters (infinity) or more (BC, far years)."""
        return np.flatnonzero(_lengths(texts, _DATE_CHARACTERS) != _DATE_CHARACTERS)

    def nearest(self, text: str) -> str:
        return "0001-01-01" if _is_before(text) else "9999-12-31"


@dataclass(frozen=True)
class TimestampConversion(Conversion):
    """timestamp and timestamptz as DATETIME."""

    zone: str = ""
    """What PostgreSQL prints after a timestamptz, in a session whose time zone is UTC."""
    digits: int = 6

    def unrepresentable(self, texts: pa.Array) -> Rows:
        lengths = _lengths(texts, 0)
        if not len(lengths) or texts.buffers()[2] is None:
            return np.flatnonzero(lengths)
        data = np.frombuffer(texts.buffers()[2], np.uint8)
        starts = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts)]
        is_full = lengths >= _TIMESTAMP_CHARACTERS
        # For texts that are too short, or NULL, any place in the buffer will do.
        has_short_year = data[np.where(is_full, starts + _YEAR_CHARACTERS, 0)] == ord("-")
        has_era = data[np.where(is_full, starts + lengths - 1, 0)] == ord("C")
        return np.flatnonzero((lengths > 0) & ~(is_full & has_short_year & ~has_era))

    def nearest(self, text: str) -> str:
        fraction = f".{'9' * self.digits}" if self.digits else ""
        return f"{'0001-01-01 00:00:00' if _is_before(text) else f'9999-12-31 23:59:59{fraction}'}{self.zone}"

    def encode(self, texts: pa.Array) -> pa.Array:
        return pc.utf8_slice_codeunits(texts, 0, -len(self.zone)) if self.zone else texts


@dataclass(frozen=True)
class TimeConversion(Conversion):
    """time as TIME, which holds 24:00:00 too."""

    def decode(self, values: Sequence[Any], column: Column) -> pa.Array:  # noqa: ARG002
        return pa.array([None if value is None else _clock(value) for value in values], pa.string())


def _lengths(texts: pa.Array, null: int) -> Any:
    return pc.fill_null(pc.binary_length(texts), null).to_numpy(zero_copy_only=False)


def _is_before(text: str) -> bool:
    return text == "-infinity" or text.endswith("BC")


def _clock(value: timedelta) -> str:
    seconds, rest = divmod(value, _SECOND)
    shown = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{shown}.{rest.microseconds:06d}".rstrip("0") if rest else shown
