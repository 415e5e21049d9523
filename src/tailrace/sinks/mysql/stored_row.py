"""Reads the rows of a replica back as PostgreSQL's text, to compare them with the source's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tailrace.sinks.mysql.column_mapping import ColumnMapping
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.table_name import TableName

StoredRow = tuple[bytes | None, ...]


def stored_batches(
    session: MysqlSession, table: TableName, columns: Sequence[ColumnMapping], condition: str = "TRUE"
) -> Iterator[pa.RecordBatch]:
    """The rows of a table, with PostgreSQL's text of each value, thousands at a time.

    Args:
        session: A session, which cannot be used for anything else until the last row is read.
        table: The table.
        columns: The columns to read, at least one.
        condition: Which rows to read, in SQL.
    """
    listed = ", ".join([quote(column.name) for column in columns])
    for rows in session.stream(f"SELECT {listed} FROM {table.sql} WHERE {condition}"):
        values = zip(*rows, strict=True)
        texts = [column.decode(list(of_column)) for column, of_column in zip(columns, values, strict=True)]
        yield pa.RecordBatch.from_arrays(texts, names=[column.column.name for column in columns])


def stored_rows(
    session: MysqlSession, table: TableName, columns: Sequence[ColumnMapping], condition: str = "TRUE"
) -> list[StoredRow]:
    """The same rows, as a list."""
    if not columns:
        return [()] * int(session.value(f"SELECT count(*) FROM {table.sql} WHERE {condition}"))
    return [
        tuple([None if text is None else text.encode() for text in row])
        for batch in stored_batches(session, table, columns, condition)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
