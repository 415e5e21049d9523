"""Connections to the source: what every session pins, how a dead peer is noticed, what a failure means."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from tailrace.errors import SourceError
from tailrace.settings import Source
from tailrace.source.failure import classified, classify

__all__ = ["SESSION", "classify", "connect", "connect_replication"]

SESSION: Final[Mapping[str, str]] = {
    # One text for a value, whatever database, role or server say: snapshot and stream must agree.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    # Nobody's limit for people at a prompt ends a snapshot or a stream.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # PostgreSQL 18 only warns when the publication is missing: the warning must reach us.
    "client_min_messages": "warning",
    # Nobody's function or operator stands in for PostgreSQL's own.
    "search_path": "pg_catalog",
    # Rows that a policy hides are an error, not silently absent from a snapshot.
    "row_security": "off",
}

_DEFAULTS: Final = {
    "application_name": "tailrace",
    "connect_timeout": "10",
    # A peer that is gone without a word is noticed after 10 + 3 × 5 s of silence, and within 30 s when we send.
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


def connect(source: Source) -> psycopg.Connection[TupleRow]:
    """A session of its own, committing each statement."""
    with classified():
        connection = psycopg.connect(**_parameters(source), autocommit=True)
        if connection.info.server_version >= 170000:
            connection.execute("SET transaction_timeout = 0")
        return connection


def connect_replication(source: Source) -> pq.abc.PGconn:
    """A walsender in the source's database, that also takes SQL."""
    parameters = _parameters(source) | {"replication": "database"}
    # Not PQconnectdb: that would hold back signals for as long as the network is silent.
    pgconn = pq.PGconn.connect_start(make_conninfo("", **parameters).encode())
    hosts = str(parameters.get("host", "")).count(",") + 1
    deadline = time.monotonic() + int(parameters["connect_timeout"]) * hosts
    while (status := pgconn.connect_poll()) != pq.PollingStatus.OK:
        if status == pq.PollingStatus.FAILED:
            raise classify(pgconn)
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT)
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise SourceError("connecting to the source took too long", "is there a firewall in between?")
    if pgconn.server_version >= 170000:
        result = pgconn.exec_(b"SET transaction_timeout = 0")
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise classify(result)
    return pgconn


def _parameters(source: Source) -> dict[str, Any]:
    given = conninfo_to_dict(source.url)
    # What is set here comes last, and the last wins; what the URL says may be needed to be let in at all.
    pinned = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
    parameters = _DEFAULTS | given
    parameters |= {"options": f"{given.get('options', '')} {pinned}".strip(), "client_encoding": "UTF8"}
    if source.password is not None:
        parameters["password"] = source.password.reveal()
    if source.sslmode is not None:
        parameters["sslmode"] = source.sslmode
    if source.sslrootcert is not None:
        parameters["sslrootcert"] = str(source.sslrootcert)
    return parameters
