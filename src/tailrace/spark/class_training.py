"""A short run of Spark from which Java learns which classes to archive. As a program it makes the class archive."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tailrace.errors import SparkError
from tailrace.spark import class_archive
from tailrace.spark.class_archive import PATIENCE_S
from tailrace.spark.session import session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class TrainingReader(DataSourceStreamReader):
    """One batch of two rows."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        return {"step": 0}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        return {"step": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 (Spark's name)
        import pyarrow as pa

        yield pa.RecordBatch.from_arrays([pa.array([b"result", None], pa.binary())], names=["result"])


class TrainingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "training"

    def schema(self) -> str:
        return "result binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802 (Spark's names)
        return TrainingReader()


def run(java_options: str) -> None:
    """Use Spark as sinks do, and wait until Java has ended: it writes the archive then."""
    spark = session("class archive", "local[1]", settings={"spark.driver.extraJavaOptions": java_options})
    gateway: Any = spark.sparkContext._gateway
    checkpoint = tempfile.mkdtemp()
    try:
        _stream(spark, checkpoint)
    finally:
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(PATIENCE_S)
        shutil.rmtree(checkpoint, ignore_errors=True)


def _stream(spark: SparkSession, checkpoint: str) -> None:
    collected = threading.Event()

    def batch(rows: DataFrame, _: int) -> None:
        rows.collect()
        collected.set()

    spark.dataSource.register(TrainingSource)
    query = (
        spark.readStream.format("training")
        .load()
        .where("result IS NOT NULL")
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    give_up_at = time.monotonic() + PATIENCE_S
    while not collected.wait(0.2):
        if not query.isActive or time.monotonic() > give_up_at:
            raise SparkError(f"the training query ended early: {query.exception()}", "please report it")
    query.stop()


if __name__ == "__main__":
    os.nice(19)
    if (archive := class_archive.find()) is not None:
        archive.create()
