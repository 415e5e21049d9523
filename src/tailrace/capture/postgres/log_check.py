"""Checks that a log belongs to the source, and that capture will continue it."""

from __future__ import annotations

from typing import Any

import psycopg

from tailrace.capture.postgres import slot
from tailrace.errors import SlotLost, SnapshotError, WrongSource
from tailrace.log import source_record
from tailrace.settings import Settings
from tailrace.store import Store

Connection = psycopg.Connection[Any]


def check_log(settings: Settings, store: Store, connection: Connection) -> None:
    """Check that the log has, or will get, the changes after the snapshot. Without them a snapshot is useless."""
    hint = "run `tailrace capture` first: it starts the log and takes the first snapshots itself"
    source = source_record.load(store)
    if source is None:
        raise SnapshotError(f"{store.url} has no log: the changes after the snapshot would be missing", hint)
    row = connection.execute(
        "SELECT system_identifier::text, pg_catalog.current_database() FROM pg_catalog.pg_control_system()"
    ).fetchone()
    if row != (source["system_id"], source["database"]):
        raise WrongSource(
            f"the log in {store.url} belongs to database {source['database']} of system {source['system_id']}",
            "correct [source] url or [store] url",
        )
    replication_slot = slot.find(connection, settings.source.slot)
    if replication_slot is None:
        raise SlotLost(
            f"slot {settings.source.slot} does not exist: the changes after the snapshot would not be captured", hint
        )
    if replication_slot.wal_status == "lost":
        raise SlotLost(
            f"slot {replication_slot.name} has lost WAL: the log has a gap, which a snapshot alone does not close",
            "run `tailrace capture`: it says how to continue",
        )
