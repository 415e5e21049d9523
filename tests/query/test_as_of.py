"""All tables at one version: the newest per statement, one per block, and earlier ones by LSN or time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fixtures.postgres import Database
from tests.query.conftest import connect
from tests.query.sample_lake import SINK, START, SampleLake

from tailrace.change import Lsn
from tailrace.lake.metadata import TableMetadata
from tailrace.query import client_session
from tailrace.query.query_server import QueryServer
from tailrace.settings import QuerySettings

_TWO = "SELECT (SELECT sum(a) FROM t), (SELECT sum(a) FROM u)"


@pytest.fixture
def lake(database: Database, tmp_path: Path) -> SampleLake:
    return SampleLake.under(tmp_path, database.name)


@pytest.fixture
def source(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with database.connect(autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int); CREATE TABLE u (id int PRIMARY KEY, a int)")
        connection.execute("INSERT INTO t VALUES (1, 1); INSERT INTO u VALUES (1, 10)")
        yield connection


@pytest.fixture
def server(lake: SampleLake) -> Iterator[QueryServer]:
    with QueryServer(lake.options, SINK, QuerySettings(port=0)) as server:
        yield server


def _steps(lake: SampleLake, source: psycopg.Connection[Any]) -> list[tuple[Lsn, datetime]]:
    """Deliver three batches: (1, 10), then only t changes (2, 10), then both (3, 30)."""
    found = []
    for change, names in (
        ("SELECT", ["t", "u"]),
        ("UPDATE t SET a = 2", ["t"]),
        ("UPDATE t SET a = 3; UPDATE u SET a = 30; ALTER TABLE u ADD b text DEFAULT 'new'", ["t", "u"]),
    ):
        source.execute(change.encode())
        lake.step(source, names)
        found.append((lake.cursor, lake.committed_at))
    return found


def test_statement_sees_the_newest_published_version(
    lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer
) -> None:
    with connect(server) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable) as caught:
            connection.execute(_TWO)
        assert caught.value.diag.message_hint == "Nothing has been delivered to the lake yet."
        lake.step(source, ["t", "u"])
        assert connection.execute(_TWO).fetchone() == (1, 10)
        source.execute("UPDATE t SET a = 2; UPDATE u SET a = 20")
        lake.replace(source, "t")  # committed to its table but not published
        assert connection.execute(_TWO).fetchone() == (1, 10)
        lake.step(source, ["t", "u"])
        assert connection.execute(_TWO).fetchone() == (2, 20)


def test_block_outlives_the_metadata_files_of_its_version(
    lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_session, "_METADATA_LIFETIME_S", 0.0)
    lake.step(source, ["t", "u"])
    files = [Path(table.metadata.removeprefix("file://")) for table in lake.tables.values()]
    with connect(server) as connection, connection.transaction():
        assert connection.execute("SELECT sum(a) FROM t").fetchone() == (1,)
        source.execute("UPDATE t SET a = 2; UPDATE u SET a = 20")
        lake.step(source, ["t", "u"])
        for file in files:
            file.unlink()
        assert connection.execute(_TWO).fetchone() == (1, 10)


def test_block_sees_the_version_of_its_first_statement(
    lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer
) -> None:
    lake.step(source, ["t", "u"])
    with connect(server) as connection, connect(server) as other:
        with connection.transaction():
            assert connection.execute("SELECT sum(a) FROM t").fetchone() == (1,)
            source.execute("UPDATE t SET a = 2; UPDATE u SET a = 20")
            lake.step(source, ["t", "u"])
            assert other.execute(_TWO).fetchone() == (2, 20)
            assert connection.execute("SELECT sum(a) FROM u").fetchone() == (10,)
        assert connection.execute(_TWO).fetchone() == (2, 20)


def test_as_of_an_lsn(lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer) -> None:
    steps = _steps(lake, source)
    with connect(server) as connection:
        for (cursor, _), sums in zip(steps, [(1, 10), (2, 10), (3, 30)], strict=True):
            # A commit at the LSN is visible, and the cursor is one past it.
            connection.execute(f"SET tailrace.as_of = '{Lsn(cursor - 1)}'".encode())
            assert connection.execute(_TWO).fetchone() == sums
        connection.execute(f"SET tailrace.as_of = '{Lsn(steps[2][0] - 2)}'".encode())
        assert connection.execute(_TWO).fetchone() == (2, 10)
        assert connection.execute("SELECT * FROM u").fetchall() == [(1, 10)]  # without the column added later
        connection.execute("RESET tailrace.as_of")
        assert connection.execute("SELECT * FROM u").fetchall() == [(1, 30, "new")]


def test_as_of_a_time(lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer) -> None:
    steps = _steps(lake, source)
    with connect(server) as connection, connect(server) as other:
        connection.execute(f"SET tailrace.as_of = '{steps[1][1] + timedelta(seconds=59):%Y-%m-%d %H:%M:%S}'".encode())
        assert connection.execute(_TWO).fetchone() == (2, 10)
        assert other.execute(_TWO).fetchone() == (3, 30)
        assert connection.execute("SHOW tailrace.as_of").fetchone() == ("2026-11-15 12:02:59",)
        row = connection.execute("SELECT lsn, committed_at FROM tailrace.freshness()").fetchone()
        assert row == (str(steps[1][0]), steps[1][1])
        connection.execute("SET tailrace.as_of = '2026-11-15T13:02:59+01:00'")
        assert connection.execute(_TWO).fetchone() == (2, 10)
        connection.execute("SET tailrace.as_of = '2999-01-01'")
        assert connection.execute(_TWO).fetchone() == (3, 30)
        with connection.transaction():
            connection.execute("SET LOCAL tailrace.as_of = '2026-11-15 12:01'")
            assert connection.execute(_TWO).fetchone() == (1, 10)
        assert connection.execute(_TWO).fetchone() == (3, 30)


def test_connection_option_sets_as_of(lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer) -> None:
    _steps(lake, source)
    with connect(server, options="-c tailrace.as_of=2026-11-15T12:01") as connection:
        assert connection.execute(_TWO).fetchone() == (1, 10)


def test_as_of_before_all_history_is_an_error(
    lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer
) -> None:
    _steps(lake, source)
    with connect(server) as connection:
        connection.execute("SET tailrace.as_of = '2020-01-01'")
        with pytest.raises(psycopg.Error, match="no history at or before 2020-01-01") as caught:
            connection.execute("SELECT * FROM t")
        assert "0/1100" in (caught.value.diag.message_hint or "")


def test_table_that_did_not_exist_yet_is_an_error(
    lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer
) -> None:
    lake.step(source, ["t"])
    lake.step(source, ["u"])
    with connect(server) as connection:
        connection.execute("SET tailrace.as_of = '2026-11-15 12:01'")
        assert connection.execute("SELECT sum(a) FROM t").fetchone() == (1,)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=r"public\.u was not in the lake yet"):
            connection.execute("SELECT * FROM u")


def test_expired_history_is_an_error(lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer) -> None:
    steps = _steps(lake, source)
    table = lake.catalog.load_table("public.t")
    table.maintenance.expire_snapshots().older_than(datetime.now().astimezone()).commit()
    lake.refresh("t")
    with connect(server) as connection:
        connection.execute(f"SET tailrace.as_of = '{steps[0][1].isoformat()}'".encode())
        assert connection.execute("SELECT sum(a) FROM u").fetchone() == (10,)
        with pytest.raises(psycopg.Error, match=r"the history of public.t before .* has expired"):
            connection.execute("SELECT * FROM t")


def test_freshness(lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer) -> None:
    point = lake.step(source, ["t"])
    with connect(server) as connection:
        row = connection.execute("SELECT * FROM tailrace.freshness()").fetchone()
        assert row is not None
        assert row[:3] == (str(point.cursor), START + timedelta(minutes=1), point.published_at)
        assert row[3] > 0


def test_only_metadata_of_named_tables_is_read(
    lake: SampleLake, source: psycopg.Connection[Any], server: QueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.step(source, ["t", "u"])
    opened: list[str] = []
    fetch = server.lake.metadata

    def record(where: str) -> TableMetadata:
        opened.append(where)
        return fetch(where)

    monkeypatch.setattr(server.lake, "metadata", record)
    with connect(server) as connection:
        assert connection.execute("SELECT sum(a) FROM t").fetchone() == (1,)
        assert connection.execute(
            "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname IN ('t', 'u')"
        ).fetchone() == (2,)
        assert connection.execute("SELECT sum(a) FROM t").fetchone() == (1,)
    assert set(opened) == {lake.tables["t"].metadata}
