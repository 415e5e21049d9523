"""Values of every type from a captured table, and what PostgreSQL itself says about each of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from tests import values
from tests.e2e.captured_database import captured
from tests.fixtures.postgres import Database

from tailrace.delivery.coalesce import coalesce
from tailrace.log import decoding, planner
from tailrace.log.decoding import ChangeFilter, TableChanges
from tailrace.log.reader import LogReader
from tailrace.store import Store

_PER_TYPE = 12
_EPOCH = "(extract(epoch FROM {0}) * 1000000)::numeric"
_NUMBERS = {
    "date": "{0} - date '1970-01-01'",
    "timestamp": _EPOCH,
    "timestamp(3)": _EPOCH,
    "timestamptz": _EPOCH,
    "time": _EPOCH,
    "money": "{0}::numeric",
    "numeric(12,3)": "{0}::numeric",
    "numeric(38,0)": "{0}::numeric",
    "numeric(60,5)": "{0}::numeric",
    "net_price": "{0}::numeric",
}
"""What PostgreSQL computes for types that are numbers in Avro. Infinite values are left out."""
_PLAIN = ("int2", "int4", "int8", "oid", "float4", "float8", "bool", "bytea")


@dataclass(frozen=True)
class StoredValue:
    type: str
    """The type in SQL, which is also the name of its column. All other columns of the row are null."""
    text: str
    """As PostgreSQL prints it."""
    value: Any
    """As psycopg reads it, or as PostgreSQL computes it: what Avro should have."""
    is_special: bool
    """Avro has no value for it."""


def stored_values(database: Database, directory: Path) -> tuple[TableChanges, dict[int, StoredValue]]:
    """The inserts of a table with a column of each type, and the values by the row's key."""
    rng = random.Random(7)
    columns = ", ".join(f'"{_name(kind)}" {kind}' for kind in values.TYPES)
    database.execute(f"{values.DECLARATIONS}; CREATE TABLE every (id int PRIMARY KEY, {columns})")
    kinds: dict[int, str] = {}
    with captured(database, directory) as log:
        for kind in values.TYPES:
            for _ in range(_PER_TYPE):
                kinds[len(kinds) + 1] = kind
                statement = sql.SQL("INSERT INTO every (id, {}) VALUES (%s, %s)").format(sql.Identifier(_name(kind)))
                log.connection.execute(statement, [len(kinds), values.TYPES[kind](rng).replace("\0", "")])
        log.catch_up()
        found = {key: _stored(log.connection, key, kind) for key, kind in kinds.items()}
        return _changes(log.store), found


def _changes(store: Store) -> TableChanges:
    """All changes of the table, as a sink gets them."""
    reader = LogReader(store)
    batch = planner.next_batch(reader, planner.start_offset(reader, None), planner.UNLIMITED)
    chunks = [chunk for _, chunk in decoding.chunks(reader, batch.slices, ChangeFilter(), as_text=True)]
    (run,) = (run for run in coalesce(chunks) if run.relation.name == "every")
    return run


def _name(kind: str) -> str:
    return kind.replace('"', "")


def _stored(connection: psycopg.Connection[Any], key: int, kind: str) -> StoredValue:
    column = f'"{_name(kind)}"'
    is_infinite = "false"
    if kind in _NUMBERS:
        is_infinite = f"{column}::text IN ('NaN', 'Infinity', '-Infinity', 'infinity', '-infinity')"
    if kind == "time":
        is_infinite = f"{column} = '24:00:00'"
    value = column if kind in _PLAIN else "NULL"
    if kind in _NUMBERS:
        value = f"CASE WHEN NOT {is_infinite} THEN {_NUMBERS[kind].format(column)} END"
    printed = connection.execute(f"SELECT {column} FROM every WHERE id = {key}".encode()).pgresult
    assert printed is not None
    # As PostgreSQL sends it: a cast to text prints some types in another way, and psycopg cannot hold all dates.
    text = (printed.get_value(0, 0) or b"").decode()
    ((found, is_special),) = connection.execute(f"SELECT {value}, {is_infinite} FROM every WHERE id = {key}".encode())
    if kind not in _PLAIN and kind not in _NUMBERS:
        found = text
    is_too_far = kind.startswith("timestamp") and found is not None and abs(found) >= 2**63 - 1
    return StoredValue(kind, text, found, bool(is_special) or is_too_far)
