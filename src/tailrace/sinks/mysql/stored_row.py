"""Reads the rows of a replica back as PostgreSQL's text, to compare them with the source's."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.sinks.mysql.column_mapping import ColumnMapping
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.table_name import TableName

StoredRow = tuple[bytes | None, ...]


def stored_rows(
    session: MysqlSession, table: TableName, columns: Sequence[ColumnMapping], condition: str = "TRUE"
) -> list[StoredRow]:
    """The rows of a table, with PostgreSQL's text of each value.

    Args:
        session: A session.
        table: The table.
        columns: The columns to read.
        condition: Which rows to read, in SQL.
    """
    listed = ", ".join([quote(column.name) for column in columns]) or "1"
    rows = session.rows(f"SELECT {listed} FROM {table.sql} WHERE {condition}")
    if not columns or not rows:
        return [()] * len(rows)
    texts = [
        column.decode(list(values)).to_pylist() for column, values in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    return [tuple([None if text is None else text.encode() for text in row]) for row in zip(*texts, strict=True)]
