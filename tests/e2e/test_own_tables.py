"""A sink may write to the captured database: Tailrace's own tables there are not captured."""

from __future__ import annotations

import time
from pathlib import Path

from tests.capturing import SeenChange, Witness, changes_in_log, configured, current_lsn
from tests.e2e.captured_database import captured
from tests.fixtures.postgres import Database
from tests.sinks.replicas import rows_of, sink_to
from tests.stepping import DrivenStepper

from tailrace import settings
from tailrace.capture.capture import Capture
from tailrace.delivery.sink_settings import ConfiguredSink, SinkSettings
from tailrace.log import planner
from tailrace.log.reader import LogReader
from tailrace.pgoutput import message
from tailrace.store import Store


def exclude_tables(seen: list[SeenChange], oids: set[int]) -> list[SeenChange]:
    """The entries without the rows of the named tables."""

    def is_of(one: SeenChange) -> bool:
        parsed = message.parse(one.payload)
        return isinstance(parsed, message.Insert | message.Update | message.Delete) and parsed.relation_oid in oids

    return [one for one in seen if not is_of(one)]


def names_in_headers(store: Store) -> set[str]:
    reader = LogReader(store)
    return {relation.name for segment in reader.list() for _, relation in reader.relations(segment.id)}


def test_own_tables_are_not_in_the_log(any_database: Database, tmp_path: Path) -> None:
    """Other changes retain their positions, even in a transaction that spans many segments."""
    any_database.execute("""
        CREATE TABLE t (id int PRIMARY KEY, note text);
        CREATE TABLE own (id int PRIMARY KEY, note text); COMMENT ON TABLE own IS 'Tailrace: a cursor';
        CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); COMMENT ON TABLE parts IS 'Tailrace: an audit';
        CREATE TABLE part PARTITION OF parts DEFAULT; COMMENT ON TABLE part IS 'Tailrace: a part of an audit';
        CREATE PUBLICATION tailrace FOR ALL TABLES;
    """)
    with any_database.connect() as connection:
        Witness(connection)
    with captured(any_database, tmp_path, segment_bytes=16 * 1024) as log:
        log.execute(
            "INSERT INTO own VALUES (1, 'alone')",
            "BEGIN; INSERT INTO own VALUES (2, 'first'); INSERT INTO t VALUES (1); UPDATE own SET note = 'between'; "
            "INSERT INTO parts VALUES (1); INSERT INTO t VALUES (2); DELETE FROM own WHERE id = 2; COMMIT",
            "UPDATE own SET note = 'alone again'",
            "BEGIN; INSERT INTO parts VALUES (2); SELECT pg_logical_emit_message(true, 'app', 'kept'); COMMIT",
            """DO $$ BEGIN FOR n IN 1 .. 2000 LOOP
                INSERT INTO own VALUES (10 + n, repeat('x', 50));
                IF n BETWEEN 500 AND 1500 THEN INSERT INTO t VALUES (10 + n, repeat('y', 50)); END IF;
            END LOOP; END $$""",
            "INSERT INTO own SELECT n, repeat('z', 100) FROM generate_series(10000, 12000) n",
            "INSERT INTO t VALUES (3)",
        )
        changes = log.changes()
        oids = {
            row[0] for row in any_database.rows("SELECT oid FROM pg_class WHERE relname IN ('own', 'parts', 'part')")
        }
        up_to = current_lsn(log.connection)
        assert changes_in_log(log.store) == exclude_tables(Witness.existing(log.connection).changes(up_to), oids)
        log.left_out = 5 + 1 + 2000
        assert [(c.table or c.prefix, c.position.ordinal) for c in changes[:3]] == [("t", 1), ("t", 5), ("app", 1)]
        assert len(changes) == 3 + 1001 + 1
        commits = [
            int(commit_lsn)
            for segment in LogReader(log.store).list()
            if (content := segment.content()) is not None
            for commit_lsn in content.rows.commit_lsn[content.rows.kind == ord("C")]
        ]
        positions = {c.position.commit_lsn for c in LogReader(log.store).changes()}
        assert commits == sorted(positions), "the own tables are absent"
        assert names_in_headers(log.store) == {"t"}
        # A TRUNCATE is captured unchanged, because it may include other tables.
        log.execute("TRUNCATE own, t")
        assert [(str(c.operation), c.table) for c in log.changes()[-2:]] == [("TRUNCATE", "own"), ("TRUNCATE", "t")]
    with captured(any_database, tmp_path) as log:
        log.left_out = 5 + 1 + 2000
        log.execute("INSERT INTO own VALUES (1)", "INSERT INTO t VALUES (1)")
        assert [(c.table, c.after) for c in log.changes()[-1:]] == [("t", {"id": 1, "note": None})]


def test_a_changed_comment_applies_from_the_next_description(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1)")
        log.catch_up()
        log.execute(
            "COMMENT ON TABLE t IS 'Tailrace: from now on'", "ALTER TABLE t ADD a int", "INSERT INTO t VALUES (2)"
        )
        log.catch_up()
        log.execute("COMMENT ON TABLE t IS NULL", "ALTER TABLE t ADD b int", "INSERT INTO t VALUES (3)")
        assert [(c.after or {})["id"] for c in log.changes("t")] == [1, 3]


def test_a_replica_in_the_captured_database_does_not_loop(database: Database, tmp_path: Path) -> None:
    """The replica is user data and captured; the sink's own tables are not."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION tailrace FOR ALL TABLES")
    given = configured(database)
    where = settings.StoreSettings((tmp_path / "store").as_uri())
    store = Store.open(where.url)

    def capture() -> None:
        Capture(given, store, until="current").run()

    def deliver() -> int:
        common = SinkSettings(
            type="postgres", name="copy", tables=("public.*",), route="copy.{table}", start="earliest"
        )
        stepper = DrivenStepper(ConfiguredSink(common, sink_to(database, "copy")), where)
        stepper.open()
        stepper.deliver(planner.latest_offset(LogReader(store)))
        stepper.close()
        return stepper.steps

    capture()
    with database.connect() as connection:
        for n in range(5):
            connection.execute("INSERT INTO t VALUES (%s, 'one')", [n])
    capture()
    assert deliver() == 1
    capture()
    assert len(changes_in_log(store)) == 10, "the rows, and their copies"
    last = LogReader(store).last()
    assert last is not None
    for _ in range(3):
        assert deliver() == 1, "the log advanced, and so does the cursor"
        began_at = time.monotonic()
        capture()
        assert time.monotonic() - began_at < 5, "skipped transactions are durable at once if capture waits for them"
    later = [segment.metadata() for segment in LogReader(store).list(last.id + 1)]
    assert len(later) >= 3
    assert not any(header.rows for header in later if header), "they contain only the progress"
    assert {c.relation.qualified_name for c in LogReader(store).changes() if c.relation} == {"public.t", "copy.t"}
    assert rows_of(database, "copy", "t") == rows_of(database, "public", "t")
    assert database.rows("SELECT count(*) FROM tailrace.sinks") == [(1,)]
