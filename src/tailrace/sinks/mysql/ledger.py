"""A sink's state at the destination: its cursor, its tables with their last relations, and how far a step got."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from tailrace.change import OWN, Lsn, Position, Relation
from tailrace.delivery.contract import State
from tailrace.errors import FencedError, SinkError, SinkRefused
from tailrace.sinks.database.replica import DestinationTable
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.table_name import TableName, TableNames

_LOCK_TIMEOUT_S: Final = 2
"""The server takes a moment to release the lock of a connection that this process has just closed."""
_TABLES: Final = {
    "sinks": (
        "name varchar(63) PRIMARY KEY, mode varchar(16) NOT NULL, cursor_lsn varchar(17),"
        " delivered_at datetime(6) NOT NULL",
        "the tables contain every change that commits below the cursor",
    ),
    "tables": (
        "sink varchar(63) NOT NULL, oid bigint NOT NULL, lsn varchar(17), relation longtext,"
        " target_schema longtext, target_table longtext, database_name varchar(64), table_name varchar(64),"
        " PRIMARY KEY (sink, oid)",
        "the tables it maintains, each with its last definition at the source",
    ),
    "progress": (
        "sink varchar(63) NOT NULL, oid bigint NOT NULL, position varchar(40) NOT NULL, PRIMARY KEY (sink, oid)",
        "changes that precede a new definition of their table and were applied by a step that is not complete yet",
    ),
    "definition_changes": (
        "sink varchar(63) PRIMARY KEY, statements longtext NOT NULL, number int NOT NULL, definition longtext,"
        " saved longtext",
        "statements that define tables, and that a restart completes",
    ),
}


class MysqlLedger:
    """The state of one sink, in tables of the URL's database that all its sinks share."""

    def __init__(self, session: MysqlSession, names: TableNames, sink: str) -> None:
        self._session = session
        self._names = names
        self._sink = sink
        self._sinks, self._tables = names.own("sinks").template, names.own("tables").template
        self._progress = names.own("progress").template

    def create(self, mode: str) -> None:
        """Create the tables and the sink's row; SinkRefused if the sink exists with another mode."""
        for name, (columns, comment) in _TABLES.items():
            self._session.execute(
                f"CREATE TABLE IF NOT EXISTS {self._names.own(name).sql} ({columns}) ENGINE = InnoDB"
                f" CHARACTER SET utf8mb4 COLLATE {self._session.collation} COMMENT '{OWN} {comment}'"
            )
        self._session.execute(
            f"INSERT IGNORE INTO {self._sinks} (name, mode, delivered_at) VALUES (%s, %s, now(6))", [self._sink, mode]
        )
        found = self._session.value(f"SELECT mode FROM {self._sinks} WHERE name = %s", [self._sink])
        self._session.commit()
        if found != mode:
            raise SinkRefused(
                f"sink {self._sink} exists already with a mode other than {mode!r}",
                "give the sink another name and route it to other tables",
            )

    def lock(self) -> None:
        """Lock the sink for this session: only one process may deliver to it."""
        digest = hashlib.sha256(f"{self._names.own('sinks')} {self._sink}".encode()).hexdigest()[:32]
        if self._session.value("SELECT GET_LOCK(%s, %s)", [f"tailrace {digest}", _LOCK_TIMEOUT_S]) != 1:
            raise SinkError(
                f"another process is delivering to sink {self._sink} at this destination",
                "stop one of them; if the other was killed, the server releases its lock within 2 minutes; retrying",
            )

    def exists(self) -> bool:
        """Whether the tables have been created, and the sink has a cursor."""
        query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        if not self._session.value(query, list(self._names.own("definition_changes"))):
            return False
        return self.state().cursor is not None

    def is_defining(self) -> bool:
        """Whether a step is incomplete that changes the definition of a table: some rows may be ahead of the cursor."""
        changes = self._names.own("definition_changes").template
        return bool(
            self._session.value(
                f"SELECT (SELECT count(*) FROM {self._progress} WHERE sink = %s)"
                f" + (SELECT count(*) FROM {changes} WHERE sink = %s)",
                [self._sink, self._sink],
            )
        )

    def state(self) -> State:
        """The cursor, and the tables with an LSN of their own."""
        cursor = self._session.value(f"SELECT cursor_lsn FROM {self._sinks} WHERE name = %s", [self._sink])
        tables = self._session.rows(
            f"SELECT oid, lsn FROM {self._tables} WHERE sink = %s AND lsn IS NOT NULL", [self._sink]
        )
        found = Lsn.parse(cursor) if cursor else None
        return State(found, {oid: Lsn.parse(lsn) for oid, lsn in tables})

    def tables(self) -> dict[int, DestinationTable]:
        """The sink's tables, by the source's oid."""
        rows = self._session.rows(
            f"SELECT oid, relation, target_schema, target_table FROM {self._tables}"
            " WHERE sink = %s AND relation IS NOT NULL",
            [self._sink],
        )
        return {oid: DestinationTable(Relation.from_json(text), (schema, name)) for oid, text, schema, name in rows}

    def owner(self, table: TableName) -> tuple[str, str] | None:
        """The sink that owns a table, and the table's name at the source."""
        row = self._session.row(
            f"SELECT sink, target_schema, target_table FROM {self._tables}"
            " WHERE database_name = %s AND table_name = %s",
            list(table),
        )
        return (row[0], f"{row[1]}.{row[2]}") if row else None

    def lock_cursor(self, before: State) -> None:
        """Lock the cursor until the transaction ends; FencedError if another process has moved it."""
        row = self._session.row(f"SELECT cursor_lsn FROM {self._sinks} WHERE name = %s FOR UPDATE", [self._sink])
        stored = Lsn.parse(row[0]) if row and row[0] else None
        if row is None or stored != before.cursor:
            raise self._fenced(before, stored)

    def advance(self, before: State, after: State) -> None:
        """Store a new state."""
        self._set_table_lsns(before.tables, after.tables)
        if before.cursor != after.cursor:
            self._session.execute(f"DELETE FROM {self._progress} WHERE sink = %s", [self._sink])
        # A definition may have released the lock on the cursor.
        found = self._session.execute(
            f"UPDATE {self._sinks} SET cursor_lsn = %s, delivered_at = now(6) WHERE name = %s AND cursor_lsn <=> %s",
            [_text(after.cursor), self._sink, _text(before.cursor)],
        )
        if found != 1:
            raise self._fenced(before, self.state().cursor)

    def progress(self) -> dict[int, Position]:
        """By oid, the last change of an incomplete step that is applied already."""
        rows = self._session.rows(f"SELECT oid, position FROM {self._progress} WHERE sink = %s", [self._sink])
        return {oid: Position.parse(position) for oid, position in rows}

    def set_progress(self, oid: int, position: Position) -> None:
        self._session.execute(
            f"REPLACE INTO {self._progress} (sink, oid, position) VALUES (%s, %s, %s)", [self._sink, oid, str(position)]
        )

    def _clear_progress(self, oid: int) -> None:
        self._session.execute(f"DELETE FROM {self._progress} WHERE sink = %s AND oid = %s", [self._sink, oid])

    def save_table(self, table: DestinationTable) -> None:
        self._session.execute(
            f"INSERT INTO {self._tables}"
            " (sink, oid, relation, target_schema, target_table, database_name, table_name)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE relation = VALUES(relation),"
            " target_schema = VALUES(target_schema), target_table = VALUES(target_table),"
            " database_name = VALUES(database_name), table_name = VALUES(table_name)",
            [
                *(self._sink, table.relation.oid, table.relation.to_json()),
                *(*table.target, *self._names.of(table.target)),
            ],
        )

    def delete_table(self, oid: int) -> None:
        self._session.execute(f"DELETE FROM {self._tables} WHERE sink = %s AND oid = %s", [self._sink, oid])

    def delete_relation(self, oid: int) -> None:
        """Forget a table's definition, but not its LSN."""
        self._session.execute(
            f"UPDATE {self._tables} SET relation = NULL, database_name = NULL, table_name = NULL"
            " WHERE sink = %s AND oid = %s",
            [self._sink, oid],
        )

    def _fenced(self, before: State, stored: Lsn | None) -> FencedError:
        return FencedError(
            f"sink {self._sink} is at {stored} at its destination, but this process left it at {before.cursor}: "
            "it was rewound, or another process delivers to it",
            "restart deliver: it continues from the destination's cursor",
        )

    def _set_table_lsns(self, before: Mapping[int, Lsn], after: Mapping[int, Lsn]) -> None:
        """Store the LSN from which on the changes of each table are delivered."""
        for oid, lsn in after.items():
            if before.get(oid) != lsn:
                self._clear_progress(oid)
                self._session.execute(
                    f"INSERT INTO {self._tables} (sink, oid, lsn) VALUES (%s, %s, %s)"
                    " ON DUPLICATE KEY UPDATE lsn = VALUES(lsn)",
                    [self._sink, oid, str(lsn)],
                )
        for oid in before.keys() - after.keys():
            self._clear_progress(oid)
            self._session.execute(
                f"UPDATE {self._tables} SET lsn = NULL WHERE sink = %s AND oid = %s", [self._sink, oid]
            )


def _text(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)
