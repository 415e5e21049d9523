"""Batch reads: Spark returns the changes of the source."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg import sql
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests import oracle, values
from tests.e2e.captured_database import CapturedDatabase, captured
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.fixtures.store import StoreAddress
from tests.spark.logs import as_json, captured_to, load
from tests.workload import Workload

from tailrace import text, types
from tailrace.change import Change, Column, Lsn, Relation, Unchanged
from tailrace.embedded.postgres import Postgres
from tailrace.log import change_text, segment
from tailrace.log.reader import LogReader
from tailrace.state.postgres_text import to_text
from tailrace.store import Store
from tailrace.types import Form

YEAR_1, YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000


@pytest.fixture(scope="module")
def work(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, list[Change]]:
    """A log with every type, TOAST, keys of every kind, TRUNCATE, messages, unusual names, and columns that change."""
    database = make_database(postgres)
    workload = Workload(database.connect, 3, ddl=True, exclusive=0.06)
    workload.create()
    with captured(database, tmp_path_factory.mktemp("work"), segment_bytes=128 * 1024) as log:
        log.execute("CREATE TABLE emptied (id int PRIMARY KEY)", "INSERT INTO emptied VALUES (1)", "TRUNCATE emptied")
        log.execute("SELECT pg_logical_emit_message(false, 'alone', 'x')")
        workload.run(50)
        workload.stop()
        log.catch_up()
    drop_database(database)  # other tests need its slot
    return log.store, list(LogReader(log.store).changes())


def test_the_change_stream_equals_the_changes_of_the_log(spark: SparkSession, work: tuple[Store, list[Change]]) -> None:
    store, changes = work
    found = load(spark, store).orderBy("commit_lsn", "ordinal").collect()
    assert [as_json(row) for row in found] == [change_text.to_json(change) for change in changes]
    assert {row.operation for row in found} >= {"INSERT", "UPDATE", "DELETE", "TRUNCATE", "MESSAGE"}


def test_a_table_of_every_type(spark: SparkSession, work: tuple[Store, list[Change]]) -> None:
    """Values that Spark cannot hold are NULL in their column, and texts in `_special`."""
    store, changes = work
    own = [c for c in changes if c.table == "every_type"]
    table = arrow(load(spark, store, table="public.every_type"))
    relation = newest(own)
    assert table.column_names[: len(relation.columns)] == [c.name for c in relation.columns]
    rows = {row["_position"]: row for row in plain(table)}
    assert sorted(rows) == sorted(str(c.position) for c in own)
    for change in own:
        row = rows[str(change.position)]
        assert row["_operation"] == change.operation
        assert (row["_commit_lsn"], row["_ordinal"]) == (change.position.commit_lsn, change.position.ordinal)
        assert (row["_lsn"], row["_xid"], row["_relation_id"]) == (change.lsn, change.xid, relation.oid)
        if change.relation != relation:
            continue  # other tests cover rows with older columns
        special, special_before = dict(row["_special"] or ()), dict(row["_before_special"] or ())
        assert row["_unchanged"] == list(change.unchanged)
        assert (row["_before"] is None) == (change.old is None)
        for index, column in enumerate(relation.columns):
            new = change.new[index] if change.new else None
            check(column, new, row[column.name], special.get(column.name))
            old = change.old[index] if change.old and (column.is_identity or not change.old_is_key) else None
            before = row["_before"][column.name] if row["_before"] else None
            check(column, old, before, special_before.get(column.name))


def check(column: Column, sent: bytes | Unchanged | None, shown: Any, special: str | None) -> None:
    if sent is None or isinstance(sent, Unchanged):
        assert (shown, special) == (None, None)
        return
    mapping = types.mapping(column)
    expected: Any = sent.decode() if mapping.form is Form.TIME else mapping.arrow_value(sent)
    if mapping.form in (Form.DATE, Form.TIMESTAMP, Form.TIMESTAMPTZ) and expected is not text.SPECIAL:
        time = expected * text.DAY_US if mapping.form is Form.DATE else expected
        expected = expected if YEAR_1 <= time < YEAR_10000 else text.SPECIAL
    if expected is text.SPECIAL:
        assert (shown, special) == (None, sent.decode()), column
    else:
        assert (oracle._comparable(shown), special) == (oracle._comparable(expected), None), column


def arrow(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """The rows, with dates and times as integers."""

    def integers(array: pa.Array) -> pa.Array:
        if pa.types.is_struct(array.type):
            fields = [integers(array.field(i)) for i in range(array.type.num_fields)]
            names = [field.name for field in array.type]
            if names == ["months", "days", "microseconds"]:
                return array
            return pa.StructArray.from_arrays(fields, names, mask=array.is_null())
        if pa.types.is_date32(array.type):
            return array.view(pa.int32())
        return array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array

    columns = [integers(column.combine_chunks()) for column in table.columns]
    names = table.column_names
    lists = [column.to_pylist() for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def newest(changes: list[Change]) -> Relation:
    found = [c.relation for c in changes if c.relation]
    return found[-1]


def test_values_of_every_type_one_by_one(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    """Typed and as JSON; inserted, updated and deleted with REPLICA IDENTITY FULL."""
    rng = random.Random(11)
    names = {f"c{i}": type_ for i, type_ in enumerate(values.TYPES)}
    columns = sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in names.items())
    with database.connect() as connection:
        connection.execute(values.DECLARATIONS)
        connection.execute(sql.SQL("CREATE TABLE v (id int PRIMARY KEY, {})").format(columns))
        connection.execute("ALTER TABLE v REPLICA IDENTITY FULL")
    with captured(database, tmp_path) as log:
        log.execute("SET IntervalStyle = postgres")
        places = ", ".join(["%s"] * (len(names) + 1))
        for id in range(60):
            row = [id, *(values.TYPES[t](rng).replace("\0", "") for t in names.values())]
            log.connection.execute(f"INSERT INTO v VALUES ({places})".encode(), row)
        log.execute("UPDATE v SET c0 = 1 WHERE id < 20", "DELETE FROM v WHERE id < 5")
        changes = log.changes("v")
        expected = oracle.rows(log.connection, "public", "v")
    relation = newest(changes)
    table = plain(arrow(load(spark, log.store, table="public.v")))
    rows = {row["_position"]: row for row in table}
    for change in changes:
        for image, of_row, special in (
            (change.new, rows[str(change.position)], "_special"),
            (change.old, rows[str(change.position)]["_before"], "_before_special"),
        ):
            texts = dict(rows[str(change.position)][special] or ())
            for index, column in enumerate(relation.columns):
                if image is not None:
                    check(column, image[index], of_row[column.name], texts.get(column.name))
    assert sum(expected.values()) == 55
    found = load(spark, log.store).where("table = 'v'").orderBy("commit_lsn", "ordinal").collect()
    assert [as_json(row) for row in found] == [change_text.to_json(change) for change in changes]


def table_rows(table: pa.Table, relation: Relation) -> oracle.Rows:
    """The table's own columns as PostgreSQL prints them."""
    found = []
    for row_number in range(len(table)):
        row = []
        special = dict(table.column(special_name(table))[row_number].as_py() or ())
        for index, column in enumerate(relation.columns):
            array = table.column(index).slice(row_number, 1).combine_chunks()
            printed = array if pa.types.is_string(array.type) else to_text(array, column)
            value = special.get(column.name, printed[0].as_py())
            row.append(None if value is None else value.encode())
        found.append(tuple(row))
    return Counter(found)


