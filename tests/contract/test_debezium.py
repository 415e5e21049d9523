"""A real Debezium reads the same database: its messages and Tailrace's are the same, field by field."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tests import values
from tests.contract import debezium_cases
from tests.contract.debezium_pair import Pair, Record, Topics, Variant, side_by_side
from tests.fixtures.debezium import Connect
from tests.fixtures.postgres import running
from tests.workload import Workload

from tailrace.embedded.kafka import KafkaServer
from tailrace.sinks.messages.debezium_transaction import MESSAGES

_HEARTBEATS: Final = "__debezium-heartbeat.PREFIX"
_TRANSACTIONS: Final = "PREFIX.transaction"
_OWN: Final = b'"tailrace.snapshot"'
_LEFT_OUT: Final = "PREFIX.public.left_out"
_TIMES: Final = ("ts_ms", "ts_us", "ts_ns")

PLACED = Variant("placed", partitions=5)
SCHEMAS = Variant(
    "schemas",
    {
        "provide_transaction_metadata": "true",
        "skipped_operations": "none",
        "heartbeat_interval_ms": 200,
        "decimal_handling_mode": "double",
        "time_precision_mode": "adaptive_time_microseconds",
    },
    {
        "debezium_transactions": True,
        "debezium_truncates": True,
        "debezium_heartbeat_s": 3600,
        "debezium_decimals": "double",
        "debezium_times": "adaptive_time_microseconds",
    },
    schemas=True,
)
STRINGS = Variant(
    "strings",
    {
        "decimal_handling_mode": "string",
        "time_precision_mode": "isostring",
        "tombstones_on_delete": "false",
        "unavailable_value_placeholder": 'not "sent"',
        "provide_transaction_metadata": "true",
    },
    {
        "debezium_decimals": "string",
        "debezium_times": "isostring",
        "debezium_tombstones": False,
        "debezium_unavailable": 'not "sent"',
        "debezium_transactions": True,
    },
)
VARIANTS: Final = (PLACED, SCHEMAS, STRINGS)


@dataclass(frozen=True)
class Outcome:
    debezium: Topics
    tailrace: Topics


@pytest.fixture(scope="module")
def outcomes(
    kafka_server: KafkaServer, debezium: Connect, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Outcome]]:
    """What both wrote, by variant."""
    with running(18, max_replication_slots=20, max_wal_senders=20) as postgres:
        with postgres.connect() as connection:
            debezium_cases.create(connection)
        store = tmp_path_factory.mktemp("debezium")
        with side_by_side(postgres, kafka_server, debezium, store, VARIANTS) as pair:
            with postgres.connect() as connection:
                debezium_cases.stream(connection)
                for statements in debezium_cases.ALTERATIONS:
                    pair.catch_up()
                    for statement in statements:
                        connection.execute(statement.encode())
            yield outcomes_of(pair, VARIANTS)


def outcomes_of(pair: Pair, variants: Sequence[Variant]) -> dict[str, Outcome]:
    pair.catch_up()
    found = {}
    for variant in variants:
        pair.deliver(variant)
        found[variant.name] = Outcome(pair.debezium(variant), pair.tailrace(variant))
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_messages_are_those_of_debezium(outcomes: dict[str, Outcome], variant: Variant) -> None:
    outcome = outcomes[variant.name]
    assert_same(outcome.debezium, outcome.tailrace)


def assert_same(debezium: Topics, tailrace: Topics) -> None:
    """Compare all topics, partition by partition."""
    own = own_transactions(debezium)
    theirs, ours = comparable(debezium, own), comparable(tailrace, own)
    assert set(theirs) == set(ours)
    for topic in sorted(theirs):
        assert [one.place for one in ours[topic]] == [one.place for one in theirs[topic]], topic
        for expected, found in zip(theirs[topic], ours[topic], strict=True):
            assert found == expected, topic


@dataclass(frozen=True)
class Shown:
    """A message as it is compared."""

    place: tuple[int, str | None]
    """Partition and key. Messages without a key go to any partition."""
    value: str | None
    headers: tuple[tuple[str, bytes], ...]


def own_transactions(debezium: Topics) -> set[int]:
    """The transactions in which Tailrace wrote to the source: Debezium sees those, too."""
    values = [json.loads(record.value or b"") for record in debezium["PREFIX.message"] if _OWN in (record.key or b"")]
    return {_payload(value)["source"]["txId"] for value in values}


def comparable(topics: Topics, own: set[int]) -> dict[str, list[Shown]]:
    found = {}
    for topic, records in topics.items():
        if topic in (_HEARTBEATS, _LEFT_OUT):
            continue
        # A message with neither key nor value says nothing, and a compacted topic refuses it.
        useful = [record for record in records if not (record.key is None and record.value is None)]
        shown = [_shown(record) for record in useful if not _is_own(record, own)]
        # Each reads the rows of a snapshot in an order of its own. They come first.
        snapshot = [one for one in shown if one.value is not None and '"op": "r"' in one.value]
        stream = [one for one in shown if one not in snapshot]
        # Within a partition there is an order. Messages without a key are in the order of the log.
        in_order = sorted(stream, key=lambda one: _lsn(one) if one.place[1] is None else one.place[0])
        found[topic] = [*sorted(snapshot, key=repr), *in_order]
    return found


def _lsn(shown: Shown) -> int:
    return int(_payload(json.loads(shown.value or ""))["source"]["lsn"])


def _is_own(record: Record, own: set[int]) -> bool:
    if record.topic == "PREFIX.message":
        return _OWN in (record.key or b"")
    return record.topic == _TRANSACTIONS and int(_payload(json.loads(record.key or b""))["id"].split(":")[0]) in own


def _payload(message: Any) -> Any:
    return message.get("payload", message)


def _shown(record: Record) -> Shown:
    key = None if record.key is None else record.key.decode()
    if record.topic == _TRANSACTIONS:
        key = _without_lsn(key or "")
    value = None if record.value is None else json.loads(record.value)
    if value is not None:
        (_normalise_boundary if record.topic == _TRANSACTIONS else _normalise)(_payload(value))
    # Text, because the order of members counts, and 1 is not 1.0.
    text = None if value is None else json.dumps(value, ensure_ascii=False)
    return Shown((0 if key is None else record.partition, key), text, record.headers)


def _normalise(event: dict[str, Any]) -> None:
    """Remove what cannot be the same."""
    for name in _TIMES:  # the time of processing
        event.pop(name, None)
    source = event["source"]
    del source["version"]
    # Debezium has the end of the last commit that it saw, Tailrace the transaction's own commit.
    source["sequence"] = json.loads(source["sequence"])[1]
    if event["op"] == "r":  # each has a snapshot of its own, and Tailrace does not know which row is the last
        for name in ("snapshot", "txId", "lsn", "sequence", *_TIMES):
            del source[name]
    else:
        # The converter writes the default for null; in rows that would be wrong, so it was told not to.
        assert source.pop("snapshot") in (None, "false")
    if event["op"] == "m" and source["txId"] is None:  # PostgreSQL does not say when it was written
        for name in _TIMES:
            del source[name]


def _normalise_boundary(boundary: dict[str, Any]) -> None:
    if boundary["status"] == "BEGIN":
        return
    # Debezium has the LSN after the commit.
    boundary["id"] = boundary["id"].split(":")[0]
    counts: Counter[str] = Counter()
    for one in boundary["data_collections"]:
        # Debezium prints the address of a Java object for each logical message.
        name = MESSAGES if "LogicalDecodingMessage" in one["data_collection"] else one["data_collection"]
        counts[name] += one["event_count"]
    boundary["data_collections"] = sorted(counts.items())


def _without_lsn(key: str) -> str:
    return re.sub(r'("id":"\d+):\d+"', r'\1"', key)


def test_columns_that_debezium_leaves_out_are_text(outcomes: dict[str, Outcome]) -> None:
    for variant in VARIANTS:
        theirs, ours = (
            [_payload(json.loads(record.value or b""))["after"] for record in topics[_LEFT_OUT]]
            for topics in (outcomes[variant.name].debezium, outcomes[variant.name].tailrace)
        )
        assert theirs == [{"id": 1}]
        texts = [["a"] if type_ == "name[]" else text for type_, text in debezium_cases.LEFT_OUT.items()]
        assert ours == [{"id": 1, **{f"c{n}": text for n, text in enumerate(texts)}}]


def test_heartbeats(outcomes: dict[str, Outcome]) -> None:
    theirs, ours = outcomes[SCHEMAS.name].debezium[_HEARTBEATS], outcomes[SCHEMAS.name].tailrace[_HEARTBEATS]
    assert len(ours) == 1, "once an hour"
    assert ours[0].key == theirs[0].key
    in_json = [json.loads(record.value or b"") for record in (theirs[0], ours[0])]
    for message in in_json:
        assert message["payload"].pop("ts_ms") > 1_700_000_000_000
    assert json.dumps(in_json[0]) == json.dumps(in_json[1])


def test_messages_are_placed_by_their_keys(outcomes: dict[str, Outcome]) -> None:
    """The comparison includes the partition. Here it is made sure that there was something to compare."""
    records = outcomes[PLACED.name].tailrace["PREFIX.public.bulk"]
    assert {record.partition for record in records} == set(range(PLACED.partitions))


def _modes(name: str, decimals: str, times: str, **both: bool) -> Variant:
    theirs = {"decimal_handling_mode": decimals, "time_precision_mode": times}
    return Variant(name, theirs, {"debezium_decimals": decimals, "debezium_times": times}, **both)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_workload(
    kafka_server: KafkaServer, debezium: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(values, "TYPES", debezium_cases.random_types())
    variants = [
        _modes(f"connect{seed}", "double", "connect"),
        _modes(f"micro{seed}", "string", "microseconds", schemas=True),
        _modes(f"nano{seed}", "precise", "nanoseconds"),
        _modes(f"adaptive{seed}", "precise", "adaptive", schemas=True),
    ]
    with running(18, max_replication_slots=20, max_wal_senders=20) as postgres:
        workload = Workload(postgres.connect, seed)
        workload.create()
        workload.run(30)
        with side_by_side(postgres, kafka_server, debezium, tmp_path, variants) as pair:
            workload.run(400)
            workload.stop()
            for variant, outcome in zip(variants, outcomes_of(pair, variants).values(), strict=True):
                assert len(outcome.debezium) > len(workload.tables), variant
                assert_same(outcome.debezium, outcome.tailrace)
