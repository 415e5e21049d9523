"""The example of Spark Declarative Pipelines, run like users run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
from tests.capturing import CaptureThread, configured, current_lsn
from tests.fixtures.postgres import Database

from tailrace.spark import java
from tailrace.store import Store

_EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative_pipeline"


def test_the_typed_source_feeds_a_declarative_pipeline(database: Database, tmp_path: Path) -> None:
    shutil.copytree(_EXAMPLE, tmp_path / "pipeline")
    spec = tmp_path / "pipeline" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/shop", str(tmp_path)))
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(10,2))")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    with CaptureThread(configured(database), Store.open(str(tmp_path / "log"))) as captured:
        database.execute("INSERT INTO orders SELECT i, i % 3, i FROM generate_series(1, 20) i")
        database.execute(
            "UPDATE orders SET total = -1 WHERE id < 5; UPDATE orders SET id = 50, customer = 7 WHERE id = 6"
        )
        database.execute("DELETE FROM orders WHERE id = 9")
        with database.connect(autocommit=True) as connection:
            captured.wait_for(current_lsn(connection))
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(spec)]
    environment = os.environ | java.environment() | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    files = tmp_path / "spark-warehouse" / "orders_by_customer" / "*.parquet"
    found = duckdb.sql(f"SELECT customer, orders, total FROM '{files}' ORDER BY 1").fetchall()
    expected = database.rows("SELECT customer, count(*), sum(total) FROM orders GROUP BY 1 ORDER BY 1")
    assert found == expected
