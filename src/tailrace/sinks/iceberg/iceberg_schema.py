"""Maps PostgreSQL's columns to Iceberg's: types, documentation, identifier fields, values in data files. Pure.

If Iceberg or a common engine does not support a type, the column holds PostgreSQL's text, and the documentation of the
column names the type. A value that its column cannot hold (NaN in a decimal, an infinite date) is NULL there, and the
map `_special` holds its text, by column name. That map column is added with the first such value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Column, Relation
from tailrace.column_name import unused_name
from tailrace.images import Images
from tailrace.lake.point import Kind
from tailrace.state.cast import column_texts
from tailrace.state.evolution import special_map, specials
from tailrace.state.fold import has_key
from tailrace.types import Form

IcebergType = str | dict[str, Any]
"""As in Iceberg's JSON. Nested fields get their ids with the table (`with_field_ids`)."""

_SPECIAL: Final[IcebergType] = {"type": "map", "key": "string", "value": "string", "value-required": True}
_INTERVAL: Final[IcebergType] = {
    "type": "struct",
    "fields": [
        {"name": "months", "required": False, "type": "int"},
        {"name": "days", "required": False, "type": "int"},
        {"name": "microseconds", "required": False, "type": "long"},
    ],
}
_CHANGE: Final[Mapping[str, IcebergType]] = {
    "_operation": "string",
    "_position": "string",
    "_commit_lsn": "long",
    "_ordinal": "long",
    "_xid": "long",
    "_committed_at": "timestamptz",
    "_unchanged": {"type": "list", "element": "string", "element-required": True},
}
"""The columns of a changelog that describe a change."""
_PLAIN: Final[Mapping[Form, IcebergType]] = {
    Form.BOOLEAN: "boolean",
    Form.BINARY: "binary",
    Form.DATE: "date",
    Form.TIMESTAMP: "timestamp",
    Form.TIMESTAMPTZ: "timestamptz",
    Form.INTERVAL: _INTERVAL,
}
_ARROW: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "uuid": pa.uuid(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_MAY_BE_SPECIAL: Final = frozenset({Form.DECIMAL, Form.DATE, Form.TIMESTAMP, Form.TIMESTAMPTZ})
FIELD_ID: Final = b"PARQUET:field_id"


def iceberg_type(column: Column) -> IcebergType:
    """The type of a PostgreSQL column in the lake."""
    mapped = types.mapping(column)
    if mapped.form in _PLAIN:
        return _PLAIN[mapped.form]
    if mapped.form is Form.INTEGER:
        return "long" if mapped.arrow == pa.int64() else "int"
    if mapped.form is Form.FLOAT:
        return "float" if mapped.arrow == pa.float32() else "double"
    if mapped.form in (Form.DECIMAL, Form.MONEY):
        return f"decimal({mapped.arrow.precision}, {mapped.arrow.scale})"
    # Iceberg has a time type, but Spark cannot read a table with such a column.
    return "uuid" if _is_uuid(column) else "string"


def _is_uuid(column: Column) -> bool:
    base, _ = types.base(column.type, column.modifier)
    return base.schema == "pg_catalog" and base.name == "uuid" and base.kind == "b"


@dataclass(frozen=True)
class IcebergField:
    """A column of an Iceberg table."""

    id: int
    name: str
    type: IcebergType
    """Including the ids of nested fields."""
    required: bool = False
    doc: str | None = None
    default: Any = None
    """The value in files that lack the column, as in Iceberg's JSON."""

    @cached_property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, _arrow(self.type), not self.required, {FIELD_ID: str(self.id)})

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Its own id, then those of its nested fields."""
        if isinstance(self.type, str):
            return (self.id,)
        if self.type["type"] == "struct":
            return (self.id, *(f["id"] for f in self.type["fields"]))
        return (self.id, *(n for key, n in sorted(self.type.items()) if key.endswith("-id")))

    def to_json(self) -> dict[str, Any]:
        raw = {"id": self.id, "name": self.name, "required": self.required, "type": self.type}
        return raw | ({"doc": self.doc} if self.doc else {})


def _arrow(type_: IcebergType) -> pa.DataType:
    if isinstance(type_, str):
        if type_.startswith("decimal"):
            return pa.decimal128(*precision_and_scale(type_))
        return _ARROW[type_]
    if type_["type"] == "map":
        key = pa.field("key", _arrow(type_["key"]), False, {FIELD_ID: str(type_["key-id"])})
        value = pa.field("value", _arrow(type_["value"]), False, {FIELD_ID: str(type_["value-id"])})
        return pa.map_(key, value)
    if type_["type"] == "list":
        item = pa.field("element", _arrow(type_["element"]), False, {FIELD_ID: str(type_["element-id"])})
        return pa.list_(item)
    fields = [IcebergField(f["id"], f["name"], f["type"], f["required"]).arrow for f in type_["fields"]]
    return pa.struct(fields)


def precision_and_scale(decimal: str) -> tuple[int, int]:
    """Precision and scale of a decimal type."""
    precision, scale = decimal.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


@dataclass(frozen=True)
class TableSchema:
    """The columns of an Iceberg table, and the relation that they represent."""

    relation: Relation
    fields: tuple[IcebergField, ...]
    """The relation's columns in order, then Tailrace's own."""
    key_is_required: bool = True
    """Whether the key's columns are identifier fields, which cannot be NULL."""
    others: tuple[str, ...] = ()
    """Columns of a changelog that the relation no longer has."""

    @property
    def has_special(self) -> bool:
        return len(self.fields) > len(self.relation.columns)

    def to_json(self) -> str:
        identifiers = [f.id for f in self.fields if f.required]
        fields = [field.to_json() for field in self.fields]
        return json.dumps({"type": "struct", "fields": fields, "identifier-field-ids": identifiers})

    @classmethod
    def read(cls, schema: str, relation: Relation, kind: Kind) -> TableSchema | None:
        """Parse Iceberg's JSON schema of a table; None if the table does not have the expected columns."""
        raw = json.loads(schema)
        found = {f["name"]: _field(f) for f in raw["fields"]}
        own = [field.name for field in tailrace_fields(relation, kind)]
        if kind == "mirror":
            own = [name for name in own if name in found]
        names = [column.name for column in relation.columns] + own
        others = found.keys() - set(names)
        if set(names) - found.keys() or (kind == "mirror" and others):
            return None
        fields = tuple([found[name] for name in names])
        return cls(relation, fields, bool(raw.get("identifier-field-ids")), tuple(sorted(others)))


