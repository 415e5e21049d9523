"""A replica in a database of MySQL or MariaDB, compared with its source."""

from __future__ import annotations

from typing import Any

from tests import oracle
from tests.contract.mysql_tables import POLICY, MysqlMirror, comparable
from tests.fixtures.postgres import Database

from tailrace.sinks.mysql import MysqlSink
from tailrace.sinks.mysql.options import MysqlOptions
from tailrace.sinks.mysql.session import MysqlSession


class MysqlReplica:
    """A database, and the sinks that deliver to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = MysqlSession(MysqlOptions(url=url))

    def sink(self, name: str = "replica", **options: Any) -> MysqlSink:
        return MysqlSink(name, MysqlOptions(**{"url": self.url, "on_unrepresentable": POLICY} | options))

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.session.execute(statement)
            self.session.commit()

    def rows(self, query: str) -> list[Any]:
        self.session.commit()
        return self.session.rows(query)

    def close(self) -> None:
        self.session.close()

    def assert_same(self, source: Database, *tables: str, schema: str = "public") -> None:
        """Assert that the rows of tables are equal as PostgreSQL's text."""
        reader = MysqlMirror(self.url)
        self.session.commit()
        known = reader.tables(self.session)
        for table in tables:
            physical, relation = known[schema, table]
            names = [column.name for column in relation.columns]
            found, columns = reader.rows(self.session, physical, relation, names)
            with source.connect(client_encoding="UTF8") as connection:
                expected = comparable(columns, oracle.rows(connection, schema, table, names))
            assert found == expected, f"{schema}.{table}"
