"""PostgreSQL's columns as Iceberg's: types, documentation, identifier fields, values as data files have them. Pure.

A type that Iceberg, or an engine that should read it, cannot hold is text: PostgreSQL's own, with the type named in the
column's documentation. A value that its column cannot hold (NaN in a decimal, an infinite date) is NULL there, and its
text stands in the map `_special`, by column; that is there from the first such value on.
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
from tailrace.log.evolution import special_map, specials
from tailrace.log.fold import has_key
from tailrace.log.recast import texts
from tailrace.log.typed import free_name
from tailrace.pgoutput.columns import Images
from tailrace.sinks.iceberg.point import Kind
from tailrace.types import Form

IcebergType = str | dict[str, Any]
"""As Iceberg writes it in JSON; nested fields without ids are numbered when the table gets them."""

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
"""What a changelog says of each change, beside its row."""
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


def type_of(column: Column) -> IcebergType:
    mapped = types.mapping(column)
    if mapped.form in _PLAIN:
        return _PLAIN[mapped.form]
    if mapped.form is Form.INTEGER:
        return "long" if mapped.arrow == pa.int64() else "int"
    if mapped.form is Form.FLOAT:
        return "float" if mapped.arrow == pa.float32() else "double"
    if mapped.form in (Form.DECIMAL, Form.MONEY):
        return f"decimal({mapped.arrow.precision}, {mapped.arrow.scale})"
    # Iceberg has a time of day; Spark cannot read a table that has such a column.
    return "uuid" if _is_uuid(column) else "string"


def _is_uuid(column: Column) -> bool:
    base, _ = types.base(column.type, column.modifier)
    return base.schema == "pg_catalog" and base.name == "uuid" and base.kind == "b"


@dataclass(frozen=True)
class Field:
    """A column of an Iceberg table."""

    id: int
    name: str
    type: IcebergType
    """With the ids of nested fields."""
    required: bool = False
    doc: str | None = None
    default: Any = None
    """What files that lack the column show, as Iceberg writes it in JSON."""

    @cached_property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, _arrow(self.type), not self.required, {FIELD_ID: str(self.id)})

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Its own, and those of what is nested in it."""
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
            return pa.decimal128(*digits(type_))
        return _ARROW[type_]
    if type_["type"] == "map":
        key = pa.field("key", _arrow(type_["key"]), False, {FIELD_ID: str(type_["key-id"])})
        value = pa.field("value", _arrow(type_["value"]), False, {FIELD_ID: str(type_["value-id"])})
        return pa.map_(key, value)
    if type_["type"] == "list":
        item = pa.field("element", _arrow(type_["element"]), False, {FIELD_ID: str(type_["element-id"])})
        return pa.list_(item)
    fields = [Field(f["id"], f["name"], f["type"], f["required"]).arrow for f in type_["fields"]]
    return pa.struct(fields)


def digits(decimal: str) -> tuple[int, int]:
    """Precision and scale, of a decimal's type."""
    precision, scale = decimal.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


@dataclass(frozen=True)
class Shape:
    """The columns of an Iceberg table, and the relation that they are of."""

    relation: Relation
    fields: tuple[Field, ...]
    """The relation's columns in their order, then those of ours."""
    key_is_required: bool = True
    """Whether the key's columns are identifier fields, which are never NULL."""
    others: tuple[str, ...] = ()
    """Columns that the relation has no longer, and that a changelog keeps."""

    @property
    def has_special(self) -> bool:
        return len(self.fields) > len(self.relation.columns)

    def to_json(self) -> str:
        identifiers = [f.id for f in self.fields if f.required]
        fields = [field.to_json() for field in self.fields]
        return json.dumps({"type": "struct", "fields": fields, "identifier-field-ids": identifiers})

    @classmethod
    def read(cls, schema: str, relation: Relation, kind: Kind) -> Shape | None:
        """From a table's schema as Iceberg writes it; None when it does not have the columns that it should have."""
        raw = json.loads(schema)
        found = {f["name"]: _field(f) for f in raw["fields"]}
        ours = [field.name for field in own_fields(relation, kind)]
        if kind == "mirror":
            ours = [name for name in ours if name in found]
        names = [column.name for column in relation.columns] + ours
        others = found.keys() - set(names)
        if set(names) - found.keys() or (kind == "mirror" and others):
            return None
        fields = tuple([found[name] for name in names])
        return cls(relation, fields, bool(raw.get("identifier-field-ids")), tuple(sorted(others)))


