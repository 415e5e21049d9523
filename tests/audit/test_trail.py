"""The contents of the table `changes`."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql
from tests import values
from tests.audit.trail_follower import TrailFollower, trailing
from tests.contract.audit_table import UNCHANGED
from tests.fixtures.postgres import Database

from tailrace import settings, sinks
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.errors import ConfigError, SinkRefused
from tailrace.sinks.audit import staged_changes

_LONG = "repeat(md5('x'), 400)"


@pytest.fixture
def audited(database: Database, destination: Database, tmp_path: Path) -> Iterator[TrailFollower]:
    database.execute(
        f"""
        CREATE TABLE t (id int PRIMARY KEY, n int, body text);
        ALTER TABLE t ALTER body SET STORAGE EXTERNAL;
        CREATE TABLE pairs (a int, b text, n int, PRIMARY KEY (a, b));
        CREATE TABLE whole (id int PRIMARY KEY, body text);
        ALTER TABLE whole ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
        INSERT INTO t VALUES (100, 0, {_LONG});
        """
    )
    with trailing(database, destination, tmp_path) as found:
        yield found


def _emit(context: object) -> str:
    return f"SELECT pg_logical_emit_message(true, '_bemi', '{json.dumps(context)}')"


def test_contexts(audited: TrailFollower) -> None:
    """Messages before, after and between rows; several; in a rolled-back savepoint; none."""
    audited.execute(
        f"BEGIN; {_emit({'n': 1})}; INSERT INTO t VALUES (1), (2); INSERT INTO pairs VALUES (1, 'a'); COMMIT",
        f"BEGIN; INSERT INTO t VALUES (3); {_emit({'n': 2})}; COMMIT",
        f"BEGIN; INSERT INTO t VALUES (4); {_emit({'n': 3})}; INSERT INTO t VALUES (5); COMMIT",
        f"BEGIN; {_emit({'n': 4})}; INSERT INTO t VALUES (6); {_emit({'n': 5})}; INSERT INTO t VALUES (7); COMMIT",
        f"BEGIN; INSERT INTO t VALUES (8); {_emit({'n': 6})}; INSERT INTO t VALUES (9); {_emit({'n': 7})}; COMMIT",
        f"BEGIN; {_emit({'n': 8})}; SAVEPOINT s; {_emit({'n': 9})}; INSERT INTO t VALUES (0); ROLLBACK TO s;"
        " INSERT INTO t VALUES (10); COMMIT",
        f"BEGIN; SAVEPOINT s; {_emit({'n': 10})}; ROLLBACK TO s; INSERT INTO t VALUES (11); COMMIT",
        "INSERT INTO t VALUES (12)",
        "SELECT pg_logical_emit_message(false, '_bemi', '{\"n\": 99}')",
        "BEGIN; SELECT pg_logical_emit_message(true, 'other', '{}'); INSERT INTO t VALUES (13); COMMIT",
        "BEGIN; SELECT pg_logical_emit_message(true, '_bemi', 'no json'); INSERT INTO t VALUES (14); COMMIT",
        "BEGIN; SELECT pg_logical_emit_message(true, '_bemi', '\\x00ff'::bytea); INSERT INTO t VALUES (15); COMMIT",
    )
    found = {row["primary_key"]: row["context"] for row in audited.rows()}
    numbers = {key: value["n"] for key, value in found.items() if isinstance(value, dict)}
    assert numbers == {
        "1": 1,
        "2": 1,
        '[1, "a"]': 1,
        "3": 2,
        "4": 3,
        "5": 3,
        "6": 4,
        "7": 5,
        "8": 6,
        "9": 7,
        "10": 8,
    }
    assert [found[str(n)] for n in (11, 12, 13)] == [None] * 3
    assert (found["14"], found["15"]) == ("no json", "\\x00ff")


def test_contexts_among_other_messages(audited: TrailFollower) -> None:
    """Messages with other prefixes are ignored: a context that follows one still precedes the first change."""
    other = "SELECT pg_logical_emit_message(true, 'other', 'x')"
    rows = [f"INSERT INTO t VALUES ({number})" for number in range(5)]
    audited.execute(
        f"BEGIN; {other}; {_emit('a')}; {rows[0]}; {_emit('b')}; {other}; {rows[1]}; COMMIT",
        f"BEGIN; {other}; {rows[2]}; {_emit('c')}; {rows[3]}; {_emit('d')}; COMMIT",
    )
    assert [row["context"] for row in audited.rows()] == ["a", "b", "c", "d"]
    audited.assert_matches()
    text = '{"n": ' + "9" * 200_000 + "}"
    audited.execute(f"BEGIN; SELECT pg_logical_emit_message(true, '_bemi', '{text}'); {rows[4]}; COMMIT")
    assert audited.rows()[-1]["context"] == text, "more digits than jsonb holds"


def test_a_long_context_of_many_rows(audited: TrailFollower, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated in each row, the context exceeds what is held in memory at once."""
    monkeypatch.setattr(staged_changes, "HELD_BYTES", 1 << 20)
    audited.execute(
        "BEGIN; SELECT pg_logical_emit_message(true, '_bemi', to_json(repeat('x', 10000))::text);"
        " INSERT INTO t SELECT g FROM generate_series(1001, 2500) g; UPDATE t SET n = 1 WHERE id > 2490; COMMIT"
    )
    audited.follow()
    found = audited.trail.database.rows("SELECT count(*), min(length(context::text)), count(DISTINCT id) FROM changes")
    assert found == [(1510, 10002, 1510)]


