"""The prerequisites of a stream: the source's identity, the publication and the slot."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn
from psycopg.rows import class_row

from tailrace.capture.postgres import timeline
from tailrace.capture.postgres.source_connection import classify, connect, run_command, text_value
from tailrace.capture.postgres.source_error import source_errors
from tailrace.capture.postgres.uncaptured import has_publication, unpublished_tables
from tailrace.change import Lsn
from tailrace.errors import SlotLost, SourceRefused, WrongSource
from tailrace.log.segment import SourceIdentity
from tailrace.quantity import count
from tailrace.settings import SourceSettings

_log = logging.getLogger("tailrace.capture")

_POLL_SECONDS = 0.2
# Creating a slot takes milliseconds unless it has to wait; then the operator should know what for.
_QUIET_SECONDS = 3.0

_OTHER_NAME = "give [source] slot another name"

Connection = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    plugin: str
    database: str | None
    confirmed_flush_lsn: str | None
    wal_status: str | None
    active_pid: int | None
    wal_held_bytes: int | None
    """WAL that the server retains because of the slot; None if it retains none."""
    replied_at: datetime | None
    """When the client that streams from the slot last sent its status, by its own clock; None if nobody does, or the
    role lacks pg_read_all_stats."""

    @property
    def lsn(self) -> Lsn:
        return Lsn.parse(self.confirmed_flush_lsn or "0/0")


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    lsn: Lsn
    """Where the stream starts. The exported snapshot holds all transactions that commit below it."""
    snapshot: str
    """The exported snapshot's name, valid until the connection runs its next command."""


def identify(connection: PGconn, source: SourceSettings) -> SourceIdentity:
    result = run_command(connection, "IDENTIFY_SYSTEM")
    return SourceIdentity(
        system_id=text_value(result, 0),
        timeline=int(text_value(result, 1)),
        database=text_value(result, 3),
        slot=source.slot,
        publication=source.publication,
    )


def check_identity(connection: PGconn, current: SourceIdentity, recorded: SourceIdentity, end_lsn: Lsn) -> None:
    """Raise WrongSource if the source's history is not the one that the log was captured from."""
    hint = "point [source] at the database that this log was captured from, or [store] at an empty location"
    for field, meaning in (("system_id", "system id"), ("database", "database"), ("slot", "slot")):
        if getattr(current, field) != getattr(recorded, field):
            raise WrongSource(
                f"the log was captured from {meaning} {getattr(recorded, field)}, "
                f"this source has {meaning} {getattr(current, field)}",
                hint,
            )
    if current.timeline < recorded.timeline:
        raise WrongSource(
            f"the log is on timeline {recorded.timeline}, but this server is on timeline {current.timeline}", hint
        )
    if current.timeline > recorded.timeline:
        switched = timeline.read_history(connection, current.timeline).switch_point(recorded.timeline)
        if switched is None or end_lsn > switched:
            raise WrongSource(
                f"timeline {current.timeline} branched off timeline {recorded.timeline} at "
                f"{switched or 'an unknown LSN'}, but the log already holds changes "
                f"up to {end_lsn} of timeline {recorded.timeline}",
                "the new primary lost changes that the log has: start a new log, or restore the old primary",
            )
        _log.info("the source was promoted to timeline %d at %s; the log continues", current.timeline, switched)


def wal_sender_timeout_s(connection: PGconn) -> float | None:
    """The server's wal_sender_timeout in seconds; None if it is off."""
    query = "SELECT setting::int FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
    result = run_command(connection, query)
    return int(text_value(result, 0)) / 1000 or None


def find(connection: Connection, name: str) -> Slot | None:
    with connection.cursor(row_factory=class_row(Slot)) as cursor:
        cursor.execute(
            "SELECT slot_name::text AS name, plugin::text, database::text, confirmed_flush_lsn::text, wal_status,"
            " active_pid, (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()"
            " ELSE pg_catalog.pg_current_wal_lsn() END - restart_lsn)::bigint AS wal_held_bytes,"
            " (SELECT r.reply_time FROM pg_catalog.pg_stat_replication r WHERE r.pid = active_pid) AS replied_at"
            " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
            (name,),
        )
        return cursor.fetchone()