def _field(raw: Mapping[str, Any]) -> Field:
    return Field(raw["id"], raw["name"], raw["type"], raw["required"], raw.get("doc"), raw.get("initial-default"))


def fresh(relation: Relation, kind: Kind = "mirror", *, with_special: bool, nulls: Sequence[str] = ()) -> Shape:
    """As Iceberg numbers the columns of a new table: first those of the table, then what is nested in them.

    `nulls`: columns that hold NULL, whatever the relation says of them.
    """
    keys = identifiers(relation) if kind == "mirror" else set()
    required = bool(keys) and not keys & set(nulls)
    columns = [Field(0, c.name, type_of(c), required and c.name in keys, doc(c)) for c in relation.columns]
    # Rows of a table without columns have at least this one, so that they can be counted.
    if with_special or kind == "changelog" or not columns:
        columns += own_fields(relation, kind)
    return Shape(relation, numbered(columns), required)


def own_fields(relation: Relation, kind: Kind) -> list[Field]:
    """The columns of ours: a mirror has the first only when it needs it, a changelog has them all."""
    found = [special_field(relation)]
    if kind == "changelog":
        found = [Field(0, free_name(name, relation), type_) for name, type_ in _CHANGE.items()] + found
    return found


def special_field(relation: Relation) -> Field:
    name = free_name("_special", relation)
    return Field(0, name, _SPECIAL, doc="values that their columns cannot hold, as PostgreSQL prints them")


def numbered(fields: Sequence[Field]) -> tuple[Field, ...]:
    following = iter(range(len(fields) + 1, 1 << 31))
    return tuple([replace(f, id=n, type=_numbered(f.type, following)) for n, f in enumerate(fields, 1)])


def _numbered(type_: IcebergType, following: Iterator[int]) -> IcebergType:
    if isinstance(type_, str):
        return type_
    if type_["type"] == "struct":
        return type_ | {"fields": [f | {"id": next(following)} for f in type_["fields"]]}
    if type_["type"] == "map":
        return type_ | {"key-id": next(following), "value-id": next(following)}
    return type_ | {"element-id": next(following)}


def may_be_special(column: Column) -> bool:
    """Whether some values of the type are none of the column's."""
    return types.mapping(column).form in _MAY_BE_SPECIAL


def identifiers(relation: Relation) -> set[str]:
    """The key, if Iceberg can have it as identifier fields: those are never floats, nor nested."""
    if not has_key(relation):
        return set()
    kinds = [type_of(c) for c in relation.columns if c.name in relation.key]
    return set(relation.key) if all(isinstance(k, str) and k not in ("float", "double") for k in kinds) else set()


def directory_name(name: str) -> str:
    """For people to read, in any store."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:40]


def doc(column: Column) -> str | None:
    """The comment; and PostgreSQL's type where the column's own does not tell it."""
    declared = types.sql_name(column.type, column.modifier)
    is_told = type_of(column) not in ("string", "binary") or declared in ("text", "varchar", "bytea")
    parts = [column.comment or "", "" if is_told else f"PostgreSQL type {declared}"]
    return " · ".join(part for part in parts if part) or None


def stored(images: Images, relation: Relation) -> tuple[list[pa.Array], pa.MapArray | None]:
    """Rows as data files have them: a value for each column, and the special ones of each row, if there are any."""
    odd = specials(images)
    columns = zip(images.batch.columns, relation.columns, strict=True)
    arrays = [stored_column(array, column, odd) for array, column in columns]
    return arrays, special_map(odd, len(images))


def stored_column(array: pa.Array, column: Column, odd: dict[str, dict[int, str]]) -> pa.Array:
    """A text needs nothing beside it: what is special in such a column is taken from `odd`."""
    kind = type_of(column)
    if types.mapping(column).form is Form.TIME:
        return texts(array, column, odd.pop(column.name, None))
    if kind == "uuid":
        return uuids(array)
    return array.cast(pa.int32()) if kind == "int" else array


def stored_texts(array: pa.Array, column: Column, odd: Mapping[int, str]) -> pa.StringArray:
    """PostgreSQL's texts of a column's values as data files have them."""
    if types.mapping(column).form is Form.TIME:
        return array
    if type_of(column) == "uuid":
        return pa.array([None if v is None else str(v) for v in array.to_pylist()], pa.string())
    return texts(array, column, odd)


_HEX: Final = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DIGITS: Final = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])


def uuids(array: pa.Array) -> pa.Array:
    """PostgreSQL's texts, which are canonical, as sixteen bytes each."""
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
