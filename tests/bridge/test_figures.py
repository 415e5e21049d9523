"""What the bridge says of itself, without anything that runs."""

from __future__ import annotations

import logging
from dataclasses import replace

from tailrace.bridge.figures import MB, Figures, alarm
from tailrace.change import Lsn
from tailrace.ops.status import CaptureStatus, Overview, SourceStatus

CAPTURE = CaptureStatus("streaming", messages=7, durable_lsn=Lsn(0x1_0000_ABCD), reconnections=2, restarts=1)


def test_before_anything_is_known() -> None:
    told = Figures.of(Overview(capture=CaptureStatus("starting")), 3.9)
    assert told.line() == (
        "METRICS uptime=3 wal_messages=0 cdc_events=0 lsn=0/0 connected=0 reconnects=0 nats_reconnects=0 lag_bytes=0"
        " slot_active=0"
    )
    assert told.status()["status"] == "disconnected"


def test_a_source_that_streams_and_one_that_is_away() -> None:
    overview = Overview(SourceStatus("s", True, "reserved", Lsn(1), 3 * MB + 5), CAPTURE)
    told = Figures.of(overview, 60.0)
    assert told.line() == (
        f"METRICS uptime=60 wal_messages=7 cdc_events=0 lsn=1/abcd connected=1 reconnects=3 nats_reconnects=0"
        f" lag_bytes={3 * MB + 5} slot_active=1"
    )
    assert (told.status()["wal_lag_bytes"], told.status()["wal_lag_mb"]) == (3 * MB + 5, 3)
    assert "\nbridge_last_ack_lsn 4295011277\n" in told.metrics()
    away = replace(overview, source=SourceStatus("s", error="away"), capture=replace(CAPTURE, state="disconnected"))
    assert Figures.of(away, 61.0).status()["status"] == "disconnected"
    assert not Figures.of(away, 61.0).slot_active


def test_wal_that_a_slot_holds_back() -> None:
    assert alarm("s", 512 * MB - 1) is None
    warned, critical = alarm("s", 512 * MB), alarm("s", 1024 * MB)
    assert warned is not None
    assert critical is not None
    assert (warned[0], critical[0]) == (logging.WARNING, logging.CRITICAL)
    assert "slot s holds back 512 MB of WAL" in warned[1]
    assert "slot s holds back 1,024 MB of WAL" in critical[1]
