"""Transactions that see what an exported snapshot saw, and the lock under which they read a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from tailrace.capture.postgres.snapshot_plan import TablePart
from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import Type
from tailrace.errors import SnapshotError

Connection = psycopg.Connection[Any]


def use_snapshot(connection: psycopg.Connection[Any], snapshot: str) -> None:
    """Begin a transaction that sees exactly what the snapshot saw."""
    with source_errors():
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))


@contextmanager
def locked(connection: Connection, part: TablePart) -> Iterator[None]:
    """Lock the table's definition while one part is read. Rolling back to a savepoint releases the lock.

    Otherwise an ALTER TABLE, and all queries queued behind it, would wait until the last table is read.
    """
    connection.execute("SAVEPOINT part")
    try:
        heap = sql.Identifier(part.heap.schema, part.heap.name)
        connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(heap))
        _check_definition(connection, part)
        yield
    except BaseException:
        with suppress(psycopg.Error):
            _abandon_copy(connection)
            _release(connection)
        raise
    _release(connection)


def _release(connection: Connection) -> None:
    connection.execute("ROLLBACK TO part")
    connection.execute("RELEASE part")


def _abandon_copy(connection: Connection) -> None:
    """End the running COPY, as the connection accepts no other command before that."""
    pgconn = connection.pgconn
    if pgconn.transaction_status == TransactionStatus.ACTIVE:
        pgconn.get_cancel().cancel()
        with suppress(psycopg.Error):
            while pgconn.get_copy_data(0)[0] > 0:
                pass
        while pgconn.get_result() is not None:
            pass


def _check_definition(connection: Connection, part: TablePart) -> None:
    """Raise if the table's definition changed since the snapshot.

    Queries see rows as of the snapshot, but definitions as of now, so changes in between would be misread. A table
    rewritten since looks empty, and the stream would not show it.
    """
    name = sql.Identifier(part.heap.schema, part.heap.name)
    # The row of pg_class is the snapshot's; the functions read the current catalogue.
    row = connection.execute(
        "SELECT pg_catalog.to_regclass(%s) = c.oid AND pg_catalog.pg_relation_filenode(c.oid) = c.relfilenode"
        " FROM pg_catalog.pg_class c WHERE c.oid = %s",
        [name.as_string(connection), part.heap.oid],
    ).fetchone()
    is_root = part.heap.oid == part.relation.oid
    result = connection.execute(part.select + sql.SQL(" LIMIT 0")).pgresult
    assert result is not None
    now = [(result.ftype(i), result.ftablecol(i) if is_root else None) for i in range(result.nfields)]
    # A result describes a domain as its base type.
    then = [(_base(c.type).oid, c.number if is_root else None) for c in part.relation.columns]
    if row != (True,) or now != then:
        raise SnapshotError(
            f"{part.relation.qualified_name} was rewritten, truncated or altered while it was read",
            "take the snapshot of this table again",
        )


def _base(type_: Type) -> Type:
    return _base(type_.base) if type_.base is not None else type_
