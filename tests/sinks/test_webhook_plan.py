"""Requests are planned so that no order of sending them can reorder the changes of a key."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.sinks.webhook.request_plan import MessageOrder, PlannedRequest, RequestLimits, halves, plan

_TABLES, _SHAPES, _KEYS = 3, 4, 12
_OIDS = [0, 1, 2, 2]
"""By shape: the last two are the same table, before and after its key was changed."""

_messages = st.lists(
    st.tuples(
        st.integers(0, 3),  # destination
        st.integers(0, _SHAPES - 1),
        st.integers(-1, _KEYS - 1),
        st.one_of(st.just(-1), st.just(-1), st.integers(0, _KEYS - 1)),
        st.integers(0, 50),
    ),
    max_size=80,
)


def _order(messages: list[tuple[int, int, int, int, int]], most: dict[int, int]) -> MessageOrder:
    """Keys belong to one table: their numbers tell which."""
    rows = []
    for destination, shape, key, old_key, size in messages:
        base = _OIDS[shape] * 100
        rows.append(
            (destination, shape, key if key < 0 else base + key, -1 if key < 0 or old_key < 0 else base + old_key, size)
        )
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), (), ()]
    destinations, tables, keys, old_keys, sizes = columns
    return MessageOrder(destinations, tables, _OIDS, keys, old_keys, sizes, most)


def _send_at_random(requests: list[PlannedRequest], rng: random.Random) -> list[int]:
    """Return the rows in an order in which they may arrive."""
    done: set[int] = set()
    arrived: list[int] = []
    while len(done) < len(requests):
        ready = [number for number, r in enumerate(requests) if number not in done and r.after <= done]
        assert ready, "requests wait for each other"
        number = rng.choice(ready)
        done.add(number)
        arrived += requests[number].rows
    return arrived


def _assert_in_order(order: MessageOrder, arrived: list[int]) -> None:
    by_key: dict[int, list[int]] = {}
    by_table: dict[int, list[tuple[int, bool]]] = {}
    last_shape: dict[int, int] = {}
    barriers = set()
    for row in sorted(arrived):
        oid = _OIDS[order.tables[row]]
        if order.keys[row] < 0 or last_shape.setdefault(oid, order.tables[row]) != order.tables[row]:
            barriers.add(row)
        last_shape[oid] = order.tables[row]
    for row in arrived:
        for key in {order.keys[row], order.old_keys[row]} - {-1}:
            by_key.setdefault(key, []).append(row)
        by_table.setdefault(_OIDS[order.tables[row]], []).append((row, row in barriers))
    for rows in by_key.values():
        assert rows == sorted(rows), "changes of a key are out of order"
    for found in by_table.values():
        for place, (row, is_barrier) in enumerate(found):
            if is_barrier:
                assert all(other < row for other, _ in found[:place])
                assert all(other > row for other, _ in found[place + 1 :])


@settings(max_examples=400, deadline=None)
@given(_messages, st.integers(1, 7), st.sampled_from([20, 1000]), st.sampled_from([1, 2, 5]), st.randoms())
def test_any_order_of_sending_keeps_keys_in_order(
    messages: list[tuple[int, int, int, int, int]], changes: int, size: int, connections: int, rng: random.Random
) -> None:
    most = {row: rng.randint(1, 4) for row in range(len(messages)) if rng.random() < 0.2}
    order, limits = _order(messages, most), RequestLimits(changes, size, connections)
    requests = plan(order, limits)
    assert sorted(row for request in requests for row in request.rows) == list(range(len(messages)))
    for number, request in enumerate(requests):
        assert request.rows == sorted(request.rows)
        assert len({order.destinations[row] for row in request.rows}) == 1
        assert len(request.rows) <= min([changes, *(most[row] for row in request.rows if row in most)])
        assert len(request.rows) == 1 or sum(order.sizes[row] for row in request.rows) <= size
        assert all(earlier < number for earlier in request.after)
    arrived = _send_at_random(requests, rng)
    _assert_in_order(order, arrived)
    if connections == 1:
        assert arrived == list(range(len(messages)))


@settings(max_examples=200, deadline=None)
@given(_messages, st.randoms())
def test_halves_keep_keys_in_order(messages: list[tuple[int, int, int, int, int]], rng: random.Random) -> None:
    same_shape = [(0, 0, key, old_key, size) for _, _, key, old_key, size in messages]
    if len(same_shape) < 2:
        return
    order = _order(same_shape, {})
    first, second = halves(order, PlannedRequest(list(range(len(same_shape)))), RequestLimits(99, 1 << 30, 4))
    assert first.rows + second.rows == list(range(len(same_shape)))
    _assert_in_order(order, _send_at_random([first, second], rng))


def test_independent_rows_are_sent_at_the_same_time() -> None:
    """Frequent keys delay only their share of the requests."""
    rng = random.Random(1)
    keys = [0 if rng.random() < 0.3 else rng.randint(1, 10_000) for _ in range(4000)]
    count = len(keys)
    order = MessageOrder([0] * count, [0] * count, [0], keys, [-1] * count, [100] * count)
    requests = plan(order, RequestLimits(100, 1 << 30, 4))
    assert len(requests) <= 44
    depth: list[int] = []
    for request in requests:
        depth.append(1 + max((depth[earlier] for earlier in request.after), default=0))
    assert max(depth) < len(requests) / 2
