"""A search of the log finds what a reader of the whole log finds, newest first, in bounded parts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.log.stream import Server, write
from tests.log.test_planner import crashing

from tailrace.change import Change, Operation
from tailrace.errors import ConfigError
from tailrace.log.change_search import (
    ChangeCriteria,
    SearchCursor,
    SearchLimits,
    SearchResult,
    key_after,
    key_before,
    search_back,
)
from tailrace.log.compaction import compact
from tailrace.log.reader import LogReader
from tailrace.settings.pattern import TablePattern, quote_name, split_name
from tailrace.store import Store


def _walk(reader: LogReader, criteria: ChangeCriteria, limits: SearchLimits) -> Iterator[SearchResult]:
    cursor: SearchCursor | None = None
    while True:
        result = search_back(reader, criteria, cursor, limits)
        yield result
        if result.cursor is None:
            return
        assert str(result.cursor) != str(cursor), "it gets on"
        cursor = SearchCursor.parse(str(result.cursor))


def _meets(change: Change, criteria: ChangeCriteria) -> bool:
    relation = change.relation
    if criteria.table is not None and (relation is None or not criteria.accepts(relation)):
        return False
    keys = (key_before(change), key_after(change))
    if criteria.key is not None and change.operation != Operation.TRUNCATE and criteria.key not in keys:
        return False
    return (
        (criteria.xid is None or change.xid == criteria.xid)
        and (criteria.commit_lsn is None or change.position.commit_lsn == criteria.commit_lsn)
        and (criteria.since is None or change.committed_at >= criteria.since)
        and (criteria.until is None or change.committed_at < criteria.until)
    )


@pytest.mark.parametrize("seed", range(2))
def test_all_matches_are_found_newest_first(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    store = Store.open(tmp_path.as_uri())
    write(store, Server(seed).work(12), most=choose.choice([3, 8]))
    if seed % 2:
        compact(store, older_than=timedelta(0))
    reader = LogReader(store)
    changes = list(reader.changes())
    some = [change for change in changes if change.relation is not None]
    assert len(some) > 3
    example = choose.choice(some)
    assert example.relation is not None
    table = TablePattern.parse(quote_name(example.relation.schema, example.relation.name))
    times = sorted(change.committed_at for change in changes)
    for criteria in (
        ChangeCriteria(),
        ChangeCriteria(table=table),
        ChangeCriteria(table=table, key=key_before(example)),
        ChangeCriteria(xid=example.xid),
        ChangeCriteria(commit_lsn=example.position.commit_lsn),
        ChangeCriteria(since=times[len(times) // 3], until=times[2 * len(times) // 3]),
    ):
        expected = [change for change in reversed(changes) if _meets(change, criteria)]
        for limits in (SearchLimits(1_000_000), SearchLimits(7), SearchLimits(9, seconds=0)):
            results = list(_walk(reader, criteria, limits))
            found = [each.change for result in results for each in result.found]
            assert [c.position for c in found] == [c.position for c in expected], (criteria, limits)
            assert found == expected
            assert all(len(result.found) <= limits.changes for result in results)
            left = [result.segments_left for result in results]
            assert left == sorted(left, reverse=True)
            assert left[-1] == 0


def test_what_is_not_committed_is_not_found(tmp_path: Path) -> None:
    """Rows of a transaction whose commit is not in the log yet, or that is void, are in segments too."""
    for seed in range(4):
        store = Store.open((tmp_path / str(seed)).as_uri())
        if seed % 2:
            crashing(store, Server(seed).work(12), seed)
        else:
            write(store, Server(seed).work(12), most=2)
        reader = LogReader(store)
        expected = [change.position for change in reader.changes()]
        found = [e.change.position for r in _walk(reader, ChangeCriteria(), SearchLimits(1000)) for e in r.found]
        assert found == expected[::-1]


def test_an_empty_log_and_a_cursor_that_is_none(tmp_path: Path) -> None:
    reader = LogReader(Store.open(tmp_path.as_uri()))
    assert search_back(reader, ChangeCriteria()) == SearchResult((), None, None)
    for text in ("", "x", "1@", "1@nothing", "-1", "9" * 30):
        with pytest.raises(ConfigError):
            SearchCursor.parse(text)


def test_quoted_names_are_read_as_exactly_the_table() -> None:
    for names in (("public", "orders"), ("Shop", "Orders"), ("a.b", 'c"d'), ("public", "what*?"), ("s p", "1")):
        quoted = quote_name(*names)
        assert split_name(quoted) == names
        assert TablePattern.parse(quoted).matches(*names)
    assert not TablePattern.parse(quote_name("public", "what*")).matches("public", "whatever")
