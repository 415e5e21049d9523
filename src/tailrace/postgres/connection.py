"""Connections to PostgreSQL, source or destination: what every session pins, how a dead peer is noticed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from tailrace.settings import Secret

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


class Address(Protocol):
    """Where a server is and how it lets us in; settings that name one have these fields."""

    @property
    def url(self) -> str: ...
    @property
    def password(self) -> Secret | None: ...
    @property
    def sslmode(self) -> str | None: ...
    @property
    def sslrootcert(self) -> Path | None: ...


def connect(address: Address, pins: Mapping[str, str] = SESSION) -> psycopg.Connection[TupleRow]:
    """A session of its own, committing each statement. Errors are psycopg's."""
    connection = psycopg.connect(**parameters(address, pins), autocommit=True)
    try:
        if connection.info.server_version >= 170000:
            connection.execute("SET transaction_timeout = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def parameters(address: Address, pins: Mapping[str, str] = SESSION) -> dict[str, Any]:
    given = conninfo_to_dict(address.url)
    # What is set here comes last, and the last wins; what the URL says may be needed to be let in at all.
    pinned = " ".join(f"-c {name}={value}" for name, value in pins.items())
    found = _DEFAULTS | given
    found |= {"options": f"{given.get('options', '')} {pinned}".strip(), "client_encoding": "UTF8"}
    if address.password is not None:
        found["password"] = address.password.reveal()
    if address.sslmode is not None:
        found["sslmode"] = address.sslmode
    if address.sslrootcert is not None:
        found["sslrootcert"] = str(address.sslrootcert)
    return found
