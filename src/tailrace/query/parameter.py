"""Statement parameters as SQL literals, so that DuckDB plans with their values and can skip files."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from tailrace.query import wire_type
from tailrace.query.lexer import Token, TokenKind, without_space
from tailrace.query.query_error import QueryError
from tailrace.query.sql_cast import array_literal
from tailrace.query.table_view import NUMERIC, sql_literal

_NUMBERS: Final = {20: "!q", 21: "!h", 23: "!i", 26: "!I", 700: "!f", 701: "!d"}
_PLAIN_NUMBERS: Final = frozenset((20, 21, 23, 26))


def as_sql(value: bytes | None, type_: int, is_binary: bool) -> str:
    if value is None:
        return f"CAST(NULL AS {wire_type.PARAMETERS[type_]})" if type_ in wire_type.PARAMETERS else "NULL"
    try:
        text = _text_of_binary(value, type_) if is_binary else value.decode()
    except (struct.error, ValueError):
        raise QueryError("22P03", f"incorrect binary data format for a parameter of type {type_}") from None
    if "\0" in text:
        raise QueryError("22021", "a text parameter cannot contain a null byte")
    if type_ in _PLAIN_NUMBERS and text.lstrip("-").isdecimal():
        return text if not text.startswith("-") else f"({text})"
    if type_ == 17:
        return (
            f"unhex({sql_literal(text.removeprefix(chr(92) + 'x'))})"
            if text.startswith("\\x")
            else f"{sql_literal(text)}::BLOB"
        )
    if type_ in wire_type.ELEMENTS:
        number = f"DECIMAL({NUMERIC[0]}, {NUMERIC[1]})"
        element = (
            number
            if wire_type.ELEMENTS[type_] == wire_type.NUMERIC
            else wire_type.PARAMETERS.get(wire_type.ELEMENTS[type_], "VARCHAR")
        )
        return f"CAST({array_literal(text)} AS {element}[])"
    if type_ == wire_type.NUMERIC and _is_number(text):
        return text if not text.startswith("-") else f"({text})"
    if type_ in wire_type.PARAMETERS:
        return (
            f"CAST({sql_literal(text)} AS {wire_type.PARAMETERS[type_]})"
            if type_ != wire_type.TEXT
            else sql_literal(text)
        )
    return sql_literal(text)


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdecimal()


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
        case _ if type_ in wire_type.ELEMENTS:
            return _array_text(value)
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
        raise QueryError("0A000", "multidimensional array parameters are not supported")
    (count,) = struct.unpack("!i", value[12:16])
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


_CASTS: Final = {
    "int": 23, "integer": 23, "int4": 23, "bigint": 20, "int8": 20, "smallint": 21, "int2": 21, "text": 25,
    "varchar": 1043, "bool": 16, "boolean": 16, "date": 1082, "timestamp": 1114, "timestamptz": 1184, "numeric": 1700,
    "float8": 701, "float": 701, "float4": 700, "real": 700, "uuid": 2950, "bytea": 17, "interval": 1186, "oid": 26,
}  # fmt: skip


def infer_types(tokens: Sequence[Token], known_types: Sequence[int], columns: dict[str, int]) -> list[int]:
    """Infer the types of unspecified parameters from a cast, from LIMIT, or from the column each is compared with.

    Only clients that describe a statement before they bind need them. Otherwise the context determines the type.
    """
    found = without_space(tokens)
    numbers = [int(t.text[1:]) for t in found if t.kind is TokenKind.PARAMETER]
    types = list(known_types) + [0] * max(0, max(numbers, default=0) - len(known_types))
    for at, token in enumerate(found):
        if token.kind is not TokenKind.PARAMETER or types[(number := int(token.text[1:]) - 1)]:
            continue
        after = [t.word for t in found[at + 1 : at + 3]]
        before = found[at - 1].word if at else ""
        if after[:1] == ["::"] and after[1:]:
            types[number] = _CASTS.get(after[1], 0)
        elif before in ("limit", "offset"):
            types[number] = 20
        elif at >= 2 and before in ("=", "<", ">", "<=", ">=", "<>", "!=", "between"):
            types[number] = columns.get(found[at - 2].name or "", 0)
        elif at >= 4 and before == "and" and found[at - 3].word == "between":
            types[number] = columns.get(found[at - 4].name or "", 0)
    return types
