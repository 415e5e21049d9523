"""Reading the table `changes`: who looks for what, and what a row of it says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from tailrace import settings, sinks
from tailrace.audit import exact_json
from tailrace.change import Lsn, Position
from tailrace.errors import ConfigError
from tailrace.sinks import Common
from tailrace.sinks.audit.sink import AuditOptions, place
from tailrace.sinks.database.failure import classified

_FIELDS: Final = (
    *("database", "schema", "table", "operation", "before", "after", "context", "primary_key", "committed_at"),
    *("xid", "commit_position", "ordinal", "previous_key", "unchanged"),
)


@dataclass(frozen=True)
class Row:
    """One change as the table tells it."""

    database: str
    schema: str
    table: str
    operation: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    context: Any
    primary_key: str | None
    committed_at: datetime
    xid: int | None
    commit_position: int
    ordinal: int
    previous_key: str | None
    unchanged: Sequence[str] | None

    @property
    def position(self) -> Position:
        return Position(Lsn(self.commit_position), self.ordinal)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def key_before(self) -> str | None:
        return self.primary_key if self.previous_key is None else self.previous_key


@dataclass(frozen=True)
class Selection:
    """Which changes: those that all of this is true of."""

    xid: int | None = None
    first: Position | None = None
    last: Position | None = None
    """A whole transaction where only its LSN was given."""
    context: Mapping[str, str] = field(default_factory=dict)
    table: tuple[str, str] | None = None
    keys: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return self == Selection()


class Trail:
    def __init__(
        self,
        connection: psycopg.Connection[Any],
        table: tuple[str, str],
        schema: str,
        sink: str,
        database: str | None = None,
    ) -> None:
        """`database`: whose changes are read; None where only one writes to the table."""
        self.connection = connection
        self._database = database
        self.place = table
        self.table = sql.Identifier(*table)
        self.schema = schema
        self.sink = sink

    def find(self, selection: Selection) -> list[Row]:
        """In the log's order."""
        conditions = ["commit_position IS NOT NULL"]
        values: list[Any] = []
        if selection.xid is not None:
            conditions.append("xid = %s")
            values.append(selection.xid)
        if selection.first is not None:
            conditions.append("(commit_position, ordinal) >= (%s, %s)")
            values += [*selection.first]
        if selection.last is not None:
            conditions.append("(commit_position, ordinal) <= (%s, %s)")
            values += [*selection.last]
        for name, text in selection.context.items():
            given = [{name: text}, *([{name: found}] if (found := _json(text)) is not None else [])]
            conditions.append("(" + " OR ".join(["context @> %s::jsonb"] * len(given)) + ")")
            values += [exact_json.dumps(one) for one in given]
        if selection.table is not None:
            conditions.append('schema = %s AND "table" = %s')
            values += [*selection.table]
        if selection.keys:
            conditions.append("(primary_key = ANY (%s) OR previous_key = ANY (%s))")
            values += [list(selection.keys)] * 2
        return self._rows(" AND ".join(conditions), values)

    def life(self, table: tuple[str, str], keys: Sequence[str]) -> list[Row]:
        """All that happened to a row, under the keys that it had before and after, too; with what emptied its table.

        Where one row after the other had the key, it is the last's that came to it from another, or else of them all.
        """
        asked = keys
        found: list[Row] = []
        bound: tuple[int, int] | None = None
        while True:
            condition = 'schema = %s AND "table" = %s AND commit_position IS NOT NULL'
            condition += " AND (primary_key = ANY (%s) OR previous_key = ANY (%s) OR operation = 'TRUNCATE')"
            values: list[Any] = [*table, list(keys), list(keys)]
            if bound is not None:
                condition += " AND (commit_position, ordinal) < (%s, %s)"
                values += [*bound]
            some = self._rows(condition, values)
            came = [n for n, row in enumerate(some) if row.previous_key is not None and row.primary_key in keys]
            if not came:
                found = some + found
                break
            # Before it came to this key it had another; what had this one then was another row.
            row = some[came[-1]]
            found = some[came[-1] :] + found
            assert row.previous_key is not None
            keys, bound = [row.previous_key], (row.commit_position, row.ordinal)
        last = next((row for row in reversed(found) if row.operation != "TRUNCATE"), None)
        if last is not None and last.primary_key not in asked:
            found += self.onward(last)
        by_position = {row.position: row for row in found}
        return [by_position[position] for position in sorted(by_position)]

    def onward(self, row: Row) -> list[Row]:
        """What happened to a row after a change that gave it another key: under all that it got, until it is gone."""
        found: list[Row] = []
        moved: Row | None = row
        while moved is not None:
            key, later = moved.primary_key, self.later(moved)
            moved = None
            for change in later:
                found.append(change)
                if change.after is None:
                    return found
                if change.previous_key == key:
                    moved = change
                    break
        return found

    def last_known(self, row: Row) -> Row | None:
        """The change before that left the row as this one found it; None where the trail does not go back so far."""
        if row.key_before is None:
            return None
        found = self._rows(
            'database = %s AND schema = %s AND "table" = %s AND primary_key = %s'
            " AND (commit_position, ordinal) < (%s, %s)",
            [row.database, row.schema, row.table, row.key_before, row.commit_position, row.ordinal],
            1,
            descending=True,
        )
        return found[0] if found and found[0].after is not None else None

    def later(self, row: Row) -> list[Row]:
        """What happened to the same row afterwards, under the key that this change left it with."""
        return self._rows(
            'database = %s AND schema = %s AND "table" = %s'
            " AND (primary_key = %s OR previous_key = %s OR operation = 'TRUNCATE')"
            " AND (commit_position, ordinal) > (%s, %s)",
            [row.database, row.schema, row.table, *[row.primary_key] * 2, row.commit_position, row.ordinal],
        )

    def _rows(
        self, condition: str, values: Sequence[Any], limit: int | None = None, *, descending: bool = False
    ) -> list[Row]:
        order = "DESC" if descending else "ASC"
        if self._database is not None:
            condition, values = f"database = %s AND {condition}", [self._database, *values]
        query = sql.SQL(
            f"SELECT {{}} FROM {{}} WHERE {condition} ORDER BY commit_position {order}, ordinal {order} LIMIT %s"  # noqa: S608
        ).format(sql.SQL(", ").join(map(sql.Identifier, _FIELDS)), self.table)
        with classified(), self.connection.cursor(row_factory=dict_row) as cursor:
            return [Row(**row) for row in cursor.execute(query, [*values, limit])]


