"""Reads the table `changes`."""

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
from tailrace.delivery.sink_settings import SinkSettings
from tailrace.errors import ConfigError
from tailrace.sinks.audit.sink import AuditOptions, table_name
from tailrace.sinks.database.postgresql.destination_error import classify_errors

_FIELDS: Final = (
    *("database", "schema", "table", "operation", "before", "after", "context", "primary_key", "committed_at"),
    *("xid", "commit_position", "ordinal", "previous_key", "unchanged"),
)


@dataclass(frozen=True)
class AuditRow:
    """One change, as a row of the table."""

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
class AuditTransaction:
    """The recorded changes of one transaction, counted."""

    commit_position: int
    xid: int | None
    committed_at: datetime
    operations: Mapping[str, int]
    """The number of changes by operation."""
    tables: Sequence[str]
    context: Any
    """Of its first change."""

    @property
    def position(self) -> Lsn:
        return Lsn(self.commit_position)


@dataclass(frozen=True)
class Selection:
    """Criteria for changes; a change must meet all of them."""

    xid: int | None = None
    first: Position | None = None
    last: Position | None = None
    """The end of its transaction if only an LSN was given."""
    context: Mapping[str, str] = field(default_factory=dict)
    table: tuple[str, str] | None = None
    keys: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return self == Selection()


