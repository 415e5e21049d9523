"""Batches planned from headers: whole transactions, each once, however the log is cut, merged or trimmed."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from tests.log.stream import Capture, Server, cut, write

from tailrace.change import Change, Lsn, Position
from tailrace.errors import ConfigError, CorruptError, GapError
from tailrace.log import compaction, plan
from tailrace.log.entry import changes_of
from tailrace.log.plan import Batch, Limits, Offset
from tailrace.log.reader import LogReader
from tailrace.log.trim import Trim
from tailrace.store import Store

ONE = Limits(1, 1)


def changes(reader: LogReader, batch: Batch) -> list[Change]:
    """By the plain decoder, row by row."""
    found = []
    for s in batch.slices:
        content = reader.awaited_content(s.segment)
        assert content is not None
        found += [c for c in changes_of(content, s.start, s.stop) if c.position.commit_lsn >= batch.start.lsn]
    return found


def follow(reader: LogReader, limits: Limits, start: Offset | None = None) -> list[Batch]:
    batches = []
    at = start or plan.begin(reader, None)
    while (batch := plan.following(reader, at, limits)).end != at:
        batches.append(batch)
        at = batch.end
    return batches


def crashing(store: Store, server: Server, seed: int) -> None:
    """A capture that is cut off again and again, mostly inside transactions, with idle segments between."""
    rng = random.Random(seed)
    for _ in range(4):
        capture = Capture(store)
        parts = list(cut(rng, server.frames(), 6))
        for part in parts[: rng.randint(1, len(parts))]:
            capture.add(part)
            if rng.random() < 0.3 and not capture.writer.tail_is_open:
                capture.idle(capture.writer.end_lsn)
    capture = Capture(store)
    for part in cut(rng, server.frames(), 6):
        capture.add(part)


@pytest.mark.parametrize("limits", [ONE, Limits(3, 1 << 40), Limits(1 << 40, 400), plan.UNLIMITED], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_batches_hold_every_change_once_and_in_order(store: Store, seed: int, limits: Limits) -> None:
    """Void tails, transactions over segments, idle segments: what batches give is what the source said."""
    server = Server(seed).work(30)
    crashing(store, server, seed)
    reader = LogReader(store)
    batches = follow(reader, limits)
    assert [c for batch in batches for c in changes(reader, batch)] == server.changes
    for batch in batches:
        assert not (batch.slices and batch.slices[-1].goes_on), "a batch ends inside a transaction"
        assert plan.between(reader, batch.start, batch.end) == batch
    again = LogReader(store)
    for batch in reversed(batches):
        assert plan.between(again, batch.start, batch.end) == batch, "the same at every reading"


@pytest.mark.parametrize("seed", range(2))
def test_a_follower_sees_transactions_once_they_are_whole(store: Store, seed: int) -> None:
    server = Server(seed).work(20, largest=30)
    reader = LogReader(store)
    capture = Capture(store)
    at, seen = Offset(0, Lsn(0)), []
    for part in cut(random.Random(seed), server.frames(), 7):
        capture.add(part)
        batch = plan.following(reader, at, Limits(2, 1 << 40))
        seen += changes(reader, batch)
        at = batch.end
        whole = [s.changes for s in server.sent if s.end_lsn <= capture.writer.end_lsn]
        assert seen == [c for group in whole for c in group][: len(seen)]
    for batch in follow(reader, plan.UNLIMITED, at):
        seen += changes(reader, batch)
    assert seen == server.changes


@pytest.mark.parametrize("seed", range(2))
def test_every_place_to_begin_at(store: Store, seed: int) -> None:
    server = Server(seed).work(15)
    crashing(store, server, seed)
    reader = LogReader(store)
    for sent in server.sent[::3]:
        for lsn in (sent.commit_lsn, sent.commit_lsn + 1, sent.end_lsn):
            batch = plan.following(reader, plan.begin(reader, Lsn(lsn)), plan.UNLIMITED)
            assert changes(reader, batch) == [c for c in server.changes if c.position.commit_lsn >= lsn]
            reached = plan.reaching(reader, Lsn(lsn))
            up_to = plan.following(reader, plan.begin(reader, None), plan.UNLIMITED, reached)
            below = [c for c in server.changes if c.position.commit_lsn < lsn]
            assert changes(reader, up_to)[: len(below)] == below


def test_latest_begins_with_the_transaction_that_is_open(store: Store) -> None:
    server = Server(3)
    first, second = server.transaction(4), server.transaction(6)
    capture = Capture(store)
    capture.add([*server.frames()[:3], *first.frames, *second.frames[:3]])
    reader = LogReader(store)
    start = plan.latest(reader)
    assert plan.following(reader, start).end == start
    capture.add(second.frames[3:])
    assert changes(reader, plan.following(reader, start)) == second.changes


def test_an_open_transaction_over_many_segments(store: Store) -> None:
    """Nothing of it is planned before its end, and then all of it in one batch, whatever the limits."""
    server = Server(5)
    small, large = server.transaction(2), server.transaction(50)
    capture = Capture(store)
    capture.add([*server.frames()[:3], *small.frames])
    reader = LogReader(store)
    at = plan.following(reader, plan.begin(reader, None), ONE).end
    for frame in large.frames[:-1]:
        capture.add([frame])
        assert plan.following(reader, at, ONE).end == at
    capture.add(large.frames[-1:])
    batch = plan.following(reader, at, ONE)
    assert changes(reader, batch) == large.changes
    assert len(batch.slices) > 40
    assert [s.goes_on for s in batch.slices] == [True] * (len(batch.slices) - 1) + [False]
    assert batch.parts(8, whole_transactions=True) == [batch.slices]
    assert len(batch.parts(8)) == 8


@pytest.mark.parametrize("seed", range(3))
def test_parts_are_all_slices_in_order(store: Store, seed: int) -> None:
    server = Server(seed).work(60, largest=12)
    write(store, server, seed, most=5)
    reader = LogReader(store)
    batch = plan.following(reader, plan.begin(reader, None), plan.UNLIMITED)
    for count in (1, 2, 3, 7, 1000):
        for whole in (True, False):
            parts = batch.parts(count, whole_transactions=whole)
            assert len(parts) <= count
            assert tuple(s for part in parts for s in part) == batch.slices
            assert not whole or not any(part[-1].goes_on for part in parts)
    sizes = [sum(s.bytes for s in part) for part in batch.parts(4)]
    assert max(sizes) < 2 * batch.bytes / 4


def test_merged_segments_are_planned_alike(store: Store) -> None:
    server = Server(8).work(60)
    write(store, server, most=4)
    reader = LogReader(store)
    planned = follow(reader, Limits(4, 1 << 40))
    compaction.compact(store, older_than=timedelta(0))
    assert len(list(store.list("log"))) < len(planned)
    fresh = LogReader(store)
    assert follow(fresh, Limits(4, 1 << 40)) == planned
    assert [c for batch in planned for c in changes(fresh, batch)] == server.changes
    assert [c for batch in planned for c in changes(reader, batch)] == server.changes, "by one that knew other objects"


def test_where_retention_cut_is_where_reading_begins(store: Store) -> None:
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
    start = plan.begin(fresh, None)
    assert changes(fresh, plan.following(fresh, start, plan.UNLIMITED)) == left
    stood = Offset(before.id, before.end_lsn)
    assert changes(fresh, plan.following(fresh, stood, plan.UNLIMITED)) == left, (
        "a reader that stood just there goes on"
    )
    with pytest.raises(GapError, match="retention"):
        plan.following(fresh, Offset(before.id - 3, Lsn(0)))
    with pytest.raises(GapError, match="retention"):
        plan.begin(fresh, server.changes[0].position.commit_lsn)


def test_a_gap_is_told_unless_it_is_accepted(store: Store) -> None:
    server = Server(2).work(10)
    capture = write(store, server)
    after = Lsn(server.lsn + 1000)
    stood = plan.latest(LogReader(store))
    again = Capture(store, capture.relations)
    again.writer.begin_at(after)
    server.lsn = after + 8
    later = server.transaction(3)
    again.add(later.frames)
    reader = LogReader(store)
    for start in (plan.begin(reader, None), stood):
        with pytest.raises(GapError, match="not in the log"):
            plan.following(reader, start, plan.UNLIMITED)
    with pytest.raises(GapError):
        plan.begin(reader, Lsn(after - 10))
    assert changes(reader, plan.following(reader, plan.begin(reader, after), plan.UNLIMITED)) == later.changes
    across = plan.following(reader, plan.begin(reader, None), plan.UNLIMITED, across_gaps=True)
    assert changes(reader, across) == server.changes
    assert changes(reader, plan.between(reader, stood, across.end, across_gaps=True)) == later.changes


def test_going_back_and_missing_segments_are_refused(store: Store) -> None:
    server = Server(4).work(10)
    write(store, server, most=4)
    reader = LogReader(store)
    batches = follow(reader, ONE)
    with pytest.raises(CorruptError, match="went back"):
        plan.between(reader, batches[-1].end, batches[0].end)
    with pytest.raises(CorruptError, match="ends at segment"):
        plan.between(reader, batches[-1].end, Offset(batches[-1].end.segment + 5, Lsn(1 << 62)))


def test_offsets_travel_as_json() -> None:
    offset = Offset(7, Lsn(0x1_0000_00FF))
    assert Offset.from_json(offset.to_json()) == offset
    others: list[object] = [{}, {"segment": "7", "lsn": "0/1"}, [], None, {"segment": 7}]
    for other in others:
        with pytest.raises(CorruptError, match="not an offset"):
            Offset.from_json(other)


def test_places_by_name_lsn_and_time(store: Store) -> None:
    server = Server(6).work(20)
    write(store, server)
    reader = LogReader(store)
    assert plan.parse_place(reader, "earliest", "starting") is None
    assert plan.parse_place(reader, "latest", "starting") == plan.latest(reader).lsn
    assert plan.parse_place(reader, "1/A0", "starting") == Lsn(0x1_0000_00A0)
    for sent in server.sent:
        if not sent.changes:
            continue
        moment = sent.changes[0].committed_at
        for text in (
            moment.isoformat(),
            moment.replace(tzinfo=None).isoformat(),
            moment.isoformat().replace("+00:00", "Z"),
        ):
            place = plan.parse_place(reader, text, "starting")
            batch = plan.following(reader, plan.begin(reader, place), plan.UNLIMITED)
            assert changes(reader, batch)[0] == sent.changes[0]
    for wrong in ("yesterday", "", "5", "0/1A:3"):
        with pytest.raises(ConfigError, match="starting"):
            plan.parse_place(reader, wrong, "starting")


def test_an_empty_log(store: Store) -> None:
    reader = LogReader(store)
    start = plan.begin(reader, None)
    assert plan.latest(reader) == Offset(0, Lsn(0)) == start
    assert plan.following(reader, start) == Batch((), start, start)
    assert plan.reaching(reader, Lsn(5)) == 0
    capture = Capture(store)
    server = Server(1)
    sent = server.transaction(2)
    capture.add([*server.frames()[:3], *sent.frames])
    assert changes(reader, plan.following(reader, start)) == sent.changes
    assert Position(Lsn(sent.commit_lsn), 0) == sent.changes[0].position
