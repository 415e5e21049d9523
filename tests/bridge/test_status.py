"""The bridge's status, without running components."""

from __future__ import annotations

import logging
from dataclasses import replace

from tailrace.bridge.status import MB, BridgeStatus, wal_alarm
from tailrace.capture.source import SourceStatus
from tailrace.change import Lsn
from tailrace.ops.status import CaptureStatus, Overview

CAPTURE = CaptureStatus("streaming", messages=7, durable_lsn=Lsn(0x1_0000_ABCD), reconnections=2, restarts=1)


def test_status_before_the_first_report() -> None:
    status = BridgeStatus.of(Overview(capture=CaptureStatus("starting")), 3.9)
    assert status.to_log_line() == (
        "METRICS uptime=3 wal_messages=0 cdc_events=0 lsn=0/0 connected=0 reconnects=0 nats_reconnects=0"
        " lag_bytes=unknown slot_active=0"
    )
    assert status.to_json()["status"] == "disconnected"
    assert (status.to_json()["wal_lag_bytes"], status.to_json()["wal_lag_mb"]) == (None, None)
    assert "bridge_wal_lag_bytes" not in status.to_prometheus()


def test_status_of_a_streaming_and_of_an_unreachable_source() -> None:
    overview = Overview(SourceStatus("s", True, "reserved", Lsn(1), 3 * MB + 5), CAPTURE)
    status = BridgeStatus.of(overview, 60.0)
    assert status.to_log_line() == (
        f"METRICS uptime=60 wal_messages=7 cdc_events=0 lsn=1/abcd connected=1 reconnects=3 nats_reconnects=0"
        f" lag_bytes={3 * MB + 5} slot_active=1"
    )
    assert (status.to_json()["wal_lag_bytes"], status.to_json()["wal_lag_mb"]) == (3 * MB + 5, 3)
    assert "\nbridge_last_ack_lsn 4295011277\n" in status.to_prometheus()
    unreachable = replace(
        overview, source=SourceStatus("s", error="unreachable"), capture=replace(CAPTURE, state="disconnected")
    )
    assert BridgeStatus.of(unreachable, 61.0).to_json()["status"] == "disconnected"
    assert not BridgeStatus.of(unreachable, 61.0).slot_active


def test_alarm_for_wal_held_back_by_the_slot() -> None:
    assert wal_alarm("s", 512 * MB - 1) is None
    assert wal_alarm("s", None) is None, "nobody knows"
    warning, critical = wal_alarm("s", 512 * MB), wal_alarm("s", 1024 * MB)
    assert warning is not None
    assert critical is not None
    assert (warning[0], critical[0]) == (logging.WARNING, logging.CRITICAL)
    assert "slot s holds back 512 MB of WAL" in warning[1]
    assert "slot s holds back 1,024 MB of WAL" in critical[1]
