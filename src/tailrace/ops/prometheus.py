"""The status as Prometheus metrics, in the text format (version 0.0.4). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from tailrace.capture.source import SourceStatus
from tailrace.ops.status import SINK_STATES, ArchiveStatus, CaptureStatus, LogStatus, Overview, RecoveryStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_OPERATIONS: Final = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "MESSAGE")

Sample = tuple[dict[str, str], float | None]


def render(overview: Overview) -> str:
    """Return all metrics. LSNs are gauges: byte positions in the source's WAL, exact up to 2⁵³."""
    families = [*_general(overview)]
    if overview.source is not None:
        families += _source(overview.source)
    if overview.capture is not None:
        families += _capture(overview.capture)
    if overview.log is not None:
        families += _log(overview.log)
    if overview.archive is not None:
        families += _archive(overview.archive)
    if overview.recovery is not None and overview.recovery.error is None:
        families += _recovery(overview.recovery)
    families += _sinks(overview)
    families += _verified(overview)
    return "".join(families)


_OLDEST_WAL = "Age of the oldest WAL file that garbage collection left."
_UNREAD_WAL = "Age of the oldest WAL file that capture has not read."


def _general(overview: Overview) -> Iterator[str]:
    yield metric("tailrace_healthy", "gauge", "Whether no component has a fault.", not overview.faults)
    if (tables := overview.uncaptured) is not None:
        left_out = sum(table.is_left_out for table in tables)
        yield metric_family(
            "tailrace_uncaptured_tables",
            "gauge",
            "Tables that source.tables matches and that are not captured.",
            [({"left_out": "true"}, left_out), ({"left_out": "false"}, len(tables) - left_out)],
        )


def _source(source: SourceStatus) -> Iterator[str]:
    yield metric("tailrace_source_reachable", "gauge", "Whether the source can be reached.", source.is_reachable)
    if source.error is None and source.kind != "postgresql":
        yield metric("tailrace_source_oldest_wal_seconds", "gauge", _OLDEST_WAL, source.oldest_wal_age_s)
        yield metric("tailrace_source_unread_wal_seconds", "gauge", _UNREAD_WAL, source.unread_age_s)
    elif source.error is None:
        yield metric(
            "tailrace_source_slot_active", "gauge", "Whether a client streams from the slot.", source.is_active
        )
        yield metric("tailrace_source_confirmed_lsn", "gauge", "LSN acknowledged to the slot.", source.confirmed_lsn)
        yield metric(
            "tailrace_source_wal_held_bytes", "gauge", "WAL retained because of the slot.", source.wal_held_bytes
        )


def _capture(capture: CaptureStatus) -> Iterator[str]:
    committed = capture.last_committed_at
    is_connected = capture.state == "streaming" and capture.silent_seconds is None
    yield metric("tailrace_capture_connected", "gauge", "Whether capture is streaming.", is_connected)
    yield metric_family(
        "tailrace_capture_changes_total",
        "counter",
        "Changes made durable.",
        [({"operation": name.lower()}, capture.operations.get(name, 0)) for name in _OPERATIONS],
    )
    yield metric("tailrace_capture_transactions_total", "counter", "Transactions made durable.", capture.transactions)
    yield metric("tailrace_capture_segments_total", "counter", "Segments written.", capture.segments)
    yield metric("tailrace_capture_payload_bytes_total", "counter", "Bytes of changes written.", capture.payload_bytes)
    yield metric("tailrace_capture_messages_total", "counter", "Replication messages received.", capture.messages)
    yield metric("tailrace_capture_keepalives_total", "counter", "Keepalives received.", capture.keepalives)
    yield metric(
        "tailrace_capture_repeated_total",
        "counter",
        "Changes sent again that were already in the log.",
        capture.repeated,
    )
    yield metric(
        "tailrace_capture_left_out_total",
        "counter",
        "Changes to Tailrace's own tables, not captured.",
        capture.left_out,
    )
    yield metric(
        "tailrace_capture_start_time_seconds",
        "gauge",
        "When the capture process started.",
        None if capture.started_at is None else capture.started_at.timestamp(),
    )
    yield metric("tailrace_capture_received_lsn", "gauge", "LSN received from the source.", capture.received_lsn)
    yield metric("tailrace_capture_durable_lsn", "gauge", "LSN that is durable and acknowledged.", capture.durable_lsn)
    yield metric("tailrace_capture_lag_bytes", "gauge", "Bytes received and not yet durable.", capture.lag_bytes)
    yield metric("tailrace_capture_reconnections_total", "counter", "Connections lost.", capture.reconnections)
    yield metric("tailrace_capture_restarts_total", "counter", "Restarts of the capture process.", capture.restarts)
    yield metric("tailrace_capture_copied_rows_total", "counter", "Rows copied into snapshots.", capture.rows_copied)
    yield metric("tailrace_capture_rows_to_copy", "gauge", "Estimated rows of these tables.", capture.rows_to_copy)
    yield metric(
        "tailrace_capture_copy_seconds_left",
        "gauge",
        "Estimated time until they are copied.",
        capture.copy_seconds_left,
    )
    yield metric(
        "tailrace_capture_last_commit_timestamp_seconds",
        "gauge",
        "Commit time of the last change, by the source's clock.",
        None if committed is None else committed.timestamp(),
    )


