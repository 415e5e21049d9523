"""One captured scenario for all sinks: everything that can happen to a table, and PostgreSQL's rows at quiet points.

It is created once a run. Each test gets its own store as of one of these points: a directory of links to the same
objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from tests import oracle
from tests.capturing import CaptureThread
from tests.fixtures.postgres import Database
from tests.workload import Workload

from tailrace import settings
from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.bootstrap import Bootstrap
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.capture.postgres.source_connection import connect
from tailrace.change import Change, Lsn, Position
from tailrace.log import planner
from tailrace.log.ddl_message import OWN_PREFIXES
from tailrace.log.planner import Offset
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader, TableSnapshot
from tailrace.store import Store

_MARK = "tests.contract"
_LONG = "é" * 31 + "x"
ODD_NAMES = ['q"uo.te/d', "../up %41", f"{_LONG}", "🐘 NULL\\.", "Case", "case"]
PANORAMA = 300

_TABLES = f"""
CREATE TABLE accounts (id int PRIMARY KEY, n int NOT NULL, note text);
CREATE TABLE toasted (id int PRIMARY KEY, body text, n int, other text);
ALTER TABLE toasted ALTER body SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL;
CREATE TABLE by_index (a text, b int NOT NULL, c int NOT NULL, body text);
CREATE UNIQUE INDEX by_index_key ON by_index (c, b);
ALTER TABLE by_index ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY USING INDEX by_index_key;
CREATE TABLE full_key (id int PRIMARY KEY, body text, n int);
ALTER TABLE full_key ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE nothing (n int, note text);
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
CREATE TABLE twins (a int, b text, c point);
ALTER TABLE twins REPLICA IDENTITY FULL;
CREATE TABLE emptied_one (id int PRIMARY KEY, note text);
CREATE TABLE emptied_two (id int PRIMARY KEY, one int REFERENCES emptied_one, note text);
CREATE TABLE altered (id int PRIMARY KEY, a text, b int, c varchar(5), d int);
CREATE TABLE renamed (id int PRIMARY KEY, note text);
CREATE TABLE reborn (id int PRIMARY KEY, note text);
CREATE TABLE recopied (id int PRIMARY KEY, n int);
CREATE TABLE bulk (id int PRIMARY KEY, note text);
CREATE TABLE parted (id int, part int, note text, PRIMARY KEY (part, id)) PARTITION BY LIST (part);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
CREATE TABLE computed (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED);
CREATE TABLE panorama (id int PRIMARY KEY, {", ".join(f"c{n} int" for n in range(PANORAMA))}, note text);
"""

_BEFORE = f"""
INSERT INTO accounts SELECT i, i, 'from the snapshot' FROM generate_series(1, 40) i;
INSERT INTO toasted SELECT i, repeat('é' || i, 2000), i, repeat('o', 3000) FROM generate_series(1, 8) i;
INSERT INTO by_index SELECT 'a' || i, i % 3, i, repeat('b', 3000) FROM generate_series(1, 10) i;
INSERT INTO full_key SELECT i, repeat('f', 3000), i FROM generate_series(1, 10) i;
INSERT INTO nothing VALUES (1, 'one'), (1, 'one');
INSERT INTO twins SELECT 1, 'same', '(1,2)' FROM generate_series(1, 5);
INSERT INTO twins VALUES (2, NULL, NULL), (2, NULL, NULL);
INSERT INTO emptied_one SELECT i, 'x' FROM generate_series(1, 5) i;
INSERT INTO emptied_two SELECT i, i, 'x' FROM generate_series(1, 5) i;
INSERT INTO altered SELECT i, 'a' || i, i, 'c', i FROM generate_series(1, 5) i;
INSERT INTO renamed VALUES (1, 'x'), (2, 'y');
INSERT INTO reborn VALUES (1, 'the first generation'), (2, 'too');
INSERT INTO recopied SELECT i, 0 FROM generate_series(1, 5) i;
INSERT INTO parted VALUES (1, 1, 'a'), (2, 2, 'b');
INSERT INTO computed (id, n) VALUES (1, 1);
INSERT INTO panorama (id, c0, c{PANORAMA - 1}) VALUES (1, 1, 2);
"""

_KEYS = [
    "INSERT INTO accounts SELECT i, i, 'new' FROM generate_series(41, 50) i",
    *[f"UPDATE accounts SET n = n + {i} WHERE id = 1" for i in range(5)],
    "BEGIN; UPDATE accounts SET id = -1 WHERE id = 2; UPDATE accounts SET id = 2 WHERE id = 3;"
    " UPDATE accounts SET id = 3 WHERE id = -1; COMMIT",
    "BEGIN; DELETE FROM accounts WHERE id = 4; INSERT INTO accounts VALUES (4, 4, 'again'); COMMIT",
    "DELETE FROM accounts WHERE id = 5",
    "INSERT INTO accounts VALUES (5, 5, 'again')",
    "BEGIN; INSERT INTO accounts VALUES (99, 1, 'brief'); DELETE FROM accounts WHERE id = 99; COMMIT",
    "UPDATE accounts SET id = 60 WHERE id = 6",
    "UPDATE accounts SET id = 61 WHERE id = 60",
    "INSERT INTO accounts VALUES (6, 0, 'took the old key')",
    "UPDATE accounts SET n = 7, note = NULL WHERE id = 61",
    "UPDATE toasted SET n = n + 1 WHERE id < 4",
    "UPDATE toasted SET id = 20, n = 0 WHERE id = 1",
    "UPDATE toasted SET id = 21, body = 'short' WHERE id = 2",
    "UPDATE toasted SET other = repeat('p', 2500) WHERE id = 20",
    "UPDATE toasted SET n = -1 WHERE id = 20",
    "BEGIN; INSERT INTO toasted VALUES (30, repeat('n', 2900), 1, NULL); UPDATE toasted SET n = 2 WHERE id = 30;"
    " UPDATE toasted SET id = 31 WHERE id = 30; UPDATE toasted SET n = 3 WHERE id = 31; COMMIT",
    "BEGIN; DELETE FROM toasted WHERE id = 3; INSERT INTO toasted VALUES (3, NULL, NULL, NULL);"
    " UPDATE toasted SET n = 1 WHERE id = 3; COMMIT",
    "UPDATE by_index SET a = 'changed' WHERE c < 4",
    "UPDATE by_index SET c = 100 WHERE c = 5",
    "DELETE FROM by_index WHERE c = 6",
    "UPDATE full_key SET n = n * 10 WHERE id < 5",
    "UPDATE full_key SET id = 50 WHERE id = 5",
    "DELETE FROM full_key WHERE id = 6",
    "INSERT INTO nothing VALUES (2, NULL), (1, 'one')",
    "DELETE FROM twins WHERE ctid = (SELECT min(ctid) FROM twins WHERE a = 1)",
    "UPDATE twins SET b = 'other' WHERE ctid = (SELECT min(ctid) FROM twins WHERE a = 1)",
    "DELETE FROM twins WHERE ctid = (SELECT min(ctid) FROM twins WHERE a = 2)",
    "INSERT INTO twins VALUES (1, 'same', '(1,2)'), (1, 'same', '(1,2)')",
    "UPDATE parted SET part = 2 WHERE id = 1",
    "INSERT INTO parted VALUES (3, 1, 'c')",
    "UPDATE computed SET n = 5",
    f"UPDATE panorama SET c5 = 5, c{PANORAMA - 2} = 6",
    "INSERT INTO panorama (id, note) VALUES (2, 'ä')",
]

_TRUNCATES = [
    "BEGIN; INSERT INTO emptied_two VALUES (6, 1, 'gone at once'); TRUNCATE emptied_two;"
    " INSERT INTO emptied_two VALUES (7, 1, 'after'); COMMIT",
    "UPDATE emptied_one SET note = 'y'",
    "TRUNCATE emptied_one CASCADE",
    "INSERT INTO emptied_one VALUES (1, 'after'), (2, 'after')",
    "BEGIN; INSERT INTO emptied_two VALUES (1, 1, 'x'); TRUNCATE emptied_one, emptied_two RESTART IDENTITY;"
    " INSERT INTO emptied_one VALUES (3, 'last'); COMMIT",
    "TRUNCATE nothing",
    "INSERT INTO nothing VALUES (3, 'three')",
    "TRUNCATE twins",
    "INSERT INTO twins VALUES (9, 'nine', NULL), (9, 'nine', NULL)",
]

_SHAPES = [
    "ALTER TABLE altered ADD e numeric(6,2) DEFAULT 1.5, ADD f text DEFAULT 'it''s \\ \"q\"' NOT NULL, ADD g int[]",
    "INSERT INTO altered (id, a, g) VALUES (6, 'a6', '{1,NULL}')",
    "UPDATE altered SET e = 2 WHERE id = 1",
    "ALTER TABLE altered DROP b",
    "UPDATE altered SET a = 'no b' WHERE id = 2",
    "ALTER TABLE altered RENAME c TO renamed_c",
    "UPDATE altered SET renamed_c = 'rc' WHERE id = 3",
    "ALTER TABLE altered ALTER renamed_c TYPE varchar(50), ALTER d TYPE bigint",
    "UPDATE altered SET renamed_c = 'longer than five', d = 5000000000 WHERE id = 3",
    "ALTER TABLE altered ALTER d TYPE text",
    "UPDATE altered SET d = 'text' WHERE id = 4",
    "ALTER TABLE altered DROP a, ADD a text DEFAULT 'another'",
    "INSERT INTO altered (id) VALUES (7)",
    "BEGIN; INSERT INTO altered (id) VALUES (8); ALTER TABLE altered ADD h int DEFAULT 3;"
    " INSERT INTO altered (id) VALUES (9); ALTER TABLE altered DROP g; DELETE FROM altered WHERE id = 8; COMMIT",
    "ALTER TABLE altered RENAME id TO key",
    "UPDATE altered SET key = 70 WHERE key = 7",
    "ALTER TABLE renamed RENAME TO named_anew",
    "INSERT INTO named_anew VALUES (3, 'z')",
    "UPDATE named_anew SET id = 4 WHERE id = 1",
    "UPDATE reborn SET note = 'the last of it' WHERE id = 1",
    "DROP TABLE reborn",
    "CREATE TABLE reborn (note text, id int PRIMARY KEY, n int)",
    "INSERT INTO reborn VALUES ('the second generation', 2, 2), ('too', 3, 3)",
    "CREATE TABLE later (id int PRIMARY KEY, note text)",
    "INSERT INTO later VALUES (1, 'x'), (2, 'y')",
]

_LATER = [
    "UPDATE later SET note = 'z' WHERE id = 1",
    "DELETE FROM later WHERE id = 2",
    "INSERT INTO reborn VALUES ('more', 4, 4)",
    "UPDATE recopied SET n = n + 1",
    "DELETE FROM recopied WHERE id = 2",
]

_LAST = [
    "BEGIN; INSERT INTO bulk SELECT i, md5(i::text) || repeat('x', 250) FROM generate_series(1, 900) i;"
    " UPDATE bulk SET note = 'changed' WHERE id % 50 = 0; INSERT INTO accounts VALUES (200, 0, 'beside'); COMMIT",
    "DELETE FROM bulk WHERE id % 3 = 0",
    "BEGIN; INSERT INTO accounts VALUES (300, 0, 'kept'); SAVEPOINT s; INSERT INTO accounts VALUES (301, 0, 'not');"
    " UPDATE accounts SET n = -5; ROLLBACK TO s; INSERT INTO accounts VALUES (302, 0, 'kept'); COMMIT",
    "BEGIN; SELECT pg_logical_emit_message(true, 'tx', 'in it'); SELECT pg_logical_emit_message(false, 'no tx', 'now');"
    " DELETE FROM accounts WHERE id = 300; COMMIT",
    "BEGIN; SELECT pg_logical_emit_message(true, 'tx', 'never'); ROLLBACK",
    # As the event trigger writes them: alone, and last in a transaction. No sink delivers them.
    "SELECT pg_logical_emit_message(true, 'tailrace.ddl', '{}')",
    "TRUNCATE parted",
    "BEGIN; INSERT INTO parted VALUES (8, 2, 'again'); SELECT pg_logical_emit_message(true, 'tailrace.ddl', '{}');"
    " COMMIT",
]

Name = tuple[str, str]


@dataclass(frozen=True)
class Table:
    """One table at a quiet point."""

    oid: int
    columns: tuple[str, ...]
    rows: oracle.Rows


@dataclass(frozen=True)
class Mark:
    """A quiet point: the log up to `offset` contains everything that was committed, and nothing else."""

    offset: Offset
    tables: Mapping[Name, Table]
    described: Mapping[Name, Sequence[Mapping[str, Any]]]
    """The columns of each table, from information_schema."""
    objects: frozenset[str]
    """The keys of all objects in the store."""

    @property
    def lsn(self) -> Lsn:
        return self.offset.lsn


@dataclass
class Scenario:
    directory: Path
    marks: list[Mark] = field(default_factory=list)
    types: Mapping[int, str] = field(default_factory=dict)
    """Names by oid, as PostgreSQL prints them."""
    known: dict[type, dict[Any, Any]] = field(default_factory=dict, repr=False)
    """The expected content of each change, by kind of destination, computed once."""

    def store_of(self, directory: Path, mark: Mark | None = None) -> settings.StoreSettings:
        """Create a store in a directory as of a mark. Calling it again with a later mark makes the store grow."""
        for key in sorted((mark or self.marks[-1]).objects):
            target = directory / key
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(self.directory / key, target)
        return settings.StoreSettings(directory.as_uri())

    @cached_property
    def changes(self) -> Mapping[Position, Change]:
        """All changes of the log but Tailrace's own messages, from a reader that shares no code with delivery."""
        found = LogReader(Store.open(str(self.directory))).changes()
        return {change.position: change for change in found if change.prefix not in OWN_PREFIXES}

    @cached_property
    def snapshots(self) -> Sequence[TableSnapshot]:
        return SnapshotReader(Store.open(str(self.directory))).list()

    @cached_property
    def copied(self) -> Mapping[tuple[int, Lsn], oracle.Rows]:
        """The rows that each snapshot was made from, by oid and LSN. The table does not change until the next mark."""
        found = {}
        for snapshot in self.snapshots:
            mark = next(mark for mark in self.marks if mark.lsn > snapshot.lsn)
            tables = {table.oid: table.rows for table in mark.tables.values()}
            found[snapshot.relation.oid, snapshot.lsn] = tables[snapshot.relation.oid]
        return found

    @property
    def end(self) -> Offset:
        return self.marks[-1].offset

    def assert_results_in_rows(self) -> None:
        """Assert that the rows of snapshots and the changes of the log result in PostgreSQL's rows at each mark."""
        floors = {s.relation.oid: s.lsn for s in self.snapshots}
        ahead = sorted((s for s in self.snapshots if s.lsn == floors[s.relation.oid]), key=lambda s: s.lsn)
        marks = list(self.marks)
        replica = oracle.Replica()

        def reach(lsn: Lsn) -> None:
            while ahead and ahead[0].lsn <= lsn:
                snapshot = ahead.pop(0)
                replica.load(snapshot.relation, self.copied[snapshot.relation.oid, snapshot.lsn].elements())
            while marks and marks[0].lsn <= lsn:
                mark = marks.pop(0)
                for name, table in mark.tables.items():
                    if floors.get(table.oid, lsn) < mark.lsn:
                        assert replica.rows(*name) == table.rows, name

        for position, change in self.changes.items():
            reach(position.commit_lsn)
            if change.relation is not None and floors.get(change.relation.oid, self.end.lsn) <= position.commit_lsn:
                replica.apply(change)
        reach(self.end.lsn)
        assert not marks
        assert {t.oid for t in self.marks[-1].tables.values()} <= floors.keys(), "some tables cannot be delivered"


