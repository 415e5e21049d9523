"""A database whose changes are in a log already, and a slot from before them: what deliveries are measured on."""

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
"""The slot that stands before the load."""
FINISHED = "finished"
"""A table whose only row is the load's last transaction: who sees it has everything."""


@dataclass(frozen=True)
class ReadyLog:
    server: Postgres
    database: str
    store_url: str
    tables: tuple[str, ...]
    """With `finished`, and each with its first column as key."""
    capture_seconds: float

    def connect(self) -> psycopg.Connection[Any]:
        return self.server.connect(self.database)

    def capture_rest(self) -> None:
        """What was committed since."""
        capture(self.server, self.database, self.store_url)

    def drop_slots(self) -> None:
        """So that another database of the server can have ones of these names."""
        with self.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def make(server: Postgres, database: str, store_url: str, tables: Sequence[str], load: Sequence[str]) -> ReadyLog:
    """Empty tables, their snapshots, then the load, statement by statement, and all of it in the log."""
    server.create_database(database)
    with server.connect(database) as connection:
        for statement in tables:
            connection.execute(statement.encode())
        connection.execute(f"CREATE TABLE {FINISHED} (id int PRIMARY KEY)".encode())
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
        capture(server, database, store_url)
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [BEFORE])
        connection.execute("SET synchronous_commit = off")  # only making the load; all of it is in the WAL the same
        for statement in load:
            connection.execute(statement.encode())
        connection.execute("SET synchronous_commit = on")
        connection.execute(f"INSERT INTO {FINISHED} VALUES (1)".encode())
    began = time.monotonic()
    capture(server, database, store_url)
    return ReadyLog(server, database, store_url, tuple(name for (name,) in names), time.monotonic() - began)


def capture(server: Postgres, database: str, store_url: str) -> None:
    """Everything that is committed, then it ends."""
    environment = {"TAILRACE_SOURCE_URL": server.url_of(database), "TAILRACE_STORE_URL": store_url}
    command = [sys.executable, "-m", "tailrace", "capture", "--until-lsn", "current"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
