"""Columnar decoding yields the same changes as decoding them one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from tests.log.stream import Server, write
from tests.log.test_planner import crashing

from tailrace.change import UNCHANGED, Change, Image, Lsn, Operation, Position
from tailrace.images import Images
from tailrace.log import planner
from tailrace.log.decoding import OPERATIONS, ChangeFilter, Chunk, LogicalMessages, TableChanges, chunks, with_last
from tailrace.log.reader import LogReader
from tailrace.store import Store


def plain_changes(chunk: Chunk) -> Iterator[tuple[Position, tuple[Any, ...]]]:
    """Single changes from columns, in the form that `fields` returns."""
    for part in chunk:
        for row in range(len(part)):
            at = part.at
            where = (at.position(row), int(at.lsn[row]), int(at.xid[row]), int(at.committed_at_us[row]))
            if isinstance(part, LogicalMessages):
                message = part.prefix[row], part.content[row], bool(part.transactional[row])
                yield where[0], (*where, Operation.MESSAGE, *message)
            else:
                images = image(part.old, row), bool(part.old_is_key[row]), image(part.new, row)
                operation = Operation(OPERATIONS[int(part.operation[row])])
                yield where[0], (*where, operation, part.relation, *images, part.truncate_options)


def image(images: Images, row: int) -> Image | None:
    if not images.present[row]:
        return None
    values = [column[row].as_py() for column in images.batch.columns]
    return tuple(
        [
            UNCHANGED if i in images.unchanged and images.unchanged[i][row] else None if v is None else v.encode()
            for i, v in enumerate(values)
        ]
    )


def fields(change: Change) -> tuple[Any, ...]:
    moment = int(change.committed_at.timestamp()) * 1_000_000 + change.committed_at.microsecond
    where = (change.position, int(change.lsn), change.xid, moment)
    if change.operation is Operation.MESSAGE:
        return (*where, change.operation, change.prefix, change.content, change.transactional)
    images = change.old, change.old_is_key, change.new
    return (*where, change.operation, change.relation, *images, change.truncate_options)


def decode_all(
    store: Store, change_filter: ChangeFilter, limits: planner.BatchLimits = planner.UNLIMITED
) -> list[Chunk]:
    reader = LogReader(store)
    found: list[Chunk] = []
    at = planner.start_offset(reader, None)
    while (batch := planner.next_batch(reader, at, limits)).end != at:
        found += with_last(chunks(reader, batch.slices, change_filter, as_text=True))
        at = batch.end
    return found


def join_chunks(found: Sequence[Chunk]) -> list[tuple[Any, ...]]:
    pairs = [pair for chunk in found for pair in plain_changes(chunk)]
    assert len({position for position, _ in pairs}) == len(pairs)
    return [change for _, change in sorted(pairs, key=lambda pair: pair[0])]


@pytest.mark.parametrize("seed", range(3))
def test_columns_equal_the_single_changes(store: Store, seed: int) -> None:
    """Several relation versions in a segment, TRUNCATE of several tables, messages, void tails, origins."""
    server = Server(seed).work(30, largest=20)
    crashing(store, server, seed)
    found = decode_all(store, ChangeFilter())
    assert join_chunks(found) == [fields(change) for change in server.changes]
    for chunk in found:
        for part in chunk:
            if isinstance(part, TableChanges):
                # A run is in log order, and a TRUNCATE is a run of its own.
                positions = [part.at.position(row) for row in range(len(part))]
                assert positions == sorted(positions)
                assert part.is_truncate or "TRUNCATE" not in {OPERATIONS[int(o)] for o in part.operation}
                assert part.target == (part.relation.schema, part.relation.name)


@pytest.mark.parametrize("seed", range(3))
def test_runs_end_at_a_truncate_or_a_new_relation(store: Store, seed: int) -> None:
    server = Server(seed).work(40, largest=20)
    write(store, server, seed, most=200)
    for chunk in decode_all(store, ChangeFilter()):
        of_table: dict[int, list[tuple[Position, Position]]] = {}
        for part in chunk:
            if isinstance(part, TableChanges):
                span = part.at.position(0), part.at.position(len(part) - 1)
                of_table.setdefault(part.relation.oid, []).append(span)
        for spans in of_table.values():
            assert all(a[1] < b[0] for a, b in pairwise(spans)), "runs of one table come in order"


@pytest.mark.parametrize("limits", [planner.BatchLimits(1, 1), planner.UNLIMITED], ids=["small", "one"])
@pytest.mark.parametrize("seed", range(3))
def test_the_last_change_of_each_transaction_is_marked(store: Store, seed: int, limits: planner.BatchLimits) -> None:
    server = Server(seed).work(40, largest=20)
    write(store, server, seed, most=4)
    marked = set()
    for chunk in decode_all(store, ChangeFilter(), limits):
        for part in chunk:
            marked |= {part.at.position(row) for row in range(len(part)) if part.at.is_last[row]}
    assert marked == {sent.changes[-1].position for sent in server.sent if sent.changes}


@pytest.mark.parametrize("seed", range(3))
def test_only_included_changes_are_decoded(store: Store, seed: int) -> None:
    """`is_last` marks the last included change of a transaction, even if excluded ones follow."""
    server = Server(seed).work(40, largest=12)
    write(store, server, seed, most=5)
    rng = random.Random(seed)
    lsns = sorted(s.commit_lsn for s in server.sent)
    start, floor, end = (Lsn(lsns[len(lsns) * i // 8]) for i in (1, 3, 6))
    change_filter = ChangeFilter(start, {100: floor}, others=rng.random() < 0.5, end=end)

    def counts(change: Change) -> bool:
        at = change.position.commit_lsn
        if not start <= at < end:
            return False
        if change.relation is None:
            return True
        return at >= floor if change.relation.oid == 100 else change_filter.others

    expected = [change for change in server.changes if counts(change)]
    found = decode_all(store, change_filter)
    assert join_chunks(found) == [fields(change) for change in expected]
    last = {change.position.commit_lsn: change.position for change in expected}
    marked = {p.at.position(r) for chunk in found for p in chunk for r in range(len(p)) if p.at.is_last[r]}
    assert marked == set(last.values())


def test_division_into_slices_does_not_matter(store: Store) -> None:
    server = Server(7).work(30, largest=15)
    other = Store.open("memory://decoding-other")
    write(store, server, most=3)
    write(other, server, most=500)
    assert join_chunks(decode_all(store, ChangeFilter())) == join_chunks(decode_all(other, ChangeFilter()))
