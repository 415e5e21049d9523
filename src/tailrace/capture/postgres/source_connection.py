"""Connections to the source, for SQL and for replication."""

from __future__ import annotations

import select
import time

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from tailrace import postgres
from tailrace.capture.postgres.source_error import classify, source_errors
from tailrace.errors import ConfigError, SourceError
from tailrace.postgres.connection import SESSION, parameters
from tailrace.settings import SourceSettings

__all__ = ["SESSION", "classify", "connect", "connect_replication", "run_command", "text_value"]


def connect(source: SourceSettings) -> psycopg.Connection[TupleRow]:
    """Open a session in autocommit mode. Raises Tailrace's errors."""
    _require_postgres(source)
    with source_errors():
        return postgres.connection.connect(source)


def connect_replication(source: SourceSettings, application_name: str | None = None) -> pq.abc.PGconn:
    """Open a replication connection in the source's database, which also accepts SQL.

    `application_name` overrides the URL's; by default it is the URL's, or `tailrace`.
    """
    _require_postgres(source)
    given = parameters(source) | {"replication": "database"}
    if application_name is not None:
        given["application_name"] = application_name
    # Not PQconnectdb, which would delay signals for as long as the network does not respond.
    pgconn = pq.PGconn.connect_start(make_conninfo("", **given).encode())
    hosts = str(given.get("host", "")).count(",") + 1
    deadline = time.monotonic() + int(given["connect_timeout"]) * hosts
    while (status := pgconn.connect_poll()) != pq.PollingStatus.OK:
        if status == pq.PollingStatus.FAILED:
            raise classify(pgconn)
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT)
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise SourceError("connecting to the source timed out", "check for a firewall in between")
    if pgconn.server_version >= 170000:
        result = pgconn.exec_(b"SET transaction_timeout = 0")
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise classify(result)
    return pgconn


def _require_postgres(source: SourceSettings) -> None:
    if not source.url:
        raise ConfigError(
            "this needs a PostgreSQL database as the source",
            "[source] names none: set its url, or use a command that works on SlateDB "
            "(capture, snapshot, check, status, run, log)",
        )


def run_command(connection: pq.abc.PGconn, command: str) -> pq.abc.PGresult:
    """Run a command or a query on a replication connection."""
    result = connection.exec_(command.encode())
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise classify(result)
    return result


def text_value(result: pq.abc.PGresult, column: int) -> str:
    """A value of a result's first row; an empty string for NULL."""
    return (result.get_value(0, column) or b"").decode()
