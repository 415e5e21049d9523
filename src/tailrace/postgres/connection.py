"""Connections to PostgreSQL, as source or destination: session settings, and detection of dead peers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from tailrace.settings import Secret

SESSION: Final[Mapping[str, str]] = {
    # A value has the same text whatever the database, role or server set: snapshot and stream must agree.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    # Limits meant for interactive users must not end a snapshot or a stream.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # PostgreSQL 18 only warns when the publication is missing, so the client must receive warnings.
    "client_min_messages": "warning",
    # No user's function or operator may shadow PostgreSQL's own.
    "search_path": "pg_catalog",
    # A policy that hides rows must cause an error, not a snapshot that silently lacks them.
    "row_security": "off",
}

_DEFAULTS: Final = {
    "application_name": "tailrace",
    "connect_timeout": "10",
    # A peer that vanished is detected after 10 + 3 × 5 s of silence, or within 30 s of unacknowledged sends.
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


class Address(Protocol):
    """The fields with which settings say where a server is and how to authenticate."""

    @property
    def url(self) -> str: ...
    @property
    def password(self) -> Secret | None: ...
    @property
    def sslmode(self) -> str | None: ...
    @property
    def sslrootcert(self) -> Path | None: ...


def connect(address: Address, pins: Mapping[str, str] = SESSION) -> psycopg.Connection[TupleRow]:
    """Open a session in autocommit mode.

    `pins` are session settings that override those of database, role and server. Raises psycopg's errors.
    """
    connection = psycopg.connect(**parameters(address, pins), autocommit=True)
    try:
        if connection.info.server_version >= 170000:
            connection.execute("SET transaction_timeout = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def parameters(address: Address, pins: Mapping[str, str] = SESSION) -> dict[str, Any]:
    """libpq's connection parameters for a session at `address` with `pins`."""
    given = conninfo_to_dict(address.url)
    # The URL's options are retained, as a server may require them to connect. Pins come last, and the last one wins.
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
