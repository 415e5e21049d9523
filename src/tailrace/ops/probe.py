"""Reads the status of source, log, archive and sinks from the source's catalog and the store, in any process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tailrace.capture.postgres.source_connection import connect
from tailrace.capture.postgres.source_error import source_errors
from tailrace.capture.source import source_status
from tailrace.change import Lsn, Position
from tailrace.errors import StoreError, TailraceError
from tailrace.log.listing import find_covered, list_objects
from tailrace.log.reader import LogReader
from tailrace.ops.cache import BackgroundCache
from tailrace.ops.status import LogStatus, Overview, RecoveryStatus
from tailrace.settings import Settings
from tailrace.store import Store
from tailrace.verify.record import VerificationRecord, load_records

if TYPE_CHECKING:
    from tailrace.delivery.status import SinkStatus
    from tailrace.ops.sink_meter import SinkMeter

# How many segments are searched for the first or last change. Segments of an idle source have none.
_SEARCHED_SEGMENTS: Final = 20
# The dashboard and several scrapers must not load the source or the store: each refresh is one connection to the
# source, or one listing of the log.
_SOURCE_SECONDS: Final = 5.0
_LOG_SECONDS: Final = 10.0
_RECOVERY_SECONDS: Final = 30.0
# A request for the next segment, and a cursor of each sink that does not run.
_LAG_SECONDS: Final = 2.0
# A store that hangs must not leave the lag at what it was, which is 0 for most sinks.
_LAG_KNOWN_SECONDS: Final = 20.0

_ARCHIVE_SLOT = """
SELECT s.active,
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_flush_lsn() END::text
FROM (VALUES (1)) AS server (one)
LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = %s
"""


def recovery_status(settings: Settings, store: Store) -> RecoveryStatus | None:
    """Read the status of the archive, the backups and the drills; None if the store has no archive.

    How far the archive is behind is measured here, by the server's own LSN, whether the archive runs or not.
    """
    # Imported here, because few use it.
    from tailrace.recovery.backup_record import list_backups
    from tailrace.recovery.drill_record import DrillRecord
    from tailrace.recovery.wal_archive import ArchiveEnd, ArchivePosition

    slot = settings.archive.slot
    try:
        end = ArchiveEnd.find(store)
        if end is None:
            return None
        position, backups, drill = ArchivePosition.load(store), list_backups(store), DrillRecord.last(store)
    except TailraceError as error:
        return RecoveryStatus(slot, error=str(error))
    newest = max(backups, key=lambda backup: backup.ended_at, default=None)
    is_archiving, server_lsn = _ask_about_archive(settings)
    return RecoveryStatus(
        slot,
        end.timeline,
        end.lsn,
        end.parts,
        position.at if position else None,
        server_lsn,
        is_archiving,
        len(backups),
        newest.id if newest else None,
        newest.kind if newest else None,
        newest.ended_at if newest else None,
        *(
            (drill.at, drill.verdict, drill.lsn, drill.tables, drill.rows, drill.seconds, drill.error)
            if drill is not None
            else ()
        ),
    )


def _ask_about_archive(settings: Settings) -> tuple[bool | None, Lsn | None]:
    """Whether a client streams from the archive's slot, and the end of the server's WAL; None if nobody answers."""
    if not settings.source.url:
        return None, None
    try:
        with connect(settings.source) as connection, source_errors():
            row = connection.execute(_ARCHIVE_SLOT, [settings.archive.slot]).fetchone()
    except TailraceError:
        return None, None  # the source's own status says why
    assert row is not None
    return bool(row[0]), Lsn.parse(row[1])


def log_status(store: Store, reader: LogReader | None = None) -> LogStatus:
    """Read the log's status. This lists the log and reads a few Parquet footers."""
    reader = reader or LogReader(store)
    try:
        objects = list_objects(store)
        if not objects:
            return LogStatus(store.url)
        superseded = find_covered(objects)
        current = [o for o in objects if o not in superseded]
        first_id, last_id = current[0].first, max(o.last for o in current)
        newest = reader.get(last_id).metadata()
        first = _first_position(reader, range(first_id, min(first_id + _SEARCHED_SEGMENTS, last_id + 1)), "first")
        last = _first_position(reader, range(last_id, max(last_id - _SEARCHED_SEGMENTS, first_id - 1), -1), "last")
    except TailraceError as error:
        return LogStatus(store.url, error=str(error))
    return LogStatus(
        store.url,
        segments=last_id - first_id + 1,
        objects=len(current),
        bytes=sum(o.info.size for o in current),
        first=None if first is None else first[0],
        last=None if last is None else last[0],
        end_lsn=Lsn(0) if newest is None else newest.end_lsn,
        last_committed_at=None if last is None else last[1],
    )