class _Making:
    def __init__(self, database: Database, given: settings.Settings, scenario: Scenario) -> None:
        self.database = database
        self.given = given
        self.scenario = scenario
        self.store = Store.open(given.store.url)
        self.connection = database.connect(client_encoding="UTF8")

    def execute(self, statements: Sequence[str], running: CaptureThread | None = None) -> None:
        """Run statements, and let the log catch up now and then, so that it has many segments."""
        for number, statement in enumerate(statements):
            self.connection.execute(statement.encode())
            if running is not None and number % 5 == 0:
                _catch_up(self.connection, running)

    def mark(self, running: CaptureThread) -> None:
        self.scenario.marks.append(take_mark(self.connection, self.store, running))

    def snapshot(self, *tables: str) -> None:
        with connect(self.given.source) as connection:
            published = catalog.published_tables(connection, self.given.source.publication)
        job = SnapshotJob(self.given, [t for t in published if t.name in tables])
        job.start()
        assert job.wait(60)


def take_mark(connection: psycopg.Connection[Any], store: Store, running: CaptureThread) -> Mark:
    """Let the log catch up, and read what PostgreSQL has now. No other connection may write in the meantime."""
    _catch_up(connection, running)
    objects = frozenset(info.key for info in store.list(""))
    offset = planner.latest_offset(LogReader(store))
    return Mark(offset, dict(_read_tables(connection)), oracle.column_descriptions(connection), objects)


