"""The replication slot: whether it is there, ours to use, and still has its WAL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from tailrace.settings import Source
from tailrace.source.check.finding import Finding, Severity, script

if TYPE_CHECKING:
    from tailrace.source.check.server import Server

_MUCH_WAL = 1 << 30


@dataclass(frozen=True)
class SlotState:
    name: str
    type: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    holder: str | None
    """The application that streams from it, where we may know."""
    address: str | None
    wal_status: str | None
    reason: str | None
    two_phase: bool
    retained_bytes: int | None


def read_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    # invalidation_reason came with 17, conflicting with 16: as JSON, a column that is not there is simply NULL.
    with connection.cursor(row_factory=class_row(SlotState)) as cursor:
        return cursor.execute(
            """
            SELECT s.slot_name::text AS name, s.slot_type AS type, s.plugin::text, s.database::text, s.active_pid,
                   a.application_name AS holder, a.client_addr::text AS address, s.wal_status,
                   pg_catalog.to_jsonb(s) ->> 'invalidation_reason' AS reason, s.two_phase,
                   CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN
                       pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.restart_lsn)::bigint
                   END AS retained_bytes
            FROM pg_catalog.pg_replication_slots s
            LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
            WHERE s.slot_name = %s
            """,
            [name],
        ).fetchone()


def slot_findings(
    connection: psycopg.Connection[Any], source: Source, server: Server, slot: SlotState | None
) -> Iterator[Finding]:
    subject = f"slot {source.slot}"
    name = sql.Literal(source.slot)
    if slot is None:
        yield Finding(
            Severity.NOTE,
            subject,
            "is not there yet: capture makes it",
            script(connection, "SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput');", name),
        )
        return
    drop = script(connection, "SELECT pg_catalog.pg_drop_replication_slot({});", name)
    other = "give source.slot another name, or drop this slot if nobody needs it"
    if slot.type != "logical" or slot.plugin != "pgoutput":
        yield Finding(Severity.ERROR, subject, f"is for {slot.plugin or slot.type}, not for pgoutput: {other}", drop)
    elif slot.database != server.database:
        yield Finding(Severity.ERROR, subject, f"is of database {slot.database}, not {server.database}: {other}", drop)
    elif slot.wal_status == "lost":
        reason = f" ({slot.reason})" if slot.reason else ""
        yield Finding(
            Severity.ERROR,
            subject,
            f"has lost WAL it still needed{reason}: the changes in it are gone. Drop the slot; a new one starts with "
            "new snapshots of the tables",
            drop,
        )
    elif slot.wal_status == "unreserved":
        yield Finding(
            Severity.WARNING,
            subject,
            "is past max_slot_wal_keep_size and about to lose its WAL: start capture now, or raise the limit",
            "ALTER SYSTEM SET max_slot_wal_keep_size = -1;\nSELECT pg_catalog.pg_reload_conf();",
        )
    elif slot.active_pid is None and (slot.retained_bytes or 0) > _MUCH_WAL:
        held = f"{(slot.retained_bytes or 0) / (1 << 30):.1f} GiB"
        yield Finding(Severity.WARNING, subject, f"holds back {held} of WAL and nobody reads it: start capture")
    yield from _holder(connection, subject, slot)
    if slot.two_phase:
        yield Finding(
            Severity.WARNING,
            subject,
            "was made with two_phase; Tailrace reads a prepared transaction when it is committed, and expects a slot "
            "without. Dropping it loses what it has not sent yet",
            drop,
        )


def _holder(connection: psycopg.Connection[Any], subject: str, slot: SlotState) -> Iterator[Finding]:
    if slot.active_pid is None:
        return
    who = f"process {slot.active_pid}"
    if slot.holder:
        who += f", application {slot.holder}"
    if slot.address:
        who += f", from {slot.address}"
    if slot.holder == "tailrace":
        yield Finding(Severity.NOTE, subject, f"is being read by a capture ({who}): a second one would be refused")
        return
    mend = script(connection, "SELECT pg_catalog.pg_terminate_backend({});", sql.Literal(slot.active_pid))
    yield Finding(Severity.ERROR, subject, f"is being read by somebody else ({who})", mend)
