"""What sinks receive. The oracle for conditions is PostgreSQL itself: a publication with the same row filters."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.capturing import CaptureThread, configured, current_lsn
from tests.fixtures.postgres import Database
from tests.pgoutput import read
from tests.sinks.messages import runs

from tailrace.change import UNCHANGED, Column, Image, Relation, Type
from tailrace.delivery.sink_settings import SinkSettings
from tailrace.delivery.transforms import Shaping
from tailrace.errors import ConfigError
from tailrace.log import planner
from tailrace.log.ddl_message import OWN_PREFIXES
from tailrace.log.decoding import OPERATIONS, ChangeFilter, LogicalMessages, TableChanges, chunks
from tailrace.log.reader import LogReader
from tailrace.pgoutput import message
from tailrace.store import Store

TABLES = """
CREATE TABLE by_key (id int PRIMARY KEY, v text);
CREATE TABLE whole (id int PRIMARY KEY, total numeric(10, 2), free numeric, note text, placed timestamptz, body text,
    took interval, doc jsonb);
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE whole ALTER body SET STORAGE EXTERNAL;
CREATE TABLE by_index (id int, code text NOT NULL, part int NOT NULL, v text, UNIQUE (code, part));
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_part_key;
CREATE TABLE bag (flag bool, n int);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE long (id int PRIMARY KEY, body text, n int);
ALTER TABLE long REPLICA IDENTITY FULL;
ALTER TABLE long ALTER body SET STORAGE EXTERNAL;
"""

# Conditions that both PostgreSQL and Tailrace evaluate.
CONDITIONS = {
    "public.by_key": "id % 3 <> 0",
    "public.whole": "(total > 50 OR free < 0 OR took > interval '1 day') AND note IS DISTINCT FROM 'x' "
    "AND placed < '2024-06-01 00:00:00+00'",
    "public.by_index": "code LIKE 'a%' AND (part = 1 OR part > 2)",
    "public.bag": "flag",
    "public.long": "length(body) > 4000",
}


def shaping(**settings: Any) -> Shaping:
    return Shaping(SinkSettings(type="files", name="s", **settings), database="shop")


def changes(store: Store, *, as_text: bool = True, by: Shaping | None = None) -> Iterator[TableChanges]:
    """All changes in the log, shaped."""
    reader = LogReader(store)
    batch = planner.next_batch(reader, planner.start_offset(reader, None))
    for _, chunk in chunks(reader, batch.slices, ChangeFilter(), as_text=as_text):
        yield from (part for part in (by.apply(chunk) if by else chunk) if isinstance(part, TableChanges))


@pytest.fixture
def captured(database: Database, tmp_path: Path) -> tuple[Database, Store]:
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    return database, Store.open(str(tmp_path))


def capture(database: Database, store: Store, *statements: str) -> None:
    with (
        CaptureThread(configured(database, segment_bytes=64 * 1024), store) as running,
        database.connect() as connection,
    ):
        for statement in statements:
            connection.execute(statement.encode())
        running.wait_for(current_lsn(connection))


Outcome = tuple[int, str, read.Row, bool, read.Row]
"""Commit, operation, old row, whether that is only the key, new row."""


def delivered_changes(store: Store, by: Shaping, as_text: bool) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for run in changes(store, as_text=as_text, by=by):
        names = [OPERATIONS[int(letter)] for letter in run.operation]
        rows = zip(names, read.image_rows(run.old), run.old_is_key, read.image_rows(run.new), strict=True)
        outcomes = [(int(run.at.commit_lsn[i]), name, old, bool(k), new) for i, (name, old, k, new) in enumerate(rows)]
        found.setdefault(run.relation.name, []).extend(outcomes)
    return found


def expected_changes(database: Database, relations: dict[int, Relation], as_text: bool) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    commit = 0

    def row(relation: Relation, image: Image | None) -> read.Row:
        if image is None or not as_text:
            return read.plain_image(relation, image)
        return [v.decode() if isinstance(v, bytes) else v for v in image], {}

    with database.connect() as connection:
        query = (
            "SELECT data FROM pg_logical_slot_get_binary_changes('theirs', NULL, NULL, 'proto_version', '1', "
            "'publication_names', 'filtered')"
        )
        for (payload,) in connection.execute(query):
            parsed = message.parse(payload)
            if isinstance(parsed, message.Begin):
                commit = int(parsed.commit_lsn)
            if not isinstance(parsed, message.Insert | message.Update | message.Delete):
                continue
            relation = relations[parsed.relation_oid]
            old = None if isinstance(parsed, message.Insert) else parsed.old
            is_key = False if isinstance(parsed, message.Insert) else parsed.old_is_key
            new = None if isinstance(parsed, message.Delete) else parsed.new
            name = type(parsed).__name__.upper()
            outcome = commit, name, row(relation, old), is_key and old is not None, row(relation, new)
            found.setdefault(relation.name, []).append(outcome)
    return found


def statements(rng: random.Random) -> Iterator[str]:
    """Inserts, deletes, and updates that start or stop matching."""

    def some(*values: Any) -> str:
        value = rng.choice(values)
        return "NULL" if value is None else repr(value)

    def body() -> str:
        return rng.choice([f"repeat('{rng.choice('abc')}', {rng.choice([10, 3000, 5000])})", "NULL"])

    def number() -> str:
        return some(None, 49.99, 50, 50.01, -1, 1000)

    def whole(columns: list[str]) -> str:
        made = {
            "total": number(),
            "free": number(),
            "note": some(None, "x", "y", ""),
            "placed": some(
                None, "2024-05-31 23:59:59.999999+00", "2024-06-01 00:00:00+00", "infinity", "0044-03-15 BC"
            ),
            "body": body(),
            "took": some(None, "1 day", "1 day 00:00:01", "1 mon", "-5 days"),
            "doc": some(None, '{"a": 1}'),
        }
        return ", ".join(f"{name} = {made[name]}" for name in columns)

    for step in range(120):
        id, other = rng.randint(1, 30), rng.randint(1, 30)
        sets = whole(rng.sample(["total", "free", "note", "placed", "body", "took", "doc"], 2))
        yield from rng.sample(
            [
                f"INSERT INTO by_key VALUES ({id}, 'v') ON CONFLICT DO NOTHING",
                f"UPDATE by_key SET v = v || 'x' WHERE id % 5 = {id % 5}",
                f"UPDATE by_key SET id = {other} WHERE id = {id} AND "
                f"NOT EXISTS (SELECT FROM by_key WHERE id = {other})",
                f"DELETE FROM by_key WHERE id = {id}",
                f"INSERT INTO whole (id) VALUES ({id}) ON CONFLICT DO NOTHING",
                f"UPDATE whole SET {sets} WHERE id % 7 = {id % 7}",
                f"UPDATE whole SET {sets} WHERE id % 7 = {other % 7}",
                f"UPDATE whole SET id = {other} WHERE id = {id} AND NOT EXISTS (SELECT FROM whole WHERE id = {other})",
                f"DELETE FROM whole WHERE id = {id}",
                f"INSERT INTO by_index VALUES ({id}, '{rng.choice('ab')}', {id % 4}) ON CONFLICT DO NOTHING",
                f"UPDATE by_index SET id = id + 1 WHERE part = {id % 4}",
                f"UPDATE by_index SET part = {step + 4}, code = '{rng.choice('ab')}' WHERE ctid = "
                "(SELECT min(ctid) FROM by_index)",
                f"DELETE FROM by_index WHERE id = {id}",
                f"INSERT INTO bag VALUES ({some(True, False, None)}, {id})",
                f"UPDATE bag SET flag = {some(True, False, None)} WHERE n = {id}",
                f"DELETE FROM bag WHERE n = {other}",
                f"INSERT INTO long VALUES ({id}, {body()}, 0) ON CONFLICT DO NOTHING",
                f"UPDATE long SET n = n + 1 WHERE id % 3 = {id % 3}",
                f"UPDATE long SET body = {body()} WHERE id = {id}",
            ],
            6,
        )


@pytest.mark.parametrize("seed", [1, 2])
def test_conditions_work_like_row_filters_of_postgresql(captured: tuple[Database, Store], seed: int) -> None:
    database, store = captured
    filters = ", ".join(f"{table} WHERE ({condition})" for table, condition in CONDITIONS.items())
    database.execute(TABLES)
    database.execute(f"CREATE PUBLICATION filtered FOR TABLE {filters}")
    database.execute("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
    capture(database, store, *statements(random.Random(seed)))
    by = shaping(where=CONDITIONS)
    relations = {run.relation.oid: run.relation for run in changes(store)}
    with database.connect() as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot('theirs', 'again')")
    for as_text in (True, False):
        expected = expected_changes(database, relations, as_text)
        assert delivered_changes(store, by, as_text) == expected
        if as_text:
            kinds = {(outcome[1], run) for run in expected for outcome in expected[run]}
            assert len(kinds) >= 14  # of 15: every operation, nearly everywhere
            database.execute("SELECT pg_drop_replication_slot('theirs')")
            database.execute("SELECT pg_copy_logical_replication_slot('again', 'theirs')")


def test_a_condition_on_more_than_the_key_suggests_a_remedy(captured: tuple[Database, Store]) -> None:
    database, store = captured
    database.execute('CREATE TABLE "Odd ""one" (id int PRIMARY KEY, n int)')
    capture(database, store, 'INSERT INTO "Odd ""one" VALUES (1, 1), (2, 5)')
    by = shaping(where={'public."Odd ""one"': "n > 3"})
    assert sum(len(run) for run in changes(store, by=by)) == 1  # an insert has all values
    capture(database, store, 'UPDATE "Odd ""one" SET n = 4')
    with pytest.raises(ConfigError, match=r"uses n, but UPDATE at 0/\w+:0 lacks the old") as raised:
        list(changes(store, by=by))
    assert 'ALTER TABLE "public"."Odd ""one" REPLICA IDENTITY FULL' in raised.value.hint


def test_a_row_that_matches_without_all_its_values_is_refused(captured: tuple[Database, Store]) -> None:
    """PostgreSQL's own filter sends it without a value."""
    database, store = captured
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text); ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    capture(database, store, "INSERT INTO t VALUES (1, repeat('x', 9000))", "UPDATE t SET id = 100")
    with pytest.raises(ConfigError, match=r"UPDATE of public\.t makes a row match, but PostgreSQL did not send"):
        list(changes(store, by=shaping(where={"public.t": "id > 50"})))
    assert [
        OPERATIONS[int(o)] for run in changes(store, by=shaping(where={"public.t": "id < 50"})) for o in run.operation
    ] == [
        "INSERT",
        "DELETE",
    ]