def _catch_up(connection: psycopg.Connection[Any], running: CaptureThread) -> None:
    query = "SELECT pg_logical_emit_message(true, %s, 'quiet')::text"
    row = connection.execute(query, [_MARK]).fetchone()
    assert row is not None
    running.wait_for(Lsn(Lsn.parse(row[0]) + 1))


def _read_tables(connection: psycopg.Connection[Any]) -> Iterator[tuple[Name, Table]]:
    found = connection.execute(
        """
        SELECT n.nspname, c.relname, c.oid::int8, ARRAY(
            SELECT attname::text FROM pg_attribute
            WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum)
        FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
        WHERE relkind IN ('r', 'p') AND NOT relispartition
          AND nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
        """
    ).fetchall()
    for schema, table, oid, columns in found:
        yield (schema, table), Table(oid, tuple(columns), oracle.rows(connection, schema, table, columns))


def make(database: Database, directory: Path) -> Scenario:
    given = settings.Settings(
        source=settings.SourceSettings(url=database.url, tables=("*.*",)),
        store=settings.StoreSettings(directory.as_uri()),
        capture=settings.CaptureSettings(seal_after_ms=5, segment_bytes=64 * 1024),
        snapshot=settings.SnapshotSettings(chunk_rows=25, chunk_bytes=64 * 1024),
    )
    scenario = Scenario(directory)
    workload = Workload(lambda: database.connect(), seed=41, ddl=True, exclusive=0.06)
    workload.create()
    making = _Making(database, given, scenario)
    with making.connection:
        making.execute([_TABLES, _BEFORE, *_odd_tables(making.connection)])
        making.execute(["CREATE PUBLICATION tailrace FOR ALL TABLES WITH (publish_via_partition_root = true)"])
        workload.run(12)
        bootstrap = Bootstrap(given, making.store)
        with CaptureThread(given, making.store, snapshots=bootstrap) as running:
            assert bootstrap.wait(60)
            assert bootstrap.error is None
            bootstrap.stop()
            making.mark(running)
            making.execute([*_KEYS, *_odd_changes(making.connection)], running)
            making.mark(running)
            making.execute(_TRUNCATES, running)
            workload.run(25)
            _touch(making.connection, workload)
            making.mark(running)
            making.execute(_SHAPES, running)
            making.snapshot("later", "reborn", "recopied")
            making.mark(running)
            making.execute(_LATER, running)
            making.mark(running)
            making.execute(_LAST, running)
            workload.run(25)
            _touch(making.connection, workload)
            making.mark(running)
            scenario.types = oracle.type_names(making.connection)
        workload.stop()
    return scenario


