"""Tables in MariaDB, read back and converted to PostgreSQL's text."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tests import oracle
from tests.contract.destinations import assert_same, assert_versions, delivered_tables, difference
from tests.contract.scenario import Mark, Scenario

from tailrace.change import Lsn, Relation
from tailrace.delivery.contract import State
from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.sinks.mysql.column_mapping import ColumnMapping, map_relation
from tailrace.sinks.mysql.options import MysqlOptions
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.stored_row import stored_rows
from tailrace.sinks.mysql.table_name import TableName
from tailrace.sinks.mysql.unrepresentable import UnrepresentablePolicy

POLICY = "text"
"""So that all values of the scenario are retained."""


@contextmanager
def make_database(server: MysqlFamilyServer) -> Iterator[str]:
    """The URL of a new database, which is dropped at the end."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    _execute(server.url, f"CREATE DATABASE {name}")
    try:
        yield server.url.rpartition("/")[0] + f"/{name}"
    finally:
        _execute(server.url, f"DROP DATABASE {name}")


def _execute(url: str, statement: str) -> None:
    session = MysqlSession(MysqlOptions(url=url))
    try:
        session.execute(statement)
    finally:
        session.close()


@dataclass
class MysqlMirror:
    """Tables in a database of MySQL or MariaDB."""

    url: str
    type: str = "mysql"
    _only = "TRUE"
    """Which rows are compared with the source's."""
    _reserved_key_bytes = 0

    def settings(self) -> Mapping[str, Any]:
        return {"type": self.type, "url": self.url, "on_unrepresentable": POLICY}

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        with self._session() as session:
            tables = self.tables(session)
            for name, table in delivered_tables(mark, state).items():
                found, columns = self.rows(session, *tables[name], table.columns)
                expected = comparable(columns, table.rows)
                assert found == expected, f"{name}: {difference(found, expected)}"
            self._assert_nothing_left(session)

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        with self._session() as session:
            known = self.tables(session)
            assert_same(known, ((schema, name) for name in tables))
            for name, rows in tables.items():
                physical, relation = known[schema, name]
                found, columns = self.rows(session, physical, relation, [c.name for c in relation.columns])
                expected = comparable(columns, rows)
                assert found == expected, f"{name}: {difference(found, expected)}"

    def fingerprint(self) -> Any:
        with self._session() as session:
            return {
                name: self.rows(session, physical, relation, [c.name for c in relation.columns])[0]
                for name, (physical, relation) in self.tables(session).items()
            }

    def _assert_nothing_left(self, session: MysqlSession) -> None:
        left = session.rows("SHOW TABLES LIKE 'tailrace\\_staged\\_%'")
        assert left == [], "staged tables were left behind"
        assert session.rows("SELECT * FROM tailrace_progress") == []
        assert session.rows("SELECT * FROM tailrace_definition_changes") == []

    @contextmanager
    def _session(self) -> Iterator[MysqlSession]:
        session = MysqlSession(MysqlOptions(url=self.url))
        try:
            yield session
        finally:
            session.close()

    def tables(self, session: MysqlSession) -> dict[tuple[str, str], tuple[TableName, Relation]]:
        """By name at the source, the name in MariaDB and the last relation."""
        rows = session.rows(
            "SELECT target_schema, target_table, database_name, table_name, relation FROM tailrace_tables"
            " WHERE relation IS NOT NULL"
        )
        return {
            (schema, table): (TableName(database, name), Relation.from_json(relation))
            for schema, table, database, name, relation in rows
        }

    def rows(
        self, session: MysqlSession, table: TableName, relation: Relation, names: Any
    ) -> tuple[oracle.Rows, list[ColumnMapping]]:
        policy = UnrepresentablePolicy.parse(POLICY)
        of = {
            column.column.name: column
            for column in map_relation(relation, session.flavour, policy, reserved_key_bytes=self._reserved_key_bytes)
        }
        columns = [of[name] for name in names]
        return Counter(stored_rows(session, table, columns, self._only)), columns


@dataclass
class MysqlHistory(MysqlMirror):
    """Every version of every row, in a database of MySQL or MariaDB."""

    _only = "_valid_to IS NULL"
    _reserved_key_bytes = 9

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "mode": "history"}

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        """Assert that the valid versions are the rows, and that each change began and ended the right versions."""
        super().assert_holds(scenario, mark, state, began)
        begun: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        with self._session() as session:
            for physical, _ in self.tables(session).values():
                query = f"SELECT _valid_from_position, _valid_to_position, _operation FROM {physical.sql}"
                for first, last, operation in session.rows(query):
                    begun[first] += operation != "SNAPSHOT"
                    ended[last] += last is not None
        assert_versions(scenario, state, began, +begun, +ended)


def comparable(columns: list[ColumnMapping], rows: oracle.Rows) -> oracle.Rows:
    """PostgreSQL's rows, without what MariaDB's types do not hold, such as zeros at the end of numbers."""
    given = list(rows.elements())
    if not columns or not given:
        return rows
    found = []
    for column, values in zip(columns, zip(*given, strict=True), strict=True):
        texts = pa.array([None if v is None else v.decode() for v in values], pa.string())
        found.append([None if v is None else v.encode() for v in column.comparable(texts).to_pylist()])
    return Counter(zip(*found, strict=True))
