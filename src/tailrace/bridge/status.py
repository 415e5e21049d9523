"""The bridge's status under its own names: as JSON, as Prometheus metrics, and as a log line. Pure."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from tailrace.change import Lsn
from tailrace.ops import prometheus
from tailrace.ops.status import Overview

MB: Final = 1024 * 1024
WARNING_BYTES: Final = 512 * MB
CRITICAL_BYTES: Final = 1024 * MB


@dataclass(frozen=True)
class BridgeStatus:
    uptime_seconds: int
    wal_messages: int
    cdc_events: int
    lsn: Lsn
    """The acknowledged LSN: what commits below it is durable, so the source need not retain its WAL."""
    is_connected: bool
    """Whether capture is connected to the source."""
    reconnects: int
    nats_reconnects: int
    last_processing_time_us: int
    """The duration of the last published step."""
    slot_active: bool
    wal_lag_bytes: int | None
    """WAL that the source retains because of the slot; None if the source cannot be asked."""

    @classmethod
    def of(cls, overview: Overview, uptime_s: float) -> BridgeStatus:
        capture, source = overview.capture, overview.source
        assert capture is not None
        return cls(
            int(uptime_s),
            capture.messages,
            sum(sink.changes for sink in overview.sinks),
            capture.durable_lsn,
            capture.state == "streaming",
            capture.reconnections + capture.restarts,
            sum(sink.recoveries for sink in overview.sinks),
            int(max((sink.last_step_seconds for sink in overview.sinks), default=0) * 1e6),
            source is not None and source.is_active,
            source.wal_held_bytes if source is not None else None,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "status": "connected" if self.is_connected else "disconnected",
            "uptime_seconds": self.uptime_seconds,
            "wal_messages_received": self.wal_messages,
            "cdc_events_published": self.cdc_events,
            "current_lsn": str(self.lsn).lower(),
            "is_connected": self.is_connected,
            "reconnect_count": self.reconnects,
            "nats_reconnect_count": self.nats_reconnects,
            "last_processing_time_us": self.last_processing_time_us,
            "slot_active": self.slot_active,
            "wal_lag_bytes": self.wal_lag_bytes,
            "wal_lag_mb": None if self.wal_lag_bytes is None else self.wal_lag_bytes // MB,
        }

    def to_prometheus(self) -> str:
        metrics = [
            ("uptime_seconds", "gauge", "Time since the bridge started.", self.uptime_seconds),
            ("wal_messages_received_total", "counter", "Replication messages received.", self.wal_messages),
            ("cdc_events_published_total", "counter", "Changes published.", self.cdc_events),
            ("last_ack_lsn", "gauge", "LSN acknowledged to the source.", int(self.lsn)),
            ("connected", "gauge", "Whether the bridge is connected to the source.", int(self.is_connected)),
            ("reconnects_total", "counter", "Reconnections to the source.", self.reconnects),
            (
                "nats_reconnects_total",
                "counter",
                "Times that publishing recovered after failures.",
                self.nats_reconnects,
            ),
            ("last_processing_time_us", "gauge", "Duration of the last published step.", self.last_processing_time_us),
            ("slot_active", "gauge", "Whether a client streams from the slot.", int(self.slot_active)),
            ("wal_lag_bytes", "gauge", "WAL retained because of the slot.", self.wal_lag_bytes),
        ]
        return "".join(prometheus.metric(f"bridge_{name}", kind, help, value) for name, kind, help, value in metrics)

    def to_log_line(self) -> str:
        lag = "unknown" if self.wal_lag_bytes is None else self.wal_lag_bytes
        return (
            f"METRICS uptime={self.uptime_seconds} wal_messages={self.wal_messages} cdc_events={self.cdc_events}"
            f" lsn={str(self.lsn).lower()} connected={int(self.is_connected)} reconnects={self.reconnects}"
            f" nats_reconnects={self.nats_reconnects} lag_bytes={lag}"
            f" slot_active={int(self.slot_active)}"
        )


def wal_alarm(slot: str, held_bytes: int | None) -> tuple[int, str] | None:
    """Return the log level and a warning if the slot is known to retain much WAL on the source, else None."""
    if held_bytes is None or held_bytes < WARNING_BYTES:
        return None
    is_critical = held_bytes >= CRITICAL_BYTES
    level, limit = (logging.CRITICAL, CRITICAL_BYTES) if is_critical else (logging.WARNING, WARNING_BYTES)
    return level, (
        f"slot {slot} holds back {held_bytes // MB:,} MB of WAL, over {limit // MB:,} MB: is there a long transaction,"
        " or is the store slow or unreachable?"
    )
