"""What Spark sees: the columns of the change stream and of a table's rows, in Arrow's types and in Spark's.

A schema carries, as metadata of its first field, what it was made from: the relation, and where the log ended. The
readers, which Spark makes in other processes and later, go by that: a DataFrame means the same each time it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_type

from tailrace import types
from tailrace.change import Column, Relation
from tailrace.errors import ConfigError
from tailrace.log.plan import Offset
from tailrace.types import Form

_MOMENT: Final = pa.timestamp("us", "UTC")
_KEY: Final = "tailrace"

CHANGES: Final = pa.schema(
    [
        ("position", pa.string()),
        ("commit_lsn", pa.int64()),
        ("ordinal", pa.int64()),
        ("lsn", pa.int64()),
        ("xid", pa.int64()),
        ("committed_at", _MOMENT),
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
"""LSNs are numbers, as PostgreSQL has them inside: they compare rightly, which their texts would not."""

_ABOUT: Final = {
    "_operation": pa.string(),
    "_position": pa.string(),
    "_commit_lsn": pa.int64(),
    "_ordinal": pa.int64(),
    "_lsn": pa.int64(),
    "_xid": pa.int64(),
    "_committed_at": _MOMENT,
    "_relation_id": pa.int64(),
}
"""What is told of each change beside the row; `_before`, `_unchanged` and what columns cannot hold come after it."""


@dataclass(frozen=True)
class Pinned:
    """What a schema was made from."""

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
            raise ConfigError("a schema was given", "leave .schema() out: the log knows the columns") from None
        return cls(Offset.from_json(raw["end"]), Relation.from_json(raw["relation"]) if raw["relation"] else None)


def own_type(column: Column) -> pa.DataType:
    """A column's type in Spark. It has no type for times of day unless one is switched on: they are texts."""
    mapped = types.mapping(column)
    return pa.string() if mapped.form is Form.TIME else mapped.arrow


def rows(relation: Relation) -> pa.Schema:
    """A table's own columns, then what is told of each change."""
    own = [pa.field(column.name, own_type(column)) for column in relation.columns]
    about = {**_ABOUT, "_before": pa.struct(own), "_unchanged": pa.list_(pa.string())}
    about |= dict.fromkeys(("_special", "_before_special"), types.SPECIALS)
    # Spark does not tell `A` from `a`, unless it is told to.
    taken = {column.name.lower() for column in relation.columns}
    return pa.schema([*own, *(pa.field(_free(name, taken), type_) for name, type_ in about.items())])


def state(relation: Relation) -> pa.Schema:
    """A table's own columns, then what they cannot hold."""
    own = [pa.field(column.name, own_type(column)) for column in relation.columns]
    return pa.schema([*own, pa.field(_free("_special", {f.name.lower() for f in own}), types.SPECIALS)])


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = f"_{name}"
    return name


def in_spark(schema: pa.Schema, pinned: Pinned) -> spark.StructType:
    fields = [spark.StructField(f.name, _type(f.type)) for f in schema]
    fields[0].metadata = pinned.to_metadata()
    return spark.StructType(fields)


def _type(arrow: pa.DataType) -> spark.DataType:
    return from_arrow_type(arrow, prefer_timestamp_ntz=True)
