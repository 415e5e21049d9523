"""Columns of PostgreSQL's texts as JSON values: the one encoding that messages and documents share.

Integers, floats and booleans are native, json and jsonb nested. Numeric is a string with the exact digits, a timestamp
an ISO 8601 string with a Z. Everything else is PostgreSQL's text.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.log import json_columns
from tailrace.types import Form, mapping

_NOT_ISO: Final = "infinity| BC$"
_NATIVE: Final = (Form.BOOLEAN, Form.INTEGER, Form.FLOAT, Form.JSON)


def json_values(texts: pa.Array, column: Column) -> pa.Array:
    """Return the values of a column as JSON, in bytes. NULL is `null`."""
    if mapping(column).form in _NATIVE:
        return json_columns.json_values(texts, column).cast(pa.binary())
    return json_strings(iso_texts(texts, column))


def json_strings(texts: pa.Array) -> pa.Array:
    """Return texts as JSON strings, in bytes. NULL is `null`."""
    return json_columns.quote(texts).fill_null("null").cast(pa.binary())


def iso_texts(texts: pa.Array, column: Column) -> pa.Array:
    """Return timestamps as ISO 8601, and all other texts as they are. ISO has no infinity and no years BC."""
    match mapping(column).form:
        case Form.TIMESTAMP:
            timestamps = texts
        case Form.TIMESTAMPTZ:
            timestamps = pc.replace_substring_regex(texts, r"\+00$", "")
        case _:
            return texts
    iso = pc.binary_join_element_wise(pc.replace_substring(timestamps, " ", "T"), "Z", "")
    is_not_iso = pc.match_substring_regex(texts, _NOT_ISO)
    return pc.if_else(is_not_iso, texts, iso) if pc.any(is_not_iso).as_py() else iso