COLUMNS = (
    Column("id", Type(23, "pg_catalog", "int4"), is_identity=True),
    Column("Id", Type(25, "pg_catalog", "text")),
    Column("n", Type(1700, "pg_catalog", "numeric")),
    Column("placed", Type(1184, "pg_catalog", "timestamptz")),
    Column("doc", Type(3802, "pg_catalog", "jsonb")),
    Column("took", Type(1186, "pg_catalog", "interval")),
)
RELATION = Relation(7, "public", "orders", "d", COLUMNS, ("id",))


@pytest.mark.parametrize(
    ("condition", "message_"),
    [
        ("n >", "cannot be parsed: syntax error"),
        ("nope = 1", "names nope, which is not a column of the table"),
        ("ID = 1", "names ID, which is ambiguous: id, Id"),
        ("n", "has type double, not boolean"),
        ("n > 'a' || 1 || placed || took", "cannot be evaluated: "),
        ("placed > now()", "calls now, which depends on more than the row"),
        ("placed > current_date", "uses current_date, which depends on more than the row"),
        ("age(placed) > interval '1 day'", "calls age, which depends on more than the row"),
        ("random() < 0.5", "calls random, which depends on more than the row"),
        ("n > max(n)", "calls max, which depends on several rows"),
        ("row_number() OVER () = 1", "contains a window function"),
        ("id IN (SELECT 1)", "contains a subquery"),
        ("unnest([true, false])", "calls unnest"),
        ("id = $1", "contains a parameter"),
        ("true) FROM range(3) WHERE (true", "is not a single expression"),
        ("true), (false", "is not a single expression"),
        ("true); SELECT (true", "is not a single expression"),
        ("id = 1 FROM read_text('/etc/passwd')", "cannot be parsed"),
    ],
)
def test_invalid_conditions_are_refused(condition: str, message_: str) -> None:
    with pytest.raises(ConfigError) as raised:
        shaping(where={"public.orders": condition}).load(RELATION)
    assert str(raised.value).startswith("sink s: the condition for public.orders, ")
    assert repr(condition) in str(raised.value)
    assert message_ in str(raised.value)


