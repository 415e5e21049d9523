"""PostgreSQL's text of a document's value: the inverse of `document_values`."""

from __future__ import annotations

import json
import re
from typing import Final

from tailrace.change import Column
from tailrace.sinks.documents.document_value import element_column
from tailrace.sinks.documents.raw_json import items
from tailrace.types import Form, mapping

_ISO: Final = re.compile(r"(\S+)T(\S+)Z")
_PLAIN_ELEMENT: Final = re.compile(r'(?!null$)[^\s{}",\\]+', re.IGNORECASE)


def document_text(value: str, column: Column) -> str | None:
    """Return the text of a value of a column.

    Args:
        value: The value as it is written in the document.
        column: Its column.
    """
    if value == "null":
        return None
    form = mapping(column).form
    element = element_column(column)
    if element is not None and value.startswith("["):
        return _array_text(value, element)
    if form is Form.BOOLEAN:
        return "t" if value == "true" else "f"
    if form is Form.JSON or not value.startswith('"'):
        return value
    text = str(json.loads(value))
    if form in (Form.TIMESTAMP, Form.TIMESTAMPTZ) and (found := _ISO.fullmatch(text)):
        return f"{found[1]} {found[2]}" + ("+00" if form is Form.TIMESTAMPTZ else "")
    return text


def _array_text(value: str, element: Column) -> str:
    texts = (document_text(item, element) for item in items(value))
    return "{" + ",".join("NULL" if text is None else _quote(text) for text in texts) + "}"


def _quote(text: str) -> str:
    if _PLAIN_ELEMENT.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