def test_unsent_values_come_from_earlier_changes(audited: TrailFollower) -> None:
    """From this step or an earlier one, also under another key; else they are marked, never null."""
    audited.execute(
        f"INSERT INTO t VALUES (1, 1, {_LONG})",
        f"INSERT INTO whole VALUES (1, {_LONG})",
        "UPDATE t SET n = 2",
    )
    audited.follow()
    audited.execute(
        "UPDATE t SET n = 3 WHERE id = 1",
        "BEGIN; UPDATE t SET id = 2 WHERE id = 1; UPDATE t SET n = 4 WHERE id = 2; COMMIT",
        "UPDATE whole SET id = 2",
    )
    audited.follow()
    audited.execute(
        "UPDATE t SET n = 5 WHERE id = 2",
        "BEGIN; UPDATE t SET body = 'short' WHERE id = 2; UPDATE t SET n = 6 WHERE id = 2; COMMIT",
    )
    audited.assert_matches()
    long = audited.source.rows(f"SELECT {_LONG}")[0][0]
    rows = audited.rows()
    bodies = [(r["after"]["n"], r["after"]["body"]) for r in rows if r["table"] == "t" and r["primary_key"] != "100"]
    assert bodies == [
        *((n, long) for n in (1, 2, 3, 3, 4, 5)),
        *((n, "short") for n in (5, 6)),
    ]
    assert {row["after"]["body"] for row in rows if row["table"] == "whole"} == {long}
    (unknown,) = [row for row in rows if row["primary_key"] == "100"]
    assert unknown["after"]["body"] == UNCHANGED
    assert unknown["unchanged"] == ["body"]


