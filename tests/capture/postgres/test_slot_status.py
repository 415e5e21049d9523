"""What `status` says about the slot when capture does not stream from it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.capturing import CaptureThread, configured
from tests.fixtures.postgres import Database, drop_database, drop_slots, make_database
from tests.fixtures.store import StoreAddress

from tailrace.capture.postgres import session
from tailrace.capture.source import source_status
from tailrace.embedded.process import wait_until
from tailrace.ops.status import Overview
from tailrace.settings import Settings
from tailrace.store import Store


def faults(settings: Settings, store: Store) -> list[str]:
    return Overview(source_status(settings, store)).faults


def test_a_slot_before_while_and_after_capture(
    database: Database, file_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    settings, store = configured(database), Store.open(*file_address)
    assert faults(settings, store) == ["source: slot tailrace does not exist yet: capture creates it"]
    with CaptureThread(settings, store):
        assert faults(settings, store) == []
        status = source_status(settings, store)
        assert (status.is_active, status.tables_captured) == (True, 1)
        monkeypatch.setattr(session, "_SILENT_S", 0.0)
        monkeypatch.setattr(session, "_SILENT_INTERVALS", 0)
        assert wait_until(lambda: faults(settings, store) != [], 20)
        (fault,) = faults(settings, store)
        assert re.fullmatch(r"capture has sent nothing to the source for \d+ s: its process hangs", fault)
    assert faults(settings, store) == ["capture does not run: nobody streams from slot tailrace"]
    drop_slots(database)
    (fault,) = faults(settings, store)
    assert fault.startswith("source: slot tailrace does not exist any more: changes after the log's end are lost")
    status = source_status(settings, store)
    assert (status.is_reachable, status.tables_captured) == (True, 1), "that is known without a slot"


def test_a_slot_that_others_use(database: Database, file_address: StoreAddress) -> None:
    settings, store = configured(database), Store.open(*file_address)
    other = make_database(database.server)
    try:
        other.execute("SELECT pg_create_logical_replication_slot('tailrace', 'pgoutput')")
        assert faults(settings, store) == [
            f"source: slot tailrace belongs to database {other.name}, not {database.name}: "
            "give [source] slot another name"
        ]
    finally:
        drop_database(other)
    database.execute("SELECT pg_create_physical_replication_slot('standby')")
    try:
        (fault,) = faults(replace(settings, source=replace(settings.source, slot="standby")), store)
        assert "slot standby is for physical replication, not for pgoutput" in fault
    finally:
        database.execute("SELECT pg_drop_replication_slot('standby')")
