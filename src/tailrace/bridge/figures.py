"""What the bridge tells of itself, by its own names: JSON, Prometheus, a line in the log. Pure."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from tailrace.change import Lsn
from tailrace.ops.status import Overview

MB: Final = 1024 * 1024
WARNING_BYTES: Final = 512 * MB
CRITICAL_BYTES: Final = 1024 * MB


@dataclass(frozen=True)
class Figures:
    uptime_seconds: int
    wal_messages: int
    cdc_events: int
    lsn: Lsn
    """Acknowledged: what commits below it is durable, and the source need not keep it."""
    is_connected: bool
    """To the source."""
    reconnects: int
    nats_reconnects: int
    last_processing_time_us: int
    """Of the last step that was published."""
    slot_active: bool
    wal_lag_bytes: int
    """WAL that the source keeps because of the slot."""

    @classmethod
    def of(cls, overview: Overview, uptime_s: float) -> Figures:
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
            (source.wal_held_bytes or 0) if source is not None else 0,
        )

    def status(self) -> dict[str, Any]:
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
            "wal_lag_mb": self.wal_lag_bytes // MB,
        }

    def metrics(self) -> str:
        families = [
            ("uptime_seconds", "gauge", "Since it was started.", self.uptime_seconds),
            ("wal_messages_received_total", "counter", "Messages of the replication stream.", self.wal_messages),
            ("cdc_events_published_total", "counter", "Changes published.", self.cdc_events),
            ("last_ack_lsn", "gauge", "What the source need not keep any more.", int(self.lsn)),
            ("connected", "gauge", "Whether the source is connected.", int(self.is_connected)),
            ("reconnects_total", "counter", "Connections to the source made again.", self.reconnects),
            ("nats_reconnects_total", "counter", "Times that NATS took messages again.", self.nats_reconnects),
            ("last_processing_time_us", "gauge", "Of the last step published.", self.last_processing_time_us),
            ("slot_active", "gauge", "Whether somebody reads from the slot.", int(self.slot_active)),
            ("wal_lag_bytes", "gauge", "WAL that the slot holds back.", self.wal_lag_bytes),
        ]
        return "".join(
            f"# HELP bridge_{name} {help}\n# TYPE bridge_{name} {kind}\nbridge_{name} {value}\n"
            for name, kind, help, value in families
        )

    def line(self) -> str:
        return (
            f"METRICS uptime={self.uptime_seconds} wal_messages={self.wal_messages} cdc_events={self.cdc_events}"
            f" lsn={str(self.lsn).lower()} connected={int(self.is_connected)} reconnects={self.reconnects}"
            f" nats_reconnects={self.nats_reconnects} lag_bytes={self.wal_lag_bytes}"
            f" slot_active={int(self.slot_active)}"
        )


def alarm(slot: str, held_bytes: int) -> tuple[int, str] | None:
    """What is to be said of the WAL that a slot holds back, and how loud; nothing, if it is little."""
    if held_bytes < WARNING_BYTES:
        return None
    is_critical = held_bytes >= CRITICAL_BYTES
    level, limit = (logging.CRITICAL, CRITICAL_BYTES) if is_critical else (logging.WARNING, WARNING_BYTES)
    return level, (
        f"slot {slot} holds back {held_bytes // MB:,} MB of WAL, over {limit // MB:,} MB: a long transaction, or a"
        " store that is slow or away"
    )