def _log(log: LogStatus) -> Iterator[str]:
    if log.error is None:
        yield metric(
            "tailrace_log_end_lsn", "gauge", "All changes that commit below this LSN are in the log.", log.end_lsn
        )
        yield metric("tailrace_log_segments", "gauge", "Segments in the log.", log.segments)
        yield metric("tailrace_log_objects", "gauge", "Objects that hold the segments.", log.objects)
        yield metric("tailrace_log_bytes", "gauge", "Size of these objects.", log.bytes)


def _archive(archive: ArchiveStatus) -> Iterator[str]:
    is_connected = archive.state == "streaming" and archive.silent_seconds is None
    yield metric("tailrace_archive_connected", "gauge", "Whether WAL is archived.", is_connected)
    yield metric("tailrace_archive_received_bytes_total", "counter", "Bytes of WAL received.", archive.received_bytes)
    yield metric("tailrace_archive_stored_bytes_total", "counter", "Bytes written to the store.", archive.stored_bytes)
    yield metric("tailrace_archive_durable_lsn", "gauge", "LSN that is durable and acknowledged.", archive.durable_lsn)
    yield metric("tailrace_archive_lag_bytes", "gauge", "Bytes received and not yet durable.", archive.lag_bytes)
    yield metric("tailrace_archive_restarts_total", "counter", "Restarts of the archive process.", archive.restarts)


def _recovery(recovery: RecoveryStatus) -> Iterator[str]:
    def at(moment: datetime | None) -> float | None:
        return None if moment is None else moment.timestamp()

    verdict = recovery.last_drill_verdict
    families: list[tuple[str, str, float | None]] = [
        ("archived_lsn", "The end of the archive.", recovery.archived_lsn),
        ("lag_bytes", "WAL that the server has and the archive lacks.", recovery.lag_bytes),
        ("covered_timestamp_seconds", "All that had committed by then is archived.", at(recovery.covered_at)),
        ("archiving", "Whether a client streams from the archive's slot.", recovery.is_archiving),
        ("open_segment_parts", "Objects that hold the open segment.", recovery.parts),
        ("backups", "Backups in the store.", recovery.backups),
        ("last_backup_timestamp_seconds", "When the newest backup ended.", at(recovery.last_backup_at)),
        ("last_drill_timestamp_seconds", "When the last drill began.", at(recovery.last_drill_at)),
        ("last_drill_equal", "Whether it found all rows equal.", None if verdict is None else verdict == "equal"),
        ("last_drill_lsn", "The moment to which it restored.", recovery.last_drill_lsn),
        ("last_drill_tables", "Tables that it compared.", recovery.last_drill_tables),
        ("last_drill_rows", "Rows that it compared.", recovery.last_drill_rows),
        ("last_drill_seconds", "How long it took.", recovery.last_drill_seconds),
    ]
    for name, help, value in families:
        yield metric(f"tailrace_recovery_{name}", "gauge", help, value)


