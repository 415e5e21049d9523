"""Runs the examples of docs/spark.md as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.capturing import configured
from tests.e2e.captured_database import CapturedDatabase, captured
from tests.fixtures.postgres import Database

from tailrace import settings
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.spark import register

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def examples() -> dict[str, str]:
    """The examples by their first lines, which differ."""
    return {
        block.strip().splitlines()[0]: block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    }


def run(beginning: str, known: dict[str, Any]) -> dict[str, Any]:
    (code,) = [block for first, block in examples().items() if first.startswith(beginning)]
    exec(compile(code, str(PAGE), "exec"), known)
    return known


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[CapturedDatabase]:
    database.execute("""
        CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(10,2));
        CREATE TABLE customers (id int PRIMARY KEY, name text);
        INSERT INTO customers VALUES (1, 'Ada'), (2, 'Béla');
    """)
    with captured(database, tmp_path) as log:
        job = SnapshotJob(replace(configured(database), store=settings.StoreSettings(log.store.url)))
        job.start()
        assert job.wait(60)
        log.execute(
            "INSERT INTO orders VALUES (1, 1, 10), (2, 1, 5), (3, 2, 7)",
            "BEGIN; SELECT pg_logical_emit_message(true, '_bemi', '{\"user\": 7}');"
            " UPDATE orders SET total = 6 WHERE id = 2; COMMIT",
            "UPDATE orders SET id = 4 WHERE id = 3",
        )
        log.catch_up()
        yield log


def test_the_examples_of_the_page_work(spark: SparkSession, shop: CapturedDatabase, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    register(spark)
    known: dict[str, Any] = {
        "spark": spark,
        "store": shop.store.url,
        "f": f,
        "target": str(tmp_path / "target"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    run("from pyspark.sql import functions as f", known)
    windows = (
        known["per_minute"]
        .writeStream.format("memory")
        .queryName("per_minute")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "windows"))
        .start()
    )
    try:
        windows.processAllAvailable()
        rows = spark.table("per_minute").collect()
    finally:
        windows.stop()
    totals: dict[int, float] = {}
    for row in rows:
        totals[row.customer] = totals.get(row.customer, 0) + float(row.total)
    assert totals == {1: 15.0, 2: 7.0}
    run("def state(", known)
    spent = {row["name"]: row["sum(total)"] for row in known["spent"].collect()}
    assert spent == {"Ada": Decimal(16), "Béla": Decimal(7)}
    run("def newest", known)
    try:
        known["query"].processAllAvailable()
    finally:
        known["query"].stop()
    found = {
        row.id: (row.last._operation, row.last.total) for row in spark.read.parquet(f"{known['target']}/*").collect()
    }
    assert {id: operation for id, (operation, _) in found.items()} == {1: "INSERT", 2: "UPDATE", 3: "UPDATE"}
    who = run("who = (", {**known})["who"].where("user IS NOT NULL").collect()
    assert [(row.key, row.user) for row in who] == [('{"id": 2}', "7")]
