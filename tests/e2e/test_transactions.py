"""Cases 38 to 60: atomicity, order and rollback of transactions."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests import oracle
from tests.capturing import CaptureThread, Witness, changes_in_log, configured, current_lsn, environment, tailrace
from tests.e2e.captured_database import CapturedDatabase, captured, cat, eventually, operation_and_rows, relation_of
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace import settings
from tailrace.capture.capture import Capture
from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.change import Lsn, Operation, Position
from tailrace.errors import SourceRefused
from tailrace.log.entry import LogEntry
from tailrace.log.reader import LogReader
from tailrace.log.verify import verify
from tailrace.pgoutput import message
from tailrace.store import Store


def entries(store: Store) -> list[LogEntry]:
    return [entry for segment in LogReader(store).list() for entry in segment.entries() or ()]


def test_truncate_of_several_tables_is_one_ordered_event_with_its_flags(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("""
        CREATE TABLE a (id int PRIMARY KEY);
        CREATE TABLE b (id serial PRIMARY KEY);
        CREATE TABLE a_child (id int PRIMARY KEY, a int REFERENCES a);
        CREATE TABLE plain (id int PRIMARY KEY);
    """)
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO a_child VALUES (1, 1)",
            "BEGIN; INSERT INTO b VALUES (2); TRUNCATE a, b RESTART IDENTITY CASCADE; INSERT INTO b VALUES (3); COMMIT",
            "INSERT INTO plain VALUES (1)",
            "TRUNCATE plain",
        )
        changes = log.changes()[3:]
        log.assert_follows("a", "b", "a_child", "plain")
    assert [(str(c.operation), c.table, c.position.ordinal, c.truncate_options) for c in changes] == [
        ("INSERT", "b", 0, ()),
        ("TRUNCATE", "a", 1, ("CASCADE", "RESTART IDENTITY")),
        ("TRUNCATE", "b", 2, ("CASCADE", "RESTART IDENTITY")),
        ("TRUNCATE", "a_child", 3, ("CASCADE", "RESTART IDENTITY")),
        ("INSERT", "b", 4, ()),
        ("INSERT", "plain", 0, ()),
        ("TRUNCATE", "plain", 0, ()),
    ]
    assert len({c.position.commit_lsn for c in changes[:5]}) == 1
    rows = [e for e in entries(log.store) if e.kind == "T"]
    assert [len(m.relation_oids) for e in rows if isinstance(m := message.parse(e.payload), message.Truncate)] == [3, 1]
    lines = [line for line in cat(log.store) if line["operation"] == "TRUNCATE"]
    assert [line["message"] for line in lines] == ["CASCADE RESTART IDENTITY"] * 3 + [None]


def test_a_table_published_while_transactions_are_open_is_complete(any_database: Database, tmp_path: Path) -> None:
    """Case 45: published changes are in the log, and with a snapshot the table is complete."""
    any_database.execute("""
        CREATE TABLE published (id int PRIMARY KEY);
        CREATE TABLE added (id int PRIMARY KEY, note text);
        CREATE PUBLICATION tailrace FOR TABLE published;
    """)
    with any_database.connect() as connection:
        Witness(connection)
    with captured(any_database, tmp_path) as log, any_database.connect() as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO published VALUES (1)")
        other.execute("INSERT INTO added VALUES (1, 'before it was published')")
        log.execute("ALTER PUBLICATION tailrace ADD TABLE added")
        other.execute("INSERT INTO added VALUES (2, 'after')")
        other.execute("UPDATE added SET note = 'changed' WHERE id = 2")
        other.execute("COMMIT")
        assert [(c.table, c.after) for c in log.changes()] == [
            ("published", {"id": 1}),
            ("added", {"id": 2, "note": "after"}),
            ("added", {"id": 2, "note": "changed"}),
        ]
        given = settings.Settings(
            source=settings.SourceSettings(url=any_database.url), store=settings.StoreSettings(url=log.store.url)
        )
        job = SnapshotJob(given, [t for t in catalog.published_tables(log.connection, "tailrace") if t.name == "added"])
        job.start()
        log.execute("UPDATE added SET id = 10 WHERE id = 1", "INSERT INTO added VALUES (3, 'later')")
        assert job.wait(60)
        changes = log.changes("added")
        (snapshot,) = job.finished
        replica = oracle.Replica()
        replica.load(snapshot.relation, oracle.typed_rows(snapshot.chunks()))
        for change in changes:
            if change.position >= Position(snapshot.lsn, 0):
                old, new = (image and oracle.to_typed(snapshot.relation, image) for image in (change.old, change.new))
                replica.apply(replace(change, old=old, new=new))
        rows = oracle.rows(log.connection, "public", "added")
        assert replica.rows("public", "added") == {
            oracle.to_typed(snapshot.relation, row): n for row, n in rows.items()
        }

        log.execute("ALTER PUBLICATION tailrace DROP TABLE added", "INSERT INTO added VALUES (99, 'not published')")
        log.catch_up()
        up_to = current_lsn(log.connection)
        assert changes_in_log(log.store) == Witness.existing(log.connection).changes(up_to)


def test_a_publication_that_was_missing_for_a_while_is_an_error(any_database: Database, tmp_path: Path) -> None:
    """PostgreSQL 18 would continue with a warning, and omit the changes made meanwhile."""
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    any_database.execute(f"ALTER DATABASE {any_database.name} SET client_min_messages = error")
    with captured(any_database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1)")
        before = log.changes("t")
        log.execute("DROP PUBLICATION tailrace", "INSERT INTO t VALUES (2)")
        log.execute("CREATE PUBLICATION tailrace FOR ALL TABLES", "INSERT INTO t VALUES (3)")
        failure = log.running.failure()
    again = Capture(configured(any_database), log.store)
    with pytest.raises(SourceRefused) as raised:
        again.run()
    for error in (failure, raised.value):
        assert isinstance(error, SourceRefused)
        assert 'publication "tailrace"' in str(error)
        assert "--accept-gap" in error.hint
    assert log.changes_now("t") == before
    # Following the hint works.
    any_database.execute("SELECT pg_drop_replication_slot('tailrace')")
    with CaptureThread(configured(any_database), log.store, accept_gap=True) as run:
        any_database.execute("INSERT INTO t VALUES (4)")
        run.wait(lambda: len(changes_in_log(log.store, across_gaps=True)) > 2)
    seen = LogReader(log.store).changes(across_gaps=True, tables=lambda relation: relation.name == "t")
    assert [c.after for c in seen] == [{"id": 1}, {"id": 4}]


def test_row_filters_and_column_lists_apply(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("""
        CREATE TABLE filtered (id int PRIMARY KEY, state text);
        ALTER TABLE filtered REPLICA IDENTITY FULL;
        CREATE TABLE listed (id int PRIMARY KEY, secret text, shown text);
        CREATE PUBLICATION tailrace FOR TABLE filtered WHERE (state <> 'draft'), listed (id, shown);
    """)
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO filtered VALUES (1, 'draft'), (2, 'sent')",
            "UPDATE filtered SET state = 'sent' WHERE id = 1",
            "UPDATE filtered SET state = 'paid' WHERE id = 1",
            "UPDATE filtered SET state = 'draft' WHERE id = 1",
            "DELETE FROM filtered",
            "INSERT INTO listed VALUES (1, 'planted', 'a')",
            "UPDATE listed SET secret = 'planted2'",
            "DELETE FROM listed",
        )
        filtered, listed = log.changes("filtered"), log.changes("listed")
    assert [operation_and_rows(c) for c in filtered] == [
        ("INSERT", None, {"id": 2, "state": "sent"}),
        ("INSERT", None, {"id": 1, "state": "sent"}),
        ("UPDATE", {"id": 1, "state": "sent"}, {"id": 1, "state": "paid"}),
        ("DELETE", {"id": 1, "state": "paid"}, None),
        ("DELETE", {"id": 2, "state": "sent"}, None),
    ]
    assert [operation_and_rows(c) for c in listed] == [
        ("INSERT", None, {"id": 1, "shown": "a"}),
        ("UPDATE", None, {"id": 1, "shown": "a"}),
        ("DELETE", {"id": 1}, None),
    ]
    assert [c.name for c in relation_of(listed[0]).columns] == ["id", "shown"]
    assert not any(b"planted" in info for info in _objects(log.store))


def _objects(store: Store) -> list[bytes]:
    return [store.get(info.key) or b"" for info in store.list("")]


def test_rows_with_the_same_lsn_have_distinct_positions(any_database: Database, tmp_path: Path) -> None:
    """COPY writes many rows in one WAL record."""
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with captured(any_database, tmp_path) as log:
        with log.connection.cursor().copy("COPY t FROM STDIN") as copy:
            copy.write("".join(f"{n}\n" for n in range(500)))
        changes = log.changes("t")
        log.assert_follows("t")
    assert len({c.lsn for c in changes}) < 20
    assert [c.position.ordinal for c in changes] == list(range(500))
    assert len({c.position for c in changes}) == 500


def test_a_row_that_starts_where_a_commit_ended_is_not_skipped(any_database: Database, tmp_path: Path) -> None:
    """Capture stops and restarts exactly there, each time."""
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    touching = 0
    for round in range(6):
        with captured(any_database, tmp_path) as log:
            log.execute(f"INSERT INTO t VALUES ({2 * round})")
            log.running.wait(lambda: log.changes_now("t"))
            log.execute(f"INSERT INTO t VALUES ({2 * round + 1})")
            ends = {m.end_lsn for e in entries(log.store) if isinstance(m := message.parse(e.payload), message.Commit)}
            touching += sum(c.lsn in ends for c in log.changes("t")[-2:])
    assert [(c.after or {})["id"] for c in log.changes_now("t")] == list(range(12))
    assert touching, "no row started where a commit ended, so the case was not tested"


def test_interleaved_transactions_are_in_commit_order(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, who text)")
    with captured(any_database, tmp_path) as log:
        people = {who: any_database.connect() for who in "abc"}
        for who, connection in people.items():
            connection.execute("BEGIN")
            connection.execute("INSERT INTO t VALUES (%s, %s)", [ord(who), who])
        for step, who in enumerate("cabcab"):
            people[who].execute("INSERT INTO t VALUES (%s, %s)", [step, who])
        for who in "bca":
            people[who].execute("COMMIT")
            people[who].close()
        changes = log.changes("t")
        log.assert_follows("t")
    assert [(c.after or {})["who"] for c in changes] == [*"bbb", *"ccc", *"aaa"]
    assert [c.position for c in changes] == sorted(c.position for c in changes)
    assert [c.position.ordinal for c in changes] == [0, 1, 2] * 3
    assert [c.lsn for c in changes] != sorted(c.lsn for c in changes), "the transactions did not interleave"
    assert len({c.xid for c in changes}) == 3


def test_only_rolled_back_changes_are_missing(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("""
        CREATE TABLE t (id int PRIMARY KEY, note text);
        CREATE FUNCTION forgiving(low int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            FOR n IN low .. low + 3 LOOP
                BEGIN
                    INSERT INTO t VALUES (n, 'in a block');
                    IF n % 2 = 0 THEN RAISE EXCEPTION 'no'; END IF;
                EXCEPTION WHEN raise_exception THEN NULL;
                END;
            END LOOP;
        END $$;
    """)
    with captured(any_database, tmp_path) as log:
        log.execute(
            "BEGIN",
            "INSERT INTO t VALUES (1, 'kept')",
            "SAVEPOINT a",
            "INSERT INTO t VALUES (2, 'gone')",
            "SAVEPOINT b",
            "UPDATE t SET note = 'gone' WHERE id = 1",
            "RELEASE b",
            "ROLLBACK TO a",
            "INSERT INTO t VALUES (3, 'kept')",
            "SAVEPOINT c",
            "DELETE FROM t WHERE id = 3",
            "ROLLBACK TO c",
            "SELECT forgiving(10)",
            "COMMIT",
            "BEGIN",
            "INSERT INTO t VALUES (4, 'gone')",
            "ROLLBACK",
            "INSERT INTO t VALUES (5, 'kept')",
        )
        changes = log.changes("t")
        log.assert_follows("t")
    assert [(c.after or {})["id"] for c in changes] == [1, 3, 11, 13, 5]
    assert [c.position.ordinal for c in changes] == [0, 1, 2, 3, 0]
    assert len({c.xid for c in changes[:4]}) == 1, "subtransactions belong to the whole transaction"


def test_logical_messages_are_neither_lost_nor_repeated(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")

    def emit(transactional: bool, content: str) -> str:
        return f"SELECT pg_logical_emit_message({transactional}, 'präfix', '{content}')"

    def messages(log: CapturedDatabase) -> list[tuple[bool, bytes | None, int]]:
        found = [c for c in log.changes_now() if c.operation is Operation.MESSAGE]
        assert {c.prefix for c in found} == {"präfix"}
        return [(c.transactional, c.content, c.position.ordinal) for c in found]

    with captured(any_database, tmp_path) as log:
        log.execute(
            "BEGIN",
            "INSERT INTO t VALUES (1)",
            emit(True, "inside"),
            emit(False, "at once"),
            "INSERT INTO t VALUES (2)",
            "COMMIT",
            "BEGIN",
            emit(True, "taken back"),
            emit(False, "not to be taken back"),
            "ROLLBACK",
            emit(True, "alone"),
            emit(False, ""),
            "SELECT pg_logical_emit_message(false, 'präfix', '\\xff00'::bytea)",
        )
        log.catch_up()
        expected = [
            (False, b"at once", 0),
            (True, b"inside", 1),
            (False, b"not to be taken back", 0),
            (True, b"alone", 0),
            (False, b"", 0),
            (False, b"\xff\x00", 0),
        ]
        assert messages(log) == expected
    for _ in range(2):
        with captured(any_database, tmp_path) as log:
            log.catch_up()
            assert messages(log) == expected
    positions = [c.position for c in log.changes_now()]
    assert positions == sorted(set(positions))
    lines = [(line["message_prefix"], line["message"]) for line in cat(log.store) if line["operation"] == "MESSAGE"]
    assert lines[-2:] == [("präfix", ""), ("präfix", "\\xff00")]


def test_an_origin_is_retained_and_changes_no_position(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    origin = f"elsewhere_{any_database.name}"
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO t VALUES (1)",
            f"SELECT pg_replication_origin_create('{origin}')",
            f"SELECT pg_replication_origin_session_setup('{origin}')",
            "BEGIN",
            "SELECT pg_replication_origin_xact_setup('0/ABCD', now())",
            "INSERT INTO t VALUES (2), (3)",
            "COMMIT",
            "SELECT pg_replication_origin_session_reset()",
            "INSERT INTO t VALUES (4)",
        )
        changes = log.changes("t")
        log.assert_follows("t")
        log.execute(f"SELECT pg_replication_origin_drop('{origin}')")
    assert [c.position.ordinal for c in changes] == [0, 0, 1, 0]
    (row,) = [e for e in entries(log.store) if e.kind == "O"]
    assert message.parse(row.payload) == message.OriginMessage(Lsn(0xABCD), origin)
    assert row.position == changes[1].position
    assert len(cat(log.store)) == 4


ROWS, FILLER = 110_000, 900


def test_a_large_transaction_is_visible_whole_or_not_at_all(database: Database, file_address: StoreAddress) -> None:
    """Case 56: some 100 MB through segments of 1 MiB, with capture killed inside it."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION tailrace FOR TABLE t")
    env = environment(database, *file_address) | {"TAILRACE_CAPTURE_SEGMENT_BYTES": str(1 << 20)}
    store = Store.open(*file_address)
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('tailrace', 'pgoutput')")
        connection.execute(
            f"INSERT INTO t SELECT n, repeat(md5(n::text), {FILLER // 32}) FROM generate_series(1, {ROWS}) n".encode()
        )
        up_to = current_lsn(connection)

    killed = _Watched(env, store)
    eventually(lambda: killed.look() or killed.segments >= 20)
    killed.process.kill()
    killed.process.communicate()
    assert killed.torn, "killed before, or after, the transaction"
    assert _visible(store) is None

    again = _Watched(env, store, "--until-lsn", str(up_to))
    eventually(again.look, 120)
    assert again.process.returncode == 0, again.process.communicate()[1]
    again.process.communicate()
    assert again.torn, "the reader never looked while the transaction was in progress"
    grown = max(again.memory) - again.memory[0]
    assert grown < 50 << 20, f"memory grew by {grown >> 20} MiB"

    headers = [header for s in LogReader(store).list() if (header := s.metadata())]
    assert sum(h.payload_bytes for h in headers) > 100 << 20
    assert sum(h.voids_tail for h in headers) == 1
    assert max(h.payload_bytes for h in headers) < 3 << 20
    place = 0
    for place, change in enumerate(LogReader(store).changes(), 1):
        assert change.position.ordinal == place - 1
        assert change.new
        assert change.new[0] == b"%d" % place
    assert place == ROWS
    assert not list(verify(store))


def _visible(store: Store) -> object:
    return next(LogReader(store).changes(), None)


def _newest(store: Store) -> int:
    last = LogReader(store).last()
    return last.id if last else 0


class _Watched:
    """A capture in a separate process, and what a reader sees meanwhile."""

    def __init__(self, env: dict[str, str], store: Store, *arguments: str) -> None:
        self.store = store
        self.segments = self._began = _newest(store)
        self.torn = 0
        """How often the reader looked while capture was in the transaction."""
        self.memory: list[int] = []
        command = tailrace("capture", *arguments)
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._self = psutil.Process(self.process.pid)

    def look(self) -> bool:
        """Whether capture ended."""
        if self.process.poll() is not None:
            return True
        visible = _visible(self.store)
        last = LogReader(self.store).last()
        header = last.metadata() if last else None
        if header is not None:
            self.segments = header.id
            if header.id > self._began and header.rows and not header.committed_rows:
                # The transaction is still open, so it was open during the read too.
                self.torn += 1
                assert visible is None
                self.memory.append(self._resident())
        return False

    def _resident(self) -> int:
        try:
            return int(self._self.memory_info().rss)
        except psutil.NoSuchProcess:
            return 0
