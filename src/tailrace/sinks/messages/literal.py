"""Parsers for PostgreSQL's text of arrays and hstore."""

from __future__ import annotations

import re
from typing import Final

_ELEMENT: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|((?:[^",{}\\]|\\.)+)', re.DOTALL)
_HSTORE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|(NULL))(?:, |\Z)', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_BOUNDS: Final = re.compile(r"\[-?\d+:-?\d+\]=")


def array_elements(text: str) -> list[str | None]:
    """Return the elements of a one-dimensional array, wherever it begins. Raises ValueError for any other array."""
    if bounds := _BOUNDS.match(text):
        text = text[bounds.end() :]
    if not (text.startswith("{") and text.endswith("}")) or text.startswith("{{"):
        raise ValueError("not a one-dimensional array")
    found: list[str | None] = []
    offset = 1
    while offset < len(text) - 1:
        match = _ELEMENT.match(text, offset)
        if match is None:
            raise ValueError("not an array")
        quoted, bare = match.groups()
        is_null = quoted is None and bare == "NULL"
        found.append(None if is_null else _ESCAPE.sub(r"\1", quoted if quoted is not None else bare))
        offset = match.end()
        if text[offset] not in ",}":
            raise ValueError("not an array")
        offset += 1
    return found


def hstore_pairs(text: str) -> dict[str, str | None]:
    """Return the pairs of an hstore. Raises ValueError if the text is not one."""
    found: dict[str, str | None] = {}
    offset = 0
    while offset < len(text):
        match = _HSTORE.match(text, offset)
        if match is None:
            raise ValueError("not an hstore")
        key, value, null = match.groups()
        found[_ESCAPE.sub(r"\1", key)] = None if null else _ESCAPE.sub(r"\1", value)
        offset = match.end()
    return found
