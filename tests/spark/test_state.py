"""A table's state in Spark: rows, types and errors as users see them, from a log on S3."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from tests import oracle, values
from tests.capturing import CaptureThread
from tests.fixtures.postgres import drop_database, make_database

import tailrace.spark
from tailrace import settings, types
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.s3 import S3Server
from tailrace.log.reader import LogReader
from tailrace.state import table_state as log_state
from tailrace.state.postgres_text import to_text
from tailrace.store import Store
from tailrace.types import Form

BULKY = values.bulky(random.Random(11))


@dataclass
class Shop:
    """A log, and PostgreSQL's rows at some of its LSNs."""

    url: str
    store: dict[str, str]
    rows: dict[Lsn, dict[str, oracle.Rows]] = field(default_factory=dict)
    times: dict[Lsn, datetime] = field(default_factory=dict)

    def read(self, spark: SparkSession, table: str, **options: Any) -> DataFrame:
        tailrace.spark.register(spark)
        given = {f"store.{name}": text for name, text in self.store.items()} | options
        return spark.read.format("tailrace").options(table=table, snapshot="true", **given).load(self.url)

    def relation(self, table: str, lsn: Lsn) -> Any:
        return log_state.find(LogReader(self.url, self.store), "public", table, lsn).relation

    def texts(self, frame: DataFrame, table: str, lsn: Lsn) -> oracle.Rows:
        """Rows as PostgreSQL prints them."""
        relation = self.relation(table, lsn)
        rows = frame.toArrow().combine_chunks()
        special = rows.column(rows.num_columns - 1).to_pylist()
        columns = []
        for index, column in enumerate(relation.columns):
            assert rows.schema.names[index] == column.name
            array = rows.column(index).combine_chunks()
            mapped = types.mapping(column)
            printed = array if mapped.form is Form.TIME else to_text(array.cast(mapped.arrow), column)
            known = [dict(s or ()).get(column.name) for s in special]
            both = zip(printed.to_pylist(), known, strict=True)
            columns.append([None if (t := s if s is not None else p) is None else t.encode() for p, s in both])
        return Counter(zip(*columns, strict=True))


@pytest.fixture(scope="module")
def shop(postgres: Postgres, s3_server: S3Server) -> Shop:
    shop = Shop(s3_server.url_of("table-state"), s3_server.options)
    database = make_database(postgres)
    columns = ", ".join(f'"c{i}" {type_}' for i, type_ in enumerate(values.TYPES))
    database.execute(f"""
        {values.DECLARATIONS}
        CREATE TABLE every_type (id int PRIMARY KEY, {columns});
        CREATE TABLE orders (id int PRIMARY KEY, customer int, note text);
        ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
        CREATE TABLE customers (id int, name text, "_special" text); ALTER TABLE customers REPLICA IDENTITY FULL;
        INSERT INTO orders SELECT i, i % 3, CASE WHEN i % 5 = 0 THEN '{BULKY}' END FROM generate_series(1, 500) i;
        INSERT INTO customers SELECT i % 3, 'name ' || i % 3 FROM generate_series(0, 5) i;
        CREATE TABLE late (id int PRIMARY KEY);
        CREATE PUBLICATION tailrace FOR ALL TABLES;
    """)
    given = settings.Settings(
        source=settings.SourceSettings(url=database.url),
        store=settings.StoreSettings(shop.url, shop.store),
        capture=settings.CaptureSettings(seal_after_ms=5),
        snapshot=settings.SnapshotSettings(chunk_rows=100),
    )
    rng = random.Random(1)
    with database.connect() as connection, CaptureThread(given, Store.open(shop.url, shop.store)) as capture:

        def insert(id: int) -> None:
            row = [values.value(rng, type_) for type_ in values.TYPES]
            slots = ", ".join(f"%s::{type_}" for type_ in values.TYPES)
            connection.execute(f"INSERT INTO every_type VALUES ({id}, {slots})".encode(), row)

        def mark() -> None:
            tables = ("every_type", "orders", "customers")
            rows = {table: oracle.rows(connection, "public", table) for table in tables}
            query = "SELECT pg_logical_emit_message(true, 'mark', '')::text, clock_timestamp()"
            row = connection.execute(query).fetchone()
            assert row is not None
            lsn, time = row
            capture.wait_for(Lsn(Lsn.parse(lsn) + 1))
            shop.rows[Lsn.parse(lsn)], shop.times[Lsn.parse(lsn)] = rows, time.astimezone(UTC)

        for id in range(60):
            insert(id)
        job = SnapshotJob(given)
        job.start()
        assert job.wait(60)
        mark()
        connection.execute("DELETE FROM every_type WHERE id % 3 = 0")
        connection.execute("UPDATE every_type SET id = id + 1000 WHERE id % 3 = 1")
        for id in range(60, 90):
            insert(id)
        connection.execute("UPDATE orders SET customer = customer + 1 WHERE id % 2 = 0")
        connection.execute("DELETE FROM customers WHERE ctid = (SELECT min(ctid) FROM customers)")
        mark()
        connection.execute("ALTER TABLE orders ADD total numeric(10,2) DEFAULT 1.5")
        connection.execute("UPDATE orders SET total = 2, id = -id WHERE id % 7 = 0")
        connection.execute("UPDATE customers SET name = NULL WHERE id = 1")
        mark()
        connection.execute("CREATE TABLE unknown (id int PRIMARY KEY)")
        connection.execute("INSERT INTO unknown VALUES (1)")
        mark()
    drop_database(database)
    return shop


