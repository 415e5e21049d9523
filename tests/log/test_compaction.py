"""Readers see the same log before and after compaction, and wherever compaction is interrupted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from tests.log.faulty import Crash, CrashingStore
from tests.log.stream import Capture, Server, read, split_randomly, write

from tailrace.errors import CorruptError
from tailrace.log import segment
from tailrace.log.compaction import MAX_SEGMENTS, MergeCandidate, compact, plan
from tailrace.log.listing import LogObject, find_covered, list_objects
from tailrace.log.reader import LogReader
from tailrace.log.verify import verify
from tailrace.log_rows import LogRows
from tailrace.store import ObjectInfo, Store

AGED = timedelta(0)
NOW = datetime(2025, 6, 1, tzinfo=UTC)
MIB = 1024 * 1024


def make_candidate(first: int, last: int | None = None, size: int = 1000, payload: int | None = 1000) -> MergeCandidate:
    key = segment.key(first, last)
    return MergeCandidate(LogObject(first, last or first, ObjectInfo(key, size, NOW)), payload)


def spans(runs: Sequence[Sequence[LogObject]]) -> list[tuple[int, int]]:
    return [(run[0].first, run[-1].last) for run in runs]


def test_adjacent_objects_are_merged() -> None:
    assert spans(plan([make_candidate(i) for i in range(1, 6)], MIB)) == [(1, 5)]
    assert plan([], MIB) == []
    assert plan([make_candidate(1)], MIB) == []


def test_excluded_objects_are_not_merged() -> None:
    candidates = [
        make_candidate(1),
        make_candidate(2),
        make_candidate(3, payload=None),
        make_candidate(4),
        make_candidate(5),
        make_candidate(6, payload=None),
    ]
    assert spans(plan(candidates, MIB)) == [(1, 2), (4, 5)]


def test_runs_end_at_holes() -> None:
    assert spans(plan([make_candidate(1), make_candidate(2), make_candidate(4), make_candidate(5)], MIB)) == [
        (1, 2),
        (4, 5),
    ]


def test_large_objects_are_not_merged() -> None:
    candidates = [
        make_candidate(1),
        make_candidate(2),
        make_candidate(3, payload=600_000),
        make_candidate(4),
        make_candidate(5),
    ]
    assert spans(plan(candidates, MIB)) == [(1, 2), (4, 5)]


def test_runs_end_at_the_target() -> None:
    candidates = [make_candidate(i, payload=400_000) for i in range(1, 8)]
    assert spans(plan(candidates, MIB)) == [(1, 2), (3, 4), (5, 6)]


def test_runs_are_limited_by_number_of_headers() -> None:
    runs = plan([make_candidate(i, payload=0) for i in range(1, 2 * MAX_SEGMENTS + 3)], MIB)
    assert spans(runs) == [(1, MAX_SEGMENTS), (MAX_SEGMENTS + 1, 2 * MAX_SEGMENTS), (2001, 2002)]


def test_merged_objects_wait_until_there_is_as_much_again() -> None:
    small = [make_candidate(i, size=100, payload=100) for i in range(101, 104)]
    assert spans(plan([make_candidate(1, 100, size=10_000, payload=10_000), *small], MIB)) == [(101, 103)]
    assert spans(plan([make_candidate(1, 100, size=250, payload=250), *small], MIB)) == [(1, 103)]


def test_overlapping_objects_are_merged_into_one() -> None:
    assert spans(plan([make_candidate(1, 10), make_candidate(5, 15), make_candidate(16)], MIB)) == [(1, 16)]


def test_work_grows_with_the_logarithm_of_the_log() -> None:
    """With a run after each of a thousand segments, each byte is rewritten only a few times."""
    objects: list[MergeCandidate] = []
    rewritten = 0
    for id in range(1, 1001):
        objects.append(make_candidate(id, size=100, payload=100))
        for run in plan(objects, 100 * MIB):
            merged = [o for o in objects if o.object in run]
            total = sum(o.payload_bytes or 0 for o in merged)
            rewritten += total
            at = objects.index(merged[0])
            objects[at : at + len(merged)] = [make_candidate(run[0].first, run[-1].last, total, total)]
    assert rewritten < 1000 * 100 * 12
    assert len(objects) < 12


def test_find_covered_objects() -> None:
    objects = [
        make_candidate(1, 10),
        make_candidate(1),
        make_candidate(3),
        make_candidate(10),
        make_candidate(11),
        make_candidate(12, 20),
        make_candidate(12, 15),
        make_candidate(21),
    ]
    found = find_covered([c.object for c in objects])
    assert [(o.first, o.last) for o in found] == [(1, 1), (3, 3), (10, 10), (12, 15)]
    assert find_covered([make_candidate(1, 10).object, make_candidate(5, 15).object]) == {}


def test_recent_and_newest_segments_are_not_merged(any_store: Store) -> None:
    server = Server(1).work(30)
    write(any_store, server)
    before = [o.key for o in list_objects(any_store)]
    assert compact(any_store).written == 0
    assert [o.key for o in list_objects(any_store)] == before
    result = compact(any_store, now=datetime.now(UTC) + timedelta(minutes=11))
    assert (result.merged, result.written) == (len(before) - 1, 1)
    assert [o.key for o in list_objects(any_store)] == [segment.key(1, len(before) - 1), segment.key(len(before))]
    assert read(any_store) == server.changes
    assert compact(any_store, older_than=AGED).written == 0


@pytest.mark.parametrize("seed", range(6))
def test_nothing_changes_for_readers(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    server = Server(seed)
    for _ in range(4):
        server.work(8, largest=15)
        capture = Capture(store)
        parts = list(split_randomly(rng, server.frames(), 10))
        for part in parts[: rng.randint(len(parts) // 2, len(parts))]:
            capture.add(part)
        before = read(store)
        headers = [s.metadata() for s in LogReader(store).list()]
        compact(store, older_than=AGED, target_bytes=rng.choice([500, 3000, MIB]))
        reader = LogReader(store)
        assert list(reader.changes()) == before
        assert [s.metadata() for s in reader.list()] == headers
        for change in before[:: max(len(before) // 3, 1)]:
            assert list(reader.changes(change.position)) == [c for c in before if c.position >= change.position]
    Capture(store).add(server.frames())
    assert read(store) == server.changes
    assert list(verify(store)) == []


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_anywhere_is_harmless(store: Store, after: bool) -> None:
    server = Server(20).work(15)
    write(store, server, most=8)
    originals = {o.key: store.get(o.key) or b"" for o in list_objects(store)}
    for at in range(1, 2 * len(originals)):
        for info in list(store.list("")):
            store.delete(info.key)
        for key, data in originals.items():
            store.create(key, data)
        compact(store, older_than=AGED, target_bytes=400)
        try:
            compact(CrashingStore(store, at, after=after), older_than=AGED)
        except Crash:
            pass
        else:
            break
        assert read(store) == server.changes
        assert list(verify(store)) == []
        compact(store, older_than=AGED)
        assert read(store) == server.changes
        assert list(verify(store)) == []
        assert not find_covered(list_objects(store))
        assert len(list_objects(store)) <= 3
    assert at > 5


def test_an_existing_merged_object_is_used(store: Store) -> None:
    """Written by another version, for example: other bytes, the same segments."""
    write(store, Server(21).work(20))
    last = len(list_objects(store))
    contents = [segment.unpack(store.get(segment.key(i)) or b"", "x")[0] for i in range(1, last)]
    expected = read(store)
    relations = {d: r for c in contents for d, r in c.relations.items()}
    data = segment.pack([c.header.to_json() for c in contents], LogRows.concat([c.rows for c in contents]), {})
    other = segment.pack(
        [c.header.to_json() for c in contents],
        LogRows.concat([c.rows for c in contents]),
        dict(reversed(relations.items())),
    )
    assert other != data
    store.create(segment.key(1, last - 1), other)
    assert compact(store, older_than=AGED).leftovers == last - 1
    assert read(store) == expected


def test_differing_segments_are_not_deleted(store: Store) -> None:
    """A capture that was suspended wrote a segment whose name was free again."""
    server = Server(22).work(30)
    write(store, server, most=6)
    foreign = Store.open("memory://foreign-writer")
    write(foreign, Server(23).work(30), most=6)
    compact(store, older_than=AGED)
    store.create(segment.key(3), foreign.get(segment.key(3)) or b"")
    with pytest.raises(CorruptError, match="hold different segments"):
        compact(store, older_than=AGED)
    assert store.get(segment.key(3)) is not None
    assert read(store) == server.changes
    assert len(list(verify(store))) == 1


def test_damaged_segments_are_not_merged(store: Store) -> None:
    write(store, Server(24).work(30), most=6)
    before = [o.key for o in list_objects(store)]
    data = bytearray(store.get(segment.key(4)) or b"")
    data[60] ^= 1
    store.replace(segment.key(4), bytes(data))
    with pytest.raises(CorruptError):
        compact(store, older_than=AGED)
    assert [o.key for o in list_objects(store)] == before


def test_two_concurrent_runs(store: Store) -> None:
    """The second run planned with objects that the first has deleted meanwhile."""
    server = Server(25).work(60)
    write(store, server, most=6)

    class Meddled(CrashingStore):
        done = False

        def create(self, key: str, data: bytes) -> bool:
            if not self.done:
                self.done = True
                compact(store, older_than=AGED, target_bytes=1500)
            return super().create(key, data)

    compact(Meddled(store, 10**9, after=False), older_than=AGED, target_bytes=2000)
    assert read(store) == server.changes
    assert list(verify(store)) == []
    compact(store, older_than=AGED)
    compact(store, older_than=AGED)
    assert read(store) == server.changes
    assert list(verify(store)) == []
    assert len(list_objects(store)) <= 3


def test_stopping_between_objects(store: Store) -> None:
    server = Server(26).work(40)
    write(store, server, most=6)
    asked = iter([False, True])
    assert compact(store, older_than=AGED, target_bytes=500, stop=lambda: next(asked)).written == 1
    assert read(store) == server.changes
