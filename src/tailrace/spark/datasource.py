"""The data source `tailrace`: the log, as Spark's readers see it.

Spark imports this module into a process of its own for each streaming query. What reads the log is imported on demand,
so that the processes of sinks, which only ask the driver for steps, stay small.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from tailrace.spark import step_source

_ENVIRONMENT: Final = {"SPARK_LOCAL_DIRS": "", "SPARK_AUTH_SOCKET_TIMEOUT": "15", "SPARK_BUFFER_SIZE": "65536"}
"""What Spark 4.1 adds to the environment of a streaming source, with its own values, when a query starts. All queries
share that environment, which is a Java HashMap without a lock: two queries that start at the same moment would add the
same key twice, and Java could not send the map to any task afterwards. A key that is there is only replaced."""


def register(spark: SparkSession) -> None:
    """Make the format `tailrace` known to a session."""
    spark.sparkContext.environment = _ENVIRONMENT | spark.sparkContext.environment
    spark.dataSource.register(TailraceSource)


class TailraceSource(DataSource):
    """Constructed by Spark in processes of its own, with the options of the read."""

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    def schema(self) -> StructType | str:
        if self._is_of_a_sink:
            return step_source.SCHEMA
        from tailrace.spark import log_source

        return log_source.schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from tailrace.spark import log_source

        return log_source.reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        if self._is_of_a_sink:
            return step_source.StepReader(self.options)
        from tailrace.spark import log_source

        return log_source.stream_reader(self.options, schema)

    @property
    def _is_of_a_sink(self) -> bool:
        return "steps" in self.options
