"""Kafka Connect's types and schemas in general, and schemas as its JSON converter prints them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns

Schema = Mapping[str, Any]
"""A schema as JSON."""
Convert = Callable[[pa.Array], pa.Array]
"""Turns PostgreSQL's texts into JSON texts; NULL stays NULL."""

_ORDER: Final = ("type", "items", "fields", "optional", "name", "version", "doc", "parameters", "default", "field")

_SPECIAL: Final = r"[\x0b\x0e\x0f\x1a-\x1f\x{10000}-\x{10ffff}]"
"""The characters that `json_columns.quote` writes otherwise."""
_BEYOND: Final = re.compile("[\U00010000-\U0010ffff]")
_ESCAPES: Final = {
    **{code: f"\\u{code:04X}" for code in range(0x20)},
    **str.maketrans({'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}),
}


@dataclass(frozen=True)
class ConnectType:
    schema: Schema
    """Without `optional`, `default` and `field`."""
    convert: Convert
    zero: str = '""'
    """The JSON value of a NOT NULL column that PostgreSQL did not send, in the old row of a delete."""
    unavailable: str | None = None
    """The JSON value for a large value that an update did not change and PostgreSQL did not send."""
    header: Convert | None = None
    """Converts values as Connect prints them in headers, if that differs."""


def named_schema(type_: str, name: str, **more: Any) -> Schema:
    return {"type": type_, "name": name, "version": 1, **more}


def ordered_schema(schema: Schema, *, is_optional: bool, **more: Any) -> dict[str, Any]:
    """Return a schema with its members in the order of Connect's JSON converter: keys of messages contain schemas, and
    equal keys have to be equal bytes. `more` are `default` and `field`."""
    found = {**schema, "optional": is_optional, **more}
    return {member: found[member] for member in _ORDER if member in found}


def struct_schema(
    name: str, fields: Sequence[Schema], version: int | None = 1, *, is_optional: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the schema of a structure. `more` is `field`."""
    numbered = {} if version is None else {"version": version}
    return ordered_schema(
        {"type": "struct", "fields": fields, "name": name, **numbered}, is_optional=is_optional, **more
    )


def quoted_strings(texts: pa.Array) -> pa.Array:
    """Quote texts. Equal keys have to be equal bytes, so they are escaped as Connect's JSON library does it: with
    capital letters, and characters beyond the first 65,536 as two escapes."""
    if not pc.any(pc.match_substring_regex(texts, _SPECIAL), min_count=0).as_py():
        return json_columns.quote(texts)
    return convert_each(lambda value: f'"{_BEYOND.sub(_surrogates, value.translate(_ESCAPES))}"')(texts)


def _surrogates(found: re.Match[str]) -> str:
    code = ord(found[0]) - 0x10000
    return f"\\u{0xD800 | code >> 10:04X}\\u{0xDC00 | code & 0x3FF:04X}"


def no_change(texts: pa.Array) -> pa.Array:
    return texts


def convert_each(convert: Callable[[str], str]) -> Convert:
    """Convert value by value. Distinct values only: columns of such types have few, or are rare."""

    def convert_all(texts: pa.Array) -> pa.Array:
        distinct = texts.dictionary_encode()
        converted = [convert(value) for value in distinct.dictionary.to_pylist()]
        return pa.array(converted, pa.string()).take(distinct.indices)

    return convert_all
