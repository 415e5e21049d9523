"""A replica in another database of the same server, compared with its source."""

from __future__ import annotations

from typing import Any

from tests import oracle
from tests.fixtures.postgres import Database
from tests.oracle import Rows

from tailrace.sinks.postgres import PostgresSink
from tailrace.sinks.postgres.sink import PostgresOptions

HISTORY = ("_valid_from", "_valid_to", "_valid_from_position", "_valid_to_position", "_operation")


def sink_to(replica: Database, name: str = "replica", **options: Any) -> PostgresSink:
    return PostgresSink(name, PostgresOptions(url=replica.url, **options))


def assert_same(source: Database, replica: Database, *tables: str, schema: str = "public") -> None:
    """Assert that rows are equal as text, and columns by name."""
    for table in tables:
        assert rows_of(replica, schema, table) == rows_of(source, schema, table), f"{schema}.{table}"


def rows_of(database: Database, schema: str, table: str) -> tuple[list[str], Rows] | None:
    """The rows, with columns sorted by name, because their order may differ in a replica; None without a table."""
    with database.connect() as connection:
        found = connection.execute(
            "SELECT attname FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid"
            " WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s) AND relname = %s"
            " AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
            [schema, table],
        ).fetchall()
        columns = sorted(name for (name,) in found)
        return (columns, oracle.rows(connection, schema, table, columns)) if columns else None