def _field(raw: Mapping[str, Any]) -> IcebergField:
    return IcebergField(
        raw["id"], raw["name"], raw["type"], raw["required"], raw.get("doc"), raw.get("initial-default")
    )


def new_table_schema(
    relation: Relation, kind: Kind = "mirror", *, with_special: bool, nulls: Sequence[str] = ()
) -> TableSchema:
    """The schema of a new table, with ids as Iceberg assigns them: columns first, then nested fields.

    `nulls`: columns that contain NULL, whatever the relation says.
    """
    keys = identifier_columns(relation) if kind == "mirror" else set()
    required = bool(keys) and not keys & set(nulls)
    columns = [
        IcebergField(0, c.name, iceberg_type(c), required and c.name in keys, column_doc(c)) for c in relation.columns
    ]
    # A table without columns gets at least this one, so its rows can be counted.
    if with_special or kind == "changelog" or not columns:
        columns += tailrace_fields(relation, kind)
    return TableSchema(relation, with_field_ids(columns), required)


def tailrace_fields(relation: Relation, kind: Kind) -> list[IcebergField]:
    """The columns that Tailrace adds. A changelog has all of them; a mirror has only `_special`, when it is needed."""
    found = [special_field(relation)]
    if kind == "changelog":
        found = [IcebergField(0, unused_name(name, relation), type_) for name, type_ in _CHANGE.items()] + found
    return found


def special_field(relation: Relation) -> IcebergField:
    name = unused_name("_special", relation)
    return IcebergField(0, name, _SPECIAL, doc="values that their columns cannot hold, as PostgreSQL prints them")