def _first_position(reader: LogReader, ids: range, which: str) -> tuple[Position, datetime] | None:
    """Return the position and the commit time of the first segment in `ids` that has them."""
    for id in ids:
        header = reader.get(id).metadata()
        position = getattr(header, which) if header is not None else None
        if position is not None:
            at_us = getattr(header, f"{which}_committed_at_us")
            return position, datetime.fromtimestamp(at_us / 1e6, UTC)
    return None


def sink_statuses(
    store: Store, configured: Sequence[Mapping[str, Any]], meter: SinkMeter | None = None
) -> list[SinkStatus]:
    """Read the statuses that sinks last published in the store, and measure their lag.

    Args:
        store: The store.
        configured: The tables `[[sink]]` of the settings. These sinks come first, also those that never ran.
        meter: What measured the lag before: it does not list the log again.
    """
    # Imported here: capture uses this module and must not load the decoder.
    from tailrace.delivery import status
    from tailrace.delivery.status import SinkStatus
    from tailrace.ops.sink_meter import SinkMeter, with_lag

    published = {sink.name: sink for sink in status.load_all(store)}
    first = {str(raw["name"]): SinkStatus.initial(str(raw["name"]), str(raw["type"]), "new") for raw in configured}
    sinks = list((first | published).values())
    # Where a sink begins that never ran, and has a start of its own, it decides itself.
    own_starts = {str(raw["name"]) for raw in configured if raw.get("start") not in (None, "earliest", "snapshot")}
    meter = meter or SinkMeter(store)
    measured = meter.measure(sink for sink in sinks if sink.state != "new" or sink.name not in own_starts)
    return [with_lag(sink, measured.get(sink.name)) for sink in sinks]


def verification_records(store: Store) -> list[VerificationRecord]:
    """Read what the last verifications of sinks found; nothing if the store cannot be read, which the log's status
    reports."""
    try:
        return list(load_records(store))
    except StoreError:
        return []


def measured_overview(store: Store, local: Callable[[], Overview]) -> Callable[[], Overview]:
    """Return a function that measures the lag of the sinks in `local`, which is what this process knows, and adds what
    their last verifications found."""
    from tailrace.ops.sink_meter import SinkMeter, with_lag

    meter = SinkMeter(store)
    lags = BackgroundCache(lambda: meter.measure(local().sinks), _LAG_SECONDS, max_age_s=_LAG_KNOWN_SECONDS)
    verified = BackgroundCache(lambda: verification_records(store), _LOG_SECONDS)

    def overview() -> Overview:
        known = local()
        found = (lags.get() if known.sinks else None) or {}
        return replace(
            known,
            sinks=[with_lag(sink, found.get(sink.name)) for sink in known.sinks],
            verified=(verified.get() if known.sinks else None) or (),
        )

    return overview


def cached_overview(settings: Settings, store: Store, measured: Callable[[], Overview]) -> Callable[[], Overview]:
    """Return a function that adds the cached status of source and log to `measured`."""
    reader = LogReader(store)
    source = BackgroundCache(lambda: source_status(settings, store), _SOURCE_SECONDS) if settings.has_source else None
    log = BackgroundCache(lambda: log_status(store, reader), _LOG_SECONDS)
    recovery = BackgroundCache(lambda: recovery_status(settings, store), _RECOVERY_SECONDS)
    return lambda: replace(measured(), source=source.get() if source else None, log=log.get(), recovery=recovery.get())
