"""Checks whether the archive can run, and what it would cost: the server's settings, the slot and the store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from tailrace.capture.postgres.check.fix import RELOAD, RESTART, script
from tailrace.capture.postgres.check.server import ServerState, capacity_finding, read_server, role_findings
from tailrace.capture.postgres.source_connection import connect
from tailrace.capture.postgres.source_error import source_errors
from tailrace.errors import TailraceError
from tailrace.finding import Finding, Severity
from tailrace.recovery.backup import OLDEST_VERSION
from tailrace.recovery.wal_segment import PREFIX
from tailrace.settings import Settings
from tailrace.store import Store

_SETTINGS = ("wal_level", "synchronous_commit", "synchronous_standby_names", "summarize_wal")


def inspect_archive(settings: Settings) -> list[Finding]:
    """All findings about the archive, the most severe first. Raises only if the source cannot be queried at all."""
    with source_errors(), connect(settings.source) as connection:
        rows = connection.execute(
            "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY (%s)", [list(_SETTINGS)]
        ).fetchall()
        values = {str(name): str(value) for name, value in rows}
        server = read_server(connection)
        findings = [
            *role_findings(connection, server),
            *_server_findings(values, settings),
            *_backup_findings(values, server),
            *_slot_findings(connection, server, settings),
        ]
    findings += _store_findings(settings)
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def _server_findings(values: dict[str, str], settings: Settings) -> Iterator[Finding]:
    name = settings.archive.slot
    if values["wal_level"] == "minimal":
        yield Finding(
            Severity.ERROR,
            "wal_level",
            "is minimal: WAL cannot be archived",
            f"ALTER SYSTEM SET wal_level = 'replica';\n{RESTART}",
        )
    standbys = re.findall(r"[\w$*]+", values["synchronous_standby_names"])
    is_waited_for = name in standbys or "*" in standbys
    if values["synchronous_commit"] == "remote_apply" and is_waited_for:
        yield Finding(
            Severity.WARNING,
            "synchronous_commit",
            "is remote_apply: the archive applies nothing, so a commit that counts on it waits forever",
            f"ALTER SYSTEM SET synchronous_commit = 'on';\n{RELOAD}",
        )
    if is_waited_for and not settings.archive.synchronous:
        yield Finding(
            Severity.WARNING,
            "synchronous_standby_names",
            f"names {name}, but [archive] synchronous is off: each commit waits up to "
            f"{settings.archive.part_after_s:g} s. Set synchronous = true, or run `tailrace archive --synchronous`",
        )
    elif settings.archive.synchronous and not is_waited_for:
        yield Finding(
            Severity.NOTE,
            "synchronous_standby_names",
            f"does not name {name}: commits do not wait for the archive, and the last ones can be lost",
            f"ALTER SYSTEM SET synchronous_standby_names = '{name}';\n{RELOAD}",
        )
    elif is_waited_for:
        yield Finding(
            Severity.NOTE,
            "synchronous_standby_names",
            f"names {name}: commits wait while the archive or its store is down. Empty it to let them go on meanwhile",
        )


def _backup_findings(values: dict[str, str], server: ServerState) -> Iterator[Finding]:
    if server.version < OLDEST_VERSION:
        yield Finding(
            Severity.WARNING,
            "server",
            f"is PostgreSQL {server.major}: backups need {OLDEST_VERSION // 10000} or newer, and archived WAL is of no "
            "use without one",
        )
    if values.get("summarize_wal") == "off":
        yield Finding(
            Severity.NOTE,
            "summarize_wal",
            "is off: `tailrace backup --incremental` needs it",
            f"ALTER SYSTEM SET summarize_wal = on;\n{RELOAD}",
        )


def _slot_findings(connection: psycopg.Connection[Any], server: ServerState, settings: Settings) -> Iterator[Finding]:
    name = settings.archive.slot
    row = connection.execute(
        "SELECT slot_type, wal_status, active FROM pg_catalog.pg_replication_slots WHERE slot_name = %s", [name]
    ).fetchone()
    slots, senders = int(server.settings["max_replication_slots"]), int(server.settings["max_wal_senders"])
    if row is None and server.slots_used >= slots:
        yield capacity_finding(Severity.ERROR, "max_replication_slots", slots, 0, "the archive needs one")
    left, is_streaming = senders - server.senders_used, row is not None and row[2]
    if left < (1 if is_streaming else 2):
        is_enough = is_streaming or left > 0
        yield capacity_finding(
            Severity.WARNING if is_enough else Severity.ERROR,
            "max_wal_senders",
            senders,
            left,
            "a backup needs one while it runs" if is_enough else "the archive needs one",
        )
    drop = script(connection, "SELECT pg_catalog.pg_drop_replication_slot({});", sql.Literal(name))
    if row is None:
        yield Finding(Severity.NOTE, f"slot {name}", "does not exist yet: the archive creates it")
    elif row[0] != "physical":
        yield Finding(Severity.ERROR, f"slot {name}", "is a logical one: give archive.slot another name", drop)
    elif row[1] == "lost":
        yield Finding(
            Severity.ERROR,
            f"slot {name}",
            "has lost WAL that the archive needed. Drop it, run `tailrace archive --accept-gap`, and take a backup",
            drop,
        )


def _store_findings(settings: Settings) -> Iterator[Finding]:
    if not settings.store.url:
        yield Finding(Severity.ERROR, "store", "has no url: set url in [store]")
        return
    try:
        Store.open(settings.store.url, settings.store.options).probe(f"{PREFIX}/")
    except TailraceError as error:
        yield Finding(
            Severity.ERROR,
            "store",
            f"failed: {error} ({error.hint}). Meanwhile the server retains its WAL, and synchronous commits wait",
        )
