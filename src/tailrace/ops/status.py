"""Status values of the source, capture, the log, the archive and the sinks, and the faults among them. No I/O."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from tailrace.capture.postgres.uncaptured import UncapturedTable
from tailrace.capture.source import Snapshots, SourceStatus
from tailrace.change import Lsn, Position

if TYPE_CHECKING:
    # Capture imports this module and must stay light: delivery loads the decoder, which loads a compiler.
    from tailrace.capture.capture import Capture
    from tailrace.capture.postgres.publication_watch import PublicationWatch
    from tailrace.delivery.status import SinkStatus
    from tailrace.recovery.archive import Archive
    from tailrace.verify.record import VerificationRecord

CaptureState = Literal["starting", "streaming", "disconnected", "restarting", "failed", "stopped"]
SINK_STATES: Final = ("new", "starting", "loading", "running", "paused", "retrying", "failed", "stopped")

_LSN_ZERO: Final = Lsn(0)
_ARCHIVE_BEHIND_S: Final = 120.0
"""How long the archive may be behind. It writes open segments every few seconds, and its position every ten."""
UNHEALTHY_STATES: Final = frozenset({"disconnected", "restarting", "failed", "retrying"})
"""States of capture and of sinks that count as faults. A paused sink is not one: somebody paused it."""


@dataclass(frozen=True)
class CaptureStatus:
    state: CaptureState
    operations: Mapping[str, int] = field(default_factory=dict)
    """Changes by operation. All counts are since the process started."""
    transactions: int = 0
    segments: int = 0
    payload_bytes: int = 0
    messages: int = 0
    keepalives: int = 0
    repeated: int = 0
    left_out: int = 0
    started_at: datetime | None = None
    received_lsn: Lsn = _LSN_ZERO
    durable_lsn: Lsn = _LSN_ZERO
    has_wal_lsns: bool = True
    """Whether the source's LSNs count bytes of WAL."""
    last_committed_at: datetime | None = None
    reconnections: int = 0
    restarts: int = 0
    """How often the supervisor restarted the process."""
    tables_copying: int = 0
    tables_copied: int = 0
    rows_copied: int = 0
    rows_to_copy: int | None = None
    """All rows of the tables that are copied now, as the source estimates them; None if none are."""
    copy_seconds_left: float | None = None
    """Estimated from the rate so far; None before the first rows."""
    tables_captured: int | None = None
    """The tables in the publication; None if that is not known."""
    uncaptured: tuple[UncapturedTable, ...] | None = None
    """Tables that `source.tables` matches and that are not captured; None if that is not known."""
    last_error: str | None = None
    last_error_hint: str | None = None
    pid: int | None = None
    silent_seconds: float | None = None
    """How long its process has reported nothing, if that is too long: it hangs, and the other fields are old."""

    @property
    def changes(self) -> int:
        return sum(self.operations.values())

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of WAL that are received and not yet durable; None if the source's LSNs do not count bytes, or the
        process hangs."""
        if not self.has_wal_lsns or self.silent_seconds is not None:
            return None
        return max(self.received_lsn - self.durable_lsn, 0)

    @classmethod
    def of(cls, capture: Capture, snapshots: Snapshots | None, watch: PublicationWatch | None = None) -> Self:
        """Return the status of a capture in this process."""
        done = capture.progress
        copying = snapshots.progress if snapshots is not None else None
        is_copying = snapshots is not None and snapshots.is_running
        estimated = copying.estimated_rows if copying and is_copying else None
        error = capture.last_error or (snapshots.error if snapshots is not None else None) or capture.source.error
        state: CaptureState = "starting"
        if capture.is_stopping:
            state = "stopped"
        elif capture.is_streaming:
            state = "streaming"
        elif capture.last_error is not None:
            state = "disconnected"
        committed = done.last_committed_at_us
        return cls(
            state,
            operations=dict(done.operations),
            transactions=done.transactions,
            segments=done.segments,
            payload_bytes=done.payload_bytes,
            messages=done.messages,
            keepalives=done.keepalives,
            repeated=done.repeated,
            left_out=done.left_out,
            started_at=capture.started_at,
            received_lsn=capture.received_lsn,
            durable_lsn=capture.durable_lsn,
            has_wal_lsns=capture.has_wal_lsns,
            last_committed_at=None if committed is None else datetime.fromtimestamp(committed / 1e6, UTC),
            reconnections=capture.reconnections,
            tables_copying=copying.tables - copying.tables_done if copying and is_copying else 0,
            tables_copied=copying.tables_done if copying else 0,
            rows_copied=copying.rows if copying else 0,
            rows_to_copy=max(estimated, copying.rows) if copying and estimated is not None else None,
            copy_seconds_left=copying.seconds_left if copying and is_copying else None,
            tables_captured=None if watch is None else watch.tables_captured,
            uncaptured=None if watch is None else watch.uncaptured,
            last_error=None if error is None else str(error),
            last_error_hint=None if error is None else error.hint or None,
        )

    def to_json(self) -> dict[str, Any]:
        computed = {"changes": self.changes, "lag_bytes": self.lag_bytes}
        return _to_jsonable(asdict(self)) | computed | {"uncaptured": _tables_to_json(self.uncaptured)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        known = {key: value for key, value in raw.items() if key not in ("changes", "lag_bytes")}
        tables = raw["uncaptured"]
        return cls(
            **known
            | {
                "uncaptured": None if tables is None else tuple(map(UncapturedTable.from_json, tables)),
                "received_lsn": Lsn.parse(raw["received_lsn"]),
                "durable_lsn": Lsn.parse(raw["durable_lsn"]),
                "last_committed_at": _parse_time(raw["last_committed_at"]),
                "started_at": _parse_time(raw["started_at"]),
            }
        )


@dataclass(frozen=True)
class ArchiveStatus:
    """The archive of WAL."""

    state: CaptureState
    timeline: int = 0
    received_bytes: int = 0
    """All counts are since the process started."""
    stored_bytes: int = 0
    segments: int = 0
    parts: int = 0
    received_lsn: Lsn = _LSN_ZERO
    durable_lsn: Lsn = _LSN_ZERO
    reconnections: int = 0
    restarts: int = 0
    last_error: str | None = None
    last_error_hint: str | None = None
    pid: int | None = None
    silent_seconds: float | None = None
    """As for capture."""

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of WAL that are received and not yet durable; None if the process hangs."""
        return None if self.silent_seconds is not None else max(self.received_lsn - self.durable_lsn, 0)

    @classmethod
    def of(cls, archive: Archive) -> Self:
        """Return the status of an archive in this process."""
        error = archive.last_error
        return cls(
            "streaming" if archive.is_streaming else "disconnected" if error is not None else "starting",
            archive.timeline,
            **asdict(archive.progress),
            received_lsn=archive.received_lsn,
            durable_lsn=archive.durable_lsn,
            reconnections=archive.reconnections,
            last_error=None if error is None else str(error),
            last_error_hint=None if error is None else error.hint or None,
        )

    def to_json(self) -> dict[str, Any]:
        return _to_jsonable(asdict(self)) | {"lag_bytes": self.lag_bytes}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        known = {key: value for key, value in raw.items() if key != "lag_bytes"}
        lsns = {"received_lsn": Lsn.parse(raw["received_lsn"]), "durable_lsn": Lsn.parse(raw["durable_lsn"])}
        return cls(**known | lsns)