def special_name(table: pa.Table) -> int:
    return len(table.column_names) - 2


def test_rows_with_older_columns_equal_the_result_of_select(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    """Cases 39 to 42: every insert, converted to the newest columns, equals the table's current row."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text, n int, gone text, d date)")
    with captured(database, tmp_path) as log:
        for statement in [
            "INSERT INTO t VALUES (1, 'x', 7, 'y', '2024-02-29'), (2, NULL, NULL, NULL, 'infinity')",
            "ALTER TABLE t ADD e numeric(6,2) DEFAULT 1.5, ADD at timestamptz DEFAULT '0044-03-15 00:00:00+00 BC'",
            "INSERT INTO t VALUES (3, 'z', 8, 'q', '2000-01-01', 'NaN', now())",
            "ALTER TABLE t RENAME a TO b",
            "BEGIN; INSERT INTO t VALUES (4, 'r', 9, 'q'); ALTER TABLE t DROP gone; ALTER TABLE t RENAME TO u;"
            " INSERT INTO u VALUES (5, 's', 10); COMMIT",
            "ALTER TABLE u ALTER n TYPE numeric(12,1), ALTER d TYPE timestamp",
            "INSERT INTO u VALUES (6, 't', 1.5, '2024-01-01 12:00:00')",
            "ALTER TABLE u DROP b, ADD b int",
            "ALTER TABLE u RENAME TO t",
            "INSERT INTO t (id, b) VALUES (7, 3)",
        ]:
            log.execute(statement)
            log.catch_up()
        expected = oracle.rows(log.connection, "public", "t")
        changes = [c for c in log.changes() if c.relation]
        frame = load(spark, log.store, table="public.t")
        assert table_rows(arrow(frame), newest(changes)) == expected
        before = load(spark, log.store, table="public.t", ending=str(changes[4].position.commit_lsn))
        assert before.columns[:7] == ["id", "a", "n", "gone", "d", "e", "at"], "the columns are not those of that time"
        assert {row.id for row in before.collect()} == {1, 2, 3}
        # A name refers to the table that had it, whatever the table is called later.
        assert load(spark, log.store, table="public.u").count() == 7
        log.execute("ALTER TABLE t ADD later int", "INSERT INTO t (id, later) VALUES (8, 4)")
        log.catch_up()
        assert frame.count() == 7, "a DataFrame must mean the same each time it is used"
        assert "later" not in frame.columns


def test_a_recreated_table_is_another_generation(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    """Case 43: the rows of both have their own table's oid, and the columns of the newer one, matched by name."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE other (id int PRIMARY KEY)")
    with captured(database, tmp_path) as log:
        log.execute(
            "INSERT INTO t VALUES (1, 1)",
            "DROP TABLE t",
            "CREATE TABLE t (n text, id int PRIMARY KEY, more int DEFAULT 5)",
            "INSERT INTO t VALUES ('2', 2)",
            # Two tables swap names: changes that this table made under its other name belong to it.
            "CREATE TABLE next (id int PRIMARY KEY, n text)",
            "INSERT INTO next VALUES (3, 'a')",
            "BEGIN; ALTER TABLE t RENAME TO old; ALTER TABLE next RENAME TO t; COMMIT",
            "INSERT INTO old VALUES ('9', 9)",
            "INSERT INTO t VALUES (4, 'b')",
        )
        log.catch_up()
        rows = load(spark, log.store, table="public.t").orderBy("_commit_lsn").collect()
    assert [(row.id, row.n) for row in rows] == [(1, "1"), (2, "2"), (3, "a"), (4, "b")]
    oids = [row._relation_id for row in rows]
    assert oids[2] == oids[3]
    assert len(set(oids)) == 3


def test_names_that_collide_or_differ_in_case(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    database.execute("""
        CREATE TABLE "T.x" (_operation int PRIMARY KEY, __operation int, "_Xid" int, "a b" int, _special text);
        CREATE TABLE bare ();
        ALTER TABLE bare REPLICA IDENTITY FULL;
        CREATE TABLE cases ("A" int PRIMARY KEY, a int);
    """)
    with captured(database, tmp_path) as log:
        log.execute(
            """INSERT INTO "T.x" VALUES (1, 2, 3, 4, 'x')""", "INSERT INTO bare DEFAULT VALUES", "DELETE FROM bare"
        )
        log.execute("INSERT INTO cases VALUES (1, 2)", 'UPDATE cases SET "A" = 3')
        log.catch_up()
        (row,) = load(spark, log.store, table='public."T.x"').collect()
        assert (row._operation, row["__operation"], row["___operation"], row["__xid"] > 0) == (1, 2, "INSERT", True)
        assert (row["a b"], row._special, row["__special"]) == (4, "x", None)
        assert [r._operation for r in load(spark, log.store, table="public.bare").orderBy("_commit_lsn").collect()] == [
            "INSERT",
            "DELETE",
        ]
        spark.conf.set("spark.sql.caseSensitive", "true")
        try:
            rows = load(spark, log.store, table="public.cases").orderBy("_commit_lsn").collect()
        finally:
            spark.conf.unset("spark.sql.caseSensitive")
        assert [(r["A"], r["a"], r._before and r._before["A"]) for r in rows] == [(1, 2, None), (3, 2, 1)]


def test_context_comes_from_messages_in_the_same_transaction(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    emit = "SELECT pg_logical_emit_message(true, '_bemi', '{}')".format
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    with captured(database, tmp_path, segment_bytes=4096) as log:
        filler = "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series({}, {}) i"
        log.execute(
            "INSERT INTO t VALUES (1)",
            f"BEGIN; INSERT INTO t VALUES (2); {emit('a')}; INSERT INTO t VALUES (3); {emit('b')};"
            " SELECT pg_logical_emit_message(true, 'other', 'c'); INSERT INTO t VALUES (4); COMMIT",
            # Across many segments: a message in the middle is also the context of the first changes.
            f"BEGIN; {filler.format(100, 199)}; {emit('late')}; {filler.format(200, 299)}; COMMIT",
            "SELECT pg_logical_emit_message(false, '_bemi', 'alone')",
            "INSERT INTO t VALUES (5)",
        )
        log.catch_up()
        rows = load(spark, log.store).where("table = 't'").select("key", "context").collect()
    found = {row.key: row.context for row in rows}
    assert [found[f'{{"id": {id}}}'] for id in (1, 2, 3, 4, 5)] == [None, "a", "b", "b", None]
    assert {found[f'{{"id": {id}}}'] for id in range(100, 300)} == {"late"}
    assert len(LogReader(log.store).list()) > 7


@pytest.fixture
def steps(database: Database, tmp_path: Path) -> tuple[CapturedDatabase, list[Change]]:
    """Ten segments, each with one transaction, of `even` and `odd` alternately."""
    database.execute("CREATE TABLE even (id int PRIMARY KEY); CREATE TABLE odd (id int PRIMARY KEY)")
    with captured(database, tmp_path) as log:
        for id in range(10):
            log.execute(f"INSERT INTO {'odd' if id % 2 else 'even'} VALUES ({id})")
            log.catch_up()
        changes = [c for c in log.changes() if c.relation]
    return log, changes


def test_starting_and_ending(spark: SparkSession, steps: tuple[CapturedDatabase, list[Change]]) -> None:
    log, changes = steps
    third, seventh = changes[3], changes[7]

    def ids(**options: str) -> list[int]:
        rows = load(spark, log.store, **options).where("operation = 'INSERT'").orderBy("commit_lsn").collect()
        return [int(row.key[7:-1]) for row in rows]

    lsns = {"starting": str(third.position.commit_lsn), "ending": str(seventh.position.commit_lsn)}
    times = {"starting": third.committed_at.isoformat(), "ending": seventh.committed_at.isoformat()}
    assert ids(**lsns) == ids(**times) == [3, 4, 5, 6]
    assert ids(starting="latest") == []
    assert ids(starting=lsns["ending"], ending=lsns["starting"]) == []
    assert ids(ending="earliest") == []
    typed = load(spark, log.store, table="public.odd", **lsns).orderBy("_commit_lsn")
    assert [row.id for row in typed.collect()] == [3, 5]


def damage_all_but(store: Store, intact: set[int]) -> None:
    """Make the rows of all other segments unreadable, but not their footers."""
    for part in LogReader(store).list():
        if part.id not in intact:
            path = Path(store.url.removeprefix("file://")) / segment.key(part.id)
            os.chmod(path, 0o644)
            with path.open("r+b") as file:
                file.seek(4)
                file.write(b"\xff\xff\xff\xff")


def test_segments_without_matches_are_not_read(
    spark: SparkSession, steps: tuple[CapturedDatabase, list[Change]]
) -> None:
    """The rows of all other segments are damaged, so reading them would fail."""
    log, changes = steps
    segments: dict[int, int] = {}
    for part in LogReader(log.store).list():
        header = part.metadata()
        assert header is not None
        if header.first is not None:
            segments[header.first.commit_lsn] = header.id
    first = changes[3]
    damage_all_but(log.store, {segments[first.position.commit_lsn], segments[changes[5].position.commit_lsn]})
    lsn, last = int(first.position.commit_lsn), int(changes[5].position.commit_lsn)
    bounds = {"starting": str(Lsn(lsn)), "ending": str(Lsn(last + 1))}
    times = {"starting": first.committed_at.isoformat(), "ending": changes[5].committed_at.isoformat()}
    for options in ({"starting": str(Lsn(lsn)), "ending": str(Lsn(lsn + 1))}, times):
        assert [row.key for row in load(spark, log.store, tables="public.odd", **options).collect()] == ['{"id": 3}']
    assert load(spark, log.store, table="public.odd", **bounds).count() == 2, "segments of other tables were read"
    stream = load(spark, log.store, tables="public.o*, public.none", **bounds)
    assert stream.count() == 2
    # A DataFrame that was first used with a condition still returns everything: see tailrace.spark.batch.
    assert [stream.where(f.col("commit_lsn") < last).count(), stream.count()] == [1, 2]
    assert load(spark, log.store, tables="nowhere.*").count() == 0
    with pytest.raises(PySparkException, match=r"checksum does not match \(restore the object"):
        load(spark, log.store).collect()


def test_invalid_options_are_reported(
    spark: SparkSession, steps: tuple[CapturedDatabase, list[Change]], tmp_path: Path
) -> None:
    log, _ = steps
    for options, message in [
        ({"tabel": "public.odd"}, "tabel is not an option: did you mean table?"),
        ({"table": "public.od"}, "table public.od is nowhere in the log .*did you mean public.odd"),
        ({"table": "odd"}, "write schema.table"),
        ({"starting": "soon"}, r"starting is 'soon' \(use earliest, latest, an LSN"),
        ({"max_bytes_per_batch": "0"}, "must be at least 1, or unlimited"),
        ({"across_gaps": "maybe"}, "write true or false"),
    ]:
        with pytest.raises(PySparkException, match=message):
            load(spark, log.store, **options).collect()
    with pytest.raises(PySparkException, match="a schema was specified"):
        spark.read.format("tailrace").schema("a int").load(log.store.url).collect()
    empty = Store.open(str(tmp_path / "empty"))
    assert load(spark, empty).count() == 0


def test_an_s3_store(spark: SparkSession, database: Database, s3_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    with captured_to(database, s3_address, segment_bytes=8192) as log:
        log.execute(
            "INSERT INTO t SELECT i, repeat('y', 100) FROM generate_series(1, 300) i", "DELETE FROM t WHERE id < 10"
        )
        changes = log.changes()
    found = load(spark, s3_address).where("table = 't'").orderBy("commit_lsn", "ordinal").collect()
    assert [as_json(row) for row in found] == [change_text.to_json(change) for change in changes]
    typed = load(spark, s3_address, table="public.t")
    assert sorted(row.id for row in typed.where("_operation = 'INSERT'").collect()) == list(range(1, 301))


def test_commit_times_are_those_of_the_source(
    spark: SparkSession, steps: tuple[CapturedDatabase, list[Change]]
) -> None:
    log, changes = steps
    rows = load(spark, log.store, starting=str(changes[0].position.commit_lsn)).where("table = 'even'")
    found = rows.orderBy("commit_lsn").select(f.unix_micros("committed_at")).first()
    time = changes[0].committed_at
    assert found is not None
    assert found[0] == int(time.timestamp()) * 1_000_000 + time.microsecond
