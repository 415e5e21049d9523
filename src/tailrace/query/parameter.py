"""Statement parameters as constants, so that DuckDB plans with their values and can skip files."""

from __future__ import annotations

import struct
import uuid
from decimal import Decimal
from typing import Final

from tailrace.query import wire_type
from tailrace.query.query_error import UNSUPPORTED, QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.cast import convert
from tailrace.query.sql.typed import Typed, null_of
from tailrace.query.table_view import sql_literal

_BINARY_TEXTS: Final = frozenset(("text", "varchar", "bpchar", "name", "char", "json", "xml", "unknown"))
"""Types whose binary form is their text. So is that of the source's own enums."""
_NUMBERS: Final = {20: "!q", 21: "!h", 23: "!i", 26: "!I", 700: "!f", 701: "!d"}


def value(raw: bytes | None, type_: int, is_binary: bool) -> Typed:
    """A parameter's value as a constant. Without a known type it is a literal, typed by its context."""
    known = pg_type.by_oid(type_)
    is_typed = known is not None and known != pg_type.UNKNOWN and known.kind == "b"
    if raw is None:
        return Typed(null_of(known), known, is_constant=True) if is_typed and known else Typed("NULL", pg_type.UNKNOWN)
    try:
        text = _text_of_binary(raw, type_) if is_binary else raw.decode()
    except (struct.error, ValueError):
        raise QueryError("22P03", f"incorrect binary data format for a parameter of type {type_}") from None
    if "\0" in text:
        raise QueryError("22021", "a text parameter cannot contain a null byte")
    unknown = Typed(sql_literal(text), pg_type.UNKNOWN, literal=text, is_constant=True)
    return convert(unknown, known) if is_typed and known else unknown


def _text_of_binary(value: bytes, type_: int) -> str:
    if type_ in _NUMBERS:
        return str(struct.unpack(_NUMBERS[type_], value)[0])
    match type_:
        case 16:
            return "true" if value != b"\0" else "false"
        case 17:
            return "\\x" + value.hex()
        case 3802:
            return value[1:].decode()  # after the format version
        case 2950:
            return str(uuid.UUID(bytes=value))
        case 1082:
            return f"{_timestamp_text(struct.unpack('!i', value)[0] * 86_400_000_000)[:10]}"
        case 1114 | 1184:
            return _timestamp_text(struct.unpack("!q", value)[0]) + ("+00" if type_ == 1184 else "")
        case 1083:
            seconds, fraction = divmod(struct.unpack("!q", value)[0], 1_000_000)
            return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
        case 1186:
            microseconds, days, months = struct.unpack("!qii", value)
            return f"{months} months {days} days {microseconds} microseconds"
        case wire_type.NUMERIC:
            return _numeric_text(value)
    known = pg_type.by_oid(type_)
    if known is not None and known.element is not None:
        return _array_text(value)
    if known is not None and known.name not in _BINARY_TEXTS:
        raise QueryError(UNSUPPORTED, f"a binary parameter of type {known.name} is not supported", "Send it as text.")
    return value.decode()


def _timestamp_text(microseconds: int) -> str:
    """The text of a timestamp given in microseconds since 2000-01-01."""
    from datetime import datetime, timedelta

    if microseconds in (2**63 - 1, -(2**63)):
        return "infinity" if microseconds > 0 else "-infinity"
    try:
        return (datetime(2000, 1, 1) + timedelta(microseconds=microseconds)).isoformat(" ")
    except OverflowError:
        raise QueryError("22008", "a timestamp parameter is outside the years 1 to 9999", "Send it as text.") from None


def _numeric_text(value: bytes) -> str:
    count, weight, sign, scale = struct.unpack("!HhHH", value[:8])
    if sign not in (0, 0x4000):
        return {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}[sign]
    digits = struct.unpack(f"!{count}H", value[8:])
    total = sum((Decimal(digit).scaleb(4 * (weight - place)) for place, digit in enumerate(digits)), Decimal(0))
    return f"{'-' if sign else ''}{total.quantize(Decimal(1).scaleb(-scale)) if scale else total:f}"


def _array_text(value: bytes) -> str:
    dimensions, _, element = struct.unpack("!iiI", value[:12])
    if dimensions == 0:
        return "{}"
    if dimensions != 1:
        raise QueryError(UNSUPPORTED, "a binary array of several dimensions is not supported", "Send it as text.")
    count, lower = struct.unpack("!ii", value[12:20])
    if lower != 1:
        raise QueryError(UNSUPPORTED, "a binary array whose lower bound is not 1 is not supported", "Send it as text.")
    at, items = 20, []
    for _ in range(count):
        (size,) = struct.unpack("!i", value[at : at + 4])
        at += 4
        if size < 0:
            items.append("NULL")
            continue
        text = _text_of_binary(value[at : at + size], element)
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        items.append(f'"{escaped}"')
        at += size
    return "{" + ",".join(items) + "}"
