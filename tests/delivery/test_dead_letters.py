"""Dead letters in the store: nothing is lost, whatever the reason and the request."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.log.stream import Server, write

from tailrace.change import Position
from tailrace.delivery import dead_letters
from tailrace.delivery.dead_letters import DeadLetters
from tailrace.errors import CorruptError, PoisonError, SinkRefused
from tailrace.log.reader import LogReader
from tailrace.store import Store


@pytest.fixture
def server() -> Server:
    return Server(3).work(20)


@pytest.fixture
def reader(tmp_path: Path, server: Server) -> LogReader:
    store = Store.open(tmp_path.as_uri())
    write(store, server, most=8)
    return LogReader(store)


def _put(letters: DeadLetters, *positions: Position, reason: str = "too large") -> None:
    letters.put(PoisonError(reason, "", tuple(map(str, positions))))


def test_a_dead_letter_holds_the_whole_change(reader: LogReader, server: Server) -> None:
    letters = DeadLetters(reader, "bus")
    changes = [c for c in server.changes if c.relation is not None][:3]
    _put(letters, *(change.position for change in changes))
    found = list(dead_letters.load_all(reader.store))
    assert [letter.position for letter in found] == sorted(change.position for change in changes)
    for letter, change in zip(found, sorted(changes, key=lambda c: c.position), strict=True):
        assert (letter.sink, letter.reason, letter.is_replay_requested) == ("bus", "too large", False)
        assert letter.table == f"{change.schema}.{change.table}"
        assert letter.relation_id == (change.relation.oid if change.relation else None)
        assert letter.change["operation"] == change.operation
        after = None if change.after is None else {k: None if v is None else str(v) for k, v in change.after.items()}
        assert letter.change["after"] == after


def test_requests_survive_a_restart_and_end_with_the_delivery(reader: LogReader, server: Server) -> None:
    first, second = (change.position for change in server.changes[:2])
    letters = DeadLetters(reader, "bus")
    _put(letters, first, second)
    letter = dead_letters.get(reader.store, "bus", first)
    assert letter is not None
    dead_letters.request_replay(reader.store, letter)
    restarted = DeadLetters(reader, "bus")
    restarted.load()
    assert list(restarted.requested) == [first]
    assert restarted.positions == {first, second}
    restarted.remove([first])
    restarted.load()
    assert not list(restarted.requested)
    assert restarted.positions == {second}
    assert dead_letters.get(reader.store, "bus", first) is None


def test_a_change_that_is_rejected_again_stays_with_the_new_reason(reader: LogReader, server: Server) -> None:
    position = server.changes[0].position
    letters = DeadLetters(reader, "bus")
    _put(letters, position)
    dead_letters.request_replay(reader.store, letters.get(position))
    letters.load()
    _put(letters, position, reason="still too large")
    letters.load()
    assert not list(letters.requested)
    assert letters.get(position).reason == "still too large"


def test_a_position_without_a_change_is_refused(reader: LogReader) -> None:
    with pytest.raises(SinkRefused, match="there is no change at 0/1:0"):
        _put(DeadLetters(reader, "bus"), Position.parse("0/1:0"))


def test_other_sinks_are_not_listed(reader: LogReader, server: Server) -> None:
    _put(DeadLetters(reader, "bus"), server.changes[0].position)
    assert not list(dead_letters.load_all(reader.store, "lake"))
    assert dead_letters.get(reader.store, "lake", server.changes[0].position) is None


def test_a_damaged_object_is_reported(reader: LogReader, server: Server) -> None:
    _put(DeadLetters(reader, "bus"), server.changes[0].position)
    (info,) = reader.store.list("cursors/bus/dead_letters")
    reader.store.replace(info.key, b"{}")
    with pytest.raises(CorruptError, match="is not a dead letter"):
        list(dead_letters.load_all(reader.store))
