"""One thing that is wrong or worth knowing, and the SQL that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, LiteralString

import psycopg
from psycopg import sql


class Severity(StrEnum):
    ERROR = "error"
    """Capture cannot run, or would do harm."""
    WARNING = "warning"
    """Capture runs, and something will be missing or may break later."""
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    severity: Severity
    subject: str
    what: str
    mend: str = ""
    """SQL to paste into psql, as somebody with the right to do it."""


def script(
    connection: psycopg.Connection[Any], text: LiteralString, *parts: str | sql.Composable | list[sql.Identifier]
) -> str:
    """SQL with each `{}` filled: a text as a quoted name, a list as names with commas, SQL and literals as they are."""

    def filled(part: str | sql.Composable | list[sql.Identifier]) -> sql.Composable:
        if isinstance(part, list):
            return sql.SQL(", ").join(part)
        return sql.Identifier(part) if isinstance(part, str) else part

    return sql.SQL(text).format(*map(filled, parts)).as_string(connection)


RELOAD = "SELECT pg_catalog.pg_reload_conf();"
RESTART = "-- then restart the server"
