"""Data files, and the warehouse they lie in: rows written as Iceberg wants them, columns read back by their ids."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.errors import CorruptError, SinkError
from tailrace.sinks.iceberg.options import IcebergOptions
from tailrace.sinks.iceberg.schema import FIELD_ID, Field
from tailrace.store import Store


class Warehouse:
    """The store under Iceberg's locations."""

    def __init__(self, options: IcebergOptions) -> None:
        self.root = options.root
        self.is_remote = options.is_remote
        self.store = Store.open(options.warehouse, options.options)

    def put(self, location: str, content: bytes) -> None:
        """Durable when it returns."""
        self.store.replace(self._key(location), content)

    def get(self, location: str) -> bytes:
        content = self.store.get(self._key(location))
        if content is None:
            raise _missing(location)
        return content

    def get_range(self, location: str, start: int, length: int) -> bytes:
        content = self.store.get_range(self._key(location), start, length)
        if content is None:
            raise _missing(location)
        return content

    def opened(self, location: str) -> Any:
        """A file that can be read in parts."""
        try:
            return self.store.source(self._key(location))
        except FileNotFoundError:
            raise _missing(location) from None

    def _key(self, location: str) -> str:
        key = location.removeprefix("file:").removeprefix(self.root)
        if key == location or not key.startswith("/"):
            raise SinkError(f"{location} is not in the warehouse {self.root}", "the table was moved: load it anew")
        return key.lstrip("/")


def _missing(location: str) -> SinkError:
    return SinkError(f"{location} is missing, and the table's metadata names it", "restore it; it is tried again")


@dataclass(frozen=True)
class DataFile:
    """A data file that was written; in the table once it is committed."""

    location: str
    rows: int
    ids: tuple[tuple[int, ...], ...]
    """Of its fields, and of what is nested in each."""


def write(warehouse: Warehouse, directory: str, fields: Sequence[Field], arrays: Sequence[pa.Array]) -> DataFile:
    """The same rows written twice are two files: what no commit names is removed as an orphan some day.

    Of one row group: DuckDB reads groups at the same time, and two threads that ask one deletion vector get wrong
    answers (duckdb-iceberg#1005).
    """
    schema = pa.schema([field.arrow for field in fields])
    cast = [array.cast(f.type) if array.type != f.type else array for array, f in zip(arrays, schema, strict=True)]
    table = pa.Table.from_arrays(cast, schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=max(table.num_rows, 1), compression="zstd", store_schema=False)
    # Bytes of Python's: an S3 client takes no others.
    content = sink.getvalue().to_pybytes()
    location = named(directory, "parquet")
    warehouse.put(location, content)
    return DataFile(location, table.num_rows, tuple([field.ids for field in fields]))


def named(directory: str, suffix: str) -> str:
    """A location that nothing else has."""
    return f"{directory}/data/{uuid.uuid4()}.{suffix}"


def renumbered(warehouse: Warehouse, file: DataFile, directory: str, fields: Sequence[Field]) -> DataFile:
    """The same rows under other ids: the table got its columns in another way than was foreseen."""
    with warehouse.opened(file.location) as source:
        table = pq.ParquetFile(source).read()
    arrays = [_column(table, name, field, file.rows) for name, field in zip(table.column_names, fields, strict=True)]
    return write(warehouse, directory, fields, arrays)


def read(
    warehouse: Warehouse, location: str, fields: Sequence[Field], rows: Sequence[int] | None = None
) -> list[pa.Array]:
    """Columns as the table has them now, whatever they were called when the file was written; of some rows, or all."""
    with warehouse.opened(location) as source:
        try:
            file = pq.ParquetFile(source)
            names = {int(f.metadata[FIELD_ID]): f.name for f in file.schema_arrow if f.metadata}
            table = file.read(columns=[names[f.id] for f in fields if f.id in names])
            count = file.metadata.num_rows
        except (pa.ArrowInvalid, KeyError) as error:
            raise CorruptError(f"{location} cannot be read: {error}", "restore it, or load the table anew") from None
    if rows is not None:
        table, count = table.take(pa.array(rows, pa.int64())), len(rows)
    return [_column(table, names.get(field.id), field, count) for field in fields]


def _column(table: pa.Table, name: str | None, field: Field, count: int) -> pa.Array:
    kind = field.arrow.type
    if name is None:
        return _default(field, count)
    array = table.column(name).combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # one without chunks
        array = pa.nulls(0, kind)
    if isinstance(kind, pa.UuidType) and not isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, array)
    return array if array.type == kind else array.cast(kind)


def _default(field: Field, count: int) -> pa.Array:
    if field.default is None:
        return pa.nulls(count, field.arrow.type)
    raw = pa.scalar(field.default)
    if pa.types.is_string(raw.type) and pa.types.is_timestamp(field.arrow.type):
        raw = pa.scalar(field.default.removesuffix("+00:00"))
        return pa.repeat(raw, count).cast(pa.timestamp("us")).cast(field.arrow.type)
    return pa.repeat(raw, count).cast(field.arrow.type)
