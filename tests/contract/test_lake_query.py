"""End to end: PostgreSQL → log → lake → query server, compared with PostgreSQL's results at the same position."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests import oracle
from tests.contract.delivery_driver import Crash, DeliveryDriver, crashing
from tests.contract.destinations import difference
from tests.contract.lake import Lake, engine
from tests.contract.scenario import Scenario, Table
from tests.e2e.captured_database import captured
from tests.fixtures.postgres import Database
from tests.workload import Workload

from tailrace import settings, types
from tailrace.lake.options import IcebergOptions
from tailrace.log import planner
from tailrace.query.query_server import QueryServer
from tailrace.settings import QuerySettings
from tailrace.sinks.iceberg import table_maintenance
from tailrace.types import Form


def _make_server(lake: Lake) -> QueryServer:
    return QueryServer(IcebergOptions(warehouse=lake.directory.as_uri()), lake.sink, QuerySettings(port=0))


def _connect(server: QueryServer) -> psycopg.Connection[Any]:
    return psycopg.connect(host="127.0.0.1", port=server.port, user="reader", dbname="any", autocommit=True)


def rows(connection: psycopg.Connection[Any], schema: str, table: str, columns: Sequence[str]) -> oracle.Rows:
    """Like `oracle.rows`, without its settings, which are the server's defaults."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    select = sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(schema, table))
    result = connection.execute(select).pgresult
    assert result is not None
    return Counter(
        tuple([None if (v := result.get_value(r, c)) is None else bytes(v) for c in range(result.nfields)])
        for r in range(result.ntuples)
    )