@pytest.mark.parametrize("mask", [None, "hash"])
def test_unsent_values_are_recovered_from_a_snapshot(
    mask: str | None, database: Database, destination: Database, tmp_path: Path
) -> None:
    """They are marked at first, then read from the log. Masks apply to them, too."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, who int, n int, body text); ALTER TABLE t ALTER body SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT g, g, 0, repeat(g::text, 9000) FROM generate_series(1, 9) g"
    )
    more = {} if mask is None else {"mask": {"public.t.body": mask}}
    with trailing(database, destination, tmp_path, **more) as audited:
        store = settings.StoreSettings(audited.log.store.url)
        job = SnapshotJob(settings.Settings(source=settings.SourceSettings(url=database.url), store=store))
        job.start()
        job.wait()
        audited.execute(
            "UPDATE t SET n = 1",
            "UPDATE t SET id = 20 WHERE id = 1",
            "UPDATE t SET id = 1 WHERE id = 2",
            "UPDATE t SET n = 2 WHERE id IN (1, 20)",
            "UPDATE t SET body = 'new' WHERE id = 3",
        )
        audited.follow()
        assert sum(row["unchanged"] is not None for row in audited.rows()) == 13
        audited.stepper.sink.maintain()
        rows = audited.rows()
        assert [row for row in rows if row["unchanged"] is not None] == []
        for row in rows:
            body = str(row["after"]["who"]) * 9000 if row is not rows[-1] else "new"
            body = body if mask is None else hashlib.sha256(body.encode()).hexdigest()
            assert row["after"]["body"] == body, row["primary_key"]


def test_unsent_values_do_not_come_from_another_column_of_the_same_name(audited: TrailFollower) -> None:
    audited.execute(
        "CREATE TABLE r (id int PRIMARY KEY, n int, a text, b text)",
        "ALTER TABLE r ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO r VALUES (1, 1, repeat('a', 9000), repeat('b', 9000))",
    )
    audited.follow()
    audited.execute("ALTER TABLE r DROP a; ALTER TABLE r RENAME b TO a", "UPDATE r SET n = 2")
    (_, row) = audited.rows("r")
    assert row["after"]["a"] == UNCHANGED
    assert row["unchanged"] == ["a"]
    audited.execute("UPDATE r SET a = repeat('a', 9000)", "ALTER TABLE r ADD c int")
    audited.follow()
    audited.execute("UPDATE r SET n = 3")
    assert audited.rows("r")[-1]["after"]["a"] == "a" * 9000, "an added column does not rename the others"


def test_unsent_values_do_not_come_from_another_row(audited: TrailFollower) -> None:
    """A row that had the key before, a table that had the name before, a row whose later value was erased."""
    audited.execute("CREATE TABLE next (LIKE t INCLUDING ALL)", f"INSERT INTO next VALUES (7, 0, {_LONG})")
    audited.follow()
    steps = [
        ["INSERT INTO t VALUES (1, 0, repeat('a', 9000)), (7, 0, repeat('b', 9000))"],
        ["UPDATE t SET id = 2 WHERE id = 1"],
        ["UPDATE t SET id = 1 WHERE id = 100"],
        ["UPDATE t SET n = 1 WHERE id = 1"],
        ["DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (2, 0, repeat('c', 9000))"],
    ]
    for statements in steps:
        audited.execute(*statements)
        audited.follow()
    assert audited.rows("t")[4]["unchanged"] == ["body"]
    erased = "UPDATE changes SET after = after || '{\"body\": \"__tailrace_erased\"}' WHERE after ->> 'body' LIKE 'cc%'"
    audited.trail.database.execute(erased)
    audited.execute("UPDATE t SET n = 1 WHERE id = 2")
    audited.follow()
    audited.execute("ALTER TABLE t RENAME TO last", "ALTER TABLE next RENAME TO t", "UPDATE t SET n = 1 WHERE id = 7")
    assert [row["unchanged"] for row in audited.rows("t")[-2:]] == [["body"], ["body"]]


def test_keys(audited: TrailFollower) -> None:
    audited.execute(
        "INSERT INTO pairs VALUES (1, 'a', 1)",
        "UPDATE pairs SET n = 2",
        "UPDATE pairs SET b = 'c, \"d'",
        "DELETE FROM pairs",
        "CREATE TABLE bare (n int)",
        "ALTER TABLE bare REPLICA IDENTITY FULL",
        "INSERT INTO bare VALUES (1)",
        "TRUNCATE t, whole",
    )
    found = [(row["operation"], row["primary_key"], row["previous_key"], row["before"]) for row in audited.rows()]
    moved = '[1, "c, \\"d"]'
    key = {"a": 1, "b": "a"}
    assert found == [
        ("INSERT", '[1, "a"]', None, None),
        ("UPDATE", '[1, "a"]', None, key),
        ("UPDATE", moved, '[1, "a"]', key),
        ("DELETE", moved, None, {"a": 1, "b": 'c, "d'}),
        ("INSERT", None, None, None),
        ("TRUNCATE", None, None, None),
        ("TRUNCATE", None, None, None),
    ]
    assert len({row["commit_position"] for row in audited.rows()[-2:]}) == 1
    audited.assert_matches()


def test_json_beyond_jsonb(audited: TrailFollower) -> None:
    """Values that jsonb does not accept are stored as text: nothing is lost, and the sink does not stop."""
    texts = ['{"a": "\\u0000"}', '"\\ud800"', '{"a": 1e200000}', '{"a": 1e-20000}', '["\\\\u0000"]', '{"a": 1.50}']
    audited.execute("CREATE TABLE j (id int PRIMARY KEY, v json)")
    for number, text in enumerate(texts):
        audited.execute(f"INSERT INTO j VALUES ({number}, $${text}$$)")
    found = [row["after"]["v"] for row in audited.rows("j")]
    assert found == [*texts[:4], ["\\u0000"], {"a": 1.5}]
    exact = audited.trail.database.rows("SELECT after #>> '{v,a}' FROM changes WHERE primary_key = '5'")
    assert exact == [("1.50",)]


def test_into_the_database_that_is_captured(database: Database, tmp_path: Path) -> None:
    """FOR ALL TABLES includes the trail, but it is not captured, so it does not record itself."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with trailing(database, database, tmp_path) as audited:
        for number in range(5):
            audited.execute(f"INSERT INTO t VALUES ({number})")
            assert len(audited.rows()) == number + 1
        audited.assert_matches()
        assert {change.table for change in audited.log.changes()} == {"t"}


