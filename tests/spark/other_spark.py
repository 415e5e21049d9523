"""What `test_other_spark.py` runs on another version of Spark: prints as JSON what the source and a sink got.

Arguments: a store with a log, the name of a table in it, and a directory to write to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from tailrace import settings, sinks
from tailrace.spark import register, session
from tailrace.spark.engine import Engine


def main(store: str, table: str, directory: Path) -> None:
    spark = session("other", "local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    register(spark)
    found = {
        "version": pyspark.__version__,
        "batch": _positions(spark.read.format("tailrace").load(store)),
        "stream": _streamed(spark, store, directory),
        "typed": [row.id for row in spark.read.format("tailrace").option("table", table).load(store).collect()],
        "delivered": _deliver(spark, store, directory / "files"),
    }
    (directory / "found.json").write_text(json.dumps(found))
    spark.stop()


def _positions(frame: DataFrame) -> list[str]:
    return [row.position for row in frame.orderBy("commit_lsn", "ordinal").collect()]


def _streamed(spark: SparkSession, store: str, directory: Path) -> list[str]:
    batches: list[list[str]] = []

    def take(frame: DataFrame, _: int) -> None:
        batches.append(_positions(frame))

    frame = spark.readStream.format("tailrace").option("max_segments_per_batch", "2").load(store)
    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    query.processAllAvailable()
    query.stop()
    assert len(batches) > 1, "batches are bounded"
    return [position for batch in batches for position in batch]


def _deliver(spark: SparkSession, store: str, directory: Path) -> list[str]:
    sink: dict[str, Any] = {"type": "files", "name": "files", "url": directory.as_uri(), "start": "earliest"}
    given = settings.Settings(store=settings.StoreSettings(store), sinks=(sink,))
    engine = Engine(given, sinks.from_settings(given, {}), spark=spark)
    engine.start()
    try:
        assert engine.wait(engine.end(), 180), engine.sinks["files"].status()
    finally:
        engine.stop()
    lines = [line for file in sorted(directory.rglob("*.jsonl")) for line in file.read_text().splitlines()]
    return [json.loads(line)["position"] for line in lines]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
