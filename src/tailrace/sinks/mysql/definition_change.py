"""Changes to the definitions of tables. MySQL commits them at once, so they are recorded for a restart to complete.

A record is made in the transaction that precedes the statements. Each statement changes one table's definition, and the
record has this table's definition before it: a restart sees whether the statement was executed. The last transaction
removes the record and saves the table's relation in the ledger.

The server may refuse a statement after others were executed. The record then says so, and each start runs the statement
again, until an operator has removed the cause, or the table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

import pymysql

from tailrace.change import Relation
from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.database.replica import DestinationTable
from tailrace.sinks.mysql.ledger import MysqlLedger
from tailrace.sinks.mysql.mysql_error import classify, number_of
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.table_name import TableName, TableNames

_REFUSED: Final = "refused"
"""In place of a definition in a record: the statement had no effect. An operator may have altered the table since."""


class RefusedDefinition(SinkRefused):
    """The server refused a statement. `number` is its error's."""

    number: int = 0
    is_partial: bool = False
    """Other statements of the same change were executed."""


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
            number, before = int(row[1]), row[2]
            now = definition(self._session, statements[number].table)
            if before == _REFUSED and now is None:
                # The operator has dropped the table. The next load creates it; changes without a load miss it.
                self._remove_record()
            else:
                if before == _REFUSED:
                    self._record(number, now)
                self._session.commit()
                self._run_from(number, statements, is_done=before not in (_REFUSED, now))
                self._finish(_from_json(row[3]))
        self._session.commit()

    def _run_from(self, number: int, statements: Sequence[DefinitionStatement], *, is_done: bool = False) -> None:
        while True:
            if not is_done:
                self._execute(number, statements[number])
            number, is_done = number + 1, False
            if number == len(statements):
                return
            self._record(number, definition(self._session, statements[number].table))
            self._session.commit()

    def _execute(self, number: int, statement: DefinitionStatement) -> None:
        try:
            self._session.execute(statement.text)
        except pymysql.Error as error:
            classified = classify(error)
            if isinstance(classified, SinkError):
                raise
            # A statement that the server refuses has no effect. Without the record, the table can be loaded again.
            if number == 0:
                self._remove_record()
            else:
                self._record(number, _REFUSED)
            self._session.commit()
            raise self._refusal(number, statement, number_of(error), str(classified)) from None

    def _refusal(self, number: int, statement: DefinitionStatement, error: int, reason: str) -> RefusedDefinition:
        message = f"{statement.table}: the server refuses to change its definition: {reason}: {statement.text}"
        if number == 0:
            refused = RefusedDefinition(message, "remove the cause, and start deliver again")
        else:
            refused = RefusedDefinition(
                message,
                "remove the cause, and start deliver again: it runs the statement again (do not run it yourself) and"
                f" continues. Or drop {statement.table} at the destination, and load it with `tailrace sink reload"
                f" {self._sink} SCHEMA.TABLE`",
            )
        refused.number, refused.is_partial = error, number > 0
        return refused

    def _record(self, number: int, before: str | None) -> None:
        """Record which statement comes next, and the definition of its table before it."""
        self._session.execute(
            f"UPDATE {self._records} SET number = %s, definition = %s WHERE sink = %s", [number, before, self._sink]
        )

    def _remove_record(self) -> None:
        self._session.execute(f"DELETE FROM {self._records} WHERE sink = %s", [self._sink])

    def _finish(self, saved: DestinationTable | None) -> None:
        if saved is not None:
            self._ledger.save_table(saved)
        self._remove_record()


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