def test_values_of_every_type_can_be_restored(database: Database, tmp_path: Path) -> None:
    """As docs/sinks/audit.md describes: a JSON row, converted to the table's type, is the original row."""
    rng = random.Random(1)
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(values.TYPES))
    database.execute(f"{values.DECLARATIONS}; CREATE TABLE every (id int PRIMARY KEY, {columns}, n int)")
    database.execute("ALTER TABLE every REPLICA IDENTITY FULL")
    insert = sql.SQL("INSERT INTO every VALUES ({})")
    with trailing(database, database, tmp_path) as audited:
        for number in range(80):
            # jsonb does not distinguish two values: the null of a json column, and a negative zero.
            made = [values.value(rng, kind) for kind in values.TYPES]
            found = [None if text == "null" else "0" if text == "-0" else text for text in made]
            audited.log.connection.execute(insert.format(sql.SQL(", ").join(map(sql.Literal, [number, *found]))))
        audited.execute("UPDATE every SET n = 1")
        audited.follow()
    expected = database.rows("SELECT id, (to_jsonb(e) - 'n')::text FROM every e ORDER BY id")
    for image, operation in (("after", "INSERT"), ("before", "UPDATE"), ("after", "UPDATE")):
        query = f"""
            SELECT r.id, (to_jsonb(r) - 'n')::text FROM changes c, jsonb_populate_record(NULL::every, c.{image}) r
            WHERE c.operation = '{operation}' ORDER BY r.id"""
        assert database.rows(query) == expected, (image, operation)


_BEMI = """
CREATE TABLE changes (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    database varchar(255) NOT NULL, schema varchar(255) NOT NULL, "table" varchar(255) NOT NULL,
    operation text NOT NULL, before jsonb NOT NULL, after jsonb NOT NULL, context jsonb NOT NULL,
    primary_key varchar(255), committed_at timestamptz(0) NOT NULL, queued_at timestamptz(0) NOT NULL,
    created_at timestamptz(0) NOT NULL, position bigint NOT NULL,
    UNIQUE (position, "table", schema, database, operation)
);
INSERT INTO changes (database, schema, "table", operation, before, after, context, primary_key, committed_at,
                     queued_at, created_at, position)
VALUES ('d', 'public', 't', 'CREATE', '{}', '{"id": 1}', '{}', '1', now(), now(), now(), 1)
"""


def test_a_table_that_bemi_created(database: Database, destination: Database, tmp_path: Path) -> None:
    """The table, its rows and its operation for inserts remain; missing columns and indexes are added."""
    destination.execute(_BEMI)
    long = "x" * 300
    database.execute("CREATE TABLE t (id text PRIMARY KEY)")
    with trailing(database, destination, tmp_path) as audited:
        # Rows of one COPY have one LSN.
        with audited.log.connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            copy.write(f"2\n{long}\n")
        audited.execute("DELETE FROM t WHERE id = '2'")
        audited.follow()
    found = destination.rows("SELECT operation, primary_key, after, before FROM changes ORDER BY position, ordinal")
    assert found == [
        ("CREATE", "1", {"id": 1}, {}),
        ("CREATE", "2", {"id": "2"}, None),
        ("CREATE", long, {"id": long}, None),
        ("DELETE", "2", None, {"id": "2"}),
    ]
    finer = destination.rows("SELECT count(*) FROM changes WHERE committed_at <> date_trunc('second', committed_at)")
    assert finer == [(3,)]
    remaining = destination.rows("SELECT count(*) FROM changes WHERE commit_position IS NULL")
    assert remaining == [(1,)]


@pytest.mark.parametrize(
    ("altered", "words"),
    [
        ("ALTER committed_at TYPE timestamp", "committed_at has type timestamp without time zone"),
        ("ALTER before TYPE json", "before has type json, but must have jsonb"),
    ],
)
def test_a_table_that_cannot_hold_changes(
    altered: str, words: str, database: Database, destination: Database, tmp_path: Path
) -> None:
    destination.execute(f"{_BEMI}; ALTER TABLE changes {altered}")
    with pytest.raises(SinkRefused, match=words), trailing(database, destination, tmp_path):
        pass


