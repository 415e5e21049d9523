"""A table's state at any LSN is what PostgreSQL showed there, however it is divided into parts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests import oracle, values
from tests.capturing import CaptureThread
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.workload import Workload

from tailrace import settings, types
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.change import Lsn, Relation
from tailrace.embedded.postgres import Postgres
from tailrace.errors import ConfigError, GapError, SnapshotError
from tailrace.images import Images
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import TableSnapshot, chunk_schema
from tailrace.state import replay, spill, table_state
from tailrace.state.postgres_text import snapshot_images
from tailrace.state.table_state import TableState
from tailrace.store import Store

BULKY = values.bulky(random.Random(7))


class StoredState:
    """A captured database, and its tables' rows recorded at several LSNs."""

    def __init__(self, given: settings.Settings, store: Store, connection: psycopg.Connection[Any]) -> None:
        self.given = given
        self.store = store
        self.connection = connection
        self.capture: CaptureThread | None = None
        self.rows: dict[Lsn, dict[tuple[str, str], oracle.Rows]] = {}

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def snapshot(self) -> None:
        job = SnapshotJob(self.given)
        job.start()
        assert job.wait(60)

    def mark(self, *tables: tuple[str, str] | str) -> Lsn:
        """Record the tables' rows, and return the LSN after them. Nothing else may write meanwhile."""
        names = [("public", t) if isinstance(t, str) else t for t in tables]
        found = {name: oracle.rows(self.connection, *name) for name in names}
        row = self.connection.execute("SELECT pg_logical_emit_message(true, 'mark', '')::text").fetchone()
        assert row is not None
        lsn = Lsn.parse(row[0])
        assert self.capture is not None
        self.capture.wait_for(Lsn(lsn + 1))
        self.rows[lsn] = found
        return lsn

    def assert_all(self, parts: int = 3, of_schema: str | None = None) -> int:
        """Compare all recorded states. Returns their number."""
        reader = LogReader(self.store)
        wanted = [
            (schema, table, lsn, expected)
            for lsn, tables in self.rows.items()
            for (schema, table), expected in tables.items()
            if of_schema in (None, schema)
        ]
        for schema, table, lsn, expected in wanted:
            found = table_state.find(reader, schema, table, lsn)
            assert read(found, reader, parts) == expected, f"{schema}.{table} as of {lsn}"
        return len(wanted)


@contextmanager
def captured_states(database: Database, directory: Path, **capture: Any) -> Iterator[StoredState]:
    address = settings.StoreSettings(str(directory / "store"))
    given = settings.Settings(
        source=settings.SourceSettings(url=database.url),
        store=address,
        capture=settings.CaptureSettings(**{"seal_after_ms": 5, "segment_bytes": 64 * 1024, **capture}),
        snapshot=settings.SnapshotSettings(chunk_bytes=64 * 1024, chunk_rows=40),
    )
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    store = Store.open(address.url)
    with database.connect(client_encoding="UTF8") as connection:
        found = StoredState(given, store, connection)
        with CaptureThread(given, store) as found.capture:
            yield found


def read(found: TableState, reader: LogReader, parts: int = 1) -> oracle.Rows:
    rows: oracle.Rows = Counter()
    for part in range(parts):
        for images in table_state.rows(found, reader, part, parts):
            rows += texts(images, found.relation)
    return rows


def texts(images: Images, relation: Relation) -> oracle.Rows:
    assert images.present.all()
    assert not images.unchanged
    special = images.special if images.special is not None else pa.nulls(len(images), types.SPECIALS)
    batch = pa.RecordBatch.from_arrays([*images.batch.columns, special], schema=chunk_schema(relation))
    printed = snapshot_images(batch, relation, as_text=True).batch
    if not printed.num_columns:
        return Counter([()] * len(images))
    columns = [[None if v is None else v.encode() for v in column.to_pylist()] for column in printed.columns]
    return Counter(zip(*columns, strict=True))


def snapshot_of(reader: LogReader, table: str, lsn: Lsn | None = None) -> TableSnapshot:
    return table_state.find(reader, "public", table, lsn).snapshot


