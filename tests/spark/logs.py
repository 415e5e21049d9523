"""Captures a real database to any kind of store, and reads the log with Spark, for tests of the source."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from tests.capturing import CaptureThread, configured
from tests.e2e.captured_database import CapturedDatabase
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace.spark import register
from tailrace.store import Store


@contextmanager
def captured_to(database: Database, address: StoreAddress, **capture: Any) -> Iterator[CapturedDatabase]:
    if not database.rows("SELECT 1 FROM pg_publication WHERE pubname = 'tailrace'"):
        database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    store = Store.open(*address)
    with (
        database.connect(client_encoding="UTF8") as connection,
        CaptureThread(configured(database, **capture), store) as running,
    ):
        yield CapturedDatabase(store, connection, running)


def load(spark: SparkSession, store: Store | StoreAddress, **options: Any) -> DataFrame:
    register(spark)
    reader = spark.read.format("tailrace").options(**options)
    return _with_store(reader, store)


def stream(spark: SparkSession, store: Store | StoreAddress, **options: Any) -> DataFrame:
    register(spark)
    return _with_store(spark.readStream.format("tailrace").options(**options), store)


def _with_store(reader: Any, store: Store | StoreAddress) -> DataFrame:
    options: Mapping[str, str] = store.options if isinstance(store, StoreAddress) else {}
    for name, value in options.items():
        reader = reader.option(f"store.{name}", value)
    found: DataFrame = reader.load(store.url)
    return found


def as_json(row: Row) -> str:
    """Format a row of the change stream like `change_text.to_json`, which has no context."""

    def lsn(number: int) -> str:
        return f'"{number >> 32:X}/{number & 0xFFFFFFFF:X}"'

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    fields = {
        "position": text(row.position),
        "commit_lsn": lsn(row.commit_lsn),
        "ordinal": str(row.ordinal),
        "lsn": lsn(row.lsn),
        "xid": str(row.xid),
        "committed_at": text(row.committed_at.isoformat(timespec="microseconds") + "Z"),
        "operation": text(row.operation),
        "schema": text(row.schema),
        "table": text(row.table),
        "relation_id": text(row.relation_id),
        "key": row.key or "null",
        "before": row.before or "null",
        "after": row.after or "null",
        "unchanged": text(row.unchanged),
        "message_prefix": text(row.message_prefix),
        "message": text(row.message),
    }
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"
