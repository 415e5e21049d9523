"""The server and the role: version, settings, free slots and senders, encoding, and what is never captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from tailrace.capture.postgres.check.fix import RELOAD, RESTART, script
from tailrace.capture.postgres.check.slot_state import SlotState
from tailrace.finding import Finding, Severity

_OLDEST, _NEWEST = 14, 18
_SETTINGS = (
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "wal_sender_timeout",
)
_SHORTEST_SENDER_TIMEOUT_S = 10


@dataclass(frozen=True)
class ServerState:
    version: int
    role: str
    is_superuser: bool
    may_replicate: bool
    sees_all_rows: bool
    may_create_in_database: bool
    is_standby: bool
    encoding: str
    database: str
    slots_used: int
    senders_used: int
    sequences: int
    has_large_objects: bool
    settings: dict[str, str]

    @property
    def major(self) -> int:
        return self.version // 10000


def read_server(connection: psycopg.Connection[Any]) -> ServerState:
    with connection.cursor(row_factory=class_row(ServerState)) as cursor:
        server = cursor.execute(
            """
            SELECT pg_catalog.current_setting('server_version_num')::int AS version,
                   r.rolname::text AS role, r.rolsuper AS is_superuser, r.rolsuper OR r.rolreplication AS may_replicate,
                   r.rolsuper OR r.rolbypassrls AS sees_all_rows,
                   pg_catalog.has_database_privilege(d.oid, 'CREATE') AS may_create_in_database,
                   pg_catalog.pg_is_in_recovery() AS is_standby,
                   pg_catalog.pg_encoding_to_char(d.encoding)::text AS encoding, d.datname::text AS database,
                   (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots) AS slots_used,
                   (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication) AS senders_used,
                   (SELECT pg_catalog.count(*) FROM pg_catalog.pg_sequences) AS sequences,
                   EXISTS (SELECT FROM pg_catalog.pg_largeobject_metadata) AS has_large_objects,
                   (SELECT pg_catalog.jsonb_object_agg(s.name, s.setting) FROM pg_catalog.pg_settings s
                    WHERE s.name = ANY (%s)) AS settings
            FROM pg_catalog.pg_roles r, pg_catalog.pg_database d
            WHERE r.rolname = current_user AND d.datname = pg_catalog.current_database()
            """,
            [list(_SETTINGS)],
        ).fetchone()
    assert server is not None
    return server


def server_findings(
    connection: psycopg.Connection[Any], server: ServerState, slot: SlotState | None
) -> Iterator[Finding]:
    yield from _version_findings(server)
    if server.settings["wal_level"] != "logical":
        yield Finding(
            Severity.ERROR,
            "wal_level",
            f"is {server.settings['wal_level']}: the WAL contains row changes only if it is logical",
            f"ALTER SYSTEM SET wal_level = 'logical';\n{RESTART}",
        )
    yield from role_findings(connection, server)
    yield from _capacity_findings(server, "max_replication_slots", server.slots_used, slot is not None)
    is_streaming = slot is not None and slot.active_pid is not None
    yield from _capacity_findings(server, "max_wal_senders", server.senders_used, is_streaming)
    yield from _limit_findings(server)
    if server.encoding == "SQL_ASCII":
        yield Finding(
            Severity.WARNING,
            f"database {server.database}",
            "has encoding SQL_ASCII: PostgreSQL accepts any bytes in it; capture stops with an error at a value that "
            "is not UTF-8. Dump it, and restore it into a database with the actual encoding of the data",
        )
    if server.sequences:
        yield Finding(
            Severity.NOTE,
            "sequences",
            f"are not captured ({server.sequences} here): logical replication does not send their values",
        )
    if server.has_large_objects:
        yield Finding(Severity.NOTE, "large objects", "are not captured: logical replication does not send them")


def role_findings(connection: psycopg.Connection[Any], server: ServerState) -> Iterator[Finding]:
    """Whether the role may open replication connections."""
    if not server.may_replicate:
        yield Finding(
            Severity.ERROR,
            f"role {server.role}",
            "lacks the REPLICATION attribute, which a replication connection requires",
            script(connection, "ALTER ROLE {} REPLICATION;", server.role),
        )


def _version_findings(server: ServerState) -> Iterator[Finding]:
    if server.major < _OLDEST:
        yield Finding(Severity.ERROR, "server", f"is PostgreSQL {server.major}: Tailrace needs {_OLDEST} to {_NEWEST}")
    elif server.major > _NEWEST:
        yield Finding(
            Severity.WARNING,
            "server",
            f"is PostgreSQL {server.major}, newer than any version that Tailrace was tested with",
        )
    if server.is_standby:
        if server.major < 16:
            yield Finding(
                Severity.ERROR,
                "server",
                f"is a standby: standbys support logical decoding only since PostgreSQL 16 (this is {server.major})",
            )
        else:
            yield Finding(Severity.WARNING, "server", "is a standby: create the publication on its primary")


def _capacity_findings(server: ServerState, setting: str, used: int, has_own: bool) -> Iterator[Finding]:
    """Capture needs one slot or sender, and another one while a snapshot on demand starts."""
    limit = int(server.settings[setting])
    left = limit - used
    wanted = 1 if has_own else 2
    if left >= wanted:
        return
    severity = Severity.WARNING if has_own or left else Severity.ERROR
    missing = "a snapshot on demand needs one" if severity is Severity.WARNING else "capture needs one"
    yield capacity_finding(severity, setting, limit, left, missing)


def capacity_finding(severity: Severity, setting: str, limit: int, left: int, missing: str) -> Finding:
    return Finding(
        severity,
        setting,
        f"is {limit}, {max(left, 0)} left: {missing}",
        f"ALTER SYSTEM SET {setting} = {limit + 4};\n{RESTART}",
    )


def _limit_findings(server: ServerState) -> Iterator[Finding]:
    if server.settings["max_slot_wal_keep_size"] == "-1":
        yield Finding(
            Severity.NOTE,
            "max_slot_wal_keep_size",
            "is unlimited: while capture is down, WAL accumulates until the disk is full. A limit protects the server; "
            "beyond it the slot is lost and tables are copied again. Choose what your disk can spare",
            f"ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';\n{RELOAD}",
        )
    if server.settings.get("idle_replication_slot_timeout", "0") != "0":
        yield Finding(
            Severity.WARNING,
            "idle_replication_slot_timeout",
            "is set: the slot is lost if capture is down for that long",
            f"ALTER SYSTEM SET idle_replication_slot_timeout = 0;\n{RELOAD}",
        )
    timeout_s = int(server.settings["wal_sender_timeout"]) / 1000
    if timeout_s == 0:
        message = "is off: a connection that died silently holds the slot forever"
    elif timeout_s < _SHORTEST_SENDER_TIMEOUT_S:
        message = f"is {timeout_s:g} s: a short network stall ends the stream"
    else:
        return
    fix = f"ALTER SYSTEM SET wal_sender_timeout = '60s';\n{RELOAD}"
    yield Finding(Severity.WARNING, "wal_sender_timeout", message, fix)