# Few cases, because each read starts Python processes. tests/state/test_state.py has the others.
@pytest.mark.parametrize(
    ("table", "mark", "splits"),
    [("every_type", 0, None), ("every_type", 1, 3), ("orders", 2, 4), ("customers", 2, 4)],
)
def test_the_state_equals_postgresqls_rows(
    spark: SparkSession, shop: Shop, table: str, mark: int, splits: int | None
) -> None:
    lsn = list(shop.rows)[mark]
    options = {"splits": str(splits)} if splits else {}
    frame = shop.read(spark, f"public.{table}", as_of=str(lsn), **options)
    assert shop.texts(frame, table, lsn) == shop.rows[lsn][table]


def test_the_state_at_a_time_and_the_newest_state(spark: SparkSession, shop: Shop) -> None:
    _, lsn, _, newest = shop.rows
    frame = shop.read(spark, "public.orders", as_of=shop.times[lsn].isoformat())
    assert shop.texts(frame, "orders", lsn) == shop.rows[lsn]["orders"]
    assert shop.texts(shop.read(spark, "public.orders"), "orders", newest) == shop.rows[newest]["orders"]


def test_states_from_the_function_can_be_joined(spark: SparkSession, shop: Shop) -> None:
    lsn = list(shop.rows)[1]
    store = {f"store.{name}": text for name, text in shop.store.items()}
    orders = tailrace.spark.state(spark, shop.url, "public.orders", lsn, store)
    customers = tailrace.spark.state(spark, shop.url, "public.customers", shop.times[lsn], store)
    names = customers.select("id", "name").distinct()
    joined = orders.join(names, orders["customer"] == names["id"]).groupBy("name").count().collect()
    expected: Counter[bytes | None] = Counter()
    known = {row[0]: row[1] for row in shop.rows[lsn]["customers"]}
    for row in shop.rows[lsn]["orders"].elements():
        if row[1] in known:
            expected[known[row[1]]] += 1
    assert {row["name"].encode(): row["count"] for row in joined} == dict(expected)
    assert orders.dtypes[:2] == [("id", "int"), ("customer", "int")]
    assert customers.columns == ["id", "name", "_special", "__special"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "public.unknown"}, r"tailrace snapshot public\.unknown"),
        ({"table": "public.orders", "as_of": "earliest"}, "an LSN such as"),
        ({}, "needs the option table"),
    ],
)
def test_invalid_options_are_reported(spark: SparkSession, shop: Shop, options: dict[str, str], message: str) -> None:
    given = {f"store.{name}": text for name, text in shop.store.items()} | options
    tailrace.spark.register(spark)
    with pytest.raises(AnalysisException, match=message):
        spark.read.format("tailrace").options(snapshot="true", **given).load(shop.url)


def test_a_state_cannot_be_streamed(spark: SparkSession, shop: Shop) -> None:
    given = {f"store.{name}": text for name, text in shop.store.items()}
    frame = spark.readStream.format("tailrace").options(snapshot="true", table="public.orders", **given).load(shop.url)
    with pytest.raises(Exception, match=r"spark\.readStream"):
        frame.writeStream.format("noop").start().processAllAvailable()
