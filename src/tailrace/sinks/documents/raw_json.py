"""JSON taken apart without changing a byte of it: numbers keep their digits, and strings their escapes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from tailrace.errors import DecodeError

# Digits stay text: Python refuses to convert very long numbers.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)
_BLANK: Final = re.compile(r"[ \t\r\n]*")


def members(text: str) -> dict[str, str]:
    """Return the members of an object, each value as it is written."""
    found: dict[str, str] = {}
    at = _skip(text, _expect(text, _skip(text, 0), "{"))
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _expect(text, _skip(text, at), ":"))
        end = _end(text, at)
        found[name] = text[at:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def items(text: str) -> Iterator[str]:
    """Yield the items of an array, as they are written."""
    at = _skip(text, _expect(text, _skip(text, 0), "["))
    while text[at] != "]":
        end = _end(text, at)
        yield text[at:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _end(text: str, at: int) -> int:
    """Return where the value ends that begins here."""
    try:
        return _DECODER.raw_decode(text, at)[1]
    except ValueError as error:
        raise DecodeError(f"an answer is not JSON: {error}") from None


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise DecodeError(f"an answer is not JSON: {character} is missing")
    return at + 1
