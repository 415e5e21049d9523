"""Iceberg tables as a destination, read back by DuckDB, which shares no code with the sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from tests import oracle
from tests.contract.destinations import assert_same, delivered_tables, difference, expected_changes
from tests.contract.scenario import Mark, Scenario

from tailrace.change import Change, Lsn, Position, Relation
from tailrace.column_name import unused_name
from tailrace.delivery.contract import State
from tailrace.lake import point
from tailrace.lake.point import Point, PointTable
from tailrace.query.duckdb_engine import load_extensions
from tailrace.sinks.iceberg.iceberg_schema import iceberg_type, stored_texts
from tailrace.sinks.iceberg.schema_change import is_same_or_wider
from tailrace.state.evolution import origins
from tailrace.store import Store


@cache
def engine() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    load_extensions(connection)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@dataclass
class Lake:
    directory: Path
    sink: str = "tested"
    more: Mapping[str, Any] = field(default_factory=dict)
    """Settings of another catalog or warehouse."""

    def __post_init__(self) -> None:
        if "options" in self.more:
            options = self.more["options"]
            engine().execute(
                f"CREATE OR REPLACE SECRET s3 (TYPE s3, KEY_ID '{options['access_key_id']}',"
                f" SECRET '{options['secret_access_key']}', ENDPOINT '{options['endpoint'].removeprefix('http://')}',"
                " URL_STYLE 'path', USE_SSL false)"
            )

    def settings(self) -> Mapping[str, Any]:
        return {"type": "iceberg", "warehouse": self.directory.as_uri(), **self.more}

    @property
    def store(self) -> Store:
        settings = self.settings()
        return Store.open(settings["warehouse"], settings.get("options"))

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        at = self.point()
        assert at.cursor == state.cursor == mark.lsn
        tables = {(t.schema, t.table): t for t in at.tables}
        for name, table in delivered_tables(mark, state).items():
            found = self.rows(tables[name], table.columns)
            assert found == table.rows, f"{name}: {difference(found, table.rows)}"

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        found = {(t.schema, t.table): t for t in self.point().tables if t.kind == "mirror"}
        assert_same(found, ((schema, name) for name in tables))
        for name, rows in tables.items():
            own = self.rows(found[schema, name])
            assert own == rows, f"{name}: {difference(own, rows)}"

    def fingerprint(self) -> Any:
        return {table.name: self.rows(table) for table in self.point().tables}

    def point(self) -> Point:
        found = point.load(self.store, self.sink)
        assert found is not None
        return found

    def relation(self, table: PointTable) -> Relation:
        return point.load_relation(self.store, self.sink, table.relation)

    def rows(self, table: PointTable, columns: Iterable[str] | None = None) -> oracle.Rows:
        """PostgreSQL's texts of all rows of a table at the point."""
        relation = self.relation(table)
        assert columns is None or [*columns] == [column.name for column in relation.columns]
        if table.snapshot is None:
            return Counter()
        return Counter(texts(relation, _scan(table)))


@dataclass
class LakeWithChangelog(Lake):
    """Mirrors and changelogs."""

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "mode": "both"}

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        super().assert_holds(scenario, mark, state, began)
        tables = {t.oid: t for t in self.point().tables if t.kind == "changelog"}
        expected: dict[int, Counter[Any]] = {oid: Counter() for oid in tables}
        for change in expected_changes(scenario, state, began):
            if change.relation is not None:
                table = tables[change.relation.oid]
                expected[table.oid][_expected_entry(change, self.relation(table))] += 1
        for table in tables.values():
            found = Counter(entry for entry in self.entries(table) if entry[0] != "SNAPSHOT")
            assert_same(found.items(), expected[table.oid].items())

    def entries(self, table: PointTable) -> Iterator[Any]:
        """The changelog: operation, position, transaction, unsent columns, row in the current columns."""
        if table.snapshot is None:
            return
        relation = self.relation(table)
        found = _scan(table)
        names = [
            unused_name(name, relation) for name in ("_operation", "_position", "_commit_lsn", "_xid", "_unchanged")
        ]
        about = zip(*(found.column(name).to_pylist() for name in names), strict=True)
        own = found.select([column.name for column in relation.columns] + [unused_name("_special", relation)])
        for (operation, position, lsn, xid, unsent), row in zip(about, texts(relation, own), strict=True):
            assert Position.parse(position).commit_lsn == lsn
            yield operation, position, xid, tuple(unsent), row


def _expected_entry(change: Change, now: Relation) -> Any:
    """The changelog's entry for a change: NULL in columns that were added or changed their type later."""
    assert change.relation is not None
    before = change.relation.columns
    image = (change.old if change.operation == "DELETE" else change.new) or (None,) * len(before)
    row: list[bytes | None] = []
    for column, origin in zip(now.columns, origins(change.relation, now), strict=True):
        value = None if origin.index is None else image[origin.index]
        is_retained = origin.index is not None and is_same_or_wider(
            iceberg_type(before[origin.index]), iceberg_type(column)
        )
        row.append(value if is_retained and isinstance(value, bytes) else None)
    return str(change.operation), str(change.position), change.xid, change.unchanged, tuple(row)


def _scan(table: PointTable) -> pa.Table:
    scan = f"SELECT * FROM iceberg_scan(?, snapshot_from_id = {table.snapshot})"
    return engine().execute(scan, [table.metadata]).fetch_arrow_table()


def texts(relation: Relation, table: pa.Table) -> Iterator[oracle.Row]:
    """PostgreSQL's texts of rows as an engine returns them."""
    odd: dict[str, dict[int, str]] = {}
    special = unused_name("_special", relation)
    if special in table.column_names:
        for row, entries in enumerate(table.column(special).to_pylist()):
            for name, value in entries or ():
                odd.setdefault(name, {})[row] = value
    arrays = []
    # By index: DuckDB does not distinguish `Id` from `id`, and renames the second.
    for place, column in enumerate(relation.columns):
        array = table.column(place).combine_chunks()
        if not pa.types.is_string(array.type):
            array = stored_texts(array, column, odd.get(column.name, {}))
        arrays.append([None if v is None else v.encode() for v in array.to_pylist()])
    yield from zip(*arrays, strict=True) if arrays else [()] * table.num_rows
