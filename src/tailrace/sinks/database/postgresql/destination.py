"""A PostgreSQL database as a destination: its settings and its connections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from tailrace.errors import ConfigError
from tailrace.postgres.connection import SESSION, connect
from tailrace.settings import Secret
from tailrace.settings.secret import read_secret, split_password
from tailrace.sinks.database.postgresql.destination_error import classify_errors

Connection = psycopg.Connection[Any]

_PINS: Final[Mapping[str, str]] = {
    **SESSION,
    # Compiling a statement takes longer than executing most of them.
    "jit": "off",
    # Joins with staged rows stay in memory.
    "work_mem": "64MB",
    # A lock held by somebody else is reported and retried, rather than awaited silently.
    "lock_timeout": "60s",
    # The server detects a lost client and releases the lock that prevents others from delivering.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "client_connection_check_interval": "5s",
}


@dataclass(frozen=True)
class Destination:
    url: str = ""
    """A libpq URL. A password inside it is moved into `password`."""
    password: Secret | None = None
    password_file: Path | None = None
    sslmode: str | None = field(
        default=None, metadata={"choices": ("disable", "prefer", "require", "verify-ca", "verify-full")}
    )
    sslrootcert: Path | None = None
    schema: str = "tailrace"
    """The schema of Tailrace's own tables: the cursor and staged rows."""

    def __post_init__(self) -> None:
        url, password = split_password(self.url)
        object.__setattr__(self, "url", url)
        if self.password is None:
            object.__setattr__(self, "password", password)

    def validate(self) -> Self:
        """These settings, validated, with the password read from its file."""
        if not self.url:
            raise ConfigError("url is missing", "such as postgresql://user@host/database")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", self.schema):
            raise ConfigError(f"schema {self.schema!r} is not a plain name", "use letters, digits and _")
        return replace(self, password=read_secret("password_file", self.password, self.password_file))

    def to_picklable(self) -> Self:
        """These settings with the password, for executors."""
        return self if self.password is None else replace(self, password=self.password.to_picklable())

    def connect(self) -> Connection:
        """A connection whose commits wait for the disk."""
        connection = connect(self, _PINS)
        try:
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def staging(self) -> Iterator[LazyConnection]:
        """A connection for staging a part, opened only if it is used."""
        lazy = LazyConnection(self)
        try:
            with classify_errors():
                yield lazy
        finally:
            lazy.close()


class LazyConnection:
    """A connection for staging, opened on first use."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._connection: Connection | None = None

    def get(self) -> Connection:
        if self._connection is None:
            # Staged rows have no effect until a commit that does wait for the disk.
            self._connection = connect(self._destination, {**_PINS, "synchronous_commit": "off"})
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
