"""Verification finds what is wrong, all of it, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from tests.log.stream import Capture, Server, relation, split_randomly, write

from tailrace.change import Lsn, Position
from tailrace.log import segment, trim
from tailrace.log.compaction import compact
from tailrace.log.segment import Header, SegmentContent
from tailrace.log.verify import VerificationTotals, verify
from tailrace.log_rows import LogRows
from tailrace.store import Store


def problems(store: Store) -> list[str]:
    return [str(finding) for finding in verify(store)]


def content(store: Store, id: int) -> SegmentContent:
    return segment.unpack(store.get(segment.key(id)) or b"", "x")[0]


def count(store: Store) -> int:
    return sum(1 for _ in store.list(segment.PREFIX))


def forge(store: Store, id: int, header: Header, rows: LogRows, relations: Any = None) -> None:
    """Replace a segment, with correct checksums and later links: only checks of the content can find it."""
    original = content(store, id)
    known = dict(original.relations) if relations is None else relations
    store.replace(segment.key(id), segment.pack([header.to_json()], rows, known))
    link = header.link
    for later in range(id + 1, count(store) + 1):
        following = content(store, later)
        chained = replace(following.header, previous=link)
        store.replace(segment.key(later), segment.pack([chained.to_json()], following.rows, following.relations))
        link = chained.link


def column(rows: LogRows, name: str, row: int, value: int) -> LogRows:
    changed = getattr(rows, name).copy()
    changed[row] = value
    return replace(rows, **{name: changed})


@pytest.mark.parametrize("seed", range(4))
def test_a_sound_log_has_no_faults(any_store: Store, seed: int) -> None:
    rng = random.Random(seed)
    server = Server(seed).work(25, largest=12)
    for life in range(4):
        capture = Capture(any_store)
        parts = list(split_randomly(rng, server.frames(), 8))
        for part in parts[: len(parts) if life == 3 else rng.randint(1, len(parts))]:
            capture.add(part)
    capture.idle(server.lsn + 8)
    totals = VerificationTotals()
    assert list(verify(any_store, totals)) == []
    assert totals.segments == totals.objects == totals.objects_total == count(any_store)
    compact(any_store, older_than=timedelta(0), target_bytes=4000)
    merged = VerificationTotals()
    assert list(verify(any_store, merged)) == []
    assert (merged.segments, merged.rows, merged.link) == (totals.segments, totals.rows, totals.link)
    assert merged.objects < totals.objects


def test_an_empty_log_is_sound(store: Store) -> None:
    assert problems(store) == []


def test_all_damage_is_listed(store: Store) -> None:
    write(store, Server(1).work(60), most=6)
    for id in (3, 9):
        data = bytearray(store.get(segment.key(id)) or b"")
        data[40] ^= 1
        store.replace(segment.key(id), bytes(data))
    store.replace(segment.key(6), b"PAR1")
    store.create("log/notes.txt", b"x")
    store.create("log/00000000000000000000.parquet", b"x")
    found = problems(store)
    assert [f.split(":")[0] for f in found] == [
        "log/00000000000000000000.parquet",
        "log/notes.txt",
        segment.key(3),
        segment.key(6),
        segment.key(9),
    ]
    assert all(f"segment {id}: " in f for id, f in zip((3, 6, 9), found[2:], strict=True))


def test_missing_segments_are_reported(store: Store) -> None:
    write(store, Server(2).work(60), most=6)
    for id in (4, 7, 8):
        store.delete(segment.key(id))
    assert problems(store) == [
        f"{segment.key(4)}: segment 4: is missing",
        f"{segment.key(7)}: segments 7 to 8 are missing",
    ]


def test_a_log_without_its_first_segments_needs_a_trim_record(store: Store) -> None:
    write(store, Server(3).work(60), most=6)
    for id in (1, 2):
        store.delete(segment.key(id))
    assert problems(store) == [f"{segment.key(1)}: segments 1 to 2 are missing"]
    previous = content(store, 3).header.previous
    trim.Trim(3, previous, Position(Lsn(1), 0)).save(store)
    if content(store, 3).rows.ordinal[0] == 0:
        assert problems(store) == []
    trim.Trim(3, "0" * 64, Position(Lsn(1), 0)).save(store)
    assert any("does not follow the segments that retention removed" in p for p in problems(store))
    trim.Trim(2, "0" * 64, Position(Lsn(1), 0)).save(store)
    assert problems(store) == [f"{segment.key(2)}: segment 2: is missing"]
    store.replace(trim.KEY, b"{}")
    assert problems(store)[0] == f"{trim.KEY}: not a record of retention"


def test_a_replaced_segment_breaks_the_chain(store: Store) -> None:
    write(store, Server(4).work(60), most=6)
    original = content(store, 5)
    header = replace(original.header, source=replace(original.header.source, slot="other"))
    store.replace(segment.key(5), segment.pack([header.to_json()], original.rows, original.relations))
    assert problems(store) == [
        f"{segment.key(6)}: segment 6: its chain is broken: `previous` is not the digest of segment 5's header"
    ]


def test_the_first_segment_has_no_previous(store: Store) -> None:
    write(store, Server(4).work(20))
    original = content(store, 1)
    forge(store, 1, replace(original.header, previous="1" * 64), original.rows)
    assert problems(store) == [
        f"{segment.key(1)}: segment 1: is the first segment, but its header names a previous one"
    ]


def test_objects_must_match_their_names(store: Store) -> None:
    write(store, Server(5).work(20))
    last = count(store)
    store.create(segment.key(last + 1), store.get(segment.key(last)) or b"")
    assert problems(store) == [
        f"{segment.key(last + 1)}: its name says segments {last + 1} to {last + 1}, but it holds {last} to {last}"
    ]


def test_duplicate_segments_must_be_equal(store: Store) -> None:
    write(store, Server(6).work(40), most=6)
    originals = {id: store.get(segment.key(id)) or b"" for id in (2, 3)}
    compact(store, older_than=timedelta(0))
    store.create(segment.key(2), originals[2])
    assert problems(store) == []
    other = segment.unpack(originals[3], "x")[0]
    header = replace(other.header, end_lsn=Lsn(other.header.end_lsn + 1))
    store.create(segment.key(3), segment.pack([header.to_json()], other.rows, other.relations))
    (found,) = problems(store)
    assert found.startswith(f"{segment.key(3)}: segment 3: differs from the same segment in log/")


Forgery = Callable[[SegmentContent], tuple[Header, LogRows]]


def _header(**fields: Any) -> Forgery:
    return lambda original: (replace(original.header, **fields), original.rows)


def _row(name: str, row: int, value: int) -> Forgery:
    """A forgery of one value, with a header that matches the forged rows."""

    def forged(original: SegmentContent) -> tuple[Header, LogRows]:
        rows = column(original.rows, name, row, value)
        return segment.with_row_facts(original.header, rows), rows

    return forged


FORGERIES: dict[str, Forgery] = {
    "says first is": _header(first=Position(Lsn(1), 0)),
    "says last is": _header(last=Position(Lsn(1), 0)),
    "says first_committed_at_us is": _header(first_committed_at_us=1),
    "says last_committed_at_us is": _header(last_committed_at_us=1),
    "says payload_bytes is": _header(payload_bytes=1_000_000),  # with less, it is not even read
    "says content is": _header(content="0" * 64),
    "rows are committed": _header(committed_rows=10_000),
    "which does not end a transaction": lambda original: (replace(original.header, committed_rows=1), original.rows),
    "a transaction ends after its 0 committed rows": _header(committed_rows=0),
    "the end of a commit in the segment": _header(end_lsn=Lsn(1)),
    "is not defined there": _header(relations=()),
    "expected ordinal 1 or a later one": _row("ordinal", 1, 0),
    "two transaction ids": _row("xid", 1, 3),
    "commits are not in order": _row("commit_lsn", 1, 5),
    "has another relation than its payload": _row("relation_id", 0, 9),
    "does not have the row's kind": _row("kind", 0, ord("T")),
}


@pytest.mark.parametrize("expected", FORGERIES)
def test_inconsistent_content_is_found(store: Store, expected: str) -> None:
    """The middle segment is forged with correct checksums and links. It has whole transactions, inserts first."""
    server = Server(7)
    for _ in range(3):
        server.transaction(6)
    capture = Capture(store)
    capture.add(server.frames()[: -len(server.sent[-1].frames) - len(server.sent[-2].frames)])
    for sent in server.sent[1:]:
        capture.add(sent.frames)
    original = content(store, 2)
    assert problems(store) == []
    assert original.rows.kind[0] in b"IUD"
    assert original.rows.ordinal[1] == 1
    header, rows = FORGERIES[expected](original)
    forge(store, 2, header, rows)
    found = problems(store)
    assert any(expected in f and f.startswith(f"{segment.key(2)}: segment 2: ") for f in found), found


def test_definitions_must_match_their_digests(store: Store) -> None:
    write(store, Server(8).work(10), most=1000)
    original = content(store, 1)
    digest = original.header.relations[0].digest
    forge(store, 1, original.header, original.rows, dict(original.relations) | {digest: relation(100, "forged")})
    assert any("its definition does not match its digest" in p for p in problems(store))
    forge(store, 1, original.header, original.rows, {})
    assert any("is not in the object" in p for p in problems(store))


def test_transactions_must_be_consecutive(store: Store) -> None:
    """Segments are swapped or left out, with ids and links corrected."""
    server = Server(9)
    server.transaction(20)
    server.transaction(5)
    write(store, server, most=6)
    original = [content(store, id) for id in range(1, count(store) + 1)]

    def arrange(*contents: SegmentContent) -> None:
        link = original[1].header.link
        for id, moved in enumerate(contents, 3):
            header = replace(moved.header, id=id, previous=link)
            store.replace(segment.key(id), segment.pack([header.to_json()], moved.rows, moved.relations))
            link = header.link

    arrange(original[3], original[2], *original[4:])
    found = problems(store)
    assert any("expected ordinal" in p and "segment 4" in p for p in found), found
    arrange(*original[3:])
    store.delete(segment.key(len(original)))
    totals = VerificationTotals()
    assert list(verify(store, totals)) == [], "as if the changes left out were of Tailrace's own tables"
    assert totals.left_out == int((original[2].rows.kind != ord("C")).sum())


def test_headers_must_be_consistent_with_the_segment_before(store: Store) -> None:
    server = Server(10)
    for _ in range(3):
        server.transaction(3)
    capture = Capture(store)
    capture.add(server.frames()[: -len(server.sent[-1].frames) - len(server.sent[-2].frames)])
    for sent in server.sent[1:]:
        capture.add(sent.frames)
    original = content(store, 2)
    forge(store, 2, replace(original.header, voids_tail=True), original.rows)
    assert any("voids the end of segment 1, which ends at a commit" in p for p in problems(store))
    forge(store, 2, replace(original.header, gap_from=Lsn(3)), original.rows)
    assert any("records a gap from 0/3 on" in p for p in problems(store))
    other = replace(original.header, source=replace(original.header.source, system_id="1"))
    forge(store, 2, other, original.rows)
    assert any("comes from another source than segment 1" in p for p in problems(store))
    forge(store, 2, original.header, original.rows)
    first = content(store, 1)
    forge(store, 1, replace(first.header, end_lsn=Lsn(original.header.end_lsn + 1)), first.rows)
    found = problems(store)
    assert any("is below that of segment 1" in p for p in found)
    assert any("but the log was complete up to" in p for p in found)


@pytest.mark.parametrize("seed", range(25))
def test_any_forged_value_is_found(store: Store, seed: int) -> None:
    """Random values changed, with correct checksums: at least the digest detects them."""
    rng = random.Random(seed)
    write(store, Server(11).work(6), most=10)
    id = rng.randint(1, count(store))
    original = content(store, id)
    name = rng.choice(["commit_lsn", "ordinal", "lsn", "xid", "commit_ts", "relation_id"])
    row = rng.randrange(len(original.rows))
    value = int(getattr(original.rows, name)[row])
    rows = column(original.rows, name, row, value + rng.choice([-1, 1, 1 << 20]))
    forge(store, id, original.header, rows)
    assert any("its header says content is" in p for p in problems(store))


def test_garbage_in_payloads_is_reported(store: Store) -> None:
    write(store, Server(12).work(6), most=10)
    original = content(store, 2)
    for kind in b"TMCIUDO":
        kinds = np.full(len(original.rows), kind, dtype=np.uint8)
        rows = replace(original.rows, kind=kinds)
        forge(store, 2, segment.with_row_facts(original.header, rows), rows)
        assert problems(store)
