"""A connection that loads rows from memory with LOAD DATA LOCAL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pymysql
from pymysql.connections import MySQLResult
from pymysql.protocol import MysqlPacket

from tailrace.sinks.mysql import load_data

_PACKET_BYTES: Final = 256 << 10
"""Less than any server's `max_allowed_packet`, which limits packets, not values. Larger ones were not faster."""
_FILE: Final = "rows"


class LoadingConnection(pymysql.Connection):
    """PyMySQL's connection would read whatever file the server names. This one sends only what it was given."""

    def __init__(self, **settings: Any) -> None:
        self._lines: Iterable[bytes] | None = None
        super().__init__(**settings, local_infile=True)

    def load(self, table: str, columns: Sequence[str], lines: Iterable[bytes]) -> tuple[int, int]:
        """Load rows into a table and return how many there were and how many warnings.

        LOAD DATA LOCAL turns errors into warnings, whatever sql_mode says: a caller must not accept any.

        Args:
            table: The table in SQL, quoted.
            columns: Names of the columns.
            lines: Text from `load_data.lines`.
        """
        self._lines = lines
        try:
            count = self.query(load_data.statement(_FILE, table, columns))
        finally:
            self._lines = None
        assert self._result is not None
        return count, self._result.warning_count

    def _read_query_result(self, unbuffered: bool = False) -> int:
        self._result = None
        result = _LoadResult(self, self._lines or ())
        if unbuffered:
            result.init_unbuffered_query()
        else:
            result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows or 0)


class _LoadResult(MySQLResult):
    def __init__(self, connection: LoadingConnection, lines: Iterable[bytes]) -> None:
        super().__init__(connection)
        self._lines = lines

    def _read_load_local_packet(self, first_packet: MysqlPacket) -> None:  # noqa: ARG002
        connection = self.connection
        assert connection is not None
        try:
            for text in self._lines:
                for start in range(0, len(text), _PACKET_BYTES):
                    connection.write_packet(text[start : start + _PACKET_BYTES])
        except BaseException:
            # The server takes everything for rows until the end of the rows, also a ROLLBACK.
            connection._force_close()  # type: ignore[attr-defined]
            raise
        connection.write_packet(b"")
        self._read_ok_packet(connection._read_packet())  # type: ignore[attr-defined, no-untyped-call]
