"""The schemas that Spark sees: the columns of the change stream and of a table's rows, in Arrow's types and in Spark's.

The metadata of a schema's first field says what the schema was made from: the relation, and the end of the log. Spark
creates the readers later and in other processes. They use this metadata, so a DataFrame means the same each time it is
used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_type

from tailrace import types
from tailrace.change import Column, Relation, Type
from tailrace.column_name import unused_name
from tailrace.errors import ConfigError
from tailrace.log.planner import Offset
from tailrace.types import Form

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_KEY: Final = "tailrace"

CHANGES: Final = pa.schema(
    [
        ("position", pa.string()),
        ("commit_lsn", pa.int64()),
        ("ordinal", pa.int64()),
        ("lsn", pa.int64()),
        ("xid", pa.int64()),
        ("committed_at", _TIMESTAMP),
        ("operation", pa.string()),
        ("schema", pa.string()),
        ("table", pa.string()),
        ("relation_id", pa.int64()),
        ("key", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("unchanged", pa.list_(pa.string())),
        ("context", pa.string()),
        ("message_prefix", pa.string()),
        ("message", pa.string()),
    ]
)
"""LSNs are numbers, as inside PostgreSQL: numbers compare correctly, and their texts would not."""

_ABOUT: Final = {
    "_operation": pa.string(),
    "_position": pa.string(),
    "_commit_lsn": pa.int64(),
    "_ordinal": pa.int64(),
    "_lsn": pa.int64(),
    "_xid": pa.int64(),
    "_committed_at": _TIMESTAMP,
    "_relation_id": pa.int64(),
}
"""The metadata columns of each change. `_before`, `_unchanged` and `_special` follow them."""


@dataclass(frozen=True)
class Pinned:
    """The end of the log and the relation that a schema was made from."""

    end: Offset
    relation: Relation | None

    def to_metadata(self) -> dict[str, Any]:
        relation = self.relation.to_json() if self.relation else None
        return {_KEY: {"end": self.end.to_json(), "relation": relation}}

    @classmethod
    def of(cls, schema: spark.StructType) -> Pinned:
        try:
            raw = schema.fields[0].metadata[_KEY]
        except (IndexError, KeyError):
            raise ConfigError("a schema was specified", "remove .schema(): the log defines the columns") from None
        return cls(Offset.from_json(raw["end"]), Relation.from_json(raw["relation"]) if raw["relation"] else None)


def own_type(column: Column) -> pa.DataType:
    """Return a column's type in Spark. Times of day are texts, because Spark has no type for them by default."""
    mapped = types.mapping(column)
    return pa.string() if mapped.form is Form.TIME else mapped.arrow


def column_type(column: Column) -> spark.DataType:
    return _type(own_type(column))


def rows(relation: Relation) -> pa.Schema:
    """Return the table's own columns, followed by the metadata columns."""
    own = [pa.field(column.name, own_type(column)) for column in relation.columns]
    about = {**_ABOUT, "_before": pa.struct(own), "_unchanged": pa.list_(pa.string())}
    about |= dict.fromkeys(("_special", "_before_special"), types.SPECIALS)
    return pa.schema([*own, *(pa.field(unused_name(name, relation), type_) for name, type_ in about.items())])


def state(relation: Relation) -> pa.Schema:
    """Return the table's own columns, followed by `_special` for the values that they cannot hold."""
    own = [pa.field(column.name, own_type(column)) for column in relation.columns]
    return pa.schema([*own, pa.field(unused_name("_special", relation), types.SPECIALS)])


def about_columns(relation: Relation) -> pa.Schema:
    """Return the columns that describe each change, without its images."""
    own = len(relation.columns)
    return pa.schema(list(rows(relation))[own : own + len(_ABOUT)])


def in_spark(schema: pa.Schema, pinned: Pinned) -> spark.StructType:
    fields = [spark.StructField(f.name, _type(f.type)) for f in schema]
    fields[0].metadata = pinned.to_metadata()
    return spark.StructType(fields)


def spark_type(schema: pa.Schema) -> spark.StructType:
    return spark.StructType([spark.StructField(f.name, _type(f.type)) for f in schema])


_POSTGRES: Final[dict[type[spark.DataType], tuple[int, str]]] = {
    spark.NullType: (25, "text"),
    spark.BooleanType: (16, "bool"),
    spark.ByteType: (21, "int2"),
    spark.ShortType: (21, "int2"),
    spark.IntegerType: (23, "int4"),
    spark.LongType: (20, "int8"),
    spark.FloatType: (700, "float4"),
    spark.DoubleType: (701, "float8"),
    spark.DecimalType: (1700, "numeric"),
    spark.StringType: (25, "text"),
    spark.VarcharType: (25, "text"),
    spark.CharType: (25, "text"),
    spark.BinaryType: (17, "bytea"),
    spark.DateType: (1082, "date"),
    spark.TimestampType: (1184, "timestamptz"),
    spark.TimestampNTZType: (1114, "timestamp"),
}


def postgres_type(type_: spark.DataType) -> tuple[Type, int] | None:
    """Return the PostgreSQL type and modifier that hold every value of a Spark type. None: there is no such type."""
    if type(type_) not in _POSTGRES:
        return None
    oid, name = _POSTGRES[type(type_)]
    modifier = (type_.precision << 16 | type_.scale) + 4 if isinstance(type_, spark.DecimalType) else -1
    return Type(oid, "pg_catalog", name), modifier


def _type(arrow: pa.DataType) -> spark.DataType:
    return from_arrow_type(arrow, prefer_timestamp_ntz=True)