@dataclass(frozen=True)
class RecoveryStatus:
    """The archive, the newest backup and the last drill, as store and source have them, whoever runs them."""

    slot: str
    timeline: int | None = None
    archived_lsn: Lsn | None = None
    """The end of the archive; None if there is none."""
    parts: int = 0
    """Objects that hold the open segment."""
    covered_at: datetime | None = None
    """By the server's clock: all transactions that had committed by then are archived."""
    server_lsn: Lsn | None = None
    """The end of the server's WAL; None if the server cannot be asked."""
    is_archiving: bool | None = None
    """Whether a client streams from the slot now; None if the server cannot be asked."""
    backups: int = 0
    last_backup: str | None = None
    """The newest backup's id."""
    last_backup_kind: str | None = None
    last_backup_at: datetime | None = None
    last_drill_at: datetime | None = None
    last_drill_verdict: str | None = None
    last_drill_lsn: Lsn | None = None
    last_drill_tables: int | None = None
    last_drill_rows: int | None = None
    last_drill_seconds: float | None = None
    last_drill_error: str | None = None
    """Why the server could not be restored, or nothing could be compared."""
    error: str | None = None
    """Why the other fields are unknown."""

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of WAL that the server has and the archive lacks; None if either is unknown."""
        if self.archived_lsn is None or self.server_lsn is None:
            return None
        return max(self.server_lsn - self.archived_lsn, 0)

    def faults(self, now: float) -> list[str]:
        if self.error is not None:
            return [f"the status of archive and backups is unknown: {self.error}"]
        found = []
        if self.is_archiving is False:
            found.append(f"the archive does not run: nobody streams from slot {self.slot}")
        elif self.covered_at is not None and self.lag_bytes and now - self.covered_at.timestamp() > _ARCHIVE_BEHIND_S:
            found.append(f"the archive has been behind the server for {now - self.covered_at.timestamp():.0f} s")
        if self.last_drill_error is not None:
            found.append(f"the last drill failed: {self.last_drill_error}")
        elif self.last_drill_verdict not in (None, "equal"):
            found.append(f"the last drill, to {self.last_drill_lsn}: {self.last_drill_verdict}")
        return found

    def to_json(self) -> dict[str, Any]:
        return _to_jsonable(asdict(self)) | {"lag_bytes": self.lag_bytes}


@dataclass(frozen=True)
class LogStatus:
    url: str
    segments: int = 0
    objects: int = 0
    bytes: int = 0
    first: Position | None = None
    last: Position | None = None
    end_lsn: Lsn = _LSN_ZERO
    last_committed_at: datetime | None = None
    error: str | None = None


@dataclass(frozen=True)
class Overview:
    """The status of all components. A component that this process does not run or could not read is None."""

    source: SourceStatus | None = None
    capture: CaptureStatus | None = None
    log: LogStatus | None = None
    sinks: Sequence[SinkStatus] = field(default=())
    archive: ArchiveStatus | None = None
    recovery: RecoveryStatus | None = None
    verified: Sequence[VerificationRecord] = field(default=())
    """What the last verification of each sink found."""
    verification_failure: str | None = None
    """Why no sink is compared with the source in the background; None if they are, or nobody wants it."""

    @property
    def uncaptured(self) -> Sequence[UncapturedTable] | None:
        """Tables that `source.tables` matches and that are not captured; None if that is not known."""
        known = [part.uncaptured for part in (self.capture, self.source) if part is not None]
        return next((tables for tables in known if tables is not None), None)

    @property
    def warnings(self) -> list[str]:
        """What somebody should look at although everything runs, one line each."""
        tables = [part.tables_captured for part in (self.capture, self.source) if part is not None]
        nothing = ["no table is captured: the publication is empty, and new tables that source.tables matches join it"]
        return [
            *(nothing if next((count for count in tables if count is not None), None) == 0 else []),
            *(f"{table}. {table.fix}".rstrip() for table in self.uncaptured or () if not table.is_left_out),
            *(
                f"sink {sink.name} has finished no step for {sink.stalled_seconds:.0f} s although changes wait: its "
                "destination is slow, or delivery hangs"
                for sink in self.sinks
                if sink.is_stalled
            ),
            *(
                f"sink {r.sink}: {r.differences:,} rows differ from the source's"
                for r in self.verified
                if r.differences
            ),
            *(
                [f"no sink is compared with the source: {self.verification_failure}"]
                if self.verification_failure
                else []
            ),
        ]

    @property
    def faults(self) -> list[str]:
        """Descriptions of what is wrong, one line each."""
        faults = []
        if self.source is not None and self.source.error is not None:
            faults.append(f"source: {self.source.error}")
        if self.source is not None and self.source.has_no_reader and self.capture is None:
            faults.append(f"capture does not run: nobody streams from slot {self.source.slot}")
        if self.source is not None and self.source.silent_seconds is not None and self.capture is None:
            silent_s = self.source.silent_seconds
            faults.append(f"capture has sent nothing to the source for {silent_s:.0f} s: its process hangs")
        if self.source is not None and self.source.is_losing_wal:
            faults.append(
                f"slot {self.source.slot} is about to lose WAL that is not captured: max_slot_wal_keep_size is too low"
            )
        if self.log is not None and self.log.error is not None:
            faults.append(f"the log's status is unknown: {self.log.error}")
        for name, process in (("capture", self.capture), ("archive", self.archive)):
            if process is not None:
                faults += _faults(name, process.state, process.last_error, process.last_error_hint)
                if process.silent_seconds is not None:
                    faults.append(f"{name} has reported nothing for {process.silent_seconds:.0f} s: its process hangs")
        now = time.time()
        if self.recovery is not None:
            faults += self.recovery.faults(now)
        for sink in self.sinks:
            faults += _faults(f"sink {sink.name}", sink.state, sink.last_error, sink.last_error_hint)
            if sink.is_silent(now):
                silent_s = now - sink.updated_at.timestamp()
                faults.append(f"sink {sink.name} has no status for {silent_s:.0f} s: deliver hangs, or does not run")
        return faults

    def to_json(self) -> dict[str, Any]:
        return {
            "status": "wrong" if self.faults else "ok",
            "faults": self.faults,
            "warnings": self.warnings,
            "uncaptured": _tables_to_json(self.uncaptured),
            "source": None if self.source is None else self.source.to_json(),
            "capture": None if self.capture is None else self.capture.to_json(),
            "log": None if self.log is None else _to_jsonable(asdict(self.log)),
            "archive": None if self.archive is None else self.archive.to_json(),
            "recovery": None if self.recovery is None else self.recovery.to_json(),
            "verified": [_to_jsonable(asdict(record)) for record in self.verified],
            "sinks": [json.loads(sink.to_json()) | {"is_silent": sink.is_silent(time.time())} for sink in self.sinks],
        }


def _tables_to_json(tables: Sequence[UncapturedTable] | None) -> list[dict[str, Any]] | None:
    return None if tables is None else [table.to_json() for table in tables]


def _faults(component: str, state: str, error: str | None, hint: str | None) -> list[str]:
    # When a table cannot be copied, or its definition cannot be recorded, capture reports it and keeps streaming.
    if state not in UNHEALTHY_STATES and not (error and state == "streaming"):
        return []
    return [": ".join(filter(None, (f"{component} is {state}", error, hint)))]


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _to_jsonable(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _to_jsonable_value(value) for key, value in raw.items()}


def _to_jsonable_value(value: Any) -> Any:
    match value:
        case Lsn() | Position():
            return str(value)
        case datetime():
            return value.isoformat()
    return value
