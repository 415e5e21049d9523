"""Which JSON text PostgreSQL's jsonb accepts. The type json accepts more; such values become JSON strings."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# What jsonb may reject: NUL, half a surrogate pair, an exponent or digits beyond the limits of numeric.
_DOUBTFUL: Final = r"\\u(0000|[dD][89a-fA-F])|[eE][-+]?[0-9]{4}|[0-9]{1000}"
_MAX_BEFORE, _MAX_AFTER = 131_072, 16_383
"""The most digits of a numeric before and after its decimal point."""


def is_jsonb(text: str) -> bool:
    """Whether jsonb accepts the text."""
    try:
        value = json.loads(text, parse_float=_check_number, parse_int=_check_number, parse_constant=_reject_constant)
        return _is_valid(value)
    except (ValueError, RecursionError):
        return False


def jsonb_texts(texts: pa.StringArray) -> pa.StringArray:
    """Values of a json column: unchanged if jsonb accepts them, else as a JSON string of their text."""
    doubtful = pc.match_substring_regex(texts, _DOUBTFUL).fill_null(False)
    if not pc.any(doubtful).as_py():
        return texts
    # Such values are rare, so they are checked one by one.
    return pa.array(
        [
            json.dumps(text, ensure_ascii=False) if is_doubtful and not is_jsonb(text) else text
            for text, is_doubtful in zip(texts.to_pylist(), doubtful.to_pylist(), strict=True)
        ],
        pa.string(),
    )


def _check_number(text: str) -> str:
    digits, _, exponent = text.lower().partition("e")
    whole, _, fraction = digits.lstrip("-").partition(".")
    if not len(fraction) - _MAX_AFTER <= int(exponent or 0) <= _MAX_BEFORE - len(whole):
        raise ValueError
    return ""


def _reject_constant(_: str) -> None:
    raise ValueError


def _is_valid(value: object) -> bool:
    match value:
        case str():
            return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
        case list():
            return all(map(_is_valid, value))
        case dict():
            return all(map(_is_valid, value)) and all(map(_is_valid, value.values()))
    return True