@pytest.mark.usefixtures("spark")
def test_every_table_of_the_scenario_matches_postgresql(scenario: Scenario, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    delivering = DeliveryDriver(lake, scenario.store_of(tmp_path / "store"))
    delivering.deliver(scenario.end)
    with _make_server(lake) as server, _connect(server) as connection:
        relations = {(t.schema, t.table): lake.relation(t) for t in lake.point().tables}
        for (schema, name), table in scenario.marks[-1].tables.items():
            if len({column.lower() for column in table.columns}) < len(table.columns):
                with pytest.raises(psycopg.Error, match="case"):
                    rows(connection, schema, name, table.columns)
                continue
            relation = relations[schema, name]
            columns = [column.name for column in relation.columns]
            expected = _expected_rows(table, columns)
            found = rows(connection, schema, name, columns) if columns else expected
            assert found == expected, f"{schema}.{name}: {difference(found, expected)}"


def _expected_rows(table: Table, columns: Sequence[str]) -> oracle.Rows:
    places = [table.columns.index(name) for name in columns]
    found: oracle.Rows = Counter()
    for row, count in table.rows.items():
        found[tuple([row[place] for place in places])] += count
    return found


_FILTERED = """
CREATE TABLE filtered (
    id int PRIMARY KEY, small int, rate numeric(6, 2), f float8, note text, at timestamptz, gone int);
INSERT INTO filtered SELECT i, i % 7, i / 4.0, i / 2.0, CASE WHEN i % 3 > 0 THEN 'n' || i END,
    timestamptz '2025-01-01 00:00+00' + i * interval '7 hours', i FROM generate_series(1, 200) i
---
ALTER TABLE filtered ADD COLUMN extra int;
ALTER TABLE filtered ADD COLUMN word text DEFAULT 'old';
INSERT INTO filtered (id) VALUES (200200)
---
ALTER TABLE filtered ALTER COLUMN small TYPE bigint;
ALTER TABLE filtered ALTER COLUMN rate TYPE numeric(12, 2);
ALTER TABLE filtered RENAME COLUMN note TO remark;
ALTER TABLE filtered DROP COLUMN gone;
INSERT INTO filtered SELECT i, i * 10000000000, i * 1000.5, CASE WHEN i % 2 = 0 THEN 'NaN'::float8 ELSE i END, NULL,
    timestamptz '2026-01-01 00:00+00' + i * interval '5 hours', nullif(i % 4, 0), 'new'
    FROM generate_series(201, 300) i
---
DELETE FROM filtered WHERE id % 11 = 0;
UPDATE filtered SET remark = 'changed', extra = -1, f = '-Infinity' WHERE id % 13 = 0;
UPDATE filtered SET id = id + 1000 WHERE id % 17 = 0
"""
_FILTERS = (
    "extra IS NULL", "extra IS NOT NULL", "extra = 2", "extra < 0", "coalesce(extra, 5) = 5", "word = 'old'",
    "word = 'new'", "word IS NULL", "word <> 'old'", "small = 3", "small > 1000000000000", "small < 5", "rate = 12.25",
    "rate > 9999.99", "rate < 1", "remark IS NULL", "remark = 'n100'", "remark = 'changed'", "remark LIKE 'n1%'",
    "coalesce(remark, '') = ''", "f = 'NaN'", "f > 1e300", "f < 0", "f = 50", "NOT f < 100", "at < '2025-01-02'",
    "at > '2026-02-01'", "extract(dow FROM at) = 0", "at::date = '2025-01-10'", "id = 5", "id > 1000",
    "date_trunc('month', at) = '2026-01-01'", "id IN (1, 299, 1017)", "id % 10 = 7", "lower(remark) = 'n7'",
    "(extra IS NULL) = true", "abs(small - 3) = 3", "CASE WHEN extra > 2 THEN 'a' ELSE 'b' END = 'b'",
    "id BETWEEN 190 AND 210 AND word = 'new'",
)  # fmt: skip


@pytest.mark.usefixtures("spark")
def test_conditions_find_the_same_rows_as_at_the_source(database: Database, tmp_path: Path) -> None:
    """With files of different bounds, some older than columns and types: no matching file is skipped."""
    lake = Lake(tmp_path / "lake")
    with captured(database, tmp_path) as log:
        delivering = DeliveryDriver(lake, settings.StoreSettings(log.store.url), start="earliest")
        for statements in _FILTERED.split("---"):
            log.execute(*filter(str.strip, statements.split(";")))
            log.catch_up()
            delivering.deliver(planner.latest_offset(delivering.reader))
            with _make_server(lake) as server, _connect(server) as ours:
                _assert_size_is_known(log.connection, ours, lake)
        log.connection.execute("SET timezone = 'UTC'")
        with _make_server(lake) as server, _connect(server) as ours:
            for condition in _FILTERS:
                query = f"SELECT count(*), sum(id), min(id) FROM filtered WHERE {condition}".encode()
                answers = [connection.execute(query).fetchone() for connection in (ours, log.connection)]
                assert answers[0] == answers[1], condition


def _assert_size_is_known(theirs: psycopg.Connection[Any], ours: psycopg.Connection[Any], lake: Lake) -> None:
    """Deleted rows do not count, and the size is that of the live files and their deletion vectors."""
    query = "SELECT reltuples, pg_table_size(oid) FROM pg_class WHERE relname = 'filtered'"
    rows, size = ours.execute(query.encode()).fetchone() or (-1, 0)
    assert (rows,) == theirs.execute("SELECT count(*) FROM filtered").fetchone()
    (table,) = (table for table in lake.point().tables if table.table == "filtered")
    live = engine().execute(
        "SELECT DISTINCT content, file_path FROM iceberg_metadata(?) WHERE status <> 'DELETED'", [table.metadata]
    )
    sizes: Counter[bool] = Counter()
    for content, path in live.fetchall():
        sizes[content == "EXISTING"] += Path(path.removeprefix("file://")).stat().st_size
    vectors = size - sizes[True]
    assert 0 < vectors <= sizes[False] if sizes[False] else vectors == 0


@pytest.mark.soak
@pytest.mark.usefixtures("spark")
def test_a_random_workload_with_schema_changes_crashes_and_compaction(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each quiet point PostgreSQL and the server return the same rows and sums."""
    monkeypatch.setattr(table_maintenance, "_MANY_FILES", 3)
    lake, rng = Lake(tmp_path / "lake"), random.Random(5)
    workload = Workload(lambda: database.connect(), 5, ddl=True, exclusive=0.05)
    workload.create()
    with captured(database, tmp_path) as log:
        delivering = DeliveryDriver(lake, settings.StoreSettings(log.store.url), start="earliest")
        for _ in range(2):
            workload.run(40)
            workload.stop()
            log.catch_up()
            try:
                with crashing(rng.randint(1, 40)):
                    delivering.deliver(planner.latest_offset(delivering.reader))
            except Crash:
                pass
            with delivering.stepper() as one:
                one.deliver(planner.latest_offset(delivering.reader))
                one.sink.maintain()
            with _make_server(lake) as server, _connect(server) as ours:
                for table in workload.tables:
                    _assert_same(log.connection, ours, lake, table.schema, table.name)


def _assert_same(
    theirs: psycopg.Connection[Any], ours: psycopg.Connection[Any], lake: Lake, schema: str, name: str
) -> None:
    table = next(t for t in lake.point().tables if (t.schema, t.table) == (schema, name))
    relation = lake.relation(table)
    columns = [column.name for column in relation.columns]
    expected = oracle.rows(theirs, schema, name, columns)
    stored = [c for c in columns if types.mapping(relation.columns[columns.index(c)]).form is Form.TEXT]
    known = Table(relation.oid, tuple(columns), expected)
    assert rows(ours, schema, f"{name}$stored", stored) == _expected_rows(known, stored)
    numbers = [c.name for c in relation.columns if c.type.name in ("int2", "int4", "int8")]
    sums = [sql.SQL("sum({0}), min({0}), count(DISTINCT {0})").format(sql.Identifier(c)) for c in numbers]
    selected = sql.SQL(", ").join([sql.SQL("count(*)"), *sums])
    query = sql.SQL("SELECT {} FROM {}").format(selected, sql.Identifier(schema, name))
    answers = [[str(value) for value in c.execute(query).fetchone() or ()] for c in (ours, theirs)]
    assert answers[0] == answers[1]
