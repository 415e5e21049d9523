"""The settings of a SlateDB database as the source: `[source]` with `type = "slatedb"`, and `[source.value]`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tailrace.settings.parser import Faults, read_section

COLUMN_TYPES: Final = {
    "bool": 16,
    "bytea": 17,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "text": 25,
    "json": 114,
    "float4": 700,
    "float8": 701,
    "date": 1082,
    "timestamp": 1114,
    "timestamptz": 1184,
    "numeric": 1700,
    "uuid": 2950,
    "jsonb": 3802,
}
"""The PostgreSQL types that a decoded column may have, with their oids."""
_ALIASES: Final = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
}
_OWN_COLUMNS: Final = ("key", "value", "expires_at", "operand")


@dataclass(frozen=True)
class ValueSettings:
    """What the values are, and which columns they are decoded to."""

    format: str = field(default="raw", metadata={"choices": ("raw", "json", "msgpack", "avro", "avro_single_object")})
    """`raw`: bytes, without decoded columns. `avro_single_object`: each value begins with its schema's fingerprint.
    Which of the two encodings a value of Avro has is not guessed: bare ones may begin with any bytes."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Name → PostgreSQL type. A field that a value does not have is NULL."""
    schema: Path | None = None
    """The Avro schema that the values were written with."""
    undecodable: str = field(default="stop", metadata={"choices": ("stop", "null")})
    """What happens to a value that is not in its format: capture stops, because nobody notices columns that are
    silently empty. With `null`, the decoded columns are NULL; `value` has the bytes in any case."""


@dataclass(frozen=True)
class SlateDbSettings:
    """A SlateDB database as the source."""

    url: str = ""
    """The database's path, with its store: `file:///path/to/db`, `s3://bucket/path/to/db`."""
    wal_url: str | None = None
    """The same in the WAL's own store, if the database has one."""
    name: str = ""
    """The relation is `slatedb.<name>`."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the store, as in `[store.options]`."""
    merges: str = field(default="stop", metadata={"choices": ("stop", "operands")})
    """What happens to merges if there is no `merge_operator`. `operands` logs the operand, in a column of that name,
    for sinks that deliver changes. By default capture stops, because sinks that keep rows refuse operands."""
    merge_operator: str | None = None
    """`module:function`, called with key, existing value (or None) and operand: returns the new value. Capture logs it
    beside the operand, so that sinks which keep rows can have merges. Snapshots use it too."""
    value: ValueSettings = field(default_factory=ValueSettings)


def read_slatedb(
    table: object, path: Path | None, environ: Mapping[str, str], requires: Collection[str], faults: Faults
) -> SlateDbSettings:
    """Read the section. `path` is the settings file, which a schema's path is relative to."""
    raw = dict(table) if isinstance(table, dict) else {}
    value = raw.pop("value", {})
    raw.pop("type", None)
    environ = {name: text for name, text in environ.items() if name != "TAILRACE_SOURCE_TYPE"}
    own = {name: text for name, text in environ.items() if not name.startswith("TAILRACE_SOURCE_VALUE_")}
    given = read_section("source", SlateDbSettings, raw, own, faults)
    if "source" in requires and not given.get("url") and "source.url" not in faults:
        faults.add("source.url", "is missing: set it, or TAILRACE_SOURCE_URL")
    name = given.get("name", "")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        faults.add("source.name", "must be set: up to 63 lower-case letters, digits and _; the table is slatedb.<name>")
    operator = given.get("merge_operator")
    if operator is not None and not re.fullmatch(r"[\w.]+:\w+", operator):
        faults.add("source.merge_operator", "is not module:function")
    values = ValueSettings(**_check_value(read_section("source.value", ValueSettings, value, {}, faults), path, faults))
    return SlateDbSettings(**given, value=values)


def _check_value(given: dict[str, Any], path: Path | None, faults: Faults) -> dict[str, Any]:
    columns = {}
    for name, type_ in given.get("columns", {}).items():
        known = _ALIASES.get(type_, type_)
        if known not in COLUMN_TYPES:
            faults.add(f"source.value.columns.{name}", f"has the type {type_!r} (there are {', '.join(COLUMN_TYPES)})")
        if name in _OWN_COLUMNS:
            faults.add(f"source.value.columns.{name}", "is a column of every row: choose another name")
        columns[name] = known
    format_ = given.get("format", "raw")
    if format_ == "raw" and columns:
        faults.add("source.value.columns", "need a format: json, msgpack, avro or avro_single_object")
    if format_ != "raw" and not columns and "source.value.columns" not in faults:
        faults.add("source.value.columns", f"are missing: name what to take from the {format_} values")
    if format_.startswith("avro") != ("schema" in given):
        faults.add("source.value.schema", "is the Avro schema's file: set it with a format of Avro, and only then")
    if "schema" in given and path is not None:
        given = given | {"schema": path.parent / given["schema"]}
    return given | {"columns": columns}
