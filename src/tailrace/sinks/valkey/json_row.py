"""Reads a row from the JSON that this sink wrote, without changing a digit. Pure."""

from __future__ import annotations

import json
import re
from typing import Final

from tailrace.change import Column
from tailrace.types import Form, mapping

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]', re.DOTALL)


def fields(text: str) -> dict[str, str]:
    """Return the fields of an object, each with its value as it is in the text. Raises ValueError for anything else."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("not a JSON object")
    found: dict[str, str] = {}
    depth, name, begin = 0, "", 0
    last = ""
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in "[{":
            depth += 1
        elif mark == ":" and depth == 1:
            name, begin = json.loads(last), token.end()
        elif depth == 1 and mark in ",}" and name is not None and begin:
            found[name] = text[begin : token.start()].strip()
            begin = 0
        if mark in "]}":
            depth -= 1
        if mark.startswith('"'):
            last = mark
    if depth:
        raise ValueError("not a JSON object")
    return found


def postgres_text(value: str | None, column: Column) -> str | None:
    """Return PostgreSQL's text of a value in JSON; None for NULL and for a field that is missing."""
    if value is None or value == "null":
        return None
    form = mapping(column).form
    if form is Form.BOOLEAN:
        return "t" if value == "true" else "f"
    if form is Form.JSON or not value.startswith('"'):
        return value
    text: str = json.loads(value)
    if form in (Form.TIMESTAMP, Form.TIMESTAMPTZ) and text.endswith("Z"):
        zone = "+00" if form is Form.TIMESTAMPTZ else ""
        return text.removesuffix("Z").replace("T", " ") + zone
    return text
