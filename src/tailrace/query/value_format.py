"""PostgreSQL's text and binary forms of values that the compiled loops leave out, one value at a time."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_PLAIN = re.compile(rb"[^\s{},\"\\]+")


def doubles(array: pa.Array) -> list[bytes]:
    """Doubles in PostgreSQL's notation. Arrow provides the shortest digits that reproduce the value."""
    shortest = pc.cast(array, pa.string()).to_pylist()
    return [_float(text, 15).encode() if text is not None else b"" for text in shortest]


def singles(array: pa.Array) -> list[bytes | None]:
    shortest = pc.cast(array, pa.string()).to_pylist()
    return [None if text is None else _float(text, 6).encode() for text in shortest]


def _float(text: str, limit: int) -> str:
    """Rewrite a float's text with an exponent from 10 to the power of `limit` on, and below 0.0001."""
    sign, text = ("-", text[1:]) if text[0] == "-" else ("", text)
    if text[0] in "in":
        return {"inf": sign + "Infinity"}.get(text, "NaN")
    digits, _, power = text.partition("e")
    whole, _, fraction = digits.partition(".")
    point = len(whole) + int(power or 0)
    digits = (whole + fraction).rstrip("0")
    point -= len(digits) - len(digits.lstrip("0"))
    digits = digits.lstrip("0")
    if not digits:
        return sign + "0"
    if -4 <= point - 1 < limit:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        whole, fraction = digits[:point].ljust(point, "0"), digits[point:]
        return sign + whole + (f".{fraction}" if fraction else "")
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{point - 1:+03d}"


def decimals(array: pa.Array) -> list[bytes]:
    return [f"{value:f}".encode() for value in array.to_pylist()]


def binary_numerics(array: pa.Array) -> list[bytes]:
    return [binary_numeric(value) for value in array.to_pylist()]


def binary_numeric_text(text: str) -> bytes:
    signs = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}
    if text in signs:
        return struct.pack("!HhHH", 0, 0, signs[text], 0x20 if text != "NaN" else 0)
    return binary_numeric(Decimal(text))


def binary_numeric(value: Decimal) -> bytes:
    whole, _, fraction = f"{abs(value):f}".partition(".")
    scale = len(fraction)
    whole = whole.lstrip("0").rjust(-(-len(whole.lstrip("0")) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    text = whole + fraction
    digits = [int(text[at : at + 4]) for at in range(0, len(text), 4)]
    sign = 0x4000 if value < 0 else 0
    return struct.pack(f"!HhHH{len(digits)}H", len(digits), len(whole) // 4 - 1, sign, scale, *digits)


def interval(months: int, days: int, nanoseconds: int) -> str:
    """An interval as with `IntervalStyle = postgres`: 1 year 2 mons -3 days +04:05:06.7."""
    parts: list[str] = []
    is_before = False
    # As in C, and unlike divmod, both parts have the sign of the whole.
    years, rest = abs(months) // 12, abs(months) % 12
    sign = -1 if months < 0 else 1
    for count, unit in ((years * sign, "year"), (rest * sign, "mon"), (days, "day")):
        if count:
            plus = "+" if is_before and count > 0 else ""
            parts.append(f"{plus}{count} {unit}{'' if count == 1 else 's'}")
            is_before = count < 0
    microseconds = nanoseconds // 1000
    if microseconds or not parts:
        seconds, fraction = divmod(abs(microseconds), 1_000_000)
        sign_text = "-" if microseconds < 0 else ("+" if is_before else "")
        tail = f".{fraction:06d}".rstrip("0") if fraction else ""
        parts.append(f"{sign_text}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{tail}")
    return " ".join(parts)


def binary_interval(months: int, days: int, nanoseconds: int) -> bytes:
    return struct.pack("!qii", nanoseconds // 1000, days, months)


def array(items: Sequence[bytes | None]) -> bytes:
    return b"{" + b",".join([b"NULL" if item is None else _item(item) for item in items]) + b"}"


def _item(item: bytes) -> bytes:
    if _PLAIN.fullmatch(item) and item.upper() != b"NULL":
        return item
    return b'"' + item.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def binary_array(items: Sequence[bytes | None], element: int) -> bytes:
    has_null = any(item is None for item in items)
    head: Any = struct.pack("!iiI", 1 if items else 0, int(has_null), element)
    if items:
        head += struct.pack("!ii", len(items), 1)
    return bytes(head) + b"".join(
        [b"\xff\xff\xff\xff" if item is None else struct.pack("!i", len(item)) + item for item in items]
    )
