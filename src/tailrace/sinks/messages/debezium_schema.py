"""The schemas of Debezium's events, as Kafka Connect's JSON converter writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from tailrace.change import Column, Relation
from tailrace.sinks.messages.connect_default import default_value
from tailrace.sinks.messages.connect_schema import Schema, named_schema, ordered_schema, struct_schema
from tailrace.sinks.messages.connect_type import TypeOptions, connect_type
from tailrace.sinks.messages.row_image import key_indexes

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")


def debezium_name(name: str) -> str:
    """Return a name as Debezium writes it in topics and schemas: `_` for each character that Kafka does not allow.

    Two names may become the same. The sink then refuses the tables.
    """
    # Java counts a character beyond the first 65,536 as two.
    return _ILLEGAL.sub(lambda found: "__" if ord(found[0]) > 0xFFFF else "_", name)


@lru_cache(maxsize=1024)
def envelope_schema(relation: Relation, target: tuple[str, str], prefix: str, options: TypeOptions) -> str:
    """Return the schema of a table's events as JSON."""
    name = _table_name(target, prefix)
    row = [_column(column, options) for column in relation.columns]
    fields = [
        *(struct_schema(f"{name}.Value", row, None, is_optional=True, field=field) for field in ("before", "after")),
        {**_SOURCE, "field": "source"},
        {**_TRANSACTION, "field": "transaction"},
        _field("op", "string"),
        *(_field(field, "int64", is_optional=True) for field in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return dump(struct_schema(f"{name}.Envelope", fields, 2))


@lru_cache(maxsize=1024)
def key_schema(relation: Relation, target: tuple[str, str], prefix: str, options: TypeOptions) -> str:
    """Return the schema of a table's keys as JSON."""
    fields = [_column(relation.columns[index], options) for index in key_indexes(relation)]
    return dump(struct_schema(f"{_table_name(target, prefix)}.Key", fields, None))


def _table_name(target: tuple[str, str], prefix: str) -> str:
    return debezium_name(f"{prefix}.{target[0]}.{target[1]}")


def _column(column: Column, options: TypeOptions) -> Schema:
    default = default_value(column, options)
    shown = {} if default is None else {"default": json.loads(default)}
    schema = connect_type(column, options).schema
    return ordered_schema(schema, is_optional=column.nullable, **shown, field=column.name)


def _field(name: str, type_: str, *, is_optional: bool = False) -> Schema:
    return {"type": type_, "optional": is_optional, "field": name}


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _source_fields() -> Sequence[Schema]:
    states = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    snapshot = named_schema("string", "io.debezium.data.Enum", parameters={"allowed": states})
    return [
        *(_field(name, "string") for name in ("version", "connector", "name")),
        _field("ts_ms", "int64"),
        ordered_schema(snapshot, is_optional=True, default="false", field="snapshot"),
        _field("db", "string"),
        _field("sequence", "string", is_optional=True),
        *(_field(name, "int64", is_optional=True) for name in ("ts_us", "ts_ns")),
        *(_field(name, "string") for name in ("schema", "table")),
        *(_field(name, "int64", is_optional=True) for name in ("txId", "lsn", "xmin")),
        _field("origin", "string", is_optional=True),
        _field("origin_lsn", "int64", is_optional=True),
    ]


_SOURCE: Final = struct_schema("io.debezium.connector.postgresql.Source", _source_fields())
_TRANSACTION: Final = struct_schema(
    "event.block",
    [_field("id", "string"), _field("total_order", "int64"), _field("data_collection_order", "int64")],
    is_optional=True,
)
_MESSAGE_FIELDS: Final = [
    _field("prefix", "string", is_optional=True),
    _field("content", "bytes", is_optional=True),
]
MESSAGE_KEY_SCHEMA: Final = dump(struct_schema("io.debezium.connector.postgresql.MessageKey", _MESSAGE_FIELDS[:1]))
MESSAGE_SCHEMA: Final = dump(
    struct_schema(
        "io.debezium.connector.postgresql.MessageValue",
        [
            _field("op", "string"),
            _field("ts_ms", "int64", is_optional=True),
            {**_SOURCE, "field": "source"},
            {**_TRANSACTION, "field": "transaction"},
            struct_schema("io.debezium.connector.postgresql.Message", _MESSAGE_FIELDS, field="message"),
        ],
    )
)
