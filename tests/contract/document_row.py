"""Documents as PostgreSQL's rows: written for the tests, without the sinks' own code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests import oracle
from tests.fixtures.opensearch import Digits


def postgres_text(value: Any, data_type: str) -> str | None:
    """PostgreSQL's text of a document's value."""
    if data_type in ("json", "jsonb"):
        return json.dumps(value)
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, list):
        return "{" + ",".join(_element(item) for item in value) + "}"
    assert isinstance(value, str), type(value)
    if data_type.startswith("timestamp") and not isinstance(value, Digits):
        value = re.sub(r"^(\S+)T(\S+)Z$", r"\1 \2", value)
        if data_type.endswith("with time zone") and "infinity" not in value and "+" not in value:
            value = f"{value}+00"
    return str(value)


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    text = postgres_text(value, "")
    assert text is not None
    if text == "" or text.upper() == "NULL" or re.search(r'[\s{}",\\]', text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def comparable_row(row: oracle.Row, columns: Sequence[str], types: Mapping[str, str]) -> oracle.Row:
    """The row, with json in one form: sinks write it on one line."""
    return tuple(
        json.dumps(json.loads(value, parse_int=Digits, parse_float=Digits)).encode()
        if value is not None and types.get(column) in ("json", "jsonb")
        else value
        for column, value in zip(columns, row, strict=True)
    )
