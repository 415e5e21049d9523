"""The demo's MariaDB, to which the sink `mysql` delivers. Needs that sink's dependencies."""

from __future__ import annotations

from typing import Final

from tailrace import settings
from tailrace.embedded.mariadb import MariaDbServer
from tailrace.sinks.mysql.ledger import MysqlLedger
from tailrace.sinks.mysql.options import MysqlOptions
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.stored_row import StoredRow, stored_rows
from tailrace.sinks.mysql.table_definition import DefinitionFormat
from tailrace.sinks.mysql.table_name import TableNames

_NAME: Final = "mysql"


class DemoMysql:
    """Runs the server until the context exits."""

    name: Final = _NAME
    """The column of its rows in the summary."""

    def __init__(self) -> None:
        self._server = MariaDbServer()

    def __enter__(self) -> DemoMysql:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    @property
    def sink(self) -> settings.SinkTable:
        return {"type": "mysql", "name": _NAME, "url": self._server.url}

    @property
    def command(self) -> str:
        """The command to query it from another terminal."""
        server = self._server
        return f"mariadb -h 127.0.0.1 -P {server.port} -u {server.user} -p{server.password} {server.database}"

    def rows(self) -> dict[str, list[StoredRow]]:
        """The rows of each table, as PostgreSQL prints them."""
        options = MysqlOptions(url=self._server.url)
        names = TableNames(options.url_database, is_per_schema=False)
        session = MysqlSession(options)
        try:
            format = DefinitionFormat(session.flavour, options.policy(), is_history=False)
            return {
                table.relation.name: sorted(
                    stored_rows(session, names.of(table.target), format.columns(table.relation))
                )
                for table in MysqlLedger(session, names, _NAME).tables().values()
            }
        finally:
            session.close()
