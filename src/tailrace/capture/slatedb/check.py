"""Checks a SlateDB database as a source, and reports what its WAL still has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from tailrace.capture.slatedb.database import SlateDatabase
from tailrace.capture.slatedb.session import (
    NO_WAL,
    NO_WAL_HINT,
    lacks_nothing,
    lost_files,
    merge_operator,
    open_database,
    open_wal,
)
from tailrace.capture.slatedb.value_decoder import ValueDecoder
from tailrace.capture.slatedb.wal_converter import ResumeToken
from tailrace.capture.slatedb.wal_stream import gap_error
from tailrace.capture.source import SourceStatus
from tailrace.change import Lsn
from tailrace.errors import ConfigError, TailraceError
from tailrace.finding import Finding, Severity
from tailrace.log.reader import LogReader
from tailrace.settings import Settings
from tailrace.settings.slatedb import SlateDbSettings
from tailrace.store import Store

_SAMPLE_FILES: Final = 5
"""How many of the newest WAL files `check` reads."""


def inspect_slatedb(settings: Settings) -> list[Finding]:
    """All findings, the most severe first. It only reads."""
    source = settings.slatedb
    assert source is not None
    subject = f"slatedb.{source.name}"
    findings: list[Finding] = []
    try:
        merge_operator(source)
        files = open_wal(source).list()
        manifest = open_database(source).newest()
        findings += _value_findings(source, subject)
    except TailraceError as error:
        return [Finding(Severity.ERROR, subject, f"cannot be read: {error} ({error.hint})")]
    if not files:
        return [*findings, Finding(Severity.ERROR, subject, NO_WAL, NO_WAL_HINT)]
    oldest = files[0].metadata()
    findings.append(
        Finding(
            Severity.NOTE,
            subject,
            f"has WAL files {files[0].id} to {files[-1].id}"
            + ("" if oldest is None else f", the oldest {_age(oldest.last_modified):.0f} s old")
            + "; garbage collection removes them without waiting for capture",
        )
    )
    sampled = [rows for file in files[-_SAMPLE_FILES:] if (rows := file.rows()) is not None and len(rows)]
    top = max((rows["seq"][-1].as_py() for rows in sampled), default=0)
    if files[-1].id >= manifest.next_wal_id - 1 and top < manifest.last_l0_seq and len(files) <= _SAMPLE_FILES:
        findings.append(
            Finding(
                Severity.WARNING,
                subject,
                f"holds writes up to sequence number {manifest.last_l0_seq}, but the newest WAL files end at {top}: "
                "some writes may not go through the WAL",
            )
        )
    if settings.store.url:
        findings += _lag_findings(settings, subject)
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def _lag_findings(settings: Settings, subject: str) -> list[Finding]:
    """Whether garbage collection is about to overtake capture."""
    store = Store.open(settings.store.url, settings.store.options)
    if LogReader(store).last() is None:
        return []
    status = slatedb_status(settings, store)
    if status.error is not None:
        return [Finding(Severity.ERROR, subject, status.error)]
    if not status.unread_age_s or status.oldest_wal_age_s is None:
        return []
    severity = Severity.WARNING if status.unread_age_s * 2 > status.oldest_wal_age_s else Severity.NOTE
    return [
        Finding(
            severity,
            subject,
            f"capture has not read what was written {status.unread_age_s:.0f} s ago; the oldest file that garbage "
            f"collection left is {status.oldest_wal_age_s:.0f} s old",
            "garbage_collector_options.wal_options.min_age in the database's settings, or run `tailrace capture`",
        )
    ]


def _value_findings(source: SlateDbSettings, subject: str) -> list[Finding]:
    try:
        ValueDecoder(source.value)
    except ConfigError as error:
        return [Finding(Severity.ERROR, subject, f"{error} ({error.hint})")]
    return []


def slatedb_status(settings: Settings, store: Store) -> SourceStatus:
    """How old the WAL is that garbage collection left, against what capture has not read."""
    source = settings.slatedb
    assert source is not None
    name = f"slatedb.{source.name}"
    try:
        last = LogReader(store).last()
        header = last.metadata() if last is not None else None
        if header is None or header.resume is None:
            return SourceStatus(name, kind="slatedb", error="the log is empty: capture starts it")
        wal, token = open_wal(source), ResumeToken.parse(header.resume)
        files = wal.list()
        unread = next((file for file in files if file.id > token.wal_id), None)
        known = [file.id for file in files if file.id in (token.wal_id, token.wal_id + 1)]
        if not known or (unread is not None and unread.id not in known):  # rare, and takes more requests
            database = SlateDatabase(source)
            lost = lost_files(wal, database, token)
            if lost is not None and not lacks_nothing(database.newest(), lost, header.end_lsn):
                error = gap_error(lost)
                return SourceStatus(name, kind="slatedb", error=f"{error} ({error.hint})")
        oldest = files[0].metadata() if files else None
        unread_age_s: float | None = 0.0
        if unread is not None:
            first_unread = unread.metadata()
            unread_age_s = None if first_unread is None else _age(first_unread.last_modified)
    except TailraceError as error:
        return SourceStatus(name, kind="slatedb", error=str(error), is_reachable=False)
    return SourceStatus(
        name,
        confirmed_lsn=Lsn(header.end_lsn),
        kind="slatedb",
        oldest_wal_age_s=None if oldest is None else _age(oldest.last_modified),
        unread_age_s=unread_age_s,
    )


def _age(then: datetime) -> float:
    return max((datetime.now(UTC) - then).total_seconds(), 0.0)
