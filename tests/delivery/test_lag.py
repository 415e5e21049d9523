"""The lag of a cursor, measured by the log alone: exact in bytes, and the age of the oldest undelivered change."""

from __future__ import annotations

import pytest
from tests.fixtures.store import StoreAddress
from tests.log.stream import Capture, Server, write

from tailrace.change import Lsn
from tailrace.delivery.lag import UNKNOWN, Backlog, Lag, LagMeter
from tailrace.log import planner
from tailrace.log.planner import BatchLimits
from tailrace.log.reader import LogReader
from tailrace.log.trim import Trim
from tailrace.store import Store

NOW_S = 1_800_000_000.0


@pytest.fixture
def store(file_address: StoreAddress) -> Store:
    return Store.open(*file_address)


def step_ends(store: Store) -> list[Lsn]:
    """The cursors of a sink that delivers the smallest possible steps."""
    reader = LogReader(store)
    at = planner.start_offset(reader, None)
    found = []
    while (batch := planner.next_batch(reader, at, BatchLimits(1, 1))).end != at:
        at = batch.end
        found.append(at.lsn)
    return found


def ages(server: Server, cursor: Lsn) -> list[float]:
    """The ages of the undelivered transactions that have changes, the oldest first."""
    times = [sent.changes[0].committed_at for sent in server.sent if sent.changes and sent.commit_lsn >= cursor]
    return [NOW_S - time.timestamp() for time in times]


@pytest.mark.parametrize("seed", range(3))
def test_each_step_of_a_sink_reduces_its_lag_to_what_is_left(store: Store, seed: int) -> None:
    server = Server(seed).work(80)
    write(store, server, seed)
    meter = LagMeter(store)
    end = meter.follow()
    cursors = step_ends(store)
    assert len(cursors) > 10
    assert cursors[-1] == end
    for cursor in [*cursors, *reversed(cursors)]:  # forwards as it delivers, backwards as if it were rewound
        lag = meter.backlog("sink", cursor).lag(cursor, NOW_S)
        undelivered = ages(server, cursor)
        if not undelivered:
            assert lag.bytes in (0, end - cursor), "transactions without changes may be left"
            continue
        assert lag.bytes == end - cursor, cursor
        # The age is that of a segment: it may have other transactions before the cursor, a second apart here.
        assert lag.seconds is not None
        assert undelivered[0] - 1e-3 < lag.seconds < undelivered[0] + 12, cursor


def test_a_log_that_grows_is_followed(store: Store) -> None:
    meter = LagMeter(store)
    assert meter.follow() == 0
    assert meter.backlog("sink", Lsn(5)).lag(Lsn(5), NOW_S) == UNKNOWN, "nobody knows yet"
    server = Server(4).work(20)
    capture = write(store, server)
    end = meter.follow()
    assert meter.backlog("sink", end).lag(end, NOW_S) == Lag(0, 0.0)
    sent = server.lsn
    server.transaction(3)
    capture.add(server.frames(sent))
    grown = meter.follow()
    assert grown > end
    assert meter.backlog("sink", end).lag(end, NOW_S).bytes == grown - end


def test_wal_without_changes_is_no_lag(store: Store) -> None:
    server = Server(5).work(10)
    capture = write(store, server)
    meter = LagMeter(store)
    cursor = meter.follow()
    capture.idle(cursor + 10_000)
    assert meter.follow() == cursor + 10_000
    assert meter.backlog("sink", cursor).lag(cursor, NOW_S) == Lag(0, 0.0)


def test_the_age_of_changes_that_retention_removed_is_not_known(store: Store) -> None:
    server = Server(6).work(60)
    write(store, server)
    reader = LogReader(store)
    headers = [header for segment in reader.list() if (header := segment.metadata()) is not None and header.first]
    first = headers[len(headers) // 2]
    assert first.first is not None
    Trim(first.id, first.previous, first.first).save(store)
    meter = LagMeter(store)
    end = meter.follow()
    cursor = Lsn(server.sent[0].commit_lsn)
    assert meter.backlog("sink", cursor).lag(cursor, NOW_S) == Lag(end - cursor, None)


def test_a_cursor_that_overtook_the_measurement_has_no_lag() -> None:
    assert Backlog(Lsn(100), 1_700_000_000_000_000).lag(Lsn(120), NOW_S) == Lag(0, 0.0)


def test_the_log_begins_at_its_first_change(store: Store) -> None:
    meter = LagMeter(store)
    assert meter.begin() is None
    server = Server(7)
    capture = Capture(store)
    server.transaction(2)
    capture.add(server.frames())
    assert meter.begin() == server.sent[0].commit_lsn
    # A sink that has delivered nothing has the log before it, and not all WAL that the server ever wrote.
    end = meter.follow()
    lag = meter.backlog("sink", Lsn(0)).lag(Lsn(0), NOW_S)
    assert lag.bytes == end - server.sent[0].commit_lsn
