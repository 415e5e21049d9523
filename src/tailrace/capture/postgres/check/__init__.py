"""Checks whether a source can be captured: what prevents it, what would be missed, and the SQL that fixes each.

It only reads. `inspect` collects the findings about server, slot, publication and tables; each has a module.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.capture.postgres.check.ddl import ddl_findings
from tailrace.capture.postgres.check.publication import publication_findings, read_publication
from tailrace.capture.postgres.check.server import read_server, server_findings
from tailrace.capture.postgres.check.slot_state import read_slot, slot_findings
from tailrace.capture.postgres.check.table import read_tables, table_findings
from tailrace.capture.postgres.source_connection import connect, connect_replication
from tailrace.capture.postgres.source_error import source_errors
from tailrace.errors import TailraceError
from tailrace.finding import Finding, Severity
from tailrace.settings import SourceSettings


def inspect(source: SourceSettings) -> list[Finding]:
    """All findings about the source, the most severe first. Raises only if the source cannot be queried at all."""
    with source_errors(), connect(source) as connection:
        server = read_server(connection)
        slot = read_slot(connection, source.slot)
        publication = read_publication(connection, source.publication)
        tables = [t for t in read_tables(connection) if publication.publishes(t) or source.covers(t.schema, t.name)]
        findings = [
            *server_findings(connection, server, slot),
            *slot_findings(connection, source, server, slot),
            *publication_findings(connection, source, server, publication, tables),
            *table_findings(connection, server, publication, tables),
            *ddl_findings(connection),
        ]
    if server.may_replicate:
        findings += _replication_findings(source)
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def _replication_findings(source: SourceSettings) -> Iterable[Finding]:
    """Check whether replication connections are allowed: pg_hba.conf may treat them differently."""
    try:
        connect_replication(source).finish()
    except TailraceError as error:
        yield Finding(Severity.ERROR, "replication connection", f"failed: {error} ({error.hint})")