def test_masked(database: Database, destination: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, email text, note text); ALTER TABLE t REPLICA IDENTITY FULL")
    more = {"mask": {"public.t.email": "redact"}, "columns": {"public.t": "-note"}}
    with trailing(database, destination, tmp_path, **more) as audited:
        audited.execute("INSERT INTO t VALUES (1, 'a@example.com', 'x')", "UPDATE t SET email = 'b@example.com'")
        assert [(row["before"], row["after"]) for row in audited.rows()] == [
            (None, {"id": 1, "email": "***"}),
            ({"id": 1, "email": "***"}, {"id": 1, "email": "***"}),
        ]
    dump = destination.rows("SELECT changes::text FROM changes")
    assert "example" not in str(dump)


@pytest.mark.parametrize("partition", ["none", "month"])
def test_expired_rows_are_deleted(partition: str, database: Database, destination: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with trailing(database, destination, tmp_path, partition=partition, keep_days=40) as audited:
        audited.execute("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        audited.follow()
        if partition == "month":
            destination.execute(
                "CREATE TABLE changes_2020_01 PARTITION OF changes FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')"
            )
        destination.execute("UPDATE changes SET committed_at = '2020-01-15' WHERE primary_key = '1'")
        audited.stepper.sink.maintain()
        assert [row["primary_key"] for row in audited.rows()] == ["2"]
    tables = destination.rows("SELECT relname FROM pg_class WHERE relname LIKE 'changes_2%' AND relkind = 'r'")
    assert len(tables) == (partition == "month")


def test_whole_transactions_and_rows_as_they_were(audited: TrailFollower) -> None:
    audited.execute(
        f"BEGIN; {_emit({'user': 7})}; INSERT INTO t VALUES (1, 1, 'a'); INSERT INTO pairs VALUES (1, 'x', 1); COMMIT",
        "UPDATE t SET n = 2 WHERE id = 1",
        "UPDATE t SET id = 5 WHERE id = 1",
        "INSERT INTO t VALUES (6, 6, 'b')",
        "DELETE FROM t WHERE id = 6",
    )
    times = [row["committed_at"] for row in audited.rows("t")]
    audited.execute("TRUNCATE t")
    audited.follow()
    with audited.trail.database.connect() as connection:
        (first,) = connection.execute(
            "SELECT changes, tables, contexts, jsonb_array_length(details) FROM tailrace.transactions"
            " ORDER BY commit_position LIMIT 1"
        ).fetchall()
        assert first == (2, ["public.pairs", "public.t"], [{"user": 7}], 2)

        def row(key: str, moment: object) -> object:
            query = "SELECT tailrace.row_as_of('public.t', %s, %s)"
            return connection.execute(query, [key, moment]).fetchone()[0]  # type: ignore[index]

        def table(moment: object) -> list[object]:
            query = "SELECT primary_key, row -> 'n' FROM tailrace.table_as_of('t', %s) ORDER BY 1"
            return connection.execute(query, [moment]).fetchall()

        assert row("1", times[0]) == {"id": 1, "n": 1, "body": "a"}
        assert row("1", times[1]) == {"id": 1, "n": 2, "body": "a"}
        assert (row("1", times[2]), row("5", times[2])) == (None, {"id": 5, "n": 2, "body": "a"})
        assert row("6", times[4]) is None
        assert row("5", "infinity") is None
        assert table(times[0]) == [("1", 1)]
        assert table(times[3]) == [("5", 2), ("6", 6)]
        assert table(times[4]) == [("5", 2)]
        assert table("infinity") == []


def test_invalid_settings_are_refused(destination: Database) -> None:
    def configured(**more: object) -> None:
        raw = {"type": "audit", "name": "a", "url": destination.url, **more}
        sinks.from_settings(settings.Settings(store=settings.StoreSettings("file:///tmp/x"), sinks=(raw,)), {})

    for more, words in (
        ({"start": "snapshot"}, "only changes"),
        ({"table": "a b"}, "not a table name"),
        ({"inserts": "ADD"}, "INSERT"),
        ({"keep_days": 0}, "keep_days"),
        ({"url": ""}, "url is missing"),
    ):
        with pytest.raises(ConfigError, match=words):
            configured(**more)


def test_partitioning_an_existing_table_is_refused(database: Database, destination: Database, tmp_path: Path) -> None:
    destination.execute(_BEMI)
    with (
        pytest.raises(SinkRefused, match="is not partitioned"),
        trailing(database, destination, tmp_path, partition="month"),
    ):
        pass
