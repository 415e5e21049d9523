"""The SQL that fixes findings about a source."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
from psycopg import sql


def script(
    connection: psycopg.Connection[Any], text: LiteralString, *parts: str | sql.Composable | list[sql.Identifier]
) -> str:
    """SQL with each `{}` filled: a string as a quoted name, a list as names with commas, SQL and literals unchanged."""

    def composable(part: str | sql.Composable | list[sql.Identifier]) -> sql.Composable:
        if isinstance(part, list):
            return sql.SQL(", ").join(part)
        return sql.Identifier(part) if isinstance(part, str) else part

    return sql.SQL(text).format(*map(composable, parts)).as_string(connection)


RELOAD = "SELECT pg_catalog.pg_reload_conf();"
RESTART = "-- then restart the server"