def _touch(connection: psycopg.Connection[Any], workload: Workload) -> None:
    """Change each table, so that the stream contains its newest columns."""
    for table in workload.tables:
        lane = sql.Identifier(table.lane)
        insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            table.qualified,
            sql.SQL(", ").join([lane, *(sql.Identifier(c) for c in table.key if c != table.lane)]),
            sql.SQL(", ").join([sql.SQL("-1"), *(sql.SQL("'touched'") for c in table.key if c != table.lane)]),
        )
        connection.execute(sql.SQL("DELETE FROM {} WHERE {} = -1").format(table.qualified, lane))
        connection.execute(insert)


def _odd_tables(connection: psycopg.Connection[Any]) -> list[str]:
    found = []
    for name in ODD_NAMES:
        parts = {"t": sql.Identifier(name), "c": sql.Identifier(name[::-1])}
        make = sql.SQL('CREATE TABLE {t} ("Id" int PRIMARY KEY, id int, {c} text)').format(**parts)
        insert = sql.SQL("INSERT INTO {t} VALUES (1, 2, 'x'), (2, 3, NULL)").format(**parts)
        found += [make.as_string(connection), insert.as_string(connection)]
    return found


def _odd_changes(connection: psycopg.Connection[Any]) -> list[str]:
    found = []
    for number, name in enumerate(ODD_NAMES):
        parts = {"t": sql.Identifier(name), "c": sql.Identifier(name[::-1]), "n": sql.Literal(f"{number}'\\\t\n%")}
        update = sql.SQL('UPDATE {t} SET {c} = {n} WHERE "Id" = 1').format(**parts)
        insert = sql.SQL("INSERT INTO {t} VALUES (3, 1, {n})").format(**parts)
        move = sql.SQL('UPDATE {t} SET "Id" = 5 WHERE "Id" = 2').format(**parts)
        found += [statement.as_string(connection) for statement in (update, insert, move)]
    return found
