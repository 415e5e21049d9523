"""The input of delivery benchmarks: a database whose changes are already in a log, and a slot from before them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tailrace.embedded.postgres import Postgres

BEFORE = "before"
"""The slot whose position is before the load."""
FINISHED = "finished"
"""A table whose only row is the load's last transaction: a reader that sees the row has everything."""


@dataclass(frozen=True)
class ReadyLog:
    server: Postgres
    database: str
    store_url: str
    tables: tuple[str, ...]
    """All tables, including `finished`. The first column of each is its key."""
    capture_seconds: float

    def connect(self) -> psycopg.Connection[Any]:
        return self.server.connect(self.database)

    def capture_rest(self) -> None:
        """Capture what was committed since."""
        capture(self.server, self.database, self.store_url)

    def drop_slots(self) -> None:
        """Drop all slots, so that another database of the server can use their names."""
        with self.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def make(server: Postgres, database: str, store_url: str, tables: Sequence[str], load: Sequence[str]) -> ReadyLog:
    """Create empty tables, take their snapshots, run the load statement by statement, and capture all of it."""
    server.create_database(database)
    with server.connect(database) as connection:
        for statement in tables:
            connection.execute(statement.encode())
        connection.execute(f"CREATE TABLE {FINISHED} (id int PRIMARY KEY)".encode())
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
        capture(server, database, store_url)
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [BEFORE])
        connection.execute("SET synchronous_commit = off")  # speeds up the load; the WAL holds all of it anyway
        for statement in load:
            connection.execute(statement.encode())
        connection.execute("SET synchronous_commit = on")
        connection.execute(f"INSERT INTO {FINISHED} VALUES (1)".encode())
    began = time.monotonic()
    capture(server, database, store_url)
    return ReadyLog(server, database, store_url, tuple(name for (name,) in names), time.monotonic() - began)


def capture(server: Postgres, database: str, store_url: str) -> None:
    """Run capture until the log has everything that is committed now."""
    environment = {"TAILRACE_SOURCE_URL": server.url_of(database), "TAILRACE_STORE_URL": store_url}
    command = [sys.executable, "-m", "tailrace", "capture", "--until-lsn", "current"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
