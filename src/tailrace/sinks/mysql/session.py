"""A session at the destination, with settings under which every value means the same on every server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT

from tailrace.sinks.mysql.flavour import Flavour
from tailrace.sinks.mysql.loading_connection import LoadingConnection
from tailrace.sinks.mysql.mysql_error import classify_errors
from tailrace.sinks.mysql.options import MysqlOptions

_CONNECT_TIMEOUT_S: Final = 10
_IDLE_TIMEOUT_S: Final = 120
"""The server ends a session after so much silence, and with it the lock of a client that vanished. `maintain` breaks
the silence between steps."""
LOCK_WAIT_TIMEOUT_S: Final = 60
_STREAMED_ROWS: Final = 10_000
_PINS: Final[Mapping[str, object]] = {
    # Errors rather than changed values; 0 is no date and no request for a number; backslashes escape, as in LOAD DATA.
    "sql_mode": "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION",
    "time_zone": "+00:00",
    # Statements of many rows lock those rows only, and not the gaps between them.
    "transaction_isolation": "READ-COMMITTED",
    # A lock held by somebody else is reported and retried, rather than awaited silently.
    "innodb_lock_wait_timeout": LOCK_WAIT_TIMEOUT_S,
    "lock_wait_timeout": LOCK_WAIT_TIMEOUT_S,
    "wait_timeout": _IDLE_TIMEOUT_S,
    "net_write_timeout": 600,
    "net_read_timeout": 600,
    "sql_notes": 1,
    "foreign_key_checks": 1,
    "unique_checks": 1,
}

Row = tuple[Any, ...]


class MysqlSession:
    """One connection. Statements belong to a transaction, which `commit` ends, as statements that define tables do."""

    def __init__(self, options: MysqlOptions) -> None:
        """Connect. Raises PyMySQL's errors."""
        self._connection = LoadingConnection(
            **options.parameters(),
            charset="utf8mb4",
            autocommit=False,
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=_CONNECT_TIMEOUT_S,
            program_name="tailrace",
        )
        try:
            self.flavour = Flavour.parse(str(self.value("SELECT VERSION()")))
            # MariaDB calls it tx_isolation before 11.1.
            pins = dict(_PINS)
            if self.flavour.product == "mariadb" and self.flavour.version < (11, 1, 1):
                pins["tx_isolation"] = pins.pop("transaction_isolation")
            settings = ", ".join(f"SESSION {name} = %s" for name in pins)
            self.execute(f"SET NAMES utf8mb4 COLLATE {self.flavour.collation}")
            self.execute(f"SET {settings}", list(pins.values()))
            self.commit()
        except BaseException:
            self.close()
            raise

    @property
    def collation(self) -> str:
        return self.flavour.collation

    def execute(self, statement: str | bytes, arguments: list[Any] | None = None) -> int:
        """Run a statement and return how many rows it found or affected."""
        if isinstance(statement, bytes):
            return int(self._connection.query(statement))
        with self._connection.cursor() as cursor:
            return int(cursor.execute(statement, arguments))

    def rows(self, query: str, arguments: list[Any] | None = None) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, arguments)
            return list(cursor.fetchall())

    def stream(self, query: str) -> Iterator[Sequence[Row]]:
        """The rows of a query, thousands at a time, as the server sends them."""
        with self._connection.cursor(pymysql.cursors.SSCursor) as cursor:
            cursor.execute(query)
            while rows := cursor.fetchmany(_STREAMED_ROWS):
                yield rows

    def row(self, query: str, arguments: list[Any] | None = None) -> Row | None:
        return next(iter(self.rows(query, arguments)), None)

    def value(self, query: str, arguments: list[Any] | None = None) -> Any:
        found = self.row(query, arguments)
        return None if found is None else found[0]

    def load(self, table: str, columns: Sequence[str], lines: Iterable[bytes]) -> tuple[int, int]:
        """Load lines into a table; return how many rows there were, and how many warnings."""
        return self._connection.load(table, columns, lines)

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def ping(self) -> None:
        self._connection.ping(reconnect=False)

    def close(self) -> None:
        if self._connection.open:
            try:
                self._connection.close()
            except pymysql.Error:
                # The connection is broken, and gone.
                self._connection._force_close()  # type: ignore[attr-defined]


class LazySession:
    """A session for staging, opened on first use."""

    def __init__(self, options: MysqlOptions) -> None:
        self._options = options
        self._session: MysqlSession | None = None

    def get(self) -> MysqlSession:
        if self._session is None:
            self._session = MysqlSession(self._options)
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


@contextmanager
def staging_session(options: MysqlOptions) -> Iterator[LazySession]:
    """A session for staging a part, opened only if it is used."""
    lazy = LazySession(options)
    try:
        with classify_errors():
            yield lazy
    finally:
        lazy.close()
