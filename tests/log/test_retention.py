"""Retention removes the oldest segments: none that a reader needs, no part of a transaction, and it leaves no hole."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from tests.log.faulty import Crash, CrashingStore
from tests.log.stream import Capture, Server, read, write

from tailrace.change import Lsn, Position
from tailrace.errors import CorruptError, GapError
from tailrace.log import segment, trim
from tailrace.log.compaction import compact
from tailrace.log.listing import LogObject, list_objects
from tailrace.log.reader import LogReader
from tailrace.log.retention import RemovalCandidate, RetentionLimits, cursors, newest_snapshots, plan, retain
from tailrace.log.verify import verify
from tailrace.store import ObjectInfo, Store

NOW = datetime(2025, 6, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NOTHING = RetentionLimits(max_bytes=0)


def make_candidate(id: int, hours: float = 0, last: Position | None = None, whole: bool = True) -> RemovalCandidate:
    info = ObjectInfo(segment.key(id), 100, NOW)
    return RemovalCandidate(LogObject(id, id, info), last or Position(Lsn(id * 10), 3), NOW - hours * HOUR, whole)


def plan_removal(
    candidates: list[RemovalCandidate], limits: RetentionLimits, **needs: dict[str, object]
) -> tuple[list[int], str | None]:
    given = plan(
        candidates,
        100 * len(candidates),
        limits,
        NOW,
        needs.get("cursors", {}),  # type: ignore[arg-type]
        needs.get("snapshots", {}),  # type: ignore[arg-type]
    )
    return [o.first for o in given.remove], given.retained_for


def test_removal_by_age() -> None:
    candidates = [make_candidate(1, 5), make_candidate(2, 4), make_candidate(3, 3), make_candidate(4, 1)]
    assert plan_removal(candidates, RetentionLimits(max_age=2 * HOUR)) == ([1, 2, 3], None)
    assert plan_removal(candidates, RetentionLimits(max_age=6 * HOUR)) == ([], None)
    assert plan_removal(candidates, RetentionLimits()) == ([], None)


def test_the_oldest_are_removed_first_whatever_the_clock() -> None:
    assert plan_removal([make_candidate(1, 1), make_candidate(2, 9)], RetentionLimits(max_age=2 * HOUR)) == ([], None)


def test_removal_by_size() -> None:
    candidates = [make_candidate(i) for i in range(1, 6)]
    assert plan_removal(candidates, RetentionLimits(max_bytes=250)) == ([1, 2, 3], None)
    assert plan_removal(candidates, RetentionLimits(max_bytes=500)) == ([], None)
    assert plan_removal(candidates, RetentionLimits(max_age=HOUR, max_bytes=400)) == ([1], None)


def test_cursors_limit_removal() -> None:
    candidates = [make_candidate(i) for i in range(1, 6)]
    # `last` is the commit's position, one after the last change.
    ahead, behind = Position(Lsn(40), 2), Position(Lsn(30), 2)
    assert plan_removal(candidates, NOTHING, cursors={"a": ahead}) == (
        [1, 2, 3, 4],
        "sink a, whose cursor is at 0/28:2",
    )
    retained_for = "sink b, whose cursor is at 0/1E:2"
    assert plan_removal(candidates, NOTHING, cursors={"a": ahead, "b": behind}) == ([1, 2, 3], retained_for)
    assert plan_removal(candidates, NOTHING, cursors={"b": Position(Lsn(30), 1)})[0] == [1, 2]


def test_undelivered_messages_limit_removal() -> None:
    candidates = [make_candidate(1, last=Position(Lsn(10), 0)), make_candidate(2)]
    assert plan_removal(candidates, NOTHING, cursors={"a": Position(Lsn(9), 50)})[0] == []
    assert plan_removal(candidates, NOTHING, cursors={"a": Position(Lsn(10), 0)})[0] == [1]


def test_snapshots_limit_removal() -> None:
    candidates = [make_candidate(i) for i in range(1, 6)]
    found = plan_removal(candidates, NOTHING, snapshots={"a": Lsn(45), "b": Lsn(30)})
    # A commit at the snapshot's own LSN is not in it.
    assert found == ([1, 2], "a bootstrap of b, whose newest snapshot is at 0/1E")
    assert plan_removal(candidates, NOTHING, snapshots={"a": Lsn(31)})[0] == [1, 2, 3]


def test_removal_ends_at_a_commit() -> None:
    candidates = [make_candidate(1), make_candidate(2, whole=False), make_candidate(3, whole=False), make_candidate(4)]
    assert plan_removal(candidates, RetentionLimits(max_bytes=200))[0] == [1]
    assert plan_removal(candidates, RetentionLimits(max_bytes=0))[0] == [1, 2, 3, 4]
    assert plan_removal(candidates, NOTHING, cursors={"a": Position(Lsn(30), 9)})[0] == [1]


def test_a_trimmed_log(any_store: Store) -> None:
    server = Server(1).work(60)
    capture = write(any_store, server, most=6)
    before = list_objects(any_store)
    total = sum(o.info.size for o in before)
    made = retain(any_store, RetentionLimits(max_bytes=total // 2), dry_run=True)
    assert list_objects(any_store) == before
    assert retain(any_store, RetentionLimits(max_bytes=total // 2)) == made
    remaining = list_objects(any_store)
    assert [o.key for o in remaining] == [o.key for o in before[len(made.remove) :]]
    assert 0 < len(made.remove) < len(before)
    record = trim.Trim.load(any_store)
    assert record is not None
    assert record.first_id == remaining[0].first
    assert list(verify(any_store)) == []
    rest = read(any_store)
    assert rest
    assert rest == server.changes[-len(rest) :]
    # A reader that has read everything removed continues; any other gets an error.
    reader = LogReader(any_store)
    last_removed = server.changes[-len(rest) - 1].position
    assert list(reader.changes(Position(last_removed.commit_lsn, last_removed.ordinal + 1))) == rest
    for start in (last_removed, Position(Lsn(0), 0)):
        with pytest.raises(GapError, match="retention removed them"):
            next(reader.changes(start))
    with pytest.raises(GapError, match="retention removed it"):
        list(reader.spans(1))
    assert list(reader.changes(datetime(2000, 1, 1, tzinfo=UTC))) == rest
    # Writing, compaction and further trimming still work.
    server.transaction(4)
    capture.add(server.sent[-1].frames)
    compact(any_store, older_than=timedelta(0), target_bytes=1000)
    assert list(verify(any_store)) == []
    assert read(any_store) == rest + server.sent[-1].changes
    retain(any_store, NOTHING)
    assert list(verify(any_store)) == []
    assert len(list_objects(any_store)) >= 1
    assert Capture(any_store).writer.next_id == capture.writer.next_id


def test_the_newest_segment_is_retained(store: Store) -> None:
    write(store, Server(2).work(20))
    newest = list_objects(store)[-1]
    retain(store, NOTHING)
    assert list_objects(store)[-1] == newest
    assert list(verify(store)) == []


def test_a_transaction_is_never_split(store: Store) -> None:
    server = Server(3)
    server.transaction(3)
    server.transaction(60)
    write(store, server, most=6)
    retain(store, NOTHING)
    remaining = read(store)
    assert remaining == server.sent[1].changes
    assert list(verify(store)) == []


def test_a_void_tail_can_be_removed(store: Store) -> None:
    server = Server(4)
    server.transaction(3)
    server.transaction(30)
    frames = server.frames()
    torn = Capture(store)
    torn.add(frames[:12])
    torn.add(frames[12:20])
    Capture(store).add(frames)
    assert retain(store, NOTHING).remove
    assert [o.first for o in list_objects(store)] == [3]
    assert read(store) == server.sent[1].changes
    assert list(verify(store)) == []


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_anywhere_leaves_a_sound_log(store: Store, after: bool) -> None:
    server = Server(5)
    for size in (3, 40, 2, 2, 40, 1, 1, 1):
        server.transaction(size)
    capture = Capture(store)
    capture.add(server.frames()[: -sum(len(sent.frames) for sent in server.sent)])
    for sent in server.sent:
        for at in range(0, len(sent.frames), 12):
            capture.add(sent.frames[at : at + 12])
    originals = {o.key: store.get(o.key) or b"" for o in list_objects(store)}
    limits = RetentionLimits(max_bytes=sum(map(len, originals.values())) // 3)
    for at in range(1, 2 * len(originals)):
        for info in list(store.list("")):
            store.delete(info.key)
        for key, data in originals.items():
            store.create(key, data)
        try:
            retain(CrashingStore(store, at, after=after), limits)
        except Crash:
            pass
        else:
            break
        assert list(verify(store)) == []
        rest = read(store)
        assert rest == server.changes[-len(rest) :]
        retain(store, limits)
        assert list(verify(store)) == []
        record = trim.Trim.load(store)
        assert record is not None
        assert list_objects(store)[0].first == record.first_id
    assert at > 3


def test_deleting_the_first_segments_by_hand_is_an_error(store: Store) -> None:
    write(store, Server(6).work(60), most=6)
    retain(store, RetentionLimits(max_bytes=sum(o.info.size for o in list_objects(store)) // 2))
    first = list_objects(store)[0]
    store.delete(first.key)
    assert [str(f) for f in verify(store)] == [f"{first.key}: segment {first.first}: is missing"]


def test_cursors_and_snapshots_retain_the_log(store: Store) -> None:
    server = Server(7).work(60)
    write(store, server, most=6)
    middle, later = server.changes[len(server.changes) // 3], server.changes[len(server.changes) // 2]
    store.create("cursors/files/position.json", json.dumps({"position": str(middle.position)}).encode())
    store.create("cursors/hook/position.json", json.dumps({"position": str(later.position)}).encode())
    # The table was renamed between the first and the second; the third is not finished.
    for place, lsn in (("100-public.old/1", "0/1"), ("100-public.t100/2", str(later.position.commit_lsn))):
        store.create(f"snapshots/{place}/meta.json", json.dumps({"lsn": lsn}).encode())
        store.create(f"snapshots/{place}/chunk-00001.parquet", b"")
    store.create("snapshots/100-public.t100/3/chunk-00001.parquet", b"")
    assert cursors(store) == {"files": middle.position, "hook": later.position}
    assert newest_snapshots(store) == {"100-public.t100": later.position.commit_lsn}
    made = retain(store, NOTHING)
    assert made.retained_for == f"sink files, whose cursor is at {middle.position}"
    assert read(store)[0].position <= middle.position
    forced = retain(store, NOTHING, force=True)
    assert forced.retained_for is not None
    assert "a bootstrap of 100-public.t100" in forced.retained_for
    assert later in read(store)
    assert list(verify(store)) == []


def test_an_unreadable_cursor_retains_everything(store: Store) -> None:
    write(store, Server(8).work(20))
    store.create("cursors/files/position.json", b"{}")
    before = list_objects(store)
    with pytest.raises(CorruptError, match=r"cursors/files/position.json"):
        retain(store, NOTHING)
    assert list_objects(store) == before
