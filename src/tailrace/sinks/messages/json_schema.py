"""The JSON Schemas of payloads that are encoded as JSON.

Objects allow no other properties than those of the schema. So a registry that checks compatibility backwards accepts a
new column, which it refuses for an object that allows any property: an older message could have anything there.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.change import Column
from tailrace.sinks.messages.avro_name import full_name
from tailrace.sinks.messages.avro_type import POSTGRES_TYPE, postgres_type
from tailrace.sinks.messages.payload import ColumnValues, Field, Integers, NameLists, Nulls, Record, Texts, Value
from tailrace.types import Form, mapping

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_NULL: Final = {"type": "null"}
_NOT_FINITE: Final = {"enum": ["NaN", "Infinity", "-Infinity"]}


def schema(record: Record, namespace: str) -> dict[str, Any]:
    """Return the schema of a record. `namespace` precedes its name."""
    return {"$schema": DIALECT, "title": full_name((namespace, *record.name)), **_object(record)}


def _object(record: Record) -> dict[str, Any]:
    fields = [field for field in record.fields if not field.is_supplement]
    found = {
        "type": "object",
        "properties": {field.name: _field(field) for field in fields},
        "additionalProperties": False,
    }
    required = [field.name for field in fields if not field.is_optional]
    return found if record.is_empty_if_absent or not required else {**found, "required": required}


def _field(field: Field) -> dict[str, Any]:
    match field.value:
        case ColumnValues(_, column):
            return _column(column, is_optional=field.is_optional)
        case Record(is_empty_if_absent=False) if field.is_optional:
            return {"oneOf": [_NULL, _object(field.value)]}
    return _value(field.value)


def _value(value: Value) -> dict[str, Any]:
    match value:
        case Integers():
            return {"type": "integer"}
        case NameLists():
            return {"type": "array", "items": {"type": "string"}}
        case Nulls():
            return _NULL
        case Record():
            return _object(value)
        case ColumnValues(_, column):
            return _column(column, is_optional=False)
        case Texts():
            return {"type": "string"}


def _column(column: Column, *, is_optional: bool) -> dict[str, Any]:
    choices: list[dict[str, Any]] = [_NULL] if is_optional else []
    match mapping(column).form:
        case Form.JSON:
            return {}
        case Form.BOOLEAN:
            choices.append({"type": "boolean"})
        case Form.INTEGER:
            choices.append({"type": "integer"})
        case Form.FLOAT:
            choices += [{"type": "number"}, _NOT_FINITE]
        case _:
            name = postgres_type(column.type)
            choices.append({"type": "string", **({} if name is None else {POSTGRES_TYPE: name})})
    return choices[0] if len(choices) == 1 else {"oneOf": choices}
