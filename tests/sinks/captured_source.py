"""A source whose changes are captured on request, for tests that deliver them step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.capturing import CaptureThread, current_lsn
from tests.fixtures.postgres import Database

from tailrace import settings
from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.store import Store


class CapturedSource:
    """A source with the publication `tailrace`, and its log."""

    def __init__(self, source: Database, directory: Path) -> None:
        self.source = source
        self.given = settings.Settings(
            source=settings.SourceSettings(url=source.url, tables=("*.*",)),
            store=settings.StoreSettings(directory.as_uri()),
            capture=settings.CaptureSettings(seal_after_ms=5),
            snapshot=settings.SnapshotSettings(chunk_rows=40),
        )
        self.store = Store.open(self.given.store.url)

    def capture(self, *statements: str, snapshot: Sequence[str] | None = ()) -> None:
        """Run statements, take snapshots of these tables (None: all), and capture everything."""
        with CaptureThread(self.given, self.store) as capture, self.source.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())
            if snapshot is None or snapshot:
                tables = [t for t in catalog.published_tables(connection, "tailrace") if t.name in (snapshot or ())]
                job = SnapshotJob(self.given, None if snapshot is None else tables)
                job.start()
                assert job.wait(60)
                assert job.error is None
                # A commit, so that the log need not wait for a keepalive. Sinks ignore this message.
                connection.execute("SELECT pg_logical_emit_message(true, 'tailrace.snapshot', '')")
            capture.wait_for(current_lsn(connection))
