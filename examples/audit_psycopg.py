"""Audit context from an application that uses psycopg: each transaction names its user, and the audit trail records it.

    python examples/audit_psycopg.py postgresql://user@host/database

creates a table `notes`, waits until `tailrace audit` captures it, and changes it as two users. The trail's column
`context` has both.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


@contextmanager
def audited(connection: psycopg.Connection, **context: object) -> Iterator[psycopg.Connection]:
    """Run a transaction whose changes carry `context`."""
    with connection.transaction():
        # Transactional (true): if the transaction is rolled back, so is the message.
        connection.execute("SELECT pg_logical_emit_message(true, '_bemi', %s)", [json.dumps(context)])
        yield connection


def wait_until_captured(connection: psycopg.Connection) -> None:
    """Wait for a running `tailrace audit`, which adds new tables to its publication within seconds.

    An application need not do this. But what changes before that is not in the trail.
    """
    query = "SELECT FROM pg_publication_tables WHERE tablename = 'notes'"
    if connection.execute(query).fetchone() is None:
        print(
            "waiting until the table is captured: is `tailrace audit` running? If it may not add it, its log says why"
        )
    while connection.execute(query).fetchone() is None:
        time.sleep(0.5)


def main(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (id int PRIMARY KEY, body text)")
        wait_until_captured(connection)
        with audited(connection, user="ann", request_id="r-1") as transaction:
            transaction.execute("INSERT INTO notes VALUES (1, 'draft') ON CONFLICT (id) DO UPDATE SET body = 'draft'")
        with audited(connection, user="bob", request_id="r-2") as transaction:
            transaction.execute("UPDATE notes SET body = 'final' WHERE id = 1")


if __name__ == "__main__":
    main(sys.argv[1])
