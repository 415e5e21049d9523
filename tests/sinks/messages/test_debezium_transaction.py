"""Transactions in the envelope `debezium`: places of events, begins and ends, whatever was published before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.pgoutput import build
from tests.sinks.messages import runs

from tailrace.log.decoding import ChangePositions, LogicalMessages, TableChanges
from tailrace.sinks.messages.debezium_envelope import DebeziumEnvelope
from tailrace.sinks.messages.debezium_transaction import TransactionCounter
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.routing import DestinationTemplate

ORDERS = runs.table(("id", "int4"), ("n", "int4"))
ITEMS = runs.table(("id", "int4"), ("n", "int4"), name="items")
INSERT = build.insert((b"1", b"1"))
MOVE = build.update((b"2", b"1"), (b"1", None), b"K")

Run = TableChanges | LogicalMessages


def _encoder(**options: Any) -> MessageEncoder:
    envelope = DebeziumEnvelope("server", "shop", transactions=TransactionCounter(), **options)
    return MessageEncoder(envelope, DestinationTemplate.parse("{table}"), lambda _: "message")


def _at(run: Any, xid: int, first: int, *, is_last: bool = False) -> Any:
    """The run at positions of one transaction from an ordinal on."""
    count = len(run)
    lsn = np.full(count, xid * 100)
    ends = np.arange(count) == (count - 1 if is_last else -1)
    ordinals = np.arange(first, first + count)
    return replace(run, at=ChangePositions(lsn, ordinals, lsn + ordinals, np.full(count, xid), lsn * 1000, ends))


def _summary(encoder: MessageEncoder, chunk: Sequence[Run], missing: Sequence[Run] | None = None) -> list[Any]:
    """Destination and place of each event; of a boundary its status and counts."""
    encoder.observe(chunk)
    joined = OutgoingMessages.joined(encoder.encode(chunk if missing is None else missing, PositionIds()))
    found: list[Any] = []
    for destination, value in zip(joined.destinations.to_pylist(), joined.values.to_pylist(), strict=True):
        event = None if value is None else json.loads(value)
        if event is None:
            found.append((destination, None))
        elif "status" in event:
            counts = {one["data_collection"]: one["event_count"] for one in event["data_collections"] or ()}
            found.append((event["status"], event["id"], event["event_count"], counts))
        else:
            place = event["transaction"]
            found.append((destination, place and (place["id"], place["total_order"], place["data_collection_order"])))
    return found


def test_places_and_boundaries() -> None:
    chunk = [
        _at(runs.changes(ORDERS, INSERT, MOVE), 5, 0),
        _at(runs.changes(ITEMS, INSERT), 5, 2),
        _at(runs.changes(ORDERS, INSERT), 5, 3, is_last=True),
        _at(runs.changes(ORDERS, INSERT), 6, 0, is_last=True),
    ]
    assert _summary(_encoder(), chunk) == [
        ("BEGIN", "5:500", None, {}),
        ("orders", ("5:500", 1, 1)),
        ("orders", ("5:501", 2, 2)),
        ("orders", None),
        ("orders", ("5:501", 3, 3)),
        ("items", ("5:502", 4, 1)),
        ("orders", ("5:503", 5, 4)),
        ("END", "5:503", 5, {"public.orders": 4, "public.items": 1}),
        ("BEGIN", "6:600", None, {}),
        ("orders", ("6:600", 1, 1)),
        ("END", "6:600", 1, {"public.orders": 1}),
    ]


def test_a_transaction_in_several_chunks() -> None:
    encoder = _encoder()
    first = [_at(runs.changes(ORDERS, INSERT, MOVE), 5, 0), _at(runs.changes(ITEMS, INSERT), 5, 2)]
    assert len(_summary(encoder, first)) == 6
    assert _summary(encoder, [_at(runs.changes(ORDERS, INSERT), 5, 3)]) == [("orders", ("5:503", 5, 4))]
    last = [_at(runs.changes(ORDERS, INSERT), 5, 4, is_last=True)]
    assert _summary(encoder, last) == [
        ("orders", ("5:504", 6, 5)),
        ("END", "5:504", 6, {"public.orders": 5, "public.items": 1}),
    ]


def test_what_is_published_already_counts() -> None:
    """After a failure within a transaction, the rest has the same places, and no second begin."""
    run = _at(runs.changes(ORDERS, INSERT, MOVE, INSERT), 5, 0, is_last=True)
    complete = _summary(_encoder(), [run])
    rest = _summary(_encoder(), [run], [run.take(np.array([2]))])
    assert rest == complete[-2:] == [("orders", ("5:502", 4, 4)), ("END", "5:502", 4, {"public.orders": 4})]


def test_what_makes_no_event_does_not_count() -> None:
    """A transaction that has only a skipped TRUNCATE begins and ends. A message outside transactions does neither."""
    truncate = _at(runs.truncate(ORDERS), 5, 0, is_last=True)
    assert _summary(_encoder(), [truncate]) == [("BEGIN", "5:500", None, {}), ("END", "5:500", 0, {})]
    assert _summary(_encoder(has_truncates=True), [truncate])[1] == ("orders", ("5:500", 1, 1))
    messages = _at(runs.logical_messages(("a", b"1"), ("b", b"2")), 7, 0, is_last=True)
    assert _summary(_encoder(), [messages]) == [
        ("BEGIN", "7:700", None, {}),
        ("message", ("7:700", 1, 1)),
        ("message", ("7:701", 2, 1)),
        ("END", "7:701", 2, {"message": 2}),
    ]
    outside = replace(messages, transactional=np.zeros(2, np.bool_))
    assert _summary(_encoder(), [outside]) == [("message", None), ("message", None)]


def test_changes_without_the_rest_of_their_transactions() -> None:
    """Loads and dead letters are not observed."""
    run = _at(runs.changes(ORDERS, INSERT), 5, 3, is_last=True)
    (found,) = _encoder().encode([run], PositionIds())
    assert json.loads(found.values[0].as_py())["transaction"] is None


def test_many_transactions_agree_with_one_at_a_time() -> None:
    rng = np.random.default_rng(3)
    chunks = []
    for xid in range(2, 60):
        chunk: list[Run] = []
        count = int(rng.integers(1, 8))
        for ordinal in range(count):
            table = ORDERS if rng.random() < 0.5 else ITEMS
            payload = MOVE if rng.random() < 0.3 else INSERT
            chunk.append(_at(runs.changes(table, payload), xid, ordinal, is_last=ordinal == count - 1))
        chunks.append(chunk)
    alone = [line for chunk in chunks for line in _summary(_encoder(), chunk)]
    together = _summary(_encoder(), [run for chunk in chunks for run in chunk])
    one_by_one = _encoder()
    split = [line for chunk in chunks for run in chunk for line in _summary(one_by_one, [run])]
    assert alone == together == split
