"""A captured database and its audit trail, updated whenever a test reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from tests.contract.audit_table import AuditTable, Row
from tests.contract.delivery_driver import DeliveryDriver
from tests.e2e.captured_database import CapturedDatabase, captured
from tests.fixtures.postgres import Database
from tests.stepping import DrivenStepper

from tailrace import settings
from tailrace.cli import main
from tailrace.log import planner


@dataclass
class TrailFollower:
    log: CapturedDatabase
    trail: AuditTable
    stepper: DrivenStepper
    source: Database

    def execute(self, *statements: str) -> None:
        self.log.execute(*statements)

    def follow(self) -> None:
        self.log.catch_up()
        self.stepper.deliver(planner.latest_offset(self.stepper._reader))

    def rows(self, table: str | None = None) -> list[Row]:
        """The trail's rows, after delivering everything."""
        self.follow()
        return [row for row in self.trail.rows().values() if table in (None, row["table"])]

    def assert_matches(self) -> None:
        """Assert that the trail has exactly the log's changes."""
        self.follow()
        changes = list(self.log.changes())
        begins = min(change.position.commit_lsn for change in changes)
        assert self.stepper.state.cursor is not None
        self.trail.assert_matches(changes, begins, self.stepper.state.cursor)


@contextmanager
def trailing(source: Database, destination: Database, directory: Path, **more: Any) -> Iterator[TrailFollower]:
    """A trail that begins now."""
    with captured(source, directory) as log:
        trail = AuditTable(destination, more)
        delivering = DeliveryDriver(trail, settings.StoreSettings(log.store.url), name="audit")
        with delivering.stepper() as stepper:
            yield TrailFollower(log, trail, stepper, source)


def write_config(path: Path, source: Database, destination: Database, store: str, **more: Any) -> Path:
    """A tailrace.toml with this trail."""
    lines = [
        *("[source]", f'url = "{source.url}"', "[store]", f'url = "{store}"'),
        *("[[sink]]", 'type = "audit"', 'name = "audit"', f'url = "{destination.url}"'),
        *(f"{key} = {value!r}" for key, value in more.items()),
    ]
    path.write_text("\n".join(lines))
    return path


class Shell:
    """Runs commands with the settings of one trail."""

    def __init__(self, audited: TrailFollower, config: Path) -> None:
        self.audited = audited
        self.config = config

    def run(self, *arguments: str, code: int = 0) -> str:
        self.audited.follow()
        result: Result = CliRunner().invoke(main, ["--config", str(self.config), *arguments])
        assert result.exit_code == code, result.output
        return result.output

    def transaction(self, *statements: str) -> int:
        """Execute statements in one transaction; returns its number."""
        connection = self.audited.log.connection
        with connection.transaction():
            for statement in statements:
                connection.execute(statement.encode())
            row = connection.execute("SELECT pg_current_xact_id()::xid::text::int").fetchone()
            assert row is not None
            return int(row[0])
