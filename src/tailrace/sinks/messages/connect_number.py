"""Kafka Connect's types for numbers and bit strings, as Debezium chooses them, and their values as JSON."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks.messages.avro import decimal_bytes
from tailrace.sinks.messages.base64_column import quoted_integers
from tailrace.sinks.messages.connect_schema import ConnectType, convert_each, named_schema, no_change
from tailrace.types import numeric_modifier

_UNBOUNDED_BITS: Final = 2**31 - 1
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_STRING_WORDS: Final = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
"""Debezium's own words for numerics that are no numbers, where numerics are strings."""
# Java prints numbers from 10^-3 to 10^7 without an exponent.
_PLAIN_FLOAT: Final = r"^-?(0|0\.0{0,2}[1-9]\d*|[1-9]\d{0,6}(\.\d+)?)$"
_MONEY: Final = (19, 2)


def floats(texts: pa.Array) -> pa.Array:
    """Return PostgreSQL's floats as Java prints them. Those that are not finite are strings."""
    is_plain = pc.match_substring_regex(texts, _PLAIN_FLOAT)
    with_point = pc.if_else(pc.match_substring(texts, "."), texts, pc.binary_join_element_wise(texts, ".0", ""))
    if pc.all(is_plain, min_count=0).as_py():
        return with_point
    others = convert_each(java_float)(pc.if_else(is_plain, pa.scalar(None, pa.string()), texts))
    return pc.if_else(is_plain, with_point, others)


def java_float(text: str) -> str:
    """Return a float as Java's `Double.toString` prints it, as JSON."""
    if text in _NOT_FINITE:
        return json.dumps(text)
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits))
    point = len(shown) + exponent
    minus = "-" if sign else ""
    if shown == "0":
        return f"{minus}0.0"
    if not -3 < point <= 7:
        return f"{minus}{shown[0]}.{shown[1:] or '0'}E{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{shown}"
    return f"{minus}{shown[:point].ljust(point, '0')}.{shown[point:] or '0'}"


def decimal_type(name: str, modifier: int, mode: str) -> ConnectType:
    """Return the type of a numeric or money.

    Args:
        name: The name in pg_catalog.
        modifier: Precision and scale, packed; -1 if they are not declared.
        mode: Debezium's `decimal.handling.mode`.
    """
    is_money = name == "money"
    plain = _plain_money if is_money else no_change
    has_scale = is_money or modifier >= 4
    precision, scale = _MONEY if is_money else numeric_modifier(modifier)
    if mode == "double":
        return ConnectType({"type": "double"}, lambda texts: convert_each(_double)(plain(texts)), "0.0")
    if mode == "string":
        zero = f"0.{'0' * scale}" if has_scale and scale > 0 else "0"
        return ConnectType({"type": "string"}, lambda texts: _decimal_strings(plain(texts)), f'"{zero}"')
    if not has_scale:
        return _VARIABLE_SCALE
    parameters = (
        {"scale": str(scale)} if is_money else {"scale": str(scale), "connect.decimal.precision": str(precision)}
    )
    schema = named_schema("bytes", "org.apache.kafka.connect.data.Decimal", parameters=parameters)
    return ConnectType(schema, lambda texts: _unscaled_texts(plain(texts), scale), '"AA=="', header=plain)


def bits_type(modifier: int) -> ConnectType:
    """Return the type of a bit or varbit."""
    length = _UNBOUNDED_BITS if modifier < 0 else modifier
    if length == 1:
        return ConnectType(
            {"type": "boolean"}, convert_each(lambda value: "true" if value == "1" else "false"), "false"
        )
    schema = named_schema("bytes", "io.debezium.data.Bits", parameters={"length": str(length)})
    return ConnectType(schema, convert_each(_bits))


def _plain_money(texts: pa.Array) -> pa.Array:
    return pc.replace_substring(pc.replace_substring(texts, "$", ""), ",", "")


def _decimal_strings(texts: pa.Array) -> pa.Array:
    is_word = pc.is_in(texts, pa.array(_NOT_FINITE))
    if pc.any(is_word, min_count=0).as_py():
        return convert_each(lambda value: json.dumps(_STRING_WORDS.get(value, value)))(texts)
    return pc.binary_join_element_wise('"', texts, '"', "")


def _double(value: str) -> str:
    number = float(value)
    return java_float(repr(number) if math.isfinite(number) else value if value in _NOT_FINITE else _infinity(number))


def _infinity(number: float) -> str:
    return "Infinity" if number > 0 else "-Infinity"


def _finite(value: str) -> Decimal:
    if value in _NOT_FINITE:
        raise ValueError("a Decimal has no value for it")
    return Decimal(value)


def _unscaled_texts(texts: pa.Array, scale: int) -> pa.Array:
    """Convert with Arrow if all numbers have as many digits after the point as the scale says, as PostgreSQL prints
    them, and fit into 64 bits."""
    if scale > 0:
        digits = pc.subtract(pc.binary_length(texts), pc.find_substring(texts, "."))
        is_usual = pc.all(pc.equal(digits, scale + 1), min_count=0).as_py()
    else:
        is_usual = scale == 0
    if is_usual:
        try:
            numbers = pc.replace_substring(texts, ".", "").cast(pa.int64())
        except pa.ArrowInvalid:
            pass
        else:
            found = quoted_integers(np.asarray(pc.fill_null(numbers, 0)))
            return pc.if_else(pc.is_valid(texts), found, pa.scalar(None, pa.string())) if texts.null_count else found
    return convert_each(lambda value: base64_text(decimal_bytes(_finite(value), scale)))(texts)


def _variable_scale(value: str) -> str:
    number = _finite(value)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    shown = list(digits)
    while exponent < 0 and shown[-1] == 0:
        shown.pop()
        exponent += 1
        shown = shown or [0]
    scale = max(-exponent, 0)
    unscaled = decimal_bytes(Decimal((sign, tuple(shown), exponent)), scale)
    return f'{{"scale":{scale},"value":{base64_text(unscaled)}}}'


def _bits(value: str) -> str:
    number = int(value or "0", 2)
    return base64_text(number.to_bytes((number.bit_length() + 7) // 8, "little"))


def base64_text(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


_VARIABLE_SCALE: Final = ConnectType(
    {
        "type": "struct",
        "fields": [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ],
        "name": "io.debezium.data.VariableScaleDecimal",
        "version": 1,
        "doc": "Variable scaled decimal",
    },
    convert_each(_variable_scale),
    '{"scale":0,"value":"AA=="}',
)

NUMBERS: Final[dict[str, ConnectType]] = {
    "int2": ConnectType({"type": "int16"}, no_change, "0"),
    "int4": ConnectType({"type": "int32"}, no_change, "0"),
    "int8": ConnectType({"type": "int64"}, no_change, "0"),
    "oid": ConnectType({"type": "int64"}, no_change, "0"),
    "float4": ConnectType({"type": "float"}, floats, "0.0"),
    "float8": ConnectType({"type": "double"}, floats, "0.0"),
}
