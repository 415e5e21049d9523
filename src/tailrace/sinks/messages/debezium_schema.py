"""The schemas of Debezium's events, as Kafka Connect's JSON converter writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tailrace.change import Column, Relation
from tailrace.sinks.messages.connect_type import TypeOptions, connect_type
from tailrace.sinks.messages.row_image import key_indexes

_Schema = Mapping[str, Any]


@lru_cache(maxsize=1024)
def envelope_schema(relation: Relation, target: tuple[str, str], prefix: str, options: TypeOptions) -> str:
    """Return the schema of a table's events as JSON."""
    name = f"{prefix}.{target[0]}.{target[1]}"
    row = _struct(f"{name}.Value", [_field(column, options) for column in relation.columns], is_optional=True)
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        {**_SOURCE, "field": "source"},
        {**_TRANSACTION, "field": "transaction"},
        {"type": "string", "optional": False, "field": "op"},
        *_times(),
    ]
    return _dump({**_struct(f"{name}.Envelope", fields, is_optional=False), "version": 2})


@lru_cache(maxsize=1024)
def key_schema(relation: Relation, target: tuple[str, str], prefix: str, options: TypeOptions) -> str:
    """Return the schema of a table's keys as JSON."""
    columns = [relation.columns[index] for index in key_indexes(relation)]
    fields = [_field(column, options) for column in columns]
    return _dump(_struct(f"{prefix}.{target[0]}.{target[1]}.Key", fields, is_optional=False))


def message_schema() -> tuple[str, str]:
    """Return the schemas of the key and the value of logical messages as JSON."""
    text = {"type": "string", "optional": True, "field": "prefix"}
    content = {"type": "bytes", "optional": True, "field": "content"}
    block = _struct("io.debezium.connector.postgresql.MessageValue.Block", [text, content], is_optional=True)
    key = _struct("io.debezium.connector.postgresql.MessageKey", [text], is_optional=False)
    fields = [
        {"type": "string", "optional": False, "field": "op"},
        *_times(),
        {**_SOURCE, "field": "source"},
        {**block, "field": "message"},
    ]
    value = _struct("io.debezium.connector.postgresql.MessageValue", fields, is_optional=False)
    return _dump(key), _dump(value)


def _field(column: Column, options: TypeOptions) -> _Schema:
    return {**connect_type(column, options).schema, "optional": column.nullable, "field": column.name}


def _struct(name: str, fields: list[_Schema], *, is_optional: bool) -> dict[str, Any]:
    return {"type": "struct", "fields": fields, "optional": is_optional, "name": name}


def _times() -> list[_Schema]:
    return [{"type": "int64", "optional": True, "field": name} for name in ("ts_ms", "ts_us", "ts_ns")]


def _dump(schema: _Schema) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _source() -> dict[str, Any]:
    def one(field: str, type_: str = "string", *, is_optional: bool = False) -> _Schema:
        return {"type": type_, "optional": is_optional, "field": field}

    snapshot = {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},
        "default": "false",
        "field": "snapshot",
    }
    fields = [
        *(one("version"), one("connector"), one("name"), one("ts_ms", "int64"), snapshot, one("db")),
        *(one("sequence", is_optional=True), one("ts_us", "int64", is_optional=True)),
        *(one("ts_ns", "int64", is_optional=True), one("schema"), one("table")),
        *(one(name, "int64", is_optional=True) for name in ("txId", "lsn", "xmin")),
    ]
    return {**_struct("io.debezium.connector.postgresql.Source", fields, is_optional=False)}


def _transaction() -> dict[str, Any]:
    fields: list[_Schema] = [
        {"type": "string", "optional": False, "field": "id"},
        {"type": "int64", "optional": False, "field": "total_order"},
        {"type": "int64", "optional": False, "field": "data_collection_order"},
    ]
    return {**_struct("event.block", fields, is_optional=True), "version": 1}


_SOURCE = _source()
_TRANSACTION = _transaction()
