"""JSON that PostgreSQL's jsonb takes. The type json takes more: what it holds beyond that stays as its text."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# What may be more than jsonb holds: NUL, half a surrogate pair, an exponent or digits beyond a numeric's.
_DOUBTFUL: Final = r"\\u(0000|[dD][89a-fA-F])|[eE][-+]?[0-9]{4}|[0-9]{1000}"
_MOST_BEFORE, _MOST_AFTER = 131_072, 16_383
"""Digits that a numeric has before and after its decimal point."""


def is_jsonb(text: str) -> bool:
    try:
        value = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_refused)
        return _is_held(value)
    except (ValueError, RecursionError):
        return False


def jsonb_texts(texts: pa.StringArray) -> pa.StringArray:
    """Values of a json column, each as it is where jsonb takes it, else as a JSON string that holds its text."""
    doubtful = pc.match_substring_regex(texts, _DOUBTFUL).fill_null(False)
    if not pc.any(doubtful).as_py():
        return texts
    # Few, if any: one by one.
    return pa.array(
        [
            json.dumps(text, ensure_ascii=False) if is_doubtful and not is_jsonb(text) else text
            for text, is_doubtful in zip(texts.to_pylist(), doubtful.to_pylist(), strict=True)
        ],
        pa.string(),
    )


def _number(text: str) -> str:
    digits, _, exponent = text.lower().partition("e")
    whole, _, fraction = digits.lstrip("-").partition(".")
    if not len(fraction) - _MOST_AFTER <= int(exponent or 0) <= _MOST_BEFORE - len(whole):
        raise ValueError
    return ""


def _refused(_: str) -> None:
    raise ValueError


def _is_held(value: object) -> bool:
    match value:
        case str():
            return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
        case list():
            return all(map(_is_held, value))
        case dict():
            return all(map(_is_held, value)) and all(map(_is_held, value.values()))
    return True
