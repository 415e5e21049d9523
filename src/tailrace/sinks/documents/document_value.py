"""Columns as JSON for documents: as in messages, except that an array is a JSON array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tailrace.change import Column
from tailrace.sinks.documents.json_value import json_strings, json_values
from tailrace.sinks.messages.literal import array_elements
from tailrace.types import base


def document_values(texts: pa.Array, column: Column) -> pa.Array:
    """Return the values of a column as JSON, in bytes. NULL is `null`.

    An array of one dimension that begins at 1 is a JSON array. Any other array is a string with PostgreSQL's text:
    JSON has no form for bounds.
    """
    element = element_column(column)
    return json_values(texts, column) if element is None else _json_arrays(texts, element)


def element_column(column: Column) -> Column | None:
    """Return a column of an array's elements; None if the column is no array."""
    type_, modifier = base(column.type, column.modifier)
    return None if type_.element is None else replace(column, type=type_.element, modifier=modifier)


def _json_arrays(texts: pa.Array, element: Column) -> pa.Array:
    encoded = texts.dictionary_encode()
    distinct = [_elements(text, element) for text in encoded.dictionary.to_pylist()]
    flat = [value for found in distinct if found is not None for value in found]
    values = iter(json_values(pa.array(flat, pa.string()), element).to_pylist())
    others = iter(json_strings(encoded.dictionary).to_pylist())
    arrays = []
    for found in distinct:
        other = next(others)
        arrays.append(other if found is None else b"[" + b",".join(next(values) for _ in found) + b"]")
    return pa.array(arrays, pa.binary()).take(encoded.indices).fill_null(b"null")


def _elements(text: str, element: Column) -> Sequence[str | None] | None:
    """Return the elements of an array; None if it has several dimensions, or begins elsewhere than at 1."""
    if not text.startswith("{") or element.type.name == "box":  # boxes are separated by semicolons
        return None
    try:
        return array_elements(text)
    except ValueError:
        return None
