"""Data files: rows written in Iceberg's Parquet layout, columns read back by their field ids."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.errors import CorruptError
from tailrace.lake.warehouse import Warehouse
from tailrace.sinks.iceberg.iceberg_schema import FIELD_ID, IcebergField


@dataclass(frozen=True)
class DataFile:
    """A data file that was written. It belongs to the table once it is committed."""

    location: str
    rows: int
    ids: tuple[tuple[int, ...], ...]
    """The ids of its fields, each followed by those of its nested fields."""


def write(warehouse: Warehouse, directory: str, fields: Sequence[IcebergField], arrays: Sequence[pa.Array]) -> DataFile:
    """Write rows to a new data file. A file that no commit names is removed later, as an orphan.

    It has one row group: DuckDB reads row groups in parallel, and two threads that share one deletion vector return
    wrong rows (duckdb-iceberg#1005).
    """
    schema = pa.schema([field.arrow for field in fields])
    cast = [array.cast(f.type) if array.type != f.type else array for array, f in zip(arrays, schema, strict=True)]
    table = pa.Table.from_arrays(cast, schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=max(table.num_rows, 1), compression="zstd", store_schema=False)
    # The S3 client accepts Python bytes only.
    content = sink.getvalue().to_pybytes()
    location = new_location(directory, "parquet")
    warehouse.put(location, content)
    return DataFile(location, table.num_rows, tuple([field.ids for field in fields]))


def new_location(directory: str, suffix: str) -> str:
    """A unique location for a new file."""
    return f"{directory}/data/{uuid.uuid4()}.{suffix}"


def with_new_ids(warehouse: Warehouse, file: DataFile, directory: str, fields: Sequence[IcebergField]) -> DataFile:
    """The same rows under other field ids, for a table whose columns did not get the expected ids."""
    with warehouse.open(file.location) as source:
        table = pq.ParquetFile(source).read()
    arrays = [_column(table, name, field, file.rows) for name, field in zip(table.column_names, fields, strict=True)]
    return write(warehouse, directory, fields, arrays)


def read(
    warehouse: Warehouse, location: str, fields: Sequence[IcebergField], rows: Sequence[int] | None = None
) -> list[pa.Array]:
    """The columns of these fields, found by id, so renames since the file was written do not matter.

    `rows`: the positions of the rows to read; all by default.
    """
    with warehouse.open(location) as source:
        try:
            file = pq.ParquetFile(source)
            names = {int(f.metadata[FIELD_ID]): f.name for f in file.schema_arrow if f.metadata}
            table = file.read(columns=[names[f.id] for f in fields if f.id in names])
            count = file.metadata.num_rows
        except (pa.ArrowInvalid, KeyError) as error:
            raise CorruptError(f"{location} cannot be read: {error}", "restore it, or reload the table") from None
    if rows is not None:
        table, count = table.take(pa.array(rows, pa.int64())), len(rows)
    return [_column(table, names.get(field.id), field, count) for field in fields]


def _column(table: pa.Table, name: str | None, field: IcebergField, count: int) -> pa.Array:
    kind = field.arrow.type
    if name is None:
        return _default(field, count)
    array = table.column(name).combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # it has no chunks
        array = pa.nulls(0, kind)
    if isinstance(kind, pa.UuidType) and not isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, array)
    return array if array.type == kind else array.cast(kind)


def _default(field: IcebergField, count: int) -> pa.Array:
    if field.default is None:
        return pa.nulls(count, field.arrow.type)
    raw = pa.scalar(field.default)
    if pa.types.is_string(raw.type) and pa.types.is_timestamp(field.arrow.type):
        raw = pa.scalar(field.default.removesuffix("+00:00"))
        return pa.repeat(raw, count).cast(pa.timestamp("us")).cast(field.arrow.type)
    return pa.repeat(raw, count).cast(field.arrow.type)
