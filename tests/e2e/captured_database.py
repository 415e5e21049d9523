"""A captured database: a test changes it and reads the changes from the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from click.testing import CliRunner
from tests import oracle
from tests.capturing import CaptureThread, configured
from tests.fixtures.postgres import Database

from tailrace.change import Change, Column, Lsn, Relation, Value
from tailrace.cli import main
from tailrace.embedded.process import wait_until
from tailrace.log.reader import LogReader
from tailrace.log.verify import VerificationTotals, verify
from tailrace.store import Store

_MARK = "tests.e2e"


class CapturedDatabase:
    """A captured database. `changes` waits for everything committed before the call."""

    def __init__(self, store: Store, connection: psycopg.Connection[Any], running: CaptureThread) -> None:
        self.store = store
        self.connection = connection
        self.running = running
        self.left_out = 0
        """The number of changes of Tailrace's own tables in transactions with other changes."""
        self._marks = count(1)

    def execute(self, *statements: str) -> None:
        """Run statements, each in its own transaction."""
        for statement in statements:
            self.connection.execute(statement.encode())

    def catch_up(self) -> None:
        """Wait until the log has everything committed so far."""
        query = "SELECT pg_logical_emit_message(true, %s, %s::text)::text"
        row = self.connection.execute(query, [_MARK, str(next(self._marks))]).fetchone()
        assert row is not None
        self.running.wait_for(Lsn(Lsn.parse(row[0]) + 1))

    def changes(self, table: str | None = None) -> list[Change]:
        """The changes of one table, or all, without the markers of this module."""
        self.catch_up()
        return self.changes_now(table)

    def changes_now(self, table: str | None = None) -> list[Change]:
        """The changes that the log has now; capture may have ended."""
        every = [c for c in LogReader(self.store).changes() if c.prefix != _MARK]
        return [c for c in every if table in (None, c.table)]

    def assert_follows(self, *tables: str, schema: str = "public") -> None:
        """Applied to empty tables, the changes give PostgreSQL's rows."""
        replica = oracle.replay(self.changes())
        for table in tables:
            assert replica.rows(schema, table) == oracle.rows(self.connection, schema, table), table


@contextmanager
def captured(database: Database, directory: Path, **capture: Any) -> Iterator[CapturedDatabase]:
    """Capture the publication that the test created, else all tables."""
    if not database.rows("SELECT 1 FROM pg_publication WHERE pubname = 'tailrace'"):
        database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    store = Store.open(str(directory / "store"))
    with database.connect(client_encoding="UTF8") as connection:
        with CaptureThread(configured(database, **capture), store) as running:
            log = CapturedDatabase(store, connection, running)
            yield log
        tally = VerificationTotals()
        assert not list(verify(store, tally))
        assert tally.left_out == log.left_out


def operation_and_rows(change: Change) -> tuple[str, dict[str, Value] | None, dict[str, Value] | None]:
    return str(change.operation), change.before, change.after


def relation_of(change: Change) -> Relation:
    assert change.relation is not None
    return change.relation


def column_of(relation: Relation, name: str) -> Column:
    (column,) = [c for c in relation.columns if c.name == name]
    return column


def cat(store: Store, *arguments: str) -> list[dict[str, Any]]:
    """The output of `tailrace log cat --json`, with numbers as the printed digits."""
    result = CliRunner().invoke(main, ["log", "cat", "--json", "--store", store.url, *arguments])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line, parse_float=str, parse_int=str) for line in result.stdout.split("\n") if line]
    return [line for line in lines if line["message_prefix"] != _MARK]


def eventually(condition: Any, seconds: float = 60) -> None:
    assert wait_until(condition, seconds), "timed out"
