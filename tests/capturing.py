"""Runs capture for tests, in a thread or a process, and reads the same changes from a second slot to compare."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg
from tests.fixtures.postgres import Database

from tailrace import settings
from tailrace.capture.capture import Capture
from tailrace.change import Lsn
from tailrace.embedded.process import wait_until
from tailrace.log.reader import LogReader
from tailrace.pgoutput import message
from tailrace.store import Store


def configured(database: Database, **capture: Any) -> settings.Settings:
    return settings.Settings(
        source=settings.SourceSettings(url=database.url),
        capture=settings.CaptureSettings(**{"seal_after_ms": 5, **capture}),
    )


class CaptureThread:
    """A running capture. Leaving the context stops it and raises its error, if any."""

    def __init__(self, configured: settings.Settings, store: Store, **options: Any) -> None:
        self.capture = Capture(configured, store, **options)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait(lambda: self.capture.is_streaming)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.capture.stop()
        self._thread.join()
        if self.error is not None and error is None:
            raise self.error

    def wait(self, condition: Any, seconds: float = 60) -> None:
        """Wait until the condition holds. Raises capture's error, if any."""
        assert wait_until(lambda: condition() or self.error is not None, seconds), "timed out"
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def wait_for(self, lsn: Lsn) -> None:
        self.wait(lambda: self.capture.durable_lsn >= lsn)

    def failure(self, seconds: float = 60) -> BaseException:
        """Wait for the end of capture, and return its error."""
        assert wait_until(lambda: self.error is not None, seconds), "capture is still running"
        error, self.error = self.error, None
        assert error is not None
        return error

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:
            self.error = error


def environment(database: Database, store_url: str, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for `tailrace`, with segments small enough for a test to write many."""
    given = {
        "TAILRACE_SOURCE_URL": database.url,
        "TAILRACE_SOURCE_SLOT": "tailrace",
        "TAILRACE_STORE_URL": store_url,
        "TAILRACE_CAPTURE_SEAL_AFTER_MS": "5",
        "TAILRACE_CAPTURE_SEGMENT_BYTES": str(64 * 1024),
        "TAILRACE_SNAPSHOT_ON_START": "false",
    }
    given |= {f"TAILRACE_STORE_OPTIONS_{k.upper()}": v for k, v in (options or {}).items()}
    return os.environ | given


def tailrace(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tailrace", *arguments]


def capture_to_end(env: Mapping[str, str]) -> None:
    """Capture everything committed so far in a process that must exit with 0."""
    done = subprocess.run(
        tailrace("capture", "--until-lsn", "current"), env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


class SeenChange(NamedTuple):
    """One change, in a form that both readers of the stream produce."""

    commit_lsn: Lsn
    ordinal: int
    payload: bytes


class Witness:
    """A second slot, read through SQL: all changes in order."""

    def __init__(self, connection: psycopg.Connection[Any], publication: str = "tailrace") -> None:
        """Create capture's slot too, so that both start at the same LSN."""
        self._connection = connection
        self._publication = publication
        connection.execute("SELECT pg_create_logical_replication_slot('tailrace', 'pgoutput')")
        connection.execute("SELECT pg_copy_logical_replication_slot('tailrace', 'witness')")

    @classmethod
    def existing(cls, connection: psycopg.Connection[Any]) -> Witness:
        """The same witness on another connection, for example after a crash."""
        witness = cls.__new__(cls)
        witness._connection, witness._publication = connection, "tailrace"
        return witness

    def changes(self, up_to: Lsn) -> list[SeenChange]:
        rows = self._connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('witness', %s::pg_lsn, NULL, 'proto_version', '1',"
            " 'publication_names', %s, 'messages', 'true')",
            (str(up_to), self._publication),
        )
        seen = []
        begun, ordinal = Lsn(0), 0
        for (payload,) in rows:
            match message.parse(payload):
                case message.Begin(commit_lsn=commit_lsn):
                    begun, ordinal = commit_lsn, 0
                case message.LogicalMessage(transactional=False, lsn=lsn):
                    seen.append(SeenChange(Lsn(lsn - 1), 0, payload))
                case message.Insert() | message.Update() | message.Delete() | message.LogicalMessage():
                    seen.append(SeenChange(begun, ordinal, payload))
                    ordinal += 1
                case message.Truncate(relation_oids=oids):
                    seen.append(SeenChange(begun, ordinal, payload))
                    ordinal += len(oids)
        return seen


def changes_in_log(store: Store, *, across_gaps: bool = False) -> list[SeenChange]:
    """All changes that a reader of the log sees."""
    reader = LogReader(store)
    seen = []
    for span in reader.spans(reader.find(None), across_gaps=across_gaps):
        rows = span.content.rows
        for row in range(span.start, span.stop):
            if rows.kind[row] not in b"CO":
                position = Lsn(rows.commit_lsn[row]), int(rows.ordinal[row])
                seen.append(SeenChange(*position, rows.payload[row].as_py()))
    return seen


def current_lsn(connection: psycopg.Connection[Any]) -> Lsn:
    """The LSN after everything written so far, once it is flushed; messages outside a transaction are flushed later."""
    end = _lsn(connection, "pg_current_wal_insert_lsn")
    past_header = end % 8192
    if past_header <= 40:  # that page has only its header yet, which is written with the next record
        end = Lsn(end - past_header)
    assert wait_until(lambda: _lsn(connection, "pg_current_wal_flush_lsn") >= end, 30)
    return end


def _lsn(connection: psycopg.Connection[Any], function: str) -> Lsn:
    row = connection.execute(f"SELECT {function}()::text".encode()).fetchone()
    assert row is not None
    return Lsn.parse(row[0])
