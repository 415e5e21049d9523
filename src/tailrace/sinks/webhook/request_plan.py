"""Divides messages into requests, and says which request must wait for which others. Without I/O.

Messages with the same destination share a request, up to a limit. Requests without anything in common may be sent at
the same time; one that has a change of a key waits for the request with the previous change of that key. A change that
concerns a whole table, such as a TRUNCATE or any change of a table without a key, waits for all changes of the table
before it, and all after it wait for it. A change of a key waits for both keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.webhook.request_envelope import KEY, METHOD, OLD_KEY, REQUEST_HEADER, TABLE


@dataclass
class PlannedRequest:
    rows: list[int]
    """The messages, in log order."""
    after: set[int] = field(default_factory=set)
    """The numbers of the requests that must be delivered before."""
    size: int = 0
    most: int = 1 << 62
    """How many messages it may have, because of those that it has."""


@dataclass(frozen=True)
class RequestLimits:
    changes: int
    bytes: int
    """Of the messages together. A larger message has a request of its own."""
    connections: int
    """1: one request after the other, in log order."""


@dataclass(frozen=True)
class MessageOrder:
    """What the plan has to know of messages, as numbers: equal numbers mean the same."""

    destinations: Sequence[int]
    tables: Sequence[int]
    """The table, with the columns of its key."""
    oids: Sequence[int]
    """By table: several have the same oid if the key's columns changed."""
    keys: Sequence[int]
    """-1: the change concerns the whole table."""
    old_keys: Sequence[int]
    """-1: the key did not change."""
    sizes: Sequence[int]
    most: Mapping[int, int] = field(default_factory=dict)
    """By row: how many messages a request with this one may have. Only for those of requests that failed."""

    @classmethod
    def of(cls, messages: OutgoingMessages, most: Mapping[int, int] | None = None) -> MessageOrder:
        headers = messages.headers
        tables = headers[TABLE].dictionary_encode()
        names = tables.dictionary.to_pylist()
        oids = [name.partition(" ")[0] for name in names]
        codes = {oid: number for number, oid in enumerate(dict.fromkeys(oids))}
        keys, old_keys = _key_codes(messages)
        sizes = pc.fill_null(pc.binary_length(messages.values), 0)
        return cls(
            _destination_codes(messages),
            tables.indices.to_pylist(),
            [codes[oid] for oid in oids],
            keys,
            old_keys,
            sizes.to_pylist(),
            most or {},
        )

    def is_full(self, request: PlannedRequest, row: int, limits: RequestLimits) -> bool:
        """Whether a request has no place for another message."""
        count = len(request.rows)
        if count >= limits.changes or (count and request.size + self.sizes[row] > limits.bytes):
            return True
        return bool(self.most) and count >= min(request.most, self.most.get(row, request.most))

    def add(self, request: PlannedRequest, row: int) -> None:
        request.rows.append(row)
        request.size += self.sizes[row]
        if self.most:
            request.most = min(request.most, self.most.get(row, request.most))


def plan(order: MessageOrder, limits: RequestLimits) -> list[PlannedRequest]:
    """Return the requests, numbered by their place in the list. Each waits only for requests with lower numbers."""
    return _in_order(order, limits) if limits.connections == 1 else _by_key(order, limits)


def _in_order(order: MessageOrder, limits: RequestLimits) -> list[PlannedRequest]:
    requests: list[PlannedRequest] = []
    last = -1
    for row, destination in enumerate(order.destinations):
        if destination != last or order.is_full(requests[-1], row, limits):
            requests.append(PlannedRequest([], {len(requests) - 1} if requests else set()))
        order.add(requests[-1], row)
        last = destination
    return requests


