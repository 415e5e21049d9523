"""Reads the rows of a lake back, at its consistent point, with DuckDB, which shares no code with the sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from tailrace.delivery.contract import State
from tailrace.delivery.row_reader import DeliveredTable
from tailrace.errors import SinkError, SinkRefused
from tailrace.lake import point as points
from tailrace.lake.options import IcebergOptions
from tailrace.lake.point import Point, PointTable
from tailrace.lake.warehouse import Warehouse
from tailrace.query.duckdb_engine import connect_to_lake
from tailrace.sinks.iceberg import properties
from tailrace.verify.column_match import ColumnMatch
from tailrace.verify.lake_text import lake_texts
from tailrace.verify.row_scan import RowScan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BATCH_ROWS: Final = 50_000


class LakeRowReader:
    """Fulfils `RowReader` and `ScansWithSpark`."""

    is_snapshot = True
    can_repair = True

    def __init__(self, sink: str, point: Point, options: IcebergOptions, warehouse: Warehouse) -> None:
        self.state = State(point.cursor, {t.oid: t.since for t in point.tables if t.since is not None})
        self._mirrors = {table.oid: table for table in point.tables if table.kind == "mirror"}
        self.tables: Mapping[int, DeliveredTable] = {
            oid: DeliveredTable(
                points.load_relation(warehouse.store, sink, table.relation), (table.schema, table.table)
            )
            for oid, table in self._mirrors.items()
        }
        self._options = options
        self._connection: Any = None

    def rows(self, oid: int) -> Iterator[pa.RecordBatch]:
        table, relation = self._mirrors[oid], self.tables[oid].relation
        if table.snapshot is None:
            return
        try:
            for batch in self._scan(table):
                yield lake_texts(relation, batch)
        except duckdb.Error as error:
            raise SinkError(
                f"{table.name} cannot be read at snapshot {table.snapshot}: {str(error).splitlines()[0]}",
                "the snapshot may have expired meanwhile (history_minutes): verify again",
            ) from error

    def comparable(self, oid: int, rows: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    @property
    def packages(self) -> Sequence[str]:
        return properties.packages(self._options)

    def scan(self, spark: SparkSession, oid: int, match: ColumnMatch) -> RowScan:
        from tailrace.verify.spark_scan import LakeScan, lake_session  # Spark may not be installed

        own = lake_session(spark, self._options)
        return LakeScan(own, self._mirrors[oid], self.tables[oid].relation, match)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _scan(self, table: PointTable) -> Iterator[pa.RecordBatch]:
        scan = f"SELECT * FROM iceberg_scan(?, snapshot_from_id = {table.snapshot})"  # noqa: S608 (a number)
        if self._connection is None:
            self._connection = connect_to_lake(self._options)
        yield from self._connection.execute(scan, [table.metadata]).fetch_record_batch(_BATCH_ROWS)


@contextmanager
def read_lake(sink: str, options: IcebergOptions) -> Iterator[LakeRowReader]:
    """Open the lake at its last published point."""
    warehouse = Warehouse(options)
    point = points.load(warehouse.store, sink)
    if point is None:
        raise SinkRefused(f"sink {sink} has delivered nothing yet", "start it with `tailrace run` or `deliver`")
    reader = LakeRowReader(sink, point, options, warehouse)
    try:
        yield reader
    finally:
        reader.close()