@contextmanager
def opened(given: settings.Settings, environ: Mapping[str, str], name: str | None = None) -> Iterator[Trail]:
    """The trail that a sink of the settings keeps: the only one, unless it is named."""
    database = conninfo_to_dict(given.source.url).get("dbname")
    with at(*options_of(given, environ, name), None if database is None else str(database)) as found:
        yield found


@contextmanager
def at(options: AuditOptions, name: str, database: str | None = None) -> Iterator[Trail]:
    with classified():
        connection = options.connect()
    set_json_loads(exact_json.loads, connection)
    try:
        yield Trail(connection, place(options.table), options.schema, name, database)
    finally:
        connection.close()


def options_of(
    given: settings.Settings, environ: Mapping[str, str], name: str | None = None
) -> tuple[AuditOptions, str]:
    found = [str(raw["name"]) for raw in given.sinks if raw["type"] == "audit" and name in (None, raw["name"])]
    if not found:
        which = "no sink of the type audit" if name is None else f"no audit sink {name!r}"
        raise ConfigError(f"there is {which} in the settings", "it keeps what this command reads: see docs/audit.md")
    if len(found) > 1:
        raise ConfigError(f"there are several audit sinks: {', '.join(found)}", "name one with --sink")
    return sinks.options(given, found[0], AuditOptions, environ).checked(), found[0]


def common_of(given: settings.Settings, environ: Mapping[str, str], name: str) -> Common:
    """Which tables, columns and rows that trail has, and what is masked in it."""
    (common,) = [configured.common for configured in sinks.configured(given, environ) if configured.name == name]
    return common


def keys_of(values: Sequence[str]) -> list[str]:
    """How `primary_key` may hold a key given on a command line: of several columns, as a JSON array."""
    if len(values) == 1:
        return list(values)
    choices = []
    for value in values:
        quoted = json.dumps(value, ensure_ascii=False)
        choices.append([quoted, value] if isinstance(_json(value), int | Decimal | bool) else [quoted])
    return ["[" + ", ".join(some) + "]" for some in itertools.product(*choices)]


def _json(text: str) -> Any:
    """None for what is no JSON, NaN among it."""
    try:
        return exact_json.loads(text)
    except ValueError:
        return None
