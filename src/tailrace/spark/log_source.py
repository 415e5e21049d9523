"""The log as a data source: its schema and its readers, for the options of a read."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from tailrace.change import Lsn, Relation
from tailrace.errors import ConfigError
from tailrace.log import lineage, planner
from tailrace.log.planner import Offset
from tailrace.log.reader import LogReader
from tailrace.settings.parser import did_you_mean
from tailrace.spark import reading, schema, state_source
from tailrace.spark.batch import BatchReader
from tailrace.spark.options import Options, Table
from tailrace.spark.schema import Pinned
from tailrace.spark.state_source import StateReader
from tailrace.spark.stream import StreamReader


@reading.with_hints
def schema_of(raw: Mapping[str, str]) -> spark.StructType:
    options = Options.parse(raw)
    log = options.log()
    if options.snapshot:
        found = state_source.find_state(log, options)
        return schema.in_spark(schema.state(found.relation), Pinned(Offset(0, found.lsn), found.relation))
    end = _end(log, options)
    if options.table is None:
        return schema.in_spark(schema.CHANGES, Pinned(end, None))
    relation = _relation(log, options.table, end)
    return schema.in_spark(schema.rows(relation), Pinned(end, relation))


@reading.with_hints
def reader(raw: Mapping[str, str], schema: spark.StructType) -> DataSourceReader:
    options = Options.parse(raw)
    kind = StateReader if options.snapshot else BatchReader
    return kind(options, Pinned.of(schema))


@reading.with_hints
def stream_reader(raw: Mapping[str, str], schema: spark.StructType) -> DataSourceStreamReader:
    options = Options.parse(raw)
    if options.snapshot:
        raise ConfigError(
            "a table's state is not a stream",
            "read it with spark.read, and the changes since with spark.readStream",
        )
    return StreamReader(options, Pinned.of(schema))


def _end(log: LogReader, options: Options) -> Offset:
    """Where a read that is made now ends."""
    now = planner.latest_offset(log)
    if options.ending == "latest":
        return now
    lsn = planner.resolve_lsn(log, options.ending, "ending") or Lsn(0)
    return Offset(min(planner.segment_reaching(log, lsn), now.segment), lsn)


def _relation(log: LogReader, table: Table, end: Offset) -> Relation:
    found = lineage.newest_relation(log, table.schema, table.name, end.segment)
    if found is None:
        known = [str(Table(*names)) for names in lineage.table_names(log, end.segment)]
        raise ConfigError(
            f"table {table} is nowhere in the log of {log.store.url}"
            + (did_you_mean(str(table), known) if known else ""),
            "is it published, and was it changed since capture began? `tailrace snapshot` copies one that was not",
        )
    return found
