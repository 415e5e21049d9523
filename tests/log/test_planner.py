"""Batches planned from headers: whole transactions, each once, however the log is cut, merged or trimmed."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from tests.log.stream import Capture, Server, split_randomly, write

from tailrace.change import Change, Lsn, Position
from tailrace.errors import ConfigError, CorruptError, GapError
from tailrace.log import compaction, planner
from tailrace.log.entry import decode_changes
from tailrace.log.planner import BatchLimits, LogBatch, Offset
from tailrace.log.reader import LogReader
from tailrace.log.trim import Trim
from tailrace.store import Store

ONE = BatchLimits(1, 1)


def changes(reader: LogReader, batch: LogBatch) -> list[Change]:
    """The changes of a batch, decoded one by one."""
    found = []
    for s in batch.slices:
        content = reader.content(s.segment)
        assert content is not None
        found += [c for c in decode_changes(content, s.start, s.stop) if c.position.commit_lsn >= batch.start.lsn]
    return found


def follow(reader: LogReader, limits: BatchLimits, start: Offset | None = None) -> list[LogBatch]:
    batches = []
    at = start or planner.start_offset(reader, None)
    while (batch := planner.next_batch(reader, at, limits)).end != at:
        batches.append(batch)
        at = batch.end
    return batches


def crashing(store: Store, server: Server, seed: int) -> None:
    """A capture that crashes repeatedly, mostly inside transactions, with idle segments in between."""
    rng = random.Random(seed)
    for _ in range(4):
        capture = Capture(store)
        parts = list(split_randomly(rng, server.frames(), 6))
        for part in parts[: rng.randint(1, len(parts))]:
            capture.add(part)
            if rng.random() < 0.3 and not capture.writer.tail_is_open:
                capture.idle(capture.writer.end_lsn)
    capture = Capture(store)
    for part in split_randomly(rng, server.frames(), 6):
        capture.add(part)


@pytest.mark.parametrize(
    "limits", [ONE, BatchLimits(3, 1 << 40), BatchLimits(1 << 40, 400), planner.UNLIMITED], ids=str
)
@pytest.mark.parametrize("seed", range(3))
def test_batches_hold_every_change_once_and_in_order(store: Store, seed: int, limits: BatchLimits) -> None:
    """Also with void tails, transactions that span segments, and idle segments."""
    server = Server(seed).work(30)
    crashing(store, server, seed)
    reader = LogReader(store)
    batches = follow(reader, limits)
    assert [c for batch in batches for c in changes(reader, batch)] == server.changes
    for batch in batches:
        assert not (batch.slices and batch.slices[-1].continues), "a batch ends inside a transaction"
        assert planner.batch_between(reader, batch.start, batch.end) == batch
    again = LogReader(store)
    for batch in reversed(batches):
        assert planner.batch_between(again, batch.start, batch.end) == batch, "deterministic"


@pytest.mark.parametrize("seed", range(2))
def test_a_follower_sees_transactions_once_they_are_complete(store: Store, seed: int) -> None:
    server = Server(seed).work(20, largest=30)
    reader = LogReader(store)
    capture = Capture(store)
    at, seen = Offset(0, Lsn(0)), []
    for part in split_randomly(random.Random(seed), server.frames(), 7):
        capture.add(part)
        batch = planner.next_batch(reader, at, BatchLimits(2, 1 << 40))
        seen += changes(reader, batch)
        at = batch.end
        whole = [s.changes for s in server.sent if s.end_lsn <= capture.writer.end_lsn]
        assert seen == [c for group in whole for c in group][: len(seen)]
    for batch in follow(reader, planner.UNLIMITED, at):
        seen += changes(reader, batch)
    assert seen == server.changes


@pytest.mark.parametrize("seed", range(2))
def test_start_at_every_lsn(store: Store, seed: int) -> None:
    server = Server(seed).work(15)
    crashing(store, server, seed)
    reader = LogReader(store)
    for sent in server.sent[::3]:
        for lsn in (sent.commit_lsn, sent.commit_lsn + 1, sent.end_lsn):
            batch = planner.next_batch(reader, planner.start_offset(reader, Lsn(lsn)), planner.UNLIMITED)
            assert changes(reader, batch) == [c for c in server.changes if c.position.commit_lsn >= lsn]
            reached = planner.segment_reaching(reader, Lsn(lsn))
            up_to = planner.next_batch(reader, planner.start_offset(reader, None), planner.UNLIMITED, reached)
            below = [c for c in server.changes if c.position.commit_lsn < lsn]
            assert changes(reader, up_to)[: len(below)] == below


def test_latest_starts_with_the_open_transaction(store: Store) -> None:
    server = Server(3)
    first, second = server.transaction(4), server.transaction(6)
    capture = Capture(store)
    capture.add([*server.frames()[:3], *first.frames, *second.frames[:3]])
    reader = LogReader(store)
    start = planner.latest_offset(reader)
    assert planner.next_batch(reader, start).end == start
    capture.add(second.frames[3:])
    assert changes(reader, planner.next_batch(reader, start)) == second.changes


def test_an_open_transaction_that_spans_many_segments(store: Store) -> None:
    """It is planned only once it is complete, and then in one batch, whatever the limits."""
    server = Server(5)
    small, large = server.transaction(2), server.transaction(50)
    capture = Capture(store)
    capture.add([*server.frames()[:3], *small.frames])
    reader = LogReader(store)
    at = planner.next_batch(reader, planner.start_offset(reader, None), ONE).end
    for frame in large.frames[:-1]:
        capture.add([frame])
        assert planner.next_batch(reader, at, ONE).end == at
    capture.add(large.frames[-1:])
    batch = planner.next_batch(reader, at, ONE)
    assert changes(reader, batch) == large.changes
    assert len(batch.slices) > 40
    assert [s.continues for s in batch.slices] == [True] * (len(batch.slices) - 1) + [False]
    assert batch.split(8, whole_transactions=True) == [batch.slices]
    assert len(batch.split(8)) == 8


@pytest.mark.parametrize("seed", range(3))
def test_split_keeps_all_slices_in_order(store: Store, seed: int) -> None:
    server = Server(seed).work(60, largest=12)
    write(store, server, seed, most=5)
    reader = LogReader(store)
    batch = planner.next_batch(reader, planner.start_offset(reader, None), planner.UNLIMITED)
    for count in (1, 2, 3, 7, 1000):
        for whole in (True, False):
            parts = batch.split(count, whole_transactions=whole)
            assert len(parts) <= count
            assert tuple(s for part in parts for s in part) == batch.slices
            assert not whole or not any(part[-1].continues for part in parts)
    sizes = [sum(s.bytes for s in part) for part in batch.split(4)]
    assert max(sizes) < 2 * batch.bytes / 4


def test_plans_are_the_same_after_merging(store: Store) -> None:
    server = Server(8).work(60)
    write(store, server, most=4)
    reader = LogReader(store)
    planned = follow(reader, BatchLimits(4, 1 << 40))
    compaction.compact(store, older_than=timedelta(0))
    assert len(list(store.list("log"))) < len(planned)
    fresh = LogReader(store)
    assert follow(fresh, BatchLimits(4, 1 << 40)) == planned
    assert [c for batch in planned for c in changes(fresh, batch)] == server.changes
    assert [c for batch in planned for c in changes(reader, batch)] == server.changes, (
        "by a reader that listed other objects"
    )


def test_reading_begins_where_retention_ended(store: Store) -> None:
    server = Server(9).work(40)
    write(store, server, most=4)
    reader = LogReader(store)
    headers = [h for s in reader.list() if (h := s.metadata()) is not None]
    first = next(h for i, h in enumerate(headers) if i > 10 and headers[i - 1].ends_at_commit and h.first is not None)
    before = headers[first.id - 2]
    assert first.first is not None
    Trim(first.id, first.previous, first.first).save(store)
    for header in headers[: first.id - 1]:
        store.delete(f"log/{header.id:020d}.parquet")
    left = [c for c in server.changes if c.position >= first.first]
    fresh = LogReader(store)
    start = planner.start_offset(fresh, None)
    assert changes(fresh, planner.next_batch(fresh, start, planner.UNLIMITED)) == left
    resumed = Offset(before.id, before.end_lsn)
    assert changes(fresh, planner.next_batch(fresh, resumed, planner.UNLIMITED)) == left, (
        "a reader at this offset continues"
    )
    with pytest.raises(GapError, match="retention"):
        planner.next_batch(fresh, Offset(before.id - 3, Lsn(0)))
    with pytest.raises(GapError, match="retention"):
        planner.start_offset(fresh, server.changes[0].position.commit_lsn)


def test_a_gap_raises_unless_accepted(store: Store) -> None:
    server = Server(2).work(10)
    capture = write(store, server)
    after = Lsn(server.lsn + 1000)
    before_gap = planner.latest_offset(LogReader(store))
    again = Capture(store, capture.relations)
    again.writer.begin_at(after)
    server.lsn = after + 8
    later = server.transaction(3)
    again.add(later.frames)
    reader = LogReader(store)
    for start in (planner.start_offset(reader, None), before_gap):
        with pytest.raises(GapError, match="not in the log"):
            planner.next_batch(reader, start, planner.UNLIMITED)
    with pytest.raises(GapError):
        planner.start_offset(reader, Lsn(after - 10))
    assert (
        changes(reader, planner.next_batch(reader, planner.start_offset(reader, after), planner.UNLIMITED))
        == later.changes
    )
    across = planner.next_batch(reader, planner.start_offset(reader, None), planner.UNLIMITED, across_gaps=True)
    assert changes(reader, across) == server.changes
    assert changes(reader, planner.batch_between(reader, before_gap, across.end, across_gaps=True)) == later.changes


def test_going_back_and_missing_segments_raise(store: Store) -> None:
    server = Server(4).work(10)
    write(store, server, most=4)
    reader = LogReader(store)
    batches = follow(reader, ONE)
    with pytest.raises(CorruptError, match="went back"):
        planner.batch_between(reader, batches[-1].end, batches[0].end)
    with pytest.raises(CorruptError, match="ends at segment"):
        planner.batch_between(reader, batches[-1].end, Offset(batches[-1].end.segment + 5, Lsn(1 << 62)))


def test_offsets_round_trip_as_json() -> None:
    offset = Offset(7, Lsn(0x1_0000_00FF))
    assert Offset.from_json(offset.to_json()) == offset
    others: list[object] = [{}, {"segment": "7", "lsn": "0/1"}, [], None, {"segment": 7}]
    for other in others:
        with pytest.raises(CorruptError, match="not a Tailrace offset"):
            Offset.from_json(other)


def test_resolve_lsn_from_name_lsn_and_time(store: Store) -> None:
    server = Server(6).work(20)
    write(store, server)
    reader = LogReader(store)
    assert planner.resolve_lsn(reader, "earliest", "starting") is None
    assert planner.resolve_lsn(reader, "latest", "starting") == planner.latest_offset(reader).lsn
    assert planner.resolve_lsn(reader, "1/A0", "starting") == Lsn(0x1_0000_00A0)
    for sent in server.sent:
        if not sent.changes:
            continue
        moment = sent.changes[0].committed_at
        for text in (
            moment.isoformat(),
            moment.replace(tzinfo=None).isoformat(),
            moment.isoformat().replace("+00:00", "Z"),
        ):
            place = planner.resolve_lsn(reader, text, "starting")
            batch = planner.next_batch(reader, planner.start_offset(reader, place), planner.UNLIMITED)
            assert changes(reader, batch)[0] == sent.changes[0]
    for wrong in ("yesterday", "", "5", "0/1A:3"):
        with pytest.raises(ConfigError, match="starting"):
            planner.resolve_lsn(reader, wrong, "starting")


def test_an_empty_log(store: Store) -> None:
    reader = LogReader(store)
    start = planner.start_offset(reader, None)
    assert planner.latest_offset(reader) == Offset(0, Lsn(0)) == start
    assert planner.next_batch(reader, start) == LogBatch((), start, start)
    assert planner.segment_reaching(reader, Lsn(5)) == 0
    capture = Capture(store)
    server = Server(1)
    sent = server.transaction(2)
    capture.add([*server.frames()[:3], *sent.frames])
    assert changes(reader, planner.next_batch(reader, start)) == sent.changes
    assert Position(Lsn(sent.commit_lsn), 0) == sent.changes[0].position