def with_field_ids(fields: Sequence[IcebergField]) -> tuple[IcebergField, ...]:
    """The fields with ids as Iceberg assigns them in a new table."""
    next_ids = iter(range(len(fields) + 1, 1 << 31))
    return tuple([replace(f, id=n, type=_with_nested_ids(f.type, next_ids)) for n, f in enumerate(fields, 1)])


def _with_nested_ids(type_: IcebergType, next_ids: Iterator[int]) -> IcebergType:
    if isinstance(type_, str):
        return type_
    if type_["type"] == "struct":
        return type_ | {"fields": [f | {"id": next(next_ids)} for f in type_["fields"]]}
    if type_["type"] == "map":
        return type_ | {"key-id": next(next_ids), "value-id": next(next_ids)}
    return type_ | {"element-id": next(next_ids)}


def may_be_special(column: Column) -> bool:
    """Whether the column's PostgreSQL type has values that its Iceberg type cannot hold."""
    return types.mapping(column).form in _MAY_BE_SPECIAL


def identifier_columns(relation: Relation) -> set[str]:
    """The key's columns, if they can be identifier fields: Iceberg allows no floats or nested types."""
    if not has_key(relation):
        return set()
    kinds = [iceberg_type(c) for c in relation.columns if c.name in relation.key]
    return set(relation.key) if all(isinstance(k, str) and k not in ("float", "double") for k in kinds) else set()


def directory_name(name: str) -> str:
    """The name as a readable directory name that every store accepts."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:40]


def column_doc(column: Column) -> str | None:
    """The column's comment, and its PostgreSQL type if the Iceberg type does not imply it."""
    declared = types.sql_name(column.type, column.modifier)
    is_implied = iceberg_type(column) not in ("string", "binary") or declared in ("text", "varchar", "bytea")
    parts = [column.comment or "", "" if is_implied else f"PostgreSQL type {declared}"]
    return " · ".join(part for part in parts if part) or None


def stored_columns(images: Images, relation: Relation) -> tuple[list[pa.Array], pa.MapArray | None]:
    """Rows as stored in data files: an array for each column, and the special values of each row, if any."""
    specials_by_column = specials(images)
    columns = zip(images.batch.columns, relation.columns, strict=True)
    arrays = [stored_column(array, column, specials_by_column) for array, column in columns]
    return arrays, special_map(specials_by_column, len(images))


def stored_column(array: pa.Array, column: Column, specials_by_column: dict[str, dict[int, str]]) -> pa.Array:
    """The column as stored in data files.

    A text column can hold every value, so its entries are removed from `specials_by_column`.
    """
    kind = iceberg_type(column)
    if types.mapping(column).form is Form.TIME:
        return column_texts(array, column, specials_by_column.pop(column.name, None))
    if kind == "uuid":
        return uuid_array(array)
    return array.cast(pa.int32()) if kind == "int" else array


def stored_texts(array: pa.Array, column: Column, special_texts: Mapping[int, str]) -> pa.StringArray:
    """PostgreSQL's texts of a column's stored values."""
    if types.mapping(column).form is Form.TIME:
        return array
    if iceberg_type(column) == "uuid":
        return pa.array([None if v is None else str(v) for v in array.to_pylist()], pa.string())
    return column_texts(array, column, special_texts)


_HEX: Final = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DIGITS: Final = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])


def uuid_array(array: pa.Array) -> pa.Array:
    """PostgreSQL's texts of UUIDs, which are canonical, as 16 bytes each."""
    known = array.drop_null()
    _, offsets, data = known.buffers()
    first = np.frombuffer(offsets, np.int32)[known.offset] if len(known) else 0
    letters = np.frombuffer(data, np.uint8)[first : first + 36 * len(known)] if len(known) else np.empty(0, np.uint8)
    digits = _HEX[letters.reshape(-1, 36)[:, _DIGITS]]
    raw = (digits[:, ::2] << 4 | digits[:, 1::2]).tobytes()
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(known), [None, pa.py_buffer(raw)])
    if len(known) < len(array):
        places = np.cumsum(array.is_valid().to_numpy(zero_copy_only=False)) - 1
        values = values.take(pc.if_else(array.is_valid(), pa.array(places), pa.scalar(None, pa.int64())))
    return pa.ExtensionArray.from_storage(pa.uuid(), values)