def _sinks(overview: Overview) -> Iterator[str]:
    labelled = [({"sink": sink.name, "type": sink.type}, sink) for sink in overview.sinks]
    if not labelled:
        return

    def family(name: str, kind: str, help: str, field: str) -> str:
        return metric_family(
            f"tailrace_sink_{name}", kind, help, [(labels, getattr(s, field)) for labels, s in labelled]
        )

    yield family("cursor_lsn", "gauge", "All changes that commit below this LSN are delivered.", "cursor")
    yield family("lag_bytes", "gauge", "Bytes of WAL between the cursor and the end of the log.", "lag_bytes")
    yield family("lag_seconds", "gauge", "Age of the oldest undelivered change.", "lag_seconds")
    yield family("latency_seconds", "gauge", "From commit to delivery, in the last step.", "latency_seconds")
    yield family("seal_latency_seconds", "gauge", "From the sealed segment to delivery.", "seal_latency_seconds")
    yield family("load_rows", "gauge", "Rows of snapshots that are loaded so far, while a sink loads.", "load_rows")
    yield family("load_total_rows", "gauge", "All rows of these snapshots.", "load_total_rows")
    yield family("load_seconds_left", "gauge", "Estimated time until they are loaded.", "load_seconds_left")
    yield family("stalled_seconds", "gauge", "For how long no step has ended although changes wait.", "stalled_seconds")
    yield family("changes_total", "counter", "Changes delivered.", "changes")
    yield family("steps_total", "counter", "Steps completed.", "steps")
    yield family("failures_total", "counter", "Attempts that failed.", "failures")
    yield family("recoveries_total", "counter", "Times that delivery recovered after failures.", "recoveries")
    yield family("last_step_seconds", "gauge", "Duration of the last step.", "last_step_seconds")
    yield family("batches_total", "counter", "Spark batches that had changes.", "batches")
    yield family("batch_rows_total", "counter", "Rows that Spark read in them, one for each change.", "batch_rows")
    yield family("last_batch_seconds", "gauge", "Duration of the last Spark batch.", "last_batch_seconds")
    yield family(
        "dead_letters", "gauge", "Changes rejected by the destination and stored as dead letters.", "dead_letters"
    )
    states = [
        (labels | {"state": state}, float(sink.state == state)) for labels, sink in labelled for state in SINK_STATES
    ]
    yield metric_family(
        "tailrace_sink_state", "gauge", "1 for the current state of the sink, 0 for the others.", states
    )


def _verified(overview: Overview) -> Iterator[str]:
    records = [({"sink": record.sink}, record) for record in overview.verified]

    def family(name: str, help: str, values: Iterable[float]) -> str:
        samples = zip([labels for labels, _ in records], values, strict=True)
        return metric_family(f"tailrace_verify_{name}", "gauge", help, samples)

    found = [record for _, record in records]
    yield family("lsn", "All tables were compared at this LSN or a later one.", [r.position for r in found])
    yield family(
        "timestamp_seconds",
        "When the sink was last compared with the source.",
        [r.verified_at.timestamp() for r in found],
    )
    yield family("rows", "Rows that were compared.", [r.rows for r in found])
    yield family("differences", "Rows that differed from the source's.", [r.differences for r in found])
    yield family(
        "tables_not_compared", "Tables that could not be compared entirely.", [r.tables_not_compared for r in found]
    )


def metric(name: str, kind: str, help: str, value: float | None) -> str:
    """Format a metric without labels."""
    return metric_family(name, kind, help, [({}, value)])


def metric_family(name: str, kind: str, help: str, samples: Iterable[Sample]) -> str:
    """Format one metric family. Return an empty string if no sample has a value."""
    lines = [f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples if value is not None]
    return f"# HELP {name} {help}\n# TYPE {name} {kind}\n" + "".join(lines) if lines else ""


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items()) + "}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