@pytest.mark.parametrize(
    "condition",
    [
        "id > 1",
        """"Id" = 'x' AND id = 1""",
        "orders.n > 1.5 OR public.orders.n < -10",
        "doc->>'a' = 'b' AND doc->'c'->>'d' = 'e' -- why",
        "took > interval '1 day' AND placed BETWEEN '2020-01-01' AND timestamptz '2021-01-01 00:00:00+01'",
        "extract(year FROM placed) = 2020 OR date_trunc('day', placed) = '2021-01-01'",
        "CASE WHEN n IS NULL THEN true ELSE n IN (1, 2) END",
        "true",
    ],
)
def test_common_conditions_are_accepted(condition: str) -> None:
    assert shaping(where={"public.*": condition}).load(RELATION) == (RELATION, ("public", "orders"))


def test_errors_of_conditions_do_not_show_the_row(captured: tuple[Database, Store]) -> None:
    database, store = captured
    database.execute("CREATE TABLE t (v text)")
    capture(database, store, "INSERT INTO t VALUES ('s3cret')")
    with pytest.raises(ConfigError, match=r"cannot be evaluated on a row \(ConversionException\)") as raised:
        list(changes(store, by=shaping(where={"public.t": "v::int > 1"})))
    assert "s3cret" not in f"{raised.value!r} {raised.value.hint}"
    assert not list(changes(store, by=shaping(where={"public.t": "TRY_CAST(v AS int) > 1"})))


