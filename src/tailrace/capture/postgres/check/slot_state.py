"""The replication slot: whether it exists, is usable, and still has its WAL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from tailrace.capture.postgres.check.fix import script
from tailrace.finding import Finding, Severity
from tailrace.settings import SourceSettings

if TYPE_CHECKING:
    from tailrace.capture.postgres.check.server import ServerState

_MUCH_WAL = 1 << 30


@dataclass(frozen=True)
class SlotState:
    name: str
    type: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    holder: str | None
    """The name of the application that streams from the slot, if the role may see it."""
    address: str | None
    wal_status: str | None
    reason: str | None
    two_phase: bool
    retained_bytes: int | None


def read_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    # invalidation_reason exists since 17, conflicting since 16; read through JSON, a missing column is NULL.
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
    connection: psycopg.Connection[Any], source: SourceSettings, server: ServerState, slot: SlotState | None
) -> Iterator[Finding]:
    subject = f"slot {source.slot}"
    name = sql.Literal(source.slot)
    if slot is None:
        yield Finding(
            Severity.NOTE,
            subject,
            "does not exist yet: capture creates it",
            script(connection, "SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput');", name),
        )
        return
    drop = script(connection, "SELECT pg_catalog.pg_drop_replication_slot({});", name)
    # What somebody else uses is not offered to be dropped.
    other = "give source.slot another name"
    if slot.type != "logical" or slot.plugin != "pgoutput":
        yield Finding(Severity.ERROR, subject, f"is for {slot.plugin or slot.type}, not for pgoutput: {other}")
        return
    if slot.database != server.database:
        message = f"belongs to database {slot.database}, not {server.database}: {other}"
        yield Finding(Severity.ERROR, subject, message)
        return
    if slot.wal_status == "lost":
        reason = f" ({slot.reason})" if slot.reason else ""
        yield Finding(
            Severity.ERROR,
            subject,
            f"has lost WAL that it still needed{reason}: the changes in it are lost. Drop the slot; a new one starts "
            "with new snapshots of the tables",
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
        size = f"{(slot.retained_bytes or 0) / (1 << 30):.1f} GiB"
        yield Finding(Severity.WARNING, subject, f"retains {size} of WAL, and no process reads it: start capture")
    yield from _holder_findings(connection, subject, slot)
    if slot.two_phase:
        yield Finding(
            Severity.WARNING,
            subject,
            "was created with two_phase, but Tailrace reads prepared transactions when they are committed, and expects "
            "a slot without it. Dropping the slot loses the changes that it has not sent yet",
            drop,
        )


def _holder_findings(connection: psycopg.Connection[Any], subject: str, slot: SlotState) -> Iterator[Finding]:
    if slot.active_pid is None:
        return
    who = f"process {slot.active_pid}"
    if slot.holder:
        who += f", application {slot.holder}"
    if slot.address:
        who += f", from {slot.address}"
    if slot.holder == "tailrace":
        yield Finding(Severity.NOTE, subject, f"is in use by a capture ({who}): a second one would be rejected")
        return
    fix = script(connection, "SELECT pg_catalog.pg_terminate_backend({});", sql.Literal(slot.active_pid))
    yield Finding(Severity.ERROR, subject, f"is in use by another client ({who})", fix)
