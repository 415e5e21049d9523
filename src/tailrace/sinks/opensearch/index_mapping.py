"""The mapping of a table's index: which field each PostgreSQL type gets. docs/sinks/opensearch.md has the table. Pure.

A document's `_source` always has the exact value. A field that cannot index a value (NaN, infinity, a year after 9999)
leaves it out of the index, and `_ignored` names the field: `ignore_malformed`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column, Relation
from tailrace.sinks.documents.document_value import document_values, element_column
from tailrace.sinks.opensearch.index_name import field_name
from tailrace.sinks.opensearch.options import OpenSearchOptions
from tailrace.types import Form, base, mapping, numeric_modifier

_EXACT_DIGITS: Final = 15
"""Any number of so many digits is exact in a double, which is what OpenSearch computes a scaled float from."""
_LONGEST_TERM: Final = 8191
"""Characters. Lucene rejects a term of more than 32,766 bytes, and a character has up to four."""
_DEFAULT_FIELDS: Final = 1000
"""How many fields an index may have by default. A table may have more columns."""

FieldMapping = Mapping[str, Any]

_KEYWORD: Final = {"type": "keyword", "ignore_above": _LONGEST_TERM}
_TEXT: Final = {"type": "text", "fields": {"keyword": _KEYWORD}}
_STORED: Final = {"type": "keyword", "index": False, "doc_values": False}
_OBJECT: Final = {"type": "object", "enabled": False}
_NUMERIC: Final = {**_KEYWORD, "fields": {"double": {"type": "double", "ignore_malformed": True}}}
_DATE: Final = {"type": "date", "format": "strict_date", "ignore_malformed": True}
_TIMESTAMP: Final = {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}
_INTEGERS: Final = {"int2": "short", "int4": "integer", "int8": "long", "oid": "long"}
_FLOATS: Final = {"float4": "float", "float8": "double"}
_TEXTS: Final = frozenset({"text", "varchar", "bpchar", "citext", "xml"})


def field_mapping(column: Column) -> FieldMapping:
    """Return the mapping of a column's field."""
    element = element_column(column)
    if element is not None:
        # A boolean field has no `ignore_malformed`, and an array of several dimensions is a text.
        return _KEYWORD if mapping(element).form is Form.BOOLEAN else field_mapping(element)
    type_, modifier = base(column.type, column.modifier)
    match mapping(column).form:
        case Form.BOOLEAN:
            return {"type": "boolean"}
        case Form.INTEGER:
            return {"type": _INTEGERS[type_.name], "ignore_malformed": True}
        case Form.FLOAT:
            return {"type": _FLOATS[type_.name], "ignore_malformed": True}
        case Form.DECIMAL | Form.NUMERIC:
            precision, scale = numeric_modifier(modifier) if modifier >= 4 else (0, 0)
            if 0 < precision <= _EXACT_DIGITS and 0 <= scale <= precision:
                return {"type": "scaled_float", "scaling_factor": 10**scale, "ignore_malformed": True}
            return _NUMERIC
        case Form.DATE:
            return _DATE
        case Form.TIMESTAMP | Form.TIMESTAMPTZ:
            return _TIMESTAMP
        case Form.JSON:
            return _OBJECT
        case Form.BINARY:
            return _STORED
    is_text = type_.name in _TEXTS and type_.kind == "b"
    return _TEXT if is_text else _KEYWORD


def mapping_of(relation: Relation, target: tuple[str, str], options: OpenSearchOptions) -> dict[str, FieldMapping]:
    """Return the fields of a table's index.

    Args:
        relation: The table.
        target: Its schema and name at the destination, by which `fields` in the settings names it.
        options: The sink's settings.
    """
    found = {}
    for column in relation.columns:
        given = [own for pattern, own in options.field_mappings if pattern.matches(*target, column.name)]
        found[field_name(column.name)] = given[-1] if given else field_mapping(column)
    return found


def field_limit(fields: Mapping[str, FieldMapping]) -> int:
    """Return how many fields an index must allow."""
    own = sum(1 + len(mapping.get("fields", ())) for mapping in fields.values())
    return max(_DEFAULT_FIELDS, 2 * own)


def field_values(texts: pa.Array, column: Column) -> pa.Array:
    """Return a column's values as JSON.

    A NULL of the types json and jsonb is left out of the document, for `null` is a value of theirs. OpenSearch rejects
    objects that have a name twice, which the type json allows: such a value becomes a JSON string of its text.
    """
    if mapping(column).form is not Form.JSON:
        return document_values(texts, column)
    is_json = base(column.type, column.modifier)[0].name == "json"
    values = document_values(_unique_names(texts) if is_json else texts, column)
    return pc.if_else(texts.is_valid(), values, pa.scalar(None, pa.binary())) if texts.null_count else values


def _unique_names(texts: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring(texts, "{")).as_py():
        return texts
    return pa.array([_as_string(text) if text is not None else None for text in texts.to_pylist()], pa.string())


def _as_string(text: str) -> str:
    try:
        json.loads(text, object_pairs_hook=_require_unique, parse_int=str, parse_float=str)
    except _RepeatedName:
        return json.dumps(text, ensure_ascii=False)
    return text


class _RepeatedName(ValueError):
    """An object has a name twice."""


def _require_unique(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise _RepeatedName
