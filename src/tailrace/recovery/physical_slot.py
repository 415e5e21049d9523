"""Physical replication slots on the source, which retain WAL for the archive and for standbys."""

from __future__ import annotations

import logging

from psycopg import sql
from psycopg.pq.abc import PGconn

from tailrace.capture.postgres.source_connection import run_command, text_value
from tailrace.change import Lsn
from tailrace.errors import SlotLost, SourceRefused

_log = logging.getLogger("tailrace.archive")


def ensure_slot(connection: PGconn, name: str, remedy: str) -> Lsn:
    """Create the slot if it does not exist, and return the LSN from which on it retains WAL.

    `remedy` is what to do after dropping the slot if it has lost WAL.
    """
    query = sql.SQL(
        "SELECT slot_type, restart_lsn, wal_status FROM pg_catalog.pg_replication_slots WHERE slot_name = {}"
    ).format(sql.Literal(name))
    found = run_command(connection, query.as_string())
    if found.ntuples == 0:
        create = sql.SQL("CREATE_REPLICATION_SLOT {} PHYSICAL RESERVE_WAL").format(sql.Identifier(name))
        run_command(connection, create.as_string())
        found = run_command(connection, query.as_string())
        _log.info("created slot %s", name)
    if text_value(found, 0) != "physical":
        raise SourceRefused(
            f"slot {name} is a logical one", "choose another name, or drop this one if it is not needed"
        )
    if text_value(found, 2) == "lost":
        raise SlotLost(
            f"slot {name} has lost WAL that was still needed",
            f"drop it with SELECT pg_drop_replication_slot('{name}'), then {remedy}",
        )
    return Lsn.parse(text_value(found, 1) or "0/0")
