"""The PostgreSQL replica has the same rows as the source, whatever happened there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import oracle, values
from tests.e2e.captured_database import captured
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.oracle import Row, Rows
from tests.sinks.replicas import HISTORY, rows_of, sink_to
from tests.sinks.sink_driver import deliver
from tests.workload import Table, Workload

from tailrace.change import Change, Operation, Position
from tailrace.embedded.postgres import Postgres
from tailrace.log.planner import BatchLimits
from tailrace.log.reader import LogReader
from tailrace.sinks.database import staging
from tailrace.store import Store


@pytest.fixture
def replica(postgres: Postgres) -> Iterator[Database]:
    """The destination: another database of the same server."""
    database = make_database(postgres)
    yield database
    drop_database(database)


@pytest.fixture(params=["inline", "staged"])
def staging_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rows in receipts, or nearly all of them in staging tables."""
    if request.param == "staged":
        monkeypatch.setattr(staging, "INLINE_BYTES", 2000)
    return str(request.param)


def work_on(
    database: Database, directory: Path, seed: int, transactions: int, **options: Any
) -> tuple[Store, list[Table]]:
    with captured(database, directory, segment_bytes=64 * 1024) as log:
        workload = Workload(lambda: database.connect(), seed, **options)
        tables = workload.create()
        workload.run(transactions)
        workload.stop()
        log.catch_up()
    return log.store, tables


def random_steps(rng: random.Random) -> dict[str, Any]:
    return {
        "parts": lambda: rng.randint(1, 4),
        "limits": lambda: BatchLimits(rng.choice([1, 3, 10, 100]), 1 << 30),
    }


@pytest.mark.usefixtures("staging_kind")
@pytest.mark.parametrize("seed", range(2))
def test_a_random_workload(database: Database, replica: Database, tmp_path: Path, seed: int) -> None:
    _follow_a_random_workload(database, replica, tmp_path, seed)


def test_a_random_workload_to_an_older_server(database: Database, postgres16: Postgres, tmp_path: Path) -> None:
    replica = make_database(postgres16)
    _follow_a_random_workload(database, replica, tmp_path, 2)
    drop_database(replica)


def _follow_a_random_workload(database: Database, replica: Database, tmp_path: Path, seed: int) -> None:
    if seed % 2:
        replica.execute(values.DECLARATIONS)
    store, tables = work_on(database, tmp_path, seed, 200, ddl=True, exclusive=0.03)
    deliver(sink_to(replica), store, **random_steps(random.Random(seed)))
    compared = 0
    for table in tables:
        found = rows_of(replica, table.schema, table.name)
        if found is None:
            found = (sorted(table.columns), Counter())  # no change of it ever came
        assert found == rows_of(database, table.schema, table.name), table.name
        compared += sum(found[1].values())
    assert compared > 50


@pytest.mark.usefixtures("staging_kind")
@pytest.mark.parametrize("seed", range(2))
def test_current_versions_of_a_history_are_the_source_rows(
    database: Database, replica: Database, tmp_path: Path, seed: int
) -> None:
    """Also after schema changes: dropped columns remain in the history, and are ignored here."""
    store, tables = work_on(database, tmp_path, seed + 10, 150, ddl=True, exclusive=0.03)
    deliver(sink_to(replica, mode="history"), store, **random_steps(random.Random(seed)))
    for table in tables:
        if rows_of(replica, table.schema, table.name) is not None:
            with replica.connect() as theirs, database.connect() as ours:
                names = sorted(table.columns)
                current = _rows(theirs, table, names, "_valid_to IS NULL")
                assert current == oracle.rows(ours, table.schema, table.name, names), table.name


@pytest.mark.usefixtures("staging_kind")
@pytest.mark.parametrize("seed", range(2))
def test_a_history_has_every_version(database: Database, replica: Database, tmp_path: Path, seed: int) -> None:
    store, tables = work_on(database, tmp_path, seed + 20, 150, exclusive=0.03)
    deliver(sink_to(replica, mode="history"), store, **random_steps(random.Random(seed)))
    changes = list(LogReader(store).changes())
    for table in tables:
        own = [c for c in changes if (c.schema, c.table) == (table.schema, table.name)]
        if not own:
            continue
        assert own[0].relation is not None
        names = [c.name for c in own[0].relation.columns]
        marks = ["_valid_from_position", "_valid_to_position", "_operation"]
        with replica.connect() as theirs:
            found = _rows(theirs, table, [*names, *marks])
        assert sum(found.values()) == sum(c.operation in ("INSERT", "UPDATE") for c in own)
        for position in random.Random(seed).choices([c.position for c in changes], k=5):
            then = oracle.replay(c for c in own if c.position <= position).rows(table.schema, table.name)
            assert _valid_at(found, position, len(names)) == then, (table.name, str(position))
        _assert_chained(found, own, len(names))


def _rows(connection: oracle.Connection, table: Table, names: list[str], where: str = "true") -> Rows:
    """Some of a history's rows."""
    view = 'CREATE TEMPORARY VIEW "some" AS SELECT * FROM ' + table.qualified.as_string() + f" WHERE {where}"
    connection.execute(view.encode())
    found = oracle.rows(connection, "pg_temp", "some", names)
    connection.execute('DROP VIEW pg_temp."some"')
    return found


def _valid_at(versions: Rows, position: Position, width: int) -> Rows:
    found: Rows = Counter()
    for row, count in versions.items():
        started, ended, _ = (_position(mark) for mark in row[width:])
        assert started is not None
        if started <= position and (ended is None or ended > position):
            found[row[:width]] += count
    return found


def _position(mark: bytes | None) -> Position | None:
    return Position.parse(mark.decode()) if mark and b"/" in mark else None


def _assert_chained(versions: Rows, changes: list[Change], width: int) -> None:
    """Each change that found a row ended a version, each that left one created a version."""
    started: Counter[Row] = Counter()
    ended: Counter[bytes] = Counter()
    for row, count in versions.items():
        started[(row[width], row[width + 2])] += count
        if (to := row[width + 1]) is not None:
            ended[to] += count
    made = [c for c in changes if c.operation in (Operation.INSERT, Operation.UPDATE)]
    assert started == Counter((str(c.position).encode(), c.operation.encode()) for c in made)
    gone = {str(c.position).encode() for c in changes if c.operation in (Operation.UPDATE, Operation.DELETE)}
    emptied = {str(c.position).encode() for c in changes if c.operation is Operation.TRUNCATE}
    assert gone == ended.keys() - emptied
    assert all(count == 1 for position, count in ended.items() if position not in emptied)


def test_the_columns_of_a_history(database: Database, replica: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'", "UPDATE t SET id = 2", "DELETE FROM t")
        changes = log.changes("t")
    deliver(sink_to(replica, mode="history"), log.store)
    own = ", ".join(HISTORY)
    found = replica.rows(f"SELECT id, v, {own} FROM t ORDER BY _valid_from")
    at = [(c.committed_at, str(c.position)) for c in changes]
    assert [(*row[:2], row[-1]) for row in found] == [(1, "a", "INSERT"), (1, "b", "UPDATE"), (2, "b", "UPDATE")]
    assert [(row[2], row[4]) for row in found] == at[:3]
    assert [(row[3], row[5]) for row in found] == at[1:]
