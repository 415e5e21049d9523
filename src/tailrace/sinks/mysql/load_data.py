"""Rows as text for LOAD DATA and as literals for INSERT, from encoded columns. Pure, vectorised.

Lines are read without a character set: bytes arrive as they are, and the server takes texts for what they are, UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.postgres import copy_text
from tailrace.sinks.mysql.identifier import quote

# LOAD DATA reads other letters after a backslash otherwise than COPY, and needs no more than these.
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"))
_LITERAL_ESCAPES: Final = (("\\", "\\\\"), ("'", "\\'"))


def lines(columns: Sequence[pa.Array], count: int) -> Iterator[bytes]:
    """Lines for `statement`, thousands at a time.

    Args:
        columns: The values, as `ColumnMapping.encode` returns them.
        count: The number of rows.
    """
    return copy_text.lines(columns, count, _ESCAPES)


def statement(file: str, table: str, columns: Sequence[str]) -> str:
    """The statement that loads lines.

    Args:
        file: The name that the server sends back to ask for the lines.
        table: The table in SQL, quoted.
        columns: The columns' names.
    """
    names = ", ".join(map(quote, columns))
    return (
        f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {table} CHARACTER SET binary "
        rf"FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' ({names})"
    )


def row_literals(columns: Sequence[pa.Array]) -> list[bytes]:
    """Rows as INSERT has them after VALUES: `('1','it\\'s',NULL,x'00')`.

    The session's sql_mode must not contain NO_BACKSLASH_ESCAPES, and its character set must be utf8mb4.

    Args:
        columns: The values, as `ColumnMapping.encode` returns them; at least one column.
    """
    fields = [_literals(column) for column in columns]
    joined = fields[0] if len(fields) == 1 else pc.binary_join_element_wise(*fields, b",")
    found: list[bytes] = pc.binary_join_element_wise(b"(", joined, b")", b"").to_pylist()
    return found


def _literals(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        found = pa.array([None if value is None else b"x'%b'" % value.hex().encode() for value in column.to_pylist()])
    else:
        found = pc.binary_join_element_wise(b"'", copy_text.escaped(column, _LITERAL_ESCAPES), b"'", b"")
    return pc.fill_null(found.cast(pa.binary()), b"NULL")