def test_state_equals_what_postgres_showed(database: Database, tmp_path: Path) -> None:
    """A random workload with DDL and snapshots, with states before and after each."""
    workload = Workload(database.connect, 3, ddl=True, exclusive=0.03)
    workload.create()
    workload.run(40)
    with captured_states(database, tmp_path) as it:
        for _ in range(2):
            it.snapshot()
            for _ in range(3):
                it.mark(*[(t.schema, t.name) for t in workload.tables])
                workload.run(25)
        it.mark(*[(t.schema, t.name) for t in workload.tables])
        workload.stop()
    it.assert_all()


MARK = "look at the rows now"

CASES: dict[str, list[str]] = {
    "26-toast": ["UPDATE t SET n = 2 WHERE id = 1", "UPDATE t SET n = 3 WHERE id < 3"],
    "26-toast-changed-then-not": [f"UPDATE t SET body = '{BULKY[::-1]}' WHERE id = 1", "UPDATE t SET n = 9"],
    "27-toast-and-key": ["UPDATE t SET id = 11 WHERE id = 1", "UPDATE t SET id = 12 WHERE id = 11"],
    "32-key": ["UPDATE t SET id = 20 WHERE id = 1", f"INSERT INTO t VALUES (1, 0, '{BULKY[:5000]}')"],
    "33-swap": [
        "BEGIN; UPDATE t SET id = 0 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; UPDATE t SET id = 2 WHERE id = 0;"
        "COMMIT"
    ],
    "34-many": [f"UPDATE t SET n = {n} WHERE id = 1" for n in range(20)] + ["DELETE FROM t WHERE id = 2"],
    "34-again": ["DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (1, 5)", "UPDATE t SET n = 6 WHERE id = 1"],
    "34-born": [f"INSERT INTO t VALUES (50, 1, '{BULKY}')", "UPDATE t SET n = 2 WHERE id = 50", "DELETE FROM t"],
    "39-added": ["ALTER TABLE t ADD c int DEFAULT 7", "UPDATE t SET n = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2"],
    "39-added-late": ["UPDATE t SET n = 4", "ALTER TABLE t ADD c text DEFAULT 'x'", "INSERT INTO t VALUES (9)"],
    "40-again": [
        "ALTER TABLE t ADD c int DEFAULT 7",
        "UPDATE t SET n = 5 WHERE id = 1",
        "ALTER TABLE t DROP c",
        "UPDATE t SET n = 6 WHERE id = 2",
        "ALTER TABLE t ADD c int",
        "INSERT INTO t VALUES (9)",
    ],
    "41-renamed": [
        "UPDATE t SET n = 8 WHERE id = 1",
        "ALTER TABLE t RENAME body TO text; ALTER TABLE t RENAME id TO number",
        "UPDATE t SET n = 9 WHERE number < 3",
    ],
    "42-type": ["ALTER TABLE t ALTER n TYPE numeric(10,2)", "UPDATE t SET n = 1.5 WHERE id = 1"],
    "42-type-twice": [
        "UPDATE t SET n = 8 WHERE id = 1",
        "ALTER TABLE t ALTER n TYPE text",
        "INSERT INTO t VALUES (9, 'word')",
    ],
    "31-another-key": [
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER n SET NOT NULL, ADD UNIQUE (n)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_n_key",
        "UPDATE t SET id = 100 WHERE n = 1",
        "DELETE FROM t WHERE n = 2",
    ],
    "31-key-of-another-type": [
        "UPDATE t SET n = 77 WHERE id = 3",
        "ALTER TABLE t ALTER id TYPE numeric(8,2)",
        "UPDATE t SET n = 78 WHERE id = 3",
        "DELETE FROM t WHERE id = 2",
    ],
    "29-full": [
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET n = 2 WHERE id = 1",
        "UPDATE t SET id = 30 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    ],
    "truncate": ["DELETE FROM t WHERE id = 1", "TRUNCATE t", f"INSERT INTO t VALUES (1, 1, '{BULKY}')",
                 "UPDATE t SET n = 2"],
    "truncate-last": ["INSERT INTO t VALUES (70)", "TRUNCATE t"],
    "truncate-and-shape": ["TRUNCATE t", "ALTER TABLE t ADD c int DEFAULT 1", "INSERT INTO t VALUES (1)"],
    "nothing": [],
    "35-bag": [
        "DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE a = 1)",
        "UPDATE t SET a = 2 WHERE ctid = (SELECT min(ctid) FROM t WHERE a = 0)",
        "INSERT INTO t VALUES (2)",
        MARK,
        "UPDATE t SET a = 9 WHERE a = 1",
        "ALTER TABLE t ADD c int DEFAULT 3",
        "DELETE FROM t WHERE a = 2",
        MARK,
        "ALTER TABLE t ADD id int",
        "UPDATE t SET id = a",
        "DELETE FROM t WHERE a = 9",
    ],
    "33-deferred": [
        "UPDATE t SET id = 3 - id WHERE id < 3",
        MARK,
        "BEGIN; INSERT INTO t VALUES (3, 'new'); DELETE FROM t WHERE n = 'three'; COMMIT",
        MARK,
        "BEGIN; INSERT INTO t VALUES (3, 'brief'); DELETE FROM t WHERE n = 'brief'; COMMIT",
    ],
    "29-composite": [
        "UPDATE t SET n = 100 WHERE b = 'xx'",
        "UPDATE t SET a = 'q' WHERE b = 'xxx'",
        "DELETE FROM t WHERE b = 'x'",
        "INSERT INTO t VALUES ('', 0, 'x')",
    ],
    "50-no-columns": ["INSERT INTO t DEFAULT VALUES", "INSERT INTO t DEFAULT VALUES"],
    "30-nothing": ["INSERT INTO t VALUES (2)"],
}  # fmt: skip


KEYED = f"""
CREATE TABLE t (id int PRIMARY KEY, n int, body text);
ALTER TABLE t ALTER body SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, i, CASE WHEN i % 3 > 0 THEN i || '{BULKY}' END FROM generate_series(1, 5) i;
"""
SETUPS = {
    "35-bag": """
        CREATE TABLE t (a int, b json); ALTER TABLE t REPLICA IDENTITY FULL;
        INSERT INTO t SELECT i % 3, CASE WHEN i % 2 = 0 THEN '{"a": 1}'::json END FROM generate_series(1, 200) i;
    """,
    # Two rows temporarily have the same key.
    "33-deferred": """
        CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n text);
        ALTER TABLE t REPLICA IDENTITY FULL;
        INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three');
    """,
    "29-composite": """
        CREATE TABLE t (a text, n int, b text, PRIMARY KEY (b, a));
        INSERT INTO t SELECT repeat('x', i % 3), i, repeat('x', i) FROM generate_series(1, 9) i;
    """,
    "50-no-columns": "CREATE TABLE t (); ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t DEFAULT VALUES;",
    "30-nothing": """
        CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING; INSERT INTO t VALUES (1);
    """,
}


@pytest.fixture(scope="module")
def cases(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> StoredState:
    """All cases in one log, each in its own schema, with states before, after and at the marks of a case."""
    database = make_database(postgres)
    for case in CASES:
        database.execute(f'CREATE SCHEMA "{case}"; SET search_path TO "{case}"; {SETUPS.get(case, KEYED)}')
    with captured_states(database, tmp_path_factory.mktemp("cases")) as it:
        it.snapshot()
        it.mark(*[(case, "t") for case in CASES])
        for case, statements in CASES.items():
            it.execute(f'SET search_path TO "{case}"')
            for statement in statements:
                if statement is MARK:
                    it.mark((case, "t"))
                else:
                    it.execute(statement)
        it.mark(*[(case, "t") for case in CASES])
    drop_database(database)
    return it


@pytest.mark.parametrize("case", CASES)
def test_case(cases: StoredState, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for parts in (1, 7):
        assert cases.assert_all(parts, case) >= 2
    # As if the data did not fit in memory.
    monkeypatch.setattr(table_state, "_IN_MEMORY_BYTES", -1)
    monkeypatch.setattr(spill, "_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(replay, "_JOIN_BYTES", 0)
    assert cases.assert_all(2, case) >= 2


def test_a_table_is_followed_through_renames(database: Database, tmp_path: Path) -> None:
    """Two tables swap names, as in migrations. A name refers to the table that had it at the LSN."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, n int)")
    with captured_states(database, tmp_path) as it:
        it.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (2, 2)")
        it.snapshot()
        it.mark("a", "b")
        it.execute("BEGIN; ALTER TABLE a RENAME TO old; ALTER TABLE b RENAME TO a; COMMIT", "INSERT INTO a VALUES (3)")
        it.mark("a")
        it.execute("INSERT INTO old VALUES (4)")
        it.mark("a", "old")
        it.execute("DROP TABLE a", "CREATE TABLE a (other text PRIMARY KEY)", "INSERT INTO a VALUES ('x')")
        it.snapshot()
        it.execute("INSERT INTO a VALUES ('y')")
        it.mark("a", "old")
        reader = LogReader(it.store)
        with pytest.raises(SnapshotError, match="nobody") as raised:
            table_state.find(reader, "public", "nobody")
        assert "tailrace snapshot public.nobody" in raised.value.hint
        with pytest.raises(SnapshotError, match=r"public\.b"):
            table_state.find(reader, "public", "b")
    it.assert_all()


def test_the_newest_snapshot_before_the_lsn_is_used(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with captured_states(database, tmp_path) as it:
        it.execute("INSERT INTO t VALUES (0)")
        early = it.mark()
        it.snapshot()
        first = it.mark("t")
        it.execute("INSERT INTO t VALUES (1)")
        it.snapshot()
        second = it.mark("t")
        reader = LogReader(it.store)
        assert snapshot_of(reader, "t", first).lsn < first < snapshot_of(reader, "t", second).lsn < second
        newest = table_state.find(reader, "public", "t")
        assert newest.lsn >= second
        assert read(newest, reader) == it.rows[second]["public", "t"]
        exactly = table_state.find(reader, "public", "t", newest.snapshot.lsn)
        assert exactly.snapshot.id == newest.snapshot.id
        assert read(exactly, reader) == it.rows[second]["public", "t"]
        with pytest.raises(SnapshotError, match=f"no snapshot at or before {early}"):
            table_state.find(reader, "public", "t", early)
        with pytest.raises(ConfigError, match="not known yet"):
            table_state.find(reader, "public", "t", Lsn(reader.end_lsn() + 1))
    it.assert_all()


def test_no_state_across_a_gap(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with captured_states(database, tmp_path) as it:
        it.snapshot()
        it.execute("INSERT INTO t VALUES (1)")
        before = it.mark("t")
    with database.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot('tailrace')")
        connection.execute("INSERT INTO t VALUES (2)")
        with CaptureThread(it.given, it.store, accept_gap=True) as it.capture:
            it.connection = connection
            connection.execute("INSERT INTO t VALUES (3)")
            after = it.mark("t")
            reader = LogReader(it.store)
            with pytest.raises(GapError):
                table_state.find(reader, "public", "t", after)
            assert read(table_state.find(reader, "public", "t", before), reader) == it.rows.pop(before)["public", "t"]
            it.snapshot()
            del it.rows[after]
            it.mark("t")
    it.assert_all()


def test_a_snapshot_from_before_the_log_is_not_used(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    early = settings.Settings(
        source=settings.SourceSettings(url=database.url), store=settings.StoreSettings(str(tmp_path / "store"))
    )
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    job = SnapshotJob(early)
    job.start()
    assert job.wait(60)
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("DROP PUBLICATION tailrace")
    with captured_states(database, tmp_path) as it:
        lsn = it.mark("t")
        with pytest.raises(GapError, match="are not in the log") as raised:
            table_state.find(LogReader(it.store), "public", "t", lsn)
        assert raised.value.hint == "take a new snapshot: `tailrace snapshot public.t`"