def test_tables_and_names(captured: tuple[Database, Store]) -> None:
    database, store = captured
    database.execute('CREATE TABLE a (id int); CREATE TABLE b (id int); CREATE TABLE "c.d" (id int); CREATE SCHEMA x')
    database.execute("CREATE TABLE x.a (id int)")
    capture(
        database,
        store,
        'BEGIN; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO "c.d" VALUES (1); COMMIT',
        "INSERT INTO x.a VALUES (1)",
        "TRUNCATE a, b",
        "SELECT pg_logical_emit_message(true, 'p', 'm')",
    )

    def targets(**settings: Any) -> list[str]:
        return [".".join(run.target) for run in changes(store, by=shaping(**settings))]

    assert targets() == ["public.a", "public.b", "public.c.d", "x.a", "public.a", "public.b"]
    assert targets(tables=("public.*",), exclude=("*.b",), route="{database}_{schema}.t_{table}") == [
        "shop_public.t_a",
        "shop_public.t_c.d",
        "shop_public.t_a",
    ]
    assert targets(tables=("x.*",), route="all_{table}") == ["x.all_a"]
    # A condition lets TRUNCATE pass, and messages go to every sink.
    assert targets(tables=("public.a",), where={"public.a": "id > 1"}) == ["public.a"]
    reader = LogReader(store)
    batch = planner.next_batch(reader, planner.start_offset(reader, None))
    for _, chunk in chunks(reader, batch.slices, ChangeFilter(), as_text=True):
        before = sum(isinstance(part, LogicalMessages) for part in chunk)
        assert sum(isinstance(part, LogicalMessages) for part in shaping(tables=("no.such",)).apply(chunk)) == before


