"""Whether a source can be captured: what is in the way, what would be missed, and the SQL that mends each.

Reads only. `inspect` gathers the findings of one module each for the server, the slot, the publication, the tables.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.errors import TailraceError
from tailrace.settings import Source
from tailrace.source.check.finding import Finding, Severity
from tailrace.source.check.publication import publication_findings, read_publication
from tailrace.source.check.server import read_server, server_findings
from tailrace.source.check.slot import read_slot, slot_findings
from tailrace.source.check.table import read_tables, table_findings
from tailrace.source.connection import connect, connect_replication
from tailrace.source.failure import classified

__all__ = ["Finding", "Severity", "can_capture", "inspect"]


def inspect(source: Source) -> list[Finding]:
    """What there is to say about the source, the gravest first. Raises only where it cannot be asked at all."""
    with classified(), connect(source) as connection:
        server = read_server(connection)
        slot = read_slot(connection, source.slot)
        publication = read_publication(connection, source.publication)
        tables = [t for t in read_tables(connection) if publication.publishes(t) or source.covers(t.schema, t.name)]
        findings = [
            *server_findings(connection, server, slot),
            *slot_findings(connection, source, server, slot),
            *publication_findings(connection, source, server, publication, tables),
            *table_findings(connection, server, publication, tables),
        ]
    if server.may_replicate:
        findings += _replication_findings(source)
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def can_capture(findings: Iterable[Finding]) -> bool:
    return not any(finding.severity is Severity.ERROR for finding in findings)


def _replication_findings(source: Source) -> Iterable[Finding]:
    """Whether a walsender lets us in: pg_hba.conf can tell the two kinds of connection apart."""
    try:
        connect_replication(source).finish()
    except TailraceError as error:
        yield Finding(Severity.ERROR, "replication connection", f"cannot be made: {error} ({error.hint})")