def _by_key(order: MessageOrder, limits: RequestLimits) -> list[PlannedRequest]:
    requests: list[PlannedRequest] = []
    # Few messages fill one request. Many are divided by key, so that a frequent key delays only its share of them.
    lanes = max(1, min(limits.connections, len(order.keys) // limits.changes))
    growing: dict[tuple[int, int], int] = {}
    last_of_key: dict[int, int] = {}
    last_of_table: dict[int, int] = {}
    since: dict[int, set[int]] = {}
    shapes: dict[int, int] = {}
    columns = zip(order.destinations, order.tables, order.keys, order.old_keys, strict=True)
    for row, (destination, table, key, old_key) in enumerate(columns):
        oid = order.oids[table]
        is_barrier = key < 0 or shapes.setdefault(oid, table) != table
        if is_barrier:
            awaited = since.get(oid, set())
            floor = max(awaited, default=-1)
        else:
            floor = max(last_of_key.get(key, -1), last_of_table.get(oid, -1), last_of_key.get(old_key, -1))
        lane = destination, (oid if key < 0 else key) % lanes
        number = growing.get(lane, -1)
        # A request waits only for earlier ones, or two could wait for each other.
        if number < 0 or number < floor or order.is_full(requests[number], row, limits):
            growing[lane] = number = len(requests)
            requests.append(PlannedRequest([]))
        request = requests[number]
        order.add(request, row)
        if is_barrier:
            request.after |= awaited
            request.after.discard(number)
            last_of_table[oid], since[oid], shapes[oid] = number, {number}, table
        else:
            if floor >= 0:
                for earlier in (last_of_key.get(key, -1), last_of_table.get(oid, -1), last_of_key.get(old_key, -1)):
                    if 0 <= earlier != number:
                        request.after.add(earlier)
            since.setdefault(oid, set()).add(number)
        if key >= 0:
            last_of_key[key] = number
        if old_key >= 0:
            last_of_key[old_key] = number
    return requests


def halves(
    order: MessageOrder, request: PlannedRequest, limits: RequestLimits
) -> tuple[PlannedRequest, PlannedRequest]:
    """Divide a request that was rejected as a whole, to find the change that is the reason.

    The second half waits for request 0, which stands for the first half, if it has to stay in order with it.
    """
    middle = len(request.rows) // 2
    first, second = PlannedRequest(request.rows[:middle]), PlannedRequest(request.rows[middle:])
    if limits.connections == 1 or _have_to_wait(order, first.rows, second.rows):
        second.after.add(0)
    return first, second


def _have_to_wait(order: MessageOrder, earlier: Sequence[int], later: Sequence[int]) -> bool:
    first, second = _Touched.of(order, earlier), _Touched.of(order, later)
    shares_table = first.whole_tables & second.tables or second.whole_tables & first.tables
    return bool(shares_table or first.keys & second.keys)


@dataclass(frozen=True)
class _Touched:
    """What some messages are about."""

    tables: frozenset[int]
    whole_tables: frozenset[int]
    keys: frozenset[int]

    @classmethod
    def of(cls, order: MessageOrder, rows: Sequence[int]) -> _Touched:
        return cls(
            frozenset(order.oids[order.tables[row]] for row in rows),
            frozenset(order.oids[order.tables[row]] for row in rows if order.keys[row] < 0),
            frozenset(key for row in rows for key in (order.keys[row], order.old_keys[row]) if key >= 0),
        )


def _destination_codes(messages: OutgoingMessages) -> list[int]:
    """Number the destinations: path, method and headers by row."""
    headers = messages.headers
    columns = [messages.destinations, headers[METHOD]]
    columns += [values for name, values in headers.items() if name.startswith(REQUEST_HEADER)]
    # None of them contains a line break: they are percent-encoded.
    joined = pc.binary_join_element_wise(*[pc.fill_null(column, "\n") for column in columns], "\n")
    codes: list[int] = joined.dictionary_encode().indices.to_pylist()
    return codes


def _key_codes(messages: OutgoingMessages) -> tuple[list[int], list[int]]:
    headers, count = messages.headers, len(messages)
    oids = pc.list_element(pc.split_pattern(headers[TABLE], " ", max_splits=1), 0)
    old_keys = headers.get(OLD_KEY, pa.nulls(count, pa.string()))
    both = pa.concat_arrays([pc.binary_join_element_wise(oids, keys, " ") for keys in (headers[KEY], old_keys)])
    codes = both.dictionary_encode().indices.fill_null(-1).to_pylist()
    return codes[:count], codes[count:]