def check(slot: Slot, database: str) -> None:
    """Raise an error if capture cannot use the slot for this database."""
    if slot.plugin != "pgoutput":
        use = f"the plugin {slot.plugin}" if slot.plugin else "physical replication"
        raise SourceRefused(f"slot {slot.name} is for {use}, not for pgoutput", _OTHER_NAME)
    if slot.database != database:
        raise SourceRefused(f"slot {slot.name} belongs to database {slot.database}, not {database}", _OTHER_NAME)
    if slot.wal_status == "lost":
        raise SlotLost(
            f"slot {slot.name} has lost WAL that it still needed",
            f"changes are missing from the log after its end: drop it with SELECT pg_drop_replication_slot("
            f"'{slot.name}'), then run `tailrace capture --accept-gap`, which takes new snapshots; "
            "raise max_slot_wal_keep_size to prevent this",
        )


def create(
    connection: PGconn, name: str, is_cancelled: Callable[[], bool], *, temporary: bool = False
) -> CreatedSlot | None:
    """Create a slot and export its snapshot. Returns None if cancelled.

    The connection must stay idle until the snapshot is in use. PostgreSQL first waits for older transactions to end.
    """
    kind = sql.SQL("TEMPORARY ") if temporary else sql.SQL("")
    command = sql.SQL("CREATE_REPLICATION_SLOT {} {}LOGICAL pgoutput EXPORT_SNAPSHOT")
    connection.send_query(command.format(sql.Identifier(name), kind).as_bytes())
    poll = select.poll()
    poll.register(connection.socket, select.POLLIN)
    started_at, is_logged = time.monotonic(), False
    while connection.is_busy():
        if is_cancelled():
            connection.get_cancel().cancel()
        elif not is_logged and time.monotonic() - started_at > _QUIET_SECONDS:
            _log.info("slot %s: waiting for older transactions to end", name)
            is_logged = True
        if poll.poll(_POLL_SECONDS * 1000):
            with source_errors():
                connection.consume_input()
    result = connection.get_result()
    if is_cancelled():
        return None
    if result is None or result.status != ExecStatus.TUPLES_OK:
        raise classify(result or connection)
    while connection.get_result() is not None:
        pass  # libpq accepts the next command only after the final empty result
    return CreatedSlot(Lsn.parse(text_value(result, 1)), text_value(result, 2))


def ensure_publication(connection: Connection, source: SourceSettings) -> bool:
    """Create the publication if it does not exist, with the tables that `source.tables` matches. Return whether it was
    created. It may be empty: tables are added as they are created (`publication_watch`).

    A table without a replica identity is left out, because PostgreSQL would reject every UPDATE and DELETE on it once
    it is published. From 18 on, this also applies to replica identity FULL with generated columns. `publication_watch`
    reports such tables.
    """
    if has_publication(connection, source.publication):
        return False
    chosen = [table.identifier for table in unpublished_tables(connection, source) if table.obstacle is None]
    if not chosen:
        _log.warning(
            "there is no table to capture yet: none that can be published matches %s. Tables are captured as they are"
            " created; if some exist, correct [source] tables or TABLES",
            ", ".join(source.tables),
        )
    members = sql.SQL(" FOR TABLE {}").format(sql.SQL(", ").join(chosen)) if chosen else sql.SQL("")
    form = sql.SQL("CREATE PUBLICATION {}{} WITH (publish_via_partition_root = true)")
    command = form.format(sql.Identifier(source.publication), members)
    try:
        connection.execute(command)
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceRefused(
            f"publication {source.publication} does not exist, and the role may not create it: "
            f"{error.diag.message_primary}",
            f"check its name, or have the owner of the tables create it: {command.as_string()}",
        ) from None
    _log.info("created publication %s for %s", source.publication, count(len(chosen), "table"))
    return True


def drop_slot_and_publication(source: SourceSettings) -> None:
    """Drop slot and publication if they exist. Capture cannot continue after this."""
    with connect(source) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [source.slot]
        )
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(source.publication)))
