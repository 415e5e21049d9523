"""Who did it, from an application that uses psycopg: each transaction says it, and the audit trail keeps it.

    python examples/audit_psycopg.py postgresql://user@host/database

makes a table `notes` and changes it under two users; the trail's `context` has them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


@contextmanager
def acting(connection: psycopg.Connection, **context: object) -> Iterator[psycopg.Connection]:
    """A transaction whose changes carry this context."""
    with connection.transaction():
        # Transactional (true): if the transaction is rolled back, so is the message.
        connection.execute("SELECT pg_logical_emit_message(true, '_bemi', %s)", [json.dumps(context)])
        yield connection


def main(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (id int PRIMARY KEY, body text)")
        with acting(connection, user="ann", request_id="r-1") as transaction:
            transaction.execute("INSERT INTO notes VALUES (1, 'draft') ON CONFLICT (id) DO UPDATE SET body = 'draft'")
        with acting(connection, user="bob", request_id="r-2") as transaction:
            transaction.execute("UPDATE notes SET body = 'final' WHERE id = 1")


if __name__ == "__main__":
    main(sys.argv[1])
