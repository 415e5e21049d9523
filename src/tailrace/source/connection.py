"""Connections to the source: for SQL, and for the stream."""

from __future__ import annotations

import select
import time

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from tailrace import postgres
from tailrace.errors import SourceError
from tailrace.postgres.connection import SESSION, parameters
from tailrace.settings import Source
from tailrace.source.failure import classified, classify

__all__ = ["SESSION", "classify", "connect", "connect_replication"]


def connect(source: Source) -> psycopg.Connection[TupleRow]:
    """A session of its own, committing each statement."""
    with classified():
        return postgres.connection.connect(source)


def connect_replication(source: Source) -> pq.abc.PGconn:
    """A walsender in the source's database, that also takes SQL."""
    given = parameters(source) | {"replication": "database"}
    # Not PQconnectdb: that would hold back signals for as long as the network is silent.
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
            raise SourceError("connecting to the source took too long", "is there a firewall in between?")
    if pgconn.server_version >= 170000:
        result = pgconn.exec_(b"SET transaction_timeout = 0")
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise classify(result)
    return pgconn
