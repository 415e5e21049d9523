"""Reading a table's changes with Spark, typed, compared with the same rows read from plain typed Parquet.

Both are read into Spark's noop sink, in turns. The first round of each is not counted, because Java compiles and
workers start. Java reads Parquet inside the executor, column by column. Python workers read the log from pgoutput's
texts, with additional columns that say what happened to each row, when and at which position.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.ready_log import ReadyLog, make
from bench.replica import INSERTS
from bench.report import Report
from bench.throughput import TABLE
from tailrace.embedded.postgres import Postgres
from tailrace.spark import register
from tailrace.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 1_000_000
_COLUMNS = ("id", "customer", "amount", "placed_at", "is_paid", "status", "note")
_ROUNDS = 5
_WANT = 300_000
# Valid in both SQL dialects.
_SUMS = (
    "count(*), sum(id), sum(customer), sum(amount), sum(CASE WHEN is_paid THEN id END), min(placed_at), max(placed_at),"
    " sum(id * length(status)), min(note), max(note), count(DISTINCT note)"
)


def run(report: Report) -> None:
    report.title("Spark: 1M rows of 7 columns read typed from the log, compared with plain typed Parquet")
    spark = session("bench")
    try:
        register(spark)
        with (
            Postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server,
            tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory,
        ):
            log = make(server, "reading", str(Path(directory) / "store"), [TABLE.format(name="t")], [INSERTS])
            _measure(report, spark, log, str(Path(directory) / "plain"))
    finally:
        spark.stop()


def _measure(report: Report, spark: SparkSession, log: ReadyLog, plain_path: str) -> None:
    typed = spark.read.format("tailrace").option("table", "public.t").load(log.store_url)
    typed.select(*_COLUMNS).write.parquet(plain_path)
    plain = spark.read.parquet(plain_path)
    with log.connect() as connection:
        expected = connection.execute(f"SELECT {_SUMS} FROM t".encode()).fetchone()
    for frame in (typed, plain):
        assert expected == _sums(spark, frame), "the rows differ from the source's"
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(_ROUNDS + 1):
        turns = [(typed, ours), (plain, theirs)]
        for frame, seconds in turns if number % 2 == 0 else reversed(turns):
            began = time.monotonic()
            frame.write.format("noop").mode("overwrite").save()
            seconds.append(time.monotonic() - began)
    ours, theirs = sorted(ours[1:]), sorted(theirs[1:])
    middle = len(ours) // 2
    rate = _ROWS / ours[middle]
    report.section(f"local[{spark.sparkContext.defaultParallelism}], median of {_ROUNDS} rounds")
    report.line("plain Parquet", f"{_ROWS / theirs[middle]:,.0f} rows/s", f"{_range(theirs)} of the rounds")
    report.line("tailrace, typed", f"{rate:,.0f} rows/s", f"want ≥ {_WANT:,}; {_range(ours)}", ok=rate >= _WANT)
    report.line("ratio", f"{theirs[middle] / ours[middle]:.2f}")


def _range(seconds: list[float]) -> str:
    return f"{_ROWS / seconds[-1]:,.0f} – {_ROWS / seconds[0]:,.0f}"


def _sums(spark: SparkSession, frame: DataFrame) -> tuple[Any, ...]:
    frame.createOrReplaceTempView("t")
    row = spark.sql(f"SELECT {_SUMS} FROM t").collect()[0]
    return tuple([value.astimezone() if hasattr(value, "astimezone") else value for value in row])
