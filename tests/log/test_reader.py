"""Reading: what is visible and when, where reading starts, what is missing, what has been merged."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from tests.log.stream import SOURCE, Capture, Server, read, relation, split_randomly, write

from tailrace.change import UNCHANGED, Change, Lsn, Operation, Position
from tailrace.errors import CorruptError, FencedError, GapError
from tailrace.log import reader as reader_module
from tailrace.log import segment
from tailrace.log.compaction import compact
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.log_rows import LogRows
from tailrace.store import Store

AGED = timedelta(0)


def ids(reader: LogReader, first: int | None = None, last: int | None = None) -> list[int]:
    return [s.id for s in reader.list(first, last)]


def copy(store: Store, name: str) -> Store:
    other = Store.open(f"memory://{name}-{random.random()}")
    for info in store.list(""):
        other.create(info.key, store.get(info.key) or b"")
    return other


@pytest.mark.parametrize("seed", range(3))
def test_everything_committed_is_read_in_order(any_store: Store, seed: int) -> None:
    server = Server(seed).work(60)
    write(any_store, server, seed)
    assert read(any_store) == server.changes


def test_an_empty_log(any_store: Store) -> None:
    reader = LogReader(any_store)
    assert reader.list() == []
    assert reader.first() is None
    assert reader.last() is None
    assert reader.end_lsn() == 0
    assert reader.get(1).metadata() is None
    assert reader.get(1).entries() is None
    assert list(reader.changes()) == []


def test_segments_by_id(any_store: Store) -> None:
    write(any_store, Server(1).work(30))
    reader = LogReader(any_store)
    count = len(reader.list())
    assert ids(reader, 3, 5) == [3, 4, 5]
    assert ids(reader, count) == [count]
    segment_3 = LogReader(any_store).get(3)
    header, entries = segment_3.metadata(), segment_3.entries()
    assert header is not None
    assert entries is not None
    rows = list(entries)
    assert len(rows) == header.rows
    assert rows[0].position == header.first
    assert rows[-1].position == header.last
    assert reader.get(count + 1).content() is None


@pytest.mark.parametrize("seed", range(3))
def test_reading_from_any_position(store: Store, seed: int) -> None:
    server = Server(seed).work(15, largest=20)
    write(store, server, seed, most=6)
    reader = LogReader(store)
    for change in random.Random(seed).sample(server.changes, 12):
        expected = [c for c in server.changes if c.position >= change.position]
        assert list(reader.changes(change.position)) == expected
    first, last = server.changes[3].position, server.changes[-3].position
    assert list(reader.changes(first, last)) == server.changes[3:-3]
    beyond = Position(Lsn(server.lsn + 1), 0)
    assert list(reader.changes(beyond)) == []


def test_reading_from_a_time(store: Store) -> None:
    server = Server(2).work(40)
    write(store, server, most=5)
    reader = LogReader(store)
    for change in server.changes[::31]:
        at = change.committed_at
        assert list(reader.changes(at)) == [c for c in server.changes if c.committed_at >= at]
        assert list(reader.changes(None, at)) == [c for c in server.changes if c.committed_at < at]
    assert list(reader.changes(datetime(2100, 1, 1, tzinfo=UTC))) == []


def test_only_some_tables(store: Store) -> None:
    server = Server(3).work(40)
    write(store, server)
    found = list(LogReader(store).changes(tables=lambda r: r.name == "t101"))
    assert found == [c for c in server.changes if c.table == "t101"]


@pytest.mark.parametrize("most", [4, 1000])
def test_a_transaction_is_visible_with_its_commit(store: Store, most: int) -> None:
    server = Server(4).work(10)
    capture = Capture(store)
    seen = 0
    for part in split_randomly(random.Random(0), server.frames(), most):
        capture.add(part)
        changes = read(store)
        assert changes == server.changes[: len(changes)]
        # Whole transactions only.
        boundaries = {0}
        for sent in server.sent:
            boundaries.add(max(boundaries) + len(sent.changes))
        assert len(changes) in boundaries
        seen = len(changes)
    assert seen == len(server.changes)


@pytest.mark.parametrize("seed", range(8))
def test_interrupted_tails_are_void(store: Store, seed: int) -> None:
    """Capture crashes repeatedly, anywhere. The source sends open transactions again at the same positions."""
    rng = random.Random(seed)
    server = Server(seed).work(12, largest=15)
    voids = 0
    for _ in range(8):
        capture = Capture(store)
        frames = server.frames()
        parts = list(split_randomly(rng, frames, 6))
        lives_for = rng.randint(1, len(parts))
        for part in parts[:lives_for]:
            header = capture.add(part)
            voids += header is not None and header.voids_tail
        if lives_for == len(parts):
            break
        changes = read(store)
        assert changes == server.changes[: len(changes)]
    else:
        capture = Capture(store)
        for part in split_randomly(rng, server.frames(), 6):
            capture.add(part)
    assert read(store) == server.changes
    reader = LogReader(store)
    for change in server.changes[::9]:
        assert next(reader.changes(change.position)) == change
    if seed == 0:
        assert voids


def test_a_tail_left_open_twice(store: Store) -> None:
    server = Server(5)
    server.transaction(3)
    server.transaction(30)
    frames = server.frames()
    for stop in (12, 20, 25):
        capture = Capture(store)
        for part in (frames[:10], frames[10:stop]):
            capture.add(part)
    assert read(store) == server.sent[0].changes
    Capture(store).add(frames)
    assert read(store) == server.changes
    headers = [s.metadata() for s in LogReader(store).list()]
    assert sum(h is not None and h.voids_tail for h in headers) == 3


def test_idle_segments_only_advance_the_end(store: Store) -> None:
    server = Server(6).work(5)
    capture = write(store, server)
    header = capture.idle(server.lsn + 1000)
    assert header.rows == 0
    assert LogReader(store).end_lsn() == server.lsn + 1000
    server.lsn += 1000
    later = server.transaction(3)
    capture.add(later.frames)
    assert read(store) == server.changes


def test_a_missing_segment_is_an_error(store: Store) -> None:
    server = Server(7).work(60)
    write(store, server, most=5)
    store.delete(segment.key(5))
    reader = LogReader(store)
    with pytest.raises(CorruptError, match=r"segment 5 .* is missing"):
        list(reader.changes())
    with pytest.raises(CorruptError, match=r"segment 5 .* is missing"):
        list(reader.follow())
    # What comes after can still be read.
    assert list(reader.changes(server.changes[-1].position)) == server.changes[-1:]


def test_a_missing_segment_is_an_error_when_all_later_ones_are_merged(store: Store) -> None:
    write(store, Server(7).work(60), most=5)
    count = len(LogReader(store).list())
    lost = copy(store, "lost")
    compact(store, older_than=AGED)
    merged = segment.key(1, count - 1)
    for id in range(2, count):
        lost.delete(segment.key(id))
    lost.create(merged.replace(f"{1:020d}-", f"{3:020d}-"), b"")
    lost.delete(segment.key(count))
    with pytest.raises(CorruptError, match=r"segment 2 .* is missing"):
        list(LogReader(lost).changes())


def test_damaged_objects_raise(store: Store) -> None:
    write(store, Server(8).work(20))
    data = bytearray(store.get(segment.key(2)) or b"")
    data[100] ^= 1
    store.replace(segment.key(2), bytes(data))
    with pytest.raises(CorruptError, match="checksum"):
        read(store)
    store.replace(segment.key(2), b"")
    with pytest.raises(CorruptError):
        LogReader(store).get(2).metadata()


def test_a_gap_raises_unless_reading_across_it(store: Store) -> None:
    server = Server(9).work(10)
    write(store, server)
    before = list(server.changes)
    server.lsn += 10_000
    writer = LogWriter.open(store, SOURCE)
    writer.begin_at(Lsn(server.lsn))
    lost_until = server.lsn
    server.transaction(3)
    capture = Capture(store)
    capture.writer, capture.skip_below = writer, Lsn(lost_until)
    capture.relations = dict(server.relations)
    capture.add(server.sent[-1].frames)
    reader = LogReader(store)
    changes = reader.changes()
    seen: list[Change] = []
    with pytest.raises(GapError, match="are not in the log"):
        seen.extend(changes)
    assert list(reader.changes(across_gaps=True)) == server.changes
    assert list(reader.changes(Position(Lsn(lost_until), 0))) == server.sent[-1].changes
    assert seen == before == server.changes[: len(before)]
    with pytest.raises(GapError, match="are not in the log"):
        list(reader.changes(Position(Lsn(lost_until - 5), 0)))


@contextmanager
def following(reader: LogReader, start: Position | None = None) -> Iterator[queue.Queue[Change]]:
    stop, got = threading.Event(), queue.Queue[Change]()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for change in reader.follow(start, poll_seconds=0.002, stop=stop):
                got.put(change)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield got
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


def take(got: queue.Queue[Change], count: int) -> list[Change]:
    return [got.get(timeout=10) for _ in range(count)]


def test_follow(any_store: Store) -> None:
    server = Server(10).work(40)
    capture = Capture(any_store)
    with following(LogReader(any_store)) as got:
        for part in split_randomly(random.Random(1), server.frames(), 4):
            capture.add(part)
        assert take(got, len(server.changes)) == server.changes
        assert got.empty()
    with following(LogReader(any_store), server.changes[-2].position) as got:
        assert take(got, 2) == server.changes[-2:]


def test_follow_through_a_crash(store: Store) -> None:
    server = Server(11)
    server.transaction(2)
    server.transaction(40)
    frames = server.frames()
    with following(LogReader(store)) as got:
        capture = Capture(store)
        for part in split_randomly(random.Random(1), frames[:30], 4):
            capture.add(part)
        assert take(got, len(server.sent[0].changes)) == server.sent[0].changes
        Capture(store).add(frames)
        assert take(got, len(server.sent[1].changes)) == server.sent[1].changes


def test_a_slow_follower_finds_segments_that_were_merged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_LISTING_VALID_S", 0.0)
    server = Server(12).work(20)
    capture = write(store, server, most=5)
    changes = LogReader(store).follow(poll_seconds=0.002)
    early = [next(changes) for _ in range(5)]
    # Meanwhile many segments are written, and all of them are merged.
    more = server.work(40).sent[20:]
    for sent in more:
        capture.add(sent.frames)
    compact(store, older_than=AGED)
    assert len(list(store.list(segment.PREFIX))) == 2
    rest = [next(changes) for _ in range(len(server.changes) - 5)]
    assert early + rest == server.changes


def test_a_reader_with_an_old_listing_finds_segments_that_were_merged_twice(store: Store) -> None:
    server = Server(13).work(60)
    write(store, server, most=5)
    reader = LogReader(store)
    changes = reader.changes()
    got = [next(changes)]
    compact(store, older_than=AGED, target_bytes=2000)
    got += [next(changes) for _ in range(10)]
    compact(store, older_than=AGED)
    got += changes
    assert got == server.changes


def test_writing_continues_after_merged_segments(store: Store) -> None:
    server = Server(14).work(20)
    write(store, server)
    last = LogReader(store).last()
    assert last is not None
    compact(store, older_than=AGED)
    # All ids are inside one object.
    objects = [store.get(info.key) or b"" for info in store.list(segment.PREFIX)]
    contents = [c for data in objects for c in segment.unpack(data, "x")]
    contents.sort(key=lambda c: c.header.id)
    whole = segment.pack(
        [c.header.to_json() for c in contents],
        LogRows.concat([c.rows for c in contents]),
        {d: r for c in contents for d, r in c.relations.items()},
    )
    alone = Store.open("memory://all-in-one")
    alone.create(segment.key(1, last.id), whole)
    assert LogWriter.open(alone, SOURCE).next_id == last.id + 1
    assert read(alone) == server.changes
    server.transaction(3)
    capture = Capture(alone)
    capture.add(server.frames())
    assert read(alone) == server.changes


def test_a_second_writer_is_fenced(store: Store) -> None:
    server = Server(15).work(4)
    first, second = Capture(store), Capture(store)
    second.add(server.frames()[:5])
    with pytest.raises(FencedError):
        first.add(server.frames())


def test_a_suspended_writer_is_fenced_even_if_its_names_are_free(store: Store) -> None:
    """Another capture took over and its segments were merged, so creating the next segment would succeed."""
    server = Server(16).work(30)
    sleeper = Capture(store)
    sleeper.add(server.frames()[:6])
    write(store, server, most=5)
    compact(store, older_than=AGED)
    assert store.get(segment.key(sleeper.writer.next_id)) is None
    sleeper.writer._appended_at -= 3600
    with pytest.raises(FencedError):
        sleeper.add(server.frames()[6:])
    assert read(store) == server.changes


def test_change_attributes() -> None:
    shape = relation(100, version=1)
    at = (Position(Lsn(0x1A), 3), Lsn(0x10), 7, datetime(2025, 1, 1, tzinfo=UTC))
    update = Change(*at, Operation.UPDATE, shape, (b"1", None, None), True, (b"2", UNCHANGED, b"1.50"))
    assert update.before == {"id": 1}
    assert update.after == {"id": 2, "extra0": Decimal("1.50")}
    assert update.key == {"id": 1}
    assert update.unchanged == ("body",)
    insert = Change(*at, Operation.INSERT, shape, new=(b"2", None, b"NaN"))
    assert (insert.before, insert.key, insert.unchanged) == (None, {"id": 2}, ())
    message = Change(*at, Operation.MESSAGE, prefix="p", content=b"x")
    assert (message.before, message.after, message.key, message.table) == (None, None, None, None)
