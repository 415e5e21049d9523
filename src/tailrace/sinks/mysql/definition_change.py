"""Changes to the definitions of tables. MySQL commits them at once, so they are recorded for a restart to complete.

A record is made in the transaction that precedes the statements. Each statement changes one table's definition, and the
record has this table's definition before it: a restart sees whether the statement was executed. The last transaction
removes the record and saves the table's relation in the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import pymysql

from tailrace.change import Relation
from tailrace.errors import SinkError
from tailrace.sinks.database.replica import DestinationTable
from tailrace.sinks.mysql.ledger import MysqlLedger
from tailrace.sinks.mysql.mysql_error import classify
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.table_name import TableName, TableNames


class DefinitionStatement(NamedTuple):
    """A statement that changes the definition of a table, or creates, renames or drops it."""

    text: str
    table: TableName
    """The table whose definition shows whether the statement was executed."""


class DefinitionChanges:
    """Runs the statements of one sink, one change at a time."""

    def __init__(self, session: MysqlSession, names: TableNames, ledger: MysqlLedger, sink: str) -> None:
        self._session = session
        self._records = names.own("definition_changes").template
        self._ledger = ledger
        self._sink = sink

    def run(self, statements: Sequence[DefinitionStatement], saved: DestinationTable | None) -> None:
        """Commit what was written so far, then run statements and save a table in the ledger.

        The new transaction that saves the table is left open.
        """
        if statements:
            self._session.execute(
                f"INSERT INTO {self._records} (sink, statements, number, definition, saved) VALUES (%s, %s, 0, %s, %s)",
                [self._sink, json.dumps(statements), definition(self._session, statements[0].table), _to_json(saved)],
            )
            self._session.commit()
            self._run_from(0, statements)
        self._finish(saved)

    def run_alone(self, statement: str) -> None:
        """Run a statement that can be repeated, such as CREATE DATABASE IF NOT EXISTS."""
        self._session.commit()
        self._session.execute(statement)

    def complete(self) -> None:
        """Complete a change that was recorded and not finished."""
        row = self._session.row(
            f"SELECT statements, number, definition, saved FROM {self._records} WHERE sink = %s", [self._sink]
        )
        if row is not None:
            statements = [DefinitionStatement(text, TableName(*table)) for text, table in json.loads(row[0])]
            number = int(row[1])
            is_done = definition(self._session, statements[number].table) != row[2]
            self._session.commit()
            self._run_from(number, statements, is_done=is_done)
            self._finish(_from_json(row[3]))
        self._session.commit()

    def _run_from(self, number: int, statements: Sequence[DefinitionStatement], *, is_done: bool = False) -> None:
        while True:
            if not is_done:
                self._execute(number, statements[number])
            number, is_done = number + 1, False
            if number == len(statements):
                return
            self._session.execute(
                f"UPDATE {self._records} SET number = %s, definition = %s WHERE sink = %s",
                [number, definition(self._session, statements[number].table), self._sink],
            )
            self._session.commit()

    def _execute(self, number: int, statement: DefinitionStatement) -> None:
        try:
            self._session.execute(statement.text)
        except pymysql.Error as error:
            # A statement that the server refuses has no effect. Without the record, the table can be loaded again.
            if number == 0 and not isinstance(classify(error), SinkError):
                self._session.execute(f"DELETE FROM {self._records} WHERE sink = %s", [self._sink])
                self._session.commit()
            raise

    def _finish(self, saved: DestinationTable | None) -> None:
        if saved is not None:
            self._ledger.save_table(saved)
        self._session.execute(f"DELETE FROM {self._records} WHERE sink = %s", [self._sink])


def definition(session: MysqlSession, table: TableName) -> str | None:
    """Everything about a table that statements change; None if there is no such table."""
    columns = session.rows(
        "SELECT column_name, column_type, is_nullable, column_default, collation_name, column_comment, extra"
        " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        list(table),
    )
    if not columns:
        return None
    keys = session.rows(
        "SELECT index_name, column_name FROM information_schema.statistics"
        " WHERE table_schema = %s AND table_name = %s ORDER BY index_name, seq_in_index",
        list(table),
    )
    return json.dumps([columns, keys], default=str)


def _to_json(table: DestinationTable | None) -> str | None:
    return None if table is None else json.dumps([table.relation.to_json(), table.target])


def _from_json(text: str | None) -> DestinationTable | None:
    if text is None:
        return None
    relation, target = json.loads(text)
    return DestinationTable(Relation.from_json(relation), (target[0], target[1]))
