"""The same in Prometheus's text format (version 0.0.4). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tailrace.ops.status import SINK_CONDITIONS, CaptureStatus, LogStatus, Overview, SourceStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_OPERATIONS: Final = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "MESSAGE")

Sample = tuple[dict[str, str], float | None]


def text(overview: Overview) -> str:
    """LSNs are gauges: numbers of bytes since the source's beginning, exact up to 2⁵³."""
    families = [*_general(overview)]
    if overview.source is not None:
        families += _source(overview.source)
    if overview.capture is not None:
        families += _capture(overview.capture)
    if overview.log is not None:
        families += _log(overview.log)
    families += _sinks(overview)
    return "".join(families)


def _general(overview: Overview) -> Iterator[str]:
    yield _one("tailrace_healthy", "gauge", "Whether nothing is wrong.", not overview.faults)


def _source(source: SourceStatus) -> Iterator[str]:
    yield _one("tailrace_source_reachable", "gauge", "Whether the source answers.", source.error is None)
    if source.error is None:
        yield _one("tailrace_source_slot_active", "gauge", "Whether somebody reads from the slot.", source.is_active)
        yield _one("tailrace_source_confirmed_lsn", "gauge", "What the slot has acknowledged.", source.confirmed_lsn)
        yield _one("tailrace_source_wal_held_bytes", "gauge", "WAL the slot holds back.", source.wal_held_bytes)


def _capture(capture: CaptureStatus) -> Iterator[str]:
    committed = capture.last_committed_at
    yield _one("tailrace_capture_connected", "gauge", "Whether it streams.", capture.state == "streaming")
    yield _family(
        "tailrace_capture_changes_total",
        "counter",
        "Changes made durable.",
        [({"operation": name.lower()}, capture.operations.get(name, 0)) for name in _OPERATIONS],
    )
    yield _one("tailrace_capture_transactions_total", "counter", "Transactions made durable.", capture.transactions)
    yield _one("tailrace_capture_segments_total", "counter", "Segments written.", capture.segments)
    yield _one("tailrace_capture_payload_bytes_total", "counter", "Bytes of changes.", capture.payload_bytes)
    yield _one("tailrace_capture_messages_total", "counter", "Messages of the stream received.", capture.messages)
    yield _one("tailrace_capture_keepalives_total", "counter", "Keepalives received.", capture.keepalives)
    yield _one("tailrace_capture_repeated_total", "counter", "Changes sent again that the log had.", capture.repeated)
    yield _one("tailrace_capture_left_out_total", "counter", "Changes of Tailrace's own tables.", capture.left_out)
    yield _one(
        "tailrace_capture_start_time_seconds",
        "gauge",
        "When its process started.",
        None if capture.started_at is None else capture.started_at.timestamp(),
    )
    yield _one("tailrace_capture_received_lsn", "gauge", "Where the stream stands.", capture.received_lsn)
    yield _one("tailrace_capture_durable_lsn", "gauge", "What is durable, and acknowledged.", capture.durable_lsn)
    yield _one("tailrace_capture_lag_bytes", "gauge", "Received and not yet durable.", capture.lag_bytes)
    yield _one("tailrace_capture_reconnections_total", "counter", "Connections lost.", capture.reconnections)
    yield _one("tailrace_capture_restarts_total", "counter", "Restarts of its process.", capture.restarts)
    yield _one("tailrace_capture_copied_rows_total", "counter", "Rows copied into snapshots.", capture.rows_copied)
    yield _one(
        "tailrace_capture_last_commit_timestamp_seconds",
        "gauge",
        "When the last change was committed, by the source's clock.",
        None if committed is None else committed.timestamp(),
    )


def _log(log: LogStatus) -> Iterator[str]:
    if log.error is None:
        yield _one("tailrace_log_end_lsn", "gauge", "Everything that commits below is in the log.", log.end_lsn)
        yield _one("tailrace_log_segments", "gauge", "Segments in the log.", log.segments)
        yield _one("tailrace_log_objects", "gauge", "Objects they are kept in.", log.objects)
        yield _one("tailrace_log_bytes", "gauge", "Bytes of those.", log.bytes)


def _sinks(overview: Overview) -> Iterator[str]:
    labelled = [({"sink": sink.name, "type": sink.type}, sink) for sink in overview.sinks]
    if not labelled:
        return

    def family(name: str, kind: str, help: str, field: str) -> str:
        return _family(f"tailrace_sink_{name}", kind, help, [(labels, getattr(s, field)) for labels, s in labelled])

    yield family("cursor_lsn", "gauge", "Everything that commits below is delivered.", "cursor")
    yield family("lag_bytes", "gauge", "Bytes of WAL between cursor and log's end.", "lag_bytes")
    yield family("lag_seconds", "gauge", "Age of the oldest change not delivered.", "lag_seconds")
    yield family("changes_total", "counter", "Changes delivered.", "changes")
    yield family("steps_total", "counter", "Steps done.", "steps")
    yield family("failures_total", "counter", "Attempts that failed.", "failures")
    yield family("recoveries_total", "counter", "Times that it delivered again after failures.", "recoveries")
    yield family("last_step_seconds", "gauge", "How long the last step took.", "last_step_seconds")
    yield family("set_aside", "gauge", "Changes the destination could not take.", "set_aside")
    states = [
        (labels | {"state": state}, float(sink.state == state))
        for labels, sink in labelled
        for state in SINK_CONDITIONS
    ]
    yield _family("tailrace_sink_state", "gauge", "1 for the state the sink is in.", states)


def _one(name: str, kind: str, help: str, value: float | None) -> str:
    return _family(name, kind, help, [({}, value)])


def _family(name: str, kind: str, help: str, samples: Iterable[Sample]) -> str:
    """Nothing at all where no sample has a value."""
    lines = [f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples if value is not None]
    return f"# HELP {name} {help}\n# TYPE {name} {kind}\n" + "".join(lines) if lines else ""


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