@pytest.mark.parametrize("as_text", [True, False])
def test_columns_and_masks(captured: tuple[Database, Store], as_text: bool) -> None:
    database, store = captured
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, mail text, born date, note text, body text, score numeric(5,2), "
        "kept int); "
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL; ALTER TABLE t ALTER note SET STORAGE EXTERNAL"
    )
    capture(
        database,
        store,
        "INSERT INTO t VALUES (1, 'a@b', '2000-01-02', repeat('n', 5000), repeat('b', 5000), 'NaN', 7)",
        "UPDATE t SET kept = 8",
        "INSERT INTO t VALUES (2)",
        "DELETE FROM t WHERE id = 1",
    )
    by = shaping(
        columns={"public.t": "-mail"},
        mask={"*.*.id": "hash", "public.t.born": "null", "public.t.b*": "hash", "public.t.note": "redact"}
        | {"public.t.score": "hash"},
    )
    by = pickle.loads(pickle.dumps(by))
    rows = [
        (OPERATIONS[int(run.operation[i])], read.image_rows(run.old)[i], read.image_rows(run.new)[i])
        for run in changes(store, as_text=as_text, by=by)
        for i in range(len(run))
    ]

    def hashed(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    def visible(number: int) -> Any:
        return str(number) if as_text else number

    one, two, body = hashed("1"), hashed("2"), hashed("b" * 5000)
    assert rows == [
        ("INSERT", None, ([one, None, "***", body, hashed("NaN"), visible(7)], {})),
        ("UPDATE", None, ([one, None, "***", UNCHANGED, hashed("NaN"), visible(8)], {})),
        ("INSERT", None, ([two, None, None, None, None, None], {})),
        ("DELETE", ([one, None, None, None, None, None], {}), None),
    ]
    (relation,) = {run.relation.digest: run.relation for run in changes(store, by=by)}.values()
    assert [(c.name, c.type.name) for c in relation.columns] == [
        ("id", "text"),
        ("born", "date"),
        ("note", "text"),
        ("body", "text"),
        ("score", "text"),
        ("kept", "int4"),
    ]
    assert relation.key == ("id",)
    for run in changes(store, as_text=as_text, by=by):
        shown = [f.type for f in run.new.batch.schema]
        assert shown[:2] == [pa.string(), pa.string() if as_text else pa.date32()]


def test_special_values_of_hidden_columns_are_removed(captured: tuple[Database, Store]) -> None:
    database, store = captured
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a numeric(5,2), b numeric(5,2), c time)")
    capture(
        database,
        store,
        "INSERT INTO t VALUES (1, 'NaN', 'NaN', '24:00:00'), (2, 'NaN', 'NaN', NULL), (3, 1, NULL, NULL)",
    )
    by = shaping(columns={"public.t": "id, b, c"}, mask={"public.t.b": "redact"})
    (run,) = changes(store, as_text=False, by=by)
    assert run.new.special is not None
    assert run.new.special.to_pylist() == [[("c", "24:00:00")], None, None]
    assert run.new.batch.column(1).to_pylist() == ["***", "***", None]


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"columns": {"public.orders": "n, placed"}}, "excluded"),
        ({"columns": {"*.*": "-id"}}, "excluded"),
        ({"mask": {"public.orders.id": "null"}}, "masked with null"),
        ({"mask": {"public.orders.id": "redact"}}, "masked with redact"),
    ],
)
def test_key_columns_cannot_be_hidden(settings: dict[str, Any], how: str) -> None:
    with pytest.raises(ConfigError, match=f"public.orders, column id is part of the key and cannot be {how}"):
        shaping(**settings).load(RELATION)


def test_values_of_added_columns_in_older_rows_are_masked() -> None:
    old = Column("mail", Type(25, "pg_catalog", "text"), missing="a@b", default="'a@b'::text", nullable=False)
    relation = Relation(7, "public", "t", "f", (old,))
    for how, missing in (("null", None), ("redact", "***"), ("hash", hashlib.sha256(b"a@b").hexdigest())):
        loaded = shaping(mask={"public.t.mail": how}).load(relation)
        assert loaded is not None
        (column,) = loaded[0].columns
        assert (column.missing, column.default, column.nullable) == (missing, None, how == "null")


def test_tables_that_are_not_delivered_have_no_load() -> None:
    assert shaping().load(RELATION) == (RELATION, ("public", "orders"))
    assert shaping(tables=("other.*",)).load(RELATION) is None


def test_messages_of_tailrace_itself_are_not_delivered() -> None:
    prefixes = ("app", *sorted(OWN_PREFIXES))
    messages = runs.logical_messages(*((prefix, prefix.encode()) for prefix in prefixes))
    (delivered,) = shaping().apply([messages])
    assert isinstance(delivered, LogicalMessages)
    assert (delivered.prefix, delivered.content) == (("app",), (b"app",))
    assert shaping().apply([messages.take(np.array([False, True, True]))]) == []
