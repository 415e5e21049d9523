"""Reads and hashes the rows of large tables in Spark's tasks, which return sums, or the rows of ranges that differ.

A task reads a part of the source's table: a range of its pages, in the snapshot that the driver exports. The tables of
a lake are read with Iceberg's own reader for Spark, at the snapshot that the lake's point names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from psycopg import sql

from tailrace.capture.postgres.snapshot_plan import TablePart
from tailrace.capture.postgres.snapshot_transaction import locked, use_snapshot
from tailrace.capture.postgres.source_connection import connect
from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import Relation
from tailrace.errors import SinkError, TailraceError
from tailrace.images import Images
from tailrace.lake.options import IcebergOptions
from tailrace.lake.point import PointTable
from tailrace.log.decoding import TableChanges
from tailrace.settings import SourceSettings
from tailrace.sinks.database.postgresql.table_query import RangeSums, TableQuery
from tailrace.sinks.iceberg import properties
from tailrace.spark import schema
from tailrace.spark.session import first_line
from tailrace.spark.statement.runner import ArrowFunction, map_in_arrow
from tailrace.state import log_window
from tailrace.verify.column_match import ColumnMatch
from tailrace.verify.lake_text import lake_texts
from tailrace.verify.range_hash import RangeHash, RangeTotals, columns_of
from tailrace.verify.row_form import RowForm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_PARTS: Final = 256
"""Tasks for a table. Each returns up to a megabyte of sums to the driver."""


def lake_session(spark: SparkSession, options: IcebergOptions) -> SparkSession:
    """A session of its own that has the lake's catalog."""
    own = spark.newSession()  # Spark remembers a catalog's settings from its first use
    own.conf.set("spark.sql.caseSensitive", "true")
    own.conf.set(f"spark.sql.catalog.{properties.CATALOG}", "org.apache.iceberg.spark.SparkCatalog")
    # Set here and not at the start, secrets are not in the list of processes.
    for key, value in properties.catalog_properties(options).items():
        own.conf.set(f"spark.sql.catalog.{properties.CATALOG}.{key}", value)
    return own


@dataclass(frozen=True)
class SourceScan:
    """The rows that the destination should have, read from the source's table."""

    session: SparkSession
    source: SourceSettings
    snapshot: str
    """As `pg_export_snapshot` names it."""
    parts: Sequence[TablePart]
    changes: Sequence[TableChanges]
    """Between the snapshot and the position; `are_of_keys` holds for them."""
    form: RowForm

    def sums(self, hash_: RangeHash) -> RangeSums:
        read = self._reader()
        found = hash_.no_rows()
        for own in self._run(lambda part: [hash_.totals(read(part))]):
            found.add_totals(own)
        return found.sums()

    def select(self, hash_: RangeHash, ranges: Collection[int]) -> list[pa.RecordBatch]:
        read = self._reader()
        return self._run(lambda part: [*hash_.select(read(part), ranges)])

    def _reader(self) -> Callable[[int], Iterator[pa.RecordBatch]]:
        """What reads a part of the rows. It is sent to the tasks, which have no session."""
        password = self.source.password
        source = replace(self.source, password=password.to_picklable() if password else None)
        snapshot, parts, changes, form = self.snapshot, self.parts, self.changes, self.form
        return lambda number: form.of(_part_rows(source, snapshot, parts, changes, number))

    def _run(self, of_part: Callable[[int], list[Any]]) -> list[Any]:
        numbers = self.session.sparkContext.parallelize(range(len(self.parts)), len(self.parts))
        with _spark_errors(self.parts[0].relation):
            found = numbers.map(lambda number: _result_or_error(of_part, number)).collect()
        pieces = []
        for one in found:
            if isinstance(one, TailraceError):
                raise one
            pieces += one
        return pieces


def _result_or_error(of_part: Callable[[int], list[Any]], number: int) -> list[Any] | TailraceError:
    """Spark turns exceptions into text, so a Tailrace error is returned instead."""
    try:
        return of_part(number)
    except TailraceError as error:
        return error


def _part_rows(
    source: SourceSettings, snapshot: str, parts: Sequence[TablePart], changes: Sequence[TableChanges], number: int
) -> Iterator[tuple[Relation, Images]]:
    part = parts[number]
    with connect(source) as connection:
        use_snapshot(connection, snapshot)
        with source_errors(), locked(connection, part):
            query = TableQuery(connection, sql.SQL("({})").format(part.select), part.relation, source_errors)
            if changes:
                yield from log_window.rows_after(part.relation, query.images(), changes, number, len(parts))
            else:
                yield from ((part.relation, images) for images in query.images(as_text=True))


@dataclass(frozen=True)
class LakeScan:
    """The rows of a lake's table."""

    session: SparkSession
    table: PointTable
    stored: Relation
    match: ColumnMatch

    def sums(self, hash_: RangeHash) -> RangeSums:
        stored, match = self.stored, self.match

        def totals(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            own = hash_.totals(_compared(stored, match, batches))
            yield _binary_batch([own.counts.tobytes(), own.hashes.tobytes()])

        found = hash_.no_rows()
        for counts, hashes in self._run(totals, 2):
            found.add_totals(RangeTotals(np.frombuffer(counts, np.int64), np.frombuffer(hashes, np.uint64)))
        return found.sums()

    def select(self, hash_: RangeHash, ranges: Collection[int]) -> list[pa.RecordBatch]:
        stored, match = self.stored, self.match

        def selected(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in hash_.select(_compared(stored, match, batches), ranges):
                if len(batch):
                    yield _binary_batch([batch.serialize().to_pybytes()])

        columns = pa.schema([(name, pa.string()) for name in match.names])
        return [pa.ipc.read_record_batch(row[0], columns) for row in self._run(selected, 1)]

    def _run(self, function: ArrowFunction, columns: int) -> Sequence[Sequence[bytes]]:
        """Apply a function to the table's batches. Returns the rows of its result."""
        if self.table.snapshot is None:
            return []
        name = ".".join(
            f"`{part.replace('`', '``')}`" for part in (properties.CATALOG, self.table.schema, self.table.table)
        )
        result = schema.spark_type(pa.schema([(f"c{number}", pa.binary()) for number in range(columns)]))
        with _spark_errors(self.stored):
            frame = self.session.read.option("versionAsOf", str(self.table.snapshot)).table(name)
            return map_in_arrow(frame.coalesce(MAX_PARTS), function, result).collect()


def _compared(relation: Relation, match: ColumnMatch, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield columns_of(lake_texts(relation, batch), match.stored, match.names)


def _binary_batch(values: Sequence[bytes]) -> pa.RecordBatch:
    arrays = [pa.array([value], pa.binary()) for value in values]
    return pa.RecordBatch.from_arrays(arrays, names=[f"c{number}" for number in range(len(arrays))])


@contextmanager
def _spark_errors(relation: Relation) -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SinkError(
            f"{relation.qualified_name} could not be read with Spark: {first_line(error)}", "verify it again"
        ) from error