class Trail:
    """An audit trail: the table `changes` of one sink."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        table: tuple[str, str],
        schema: str,
        sink: str,
        database: str | None = None,
    ) -> None:
        """Read a trail.

        Args:
            connection: The destination.
            table: Schema and name of the table.
            schema: The schema of Tailrace's own tables.
            sink: The sink's name.
            database: Whose changes to read; None if only one database writes to the table.
        """
        self.connection = connection
        self._database = database
        self.table_name = table
        self.table = sql.Identifier(*table)
        self.schema = schema
        self.sink = sink

    def find(self, selection: Selection) -> list[AuditRow]:
        """The changes that meet the criteria, in log order."""
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
            candidates = [{name: text}, *([{name: found}] if (found := _json(text)) is not None else [])]
            conditions.append("(" + " OR ".join(["context @> %s::jsonb"] * len(candidates)) + ")")
            values += [exact_json.dumps(candidate) for candidate in candidates]
        if selection.table is not None:
            conditions.append('schema = %s AND "table" = %s')
            values += [*selection.table]
        if selection.keys:
            conditions.append("(primary_key = ANY (%s) OR previous_key = ANY (%s))")
            values += [list(selection.keys)] * 2
        return self._rows(" AND ".join(conditions), values)

    def history(self, table: tuple[str, str], keys: Sequence[str]) -> list[AuditRow]:
        """All changes of a row, also under its earlier and later keys, and the TRUNCATEs of its table.

        If several rows had the key in turn, these are the changes of the last row that changed to it from another key,
        or of all of them if none did.
        """
        requested = keys
        found: list[AuditRow] = []
        bound: tuple[int, int] | None = None
        while True:
            condition = 'schema = %s AND "table" = %s AND commit_position IS NOT NULL'
            condition += " AND (primary_key = ANY (%s) OR previous_key = ANY (%s) OR operation = 'TRUNCATE')"
            values: list[Any] = [*table, list(keys), list(keys)]
            if bound is not None:
                condition += " AND (commit_position, ordinal) < (%s, %s)"
                values += [*bound]
            rows = self._rows(condition, values)
            key_changes = [n for n, row in enumerate(rows) if row.previous_key is not None and row.primary_key in keys]
            if not key_changes:
                found = rows + found
                break
            # Before this change the row had another key, and this key belonged to another row.
            row = rows[key_changes[-1]]
            found = rows[key_changes[-1] :] + found
            assert row.previous_key is not None
            keys, bound = [row.previous_key], (row.commit_position, row.ordinal)
        last = next((row for row in reversed(found) if row.operation != "TRUNCATE"), None)
        if last is not None and last.primary_key not in requested:
            found += self.after_key_change(last)
        by_position = {row.position: row for row in found}
        return [by_position[position] for position in sorted(by_position)]

    def recent(self, table: tuple[str, str], limit: int) -> list[AuditRow]:
        """The last changes of a table, in log order."""
        condition = 'schema = %s AND "table" = %s AND commit_position IS NOT NULL'
        return self._rows(condition, [*table], limit, descending=True)[::-1]

    def transactions(self, table: tuple[str, str] | None, limit: int) -> list[AuditTransaction]:
        """The last transactions, in log order; with `table`, what they did to it."""
        conditions, values = ["commit_position IS NOT NULL"], []
        if self._database is not None:
            conditions.append("database = %s")
            values.append(self._database)
        if table is not None:
            conditions.append('schema = %s AND "table" = %s')
            values += [*table]
        query = sql.SQL(
            f"WITH recent AS (SELECT DISTINCT commit_position FROM {{0}} WHERE {' AND '.join(conditions)}"  # noqa: S608
            " ORDER BY commit_position DESC LIMIT %s)"
            " SELECT commit_position, operation, count(*) AS changes, min(xid) AS xid,"
            " min(committed_at) AS committed_at,"
            """ array_agg(DISTINCT schema || '.' || "table") AS tables,"""
            " (SELECT c.context FROM {0} c WHERE c.commit_position = t.commit_position ORDER BY c.ordinal LIMIT 1)"
            f" AS context FROM {{0}} t JOIN recent USING (commit_position) WHERE {' AND '.join(conditions)}"
            " GROUP BY commit_position, operation ORDER BY commit_position, operation"
        ).format(self.table)
        with classify_errors(), self.connection.cursor(row_factory=dict_row) as cursor:
            found = cursor.execute(query, [*values, limit, *values]).fetchall()
        return [
            AuditTransaction(
                position,
                rows[0]["xid"],
                min(row["committed_at"] for row in rows),
                {row["operation"]: row["changes"] for row in rows},
                sorted({table for row in rows for table in row["tables"]}),
                rows[0]["context"],
            )
            for position, group in itertools.groupby(found, lambda row: row["commit_position"])
            if (rows := list(group))
        ]

    def after_key_change(self, row: AuditRow) -> list[AuditRow]:
        """The changes of a row after one that changed its key, under all its later keys, until it is deleted."""
        found: list[AuditRow] = []
        key_change: AuditRow | None = row
        while key_change is not None:
            key, later = key_change.primary_key, self.later_changes(key_change)
            key_change = None
            for change in later:
                found.append(change)
                if change.after is None:
                    return found
                if change.previous_key == key:
                    key_change = change
                    break
        return found

    def previous_change(self, row: AuditRow) -> AuditRow | None:
        """The previous change of the same row; None if the trail does not have it."""
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

    def later_changes(self, row: AuditRow) -> list[AuditRow]:
        """Later changes under the key that this change left the row with, and TRUNCATEs."""
        return self._rows(
            'database = %s AND schema = %s AND "table" = %s'
            " AND (primary_key = %s OR previous_key = %s OR operation = 'TRUNCATE')"
            " AND (commit_position, ordinal) > (%s, %s)",
            [row.database, row.schema, row.table, *[row.primary_key] * 2, row.commit_position, row.ordinal],
        )

    def _rows(
        self, condition: str, values: Sequence[Any], limit: int | None = None, *, descending: bool = False
    ) -> list[AuditRow]:
        order = "DESC" if descending else "ASC"
        if self._database is not None:
            condition, values = f"database = %s AND {condition}", [self._database, *values]
        query = sql.SQL(
            f"SELECT {{}} FROM {{}} WHERE {condition} ORDER BY commit_position {order}, ordinal {order} LIMIT %s"  # noqa: S608
        ).format(sql.SQL(", ").join(map(sql.Identifier, _FIELDS)), self.table)
        with classify_errors(), self.connection.cursor(row_factory=dict_row) as cursor:
            return [AuditRow(**row) for row in cursor.execute(query, [*values, limit])]


@contextmanager
def open_trail(all_settings: settings.Settings, environ: Mapping[str, str], name: str | None = None) -> Iterator[Trail]:
    """The trail of an audit sink in the settings: of the only one, unless it is named."""
    database = conninfo_to_dict(all_settings.source.url).get("dbname")
    with connect(*audit_options(all_settings, environ, name), None if database is None else str(database)) as found:
        yield found


@contextmanager
def connect(options: AuditOptions, name: str, database: str | None = None) -> Iterator[Trail]:
    """The trail that a sink with these options writes."""
    with classify_errors():
        connection = options.connect()
    set_json_loads(exact_json.loads, connection)
    try:
        trail = Trail(connection, table_name(options.table), options.schema, name, database)
        quoted = trail.table.as_string(connection)
        with classify_errors():
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [quoted]).fetchone()
        if found != (True,):
            raise ConfigError(
                f"there is no audit trail yet: table {quoted} does not exist",
                f"sink {name} creates it when it starts: `tailrace status` shows whether it runs",
            )
        yield trail
    finally:
        connection.close()


def audit_options(
    all_settings: settings.Settings, environ: Mapping[str, str], name: str | None = None
) -> tuple[AuditOptions, str]:
    """Options and name of the only audit sink, or of the one that is named."""
    found = [str(raw["name"]) for raw in all_settings.sinks if raw["type"] == "audit" and name in (None, raw["name"])]
    if not found:
        which = "no sink of the type audit" if name is None else f"no audit sink {name!r}"
        raise ConfigError(f"there is {which} in the settings", "this command reads its table: see docs/audit.md")
    if len(found) > 1:
        raise ConfigError(f"there are several audit sinks: {', '.join(found)}", "name one with --sink")
    return sinks.read_options(all_settings, found[0], AuditOptions, environ).validate(), found[0]


def common_settings(all_settings: settings.Settings, environ: Mapping[str, str], name: str) -> SinkSettings:
    """The sink's settings for tables, columns, rows and masks."""
    (common,) = [
        configured.common for configured in sinks.from_settings(all_settings, environ) if configured.name == name
    ]
    return common


def key_texts(values: Sequence[str]) -> list[str]:
    """The forms that a key given on the command line may have in `primary_key`: a JSON array for several columns."""
    if len(values) == 1:
        return list(values)
    choices = []
    for value in values:
        quoted = json.dumps(value, ensure_ascii=False)
        choices.append([quoted, value] if isinstance(_json(value), int | Decimal | bool) else [quoted])
    return ["[" + ", ".join(chosen) + "]" for chosen in itertools.product(*choices)]


def _json(text: str) -> Any:
    """The value of a JSON text; None if it is not JSON, or NaN."""
    try:
        return exact_json.loads(text)
    except ValueError:
        return None
