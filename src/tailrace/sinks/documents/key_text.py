"""The text that identifies a row's document. Different keys have different texts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def key_texts(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the keys of rows, given PostgreSQL's texts of the key's columns.

    A key of one column is that column's text. The values of a longer key are joined with commas; a comma or a backslash
    in them has a backslash before it. A key with a NULL is NULL.
    """
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*(_escape(column) for column in columns), ",")


def _escape(texts: pa.Array) -> pa.Array:
    return pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), ",", "\\,")
