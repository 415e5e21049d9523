"""The data source `tailrace`: the log, for whoever knows Spark."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from tailrace.change import Lsn, Relation
from tailrace.errors import ConfigError
from tailrace.log import lineage, plan
from tailrace.log.plan import Offset
from tailrace.log.reader import LogReader
from tailrace.settings.reading import did_you_mean
from tailrace.spark import reading, schema, table_state
from tailrace.spark.batch import BatchReader
from tailrace.spark.options import Options, Table
from tailrace.spark.schema import Pinned
from tailrace.spark.stream import StreamReader
from tailrace.spark.table_state import StateReader


def register(spark: SparkSession) -> None:
    """Make `tailrace` known to a session."""
    spark.dataSource.register(TailraceSource)


class TailraceSource(DataSource):
    """Made by Spark in processes of its own, with the options as they were given."""

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    @reading.told
    def schema(self) -> spark.StructType:
        options = self._options()
        log = options.log()
        if options.snapshot:
            found = table_state.found(log, options)
            return schema.in_spark(schema.state(found.relation), Pinned(Offset(0, found.lsn), found.relation))
        end = _end(log, options)
        if options.table is None:
            return schema.in_spark(schema.CHANGES, Pinned(end, None))
        relation = _relation(log, options.table, end)
        return schema.in_spark(schema.rows(relation), Pinned(end, relation))

    @reading.told
    def reader(self, schema: spark.StructType) -> DataSourceReader:
        options = self._options()
        reader = StateReader if options.snapshot else BatchReader
        return reader(options, Pinned.of(schema))

    @reading.told
    def streamReader(self, schema: spark.StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        options = self._options()
        if options.snapshot:
            raise ConfigError(
                "a table's state is no stream",
                "read it with spark.read, and changes from then on with spark.readStream",
            )
        return StreamReader(options, Pinned.of(schema))

    def _options(self) -> Options:
        return Options.parse(self.options)


def _end(log: LogReader, options: Options) -> Offset:
    """Where a read that is made now ends."""
    now = plan.latest(log)
    if options.ending == "latest":
        return now
    lsn = plan.parse_place(log, options.ending, "ending") or Lsn(0)
    return Offset(min(plan.reaching(log, lsn), now.segment), lsn)


def _relation(log: LogReader, table: Table, end: Offset) -> Relation:
    found = lineage.newest(log, table.schema, table.name, end.segment)
    if found is None:
        known = [str(Table(*names)) for names in lineage.names(log, end.segment)]
        raise ConfigError(
            f"table {table} is nowhere in the log of {log.store.url}"
            + (did_you_mean(str(table), known) if known else ""),
            "is it published, and was it changed since capture began? `tailrace snapshot` copies one that was not",
        )
    return found
