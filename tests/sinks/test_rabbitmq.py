"""The sink `rabbitmq` on a real broker: what streams and queues get when clients, the broker or the settings change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aio_pika
import numpy as np
import pyarrow as pa
import pytest
from tests.contract.delivery_driver import Crash, DeliveryDriver, crash_after_staging, in_other_processes
from tests.contract.rabbitmq_messages import Consumed, RabbitMqStreams, amqp_message, run
from tests.fixtures.rabbitmq import MAX_MESSAGE_BYTES
from tests.log.stream import Server
from tests.sinks.rabbitmq_source import (
    TABLES,
    GeneratedLog,
    ServerWithSizes,
    deliver,
    deliver_all,
    make_queue,
    make_streams,
    positions,
    replay,
)

from tailrace.change import Lsn, Position
from tailrace.embedded.rabbitmq import RabbitMqServer
from tailrace.errors import PoisonError, SinkRefused
from tailrace.log.decoding import ChangePositions
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.rabbitmq import (
    RabbitMqOptions,
    exchange_transport,
    stream_tail,
    stream_transport,
)
from tailrace.sinks.rabbitmq.stream_transport import StreamTransport


def _crash(driver: DeliveryDriver, log: GeneratedLog) -> None:
    """Publish everything, and crash before the cursor is stored."""
    with pytest.raises(Crash), driver.stepper(crash_after_staging(in_other_processes(log.server.rng))) as one:
        deliver_all(one)


def _assert_in_order(messages: Sequence[Consumed]) -> None:
    for destination in {message.destination for message in messages}:
        own = positions([message for message in messages if message.destination == destination])
        assert own == sorted(own), destination


class SmallInserts(ServerWithSizes):
    sizes = (10,)


# Streams


def test_a_repeated_step_adds_nothing_to_the_streams(
    rabbitmq_server: RabbitMqServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more streams than a connection has publishers."""
    monkeypatch.setattr(stream_transport, "MAX_PUBLISHERS", 2)
    log, streams = GeneratedLog(tmp_path, Server(1)), make_streams(rabbitmq_server)
    driver = DeliveryDriver(streams, log.settings)
    _crash(driver, log)
    _crash(driver, log)
    deliver(driver)
    found = streams.consume()
    assert Counter(positions(found)) == log.expected()
    _assert_in_order(found)


def test_settings_that_change_after_a_crash_lose_nothing(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    """Ids that number the messages would now belong to other messages, which the broker would drop."""
    log, streams = GeneratedLog(tmp_path, SmallInserts(2)), make_streams(rabbitmq_server)
    _crash(DeliveryDriver(streams, log.settings), log)
    before = streams.consume()
    assert Counter(positions(before)) == log.expected()
    log.grow(60)
    deliver(DeliveryDriver(streams, log.settings, where={"public.*": "id > 50"}))
    selected = {c.position for c in log.server.changes if c.new is None or int(bytes(c.new[0] or b"")) > 50}  # type: ignore[arg-type]
    later = Counter(position for position in selected if position > max(positions(before)))
    assert Counter(positions(streams.consume())) == Counter(positions(before)) + later


def test_what_a_dead_connection_still_writes_is_not_repeated(rabbitmq_server: RabbitMqServer) -> None:
    """Two connections found the same end of the stream, and the broker reads one of them late."""
    streams = make_streams(rabbitmq_server)
    options = RabbitMqOptions(**{k: v for k, v in streams.settings().items() if k not in ("type", "start")})
    transports = [StreamTransport("late", options, options.message_format) for _ in range(3)]
    stream, progress = streams.stream_of("public", "t100"), Progress("source", 0)
    # The large transaction is followed so closely by others that ids cannot follow from positions alone.
    batch = [(200, n) for n in range(3000)] + [(201, 0), (201, 1), (900, 0)]
    try:
        for transport in transports:
            transport.publish(_messages(stream, [(100, 0)]), progress)
        transports[1].publish(_messages(stream, batch[:2000]), progress)
        transports[2].publish(_messages(stream, batch), progress)
        transports[1].publish(_messages(stream, batch[2000:]), progress)
        transports[0].publish(_messages(stream, batch), progress)
    finally:
        for transport in transports:
            transport.close()
    assert positions(streams.consume()) == [Position(Lsn(lsn), n) for lsn, n in [(100, 0), *batch]]


def _messages(stream: str, at: Sequence[tuple[int, int]]) -> OutgoingMessages:
    lsn, ordinal = np.array(at).T
    none = np.zeros(len(at), np.int64)
    return OutgoingMessages(
        ChangePositions(lsn, ordinal, lsn, none, none, none.astype(np.bool_)),
        pa.array([stream] * len(at)),
        pa.array([f"{a}:{b}" for a, b in at]),
        pa.array([b"{}"] * len(at), pa.binary()),
        none,
    )


def test_other_clients_write_to_the_streams(
    rabbitmq_server: RabbitMqServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink finds its own last message before theirs."""
    monkeypatch.setattr(stream_tail, "_WINDOW", 20)
    log, streams = GeneratedLog(tmp_path, Server(3)), make_streams(rabbitmq_server)
    driver = DeliveryDriver(streams, log.settings)
    for _ in range(2):
        _crash(driver, log)
        for table in TABLES:
            streams.publish(streams.stream_of(*table), b"hello", 60)
    deliver(driver)
    assert Counter(positions(streams.consume())) == log.expected()


def test_a_stream_that_was_made_anew_gets_what_follows(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    log, streams = GeneratedLog(tmp_path, Server(4)), make_streams(rabbitmq_server)
    driver = DeliveryDriver(streams, log.settings)
    deliver(driver)
    before = log.expected("t100")
    run(_delete_queue(rabbitmq_server, streams.stream_of("public", "t100")))
    log.grow(30)
    deliver(driver)
    found = [m for m in streams.consume() if m.destination == streams.stream_of("public", "t100")]
    assert Counter(positions(found)) == log.expected("t100") - before


async def _delete_queue(server: RabbitMqServer, name: str) -> None:
    async with await aio_pika.connect(server.url) as connection:
        await (await connection.channel()).queue_delete(name)


def test_a_message_too_large_for_a_stream_is_a_dead_letter(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    """It is published once its column is excluded: once, also after a crash, and without disturbing the order."""
    log, streams = GeneratedLog(tmp_path, ServerWithSizes(5), 20), make_streams(rabbitmq_server)
    with pytest.raises(PoisonError, match=r"makes? .*of 1,500,\d+ bytes|of up to 1,500,\d+ bytes") as caught:
        deliver(DeliveryDriver(streams, log.settings))
    assert "stream.frame_max" in caught.value.hint
    deliver(DeliveryDriver(streams, log.settings, on_poison="dead_letter"))
    letters = log.dead_letters()
    assert len(letters) > 1
    assert Counter(positions(streams.consume())) + Counter(letters) == log.expected()

    log.request_replay()
    without = DeliveryDriver(streams, log.settings, on_poison="dead_letter", columns={"public.t100": "-body"})
    with pytest.raises(Crash), without.stepper(crash_after_staging(in_other_processes(log.server.rng))) as one:
        replay(one)
    with without.stepper() as one:
        replay(one)
        assert one.dead_letters == 0
    log.grow(20)
    deliver(without)
    assert Counter(positions(streams.consume())) == log.expected()


def test_streams_are_not_created_unasked(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    log = GeneratedLog(tmp_path, Server(6))
    streams = make_streams(rabbitmq_server, create=False)
    driver = DeliveryDriver(streams, log.settings)
    with pytest.raises(SinkRefused, match=r"stream s\d+\.public\.t100 does not exist") as caught:
        driver.make_stepper().open()
    assert "rabbitmqadmin declare queue" in caught.value.hint
    retention = {"max_age_s": 3600, "max_bytes": 1_000_000_000}
    deliver(DeliveryDriver(_with(streams, create=True, **retention), log.settings))
    made = json.loads(rabbitmq_server.control("list_queues", "name", "arguments", "--formatter", "json"))
    arguments = {queue["name"]: queue["arguments"] for queue in made}
    for table in TABLES:
        found = {name: value for name, _, value in arguments[streams.stream_of(*table)]}
        assert found["x-queue-type"] == "stream"
        assert (found["x-max-age"], found["x-max-length-bytes"]) == ("3600s", 1_000_000_000)
    deliver(driver)
    assert Counter(positions(streams.consume())) == log.expected()


def _with(streams: RabbitMqStreams, **more: Any) -> RabbitMqStreams:
    return RabbitMqStreams(streams.server, streams.tables, {**streams.more, **more}, streams.number)


def test_a_client_of_amqp_reads_a_stream(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    """The broker translates its messages: id, content type, headers and body."""
    log, streams = GeneratedLog(tmp_path, Server(7)), make_streams(rabbitmq_server)
    deliver(DeliveryDriver(streams, log.settings))
    stream = streams.stream_of("public", "t100")
    count = sum(log.expected("t100").values())

    async def read() -> list[Consumed]:
        async with await aio_pika.connect(rabbitmq_server.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(1000)
            queue = await channel.declare_queue(stream, passive=True)
            found: list[Consumed] = []
            async with queue.iterator(timeout=60, arguments={"x-stream-offset": "first"}) as incoming:
                async for raw in incoming:
                    await raw.ack()
                    message = amqp_message(stream, raw)
                    headers = {name: v for name, v in message.headers.items() if name != "x-stream-offset"}
                    found.append(replace(message, headers=headers))
                    if len(found) == count:
                        break
            return found

    by_amqp = run(read())
    assert by_amqp == [m for m in streams.consume() if m.destination == stream]


def test_tombstones_of_rows(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    """A deleted row has an empty body, a header and its key, in a stream as in a queue. MessagePack keys are bytes."""
    log = GeneratedLog(tmp_path, Server(8), 40)
    for place in (
        make_streams(rabbitmq_server, envelope="row"),
        make_queue(rabbitmq_server, envelope="row"),
        make_queue(rabbitmq_server, envelope="row", encoding="msgpack"),
    ):
        deliver(DeliveryDriver(place, log.settings, name=f"rows{place.prefix}"))
        found = place.consume()
        changes = {str(c.position): c for c in log.server.changes}
        assert {m.headers["Tailrace-Operation"] for m in found} == {"insert", "update", "delete"}
        for message in found:
            is_tombstone = message.headers["Tailrace-Operation"] == "delete"
            assert message.headers.get("Tailrace-Tombstone") == ("true" if is_tombstone else None)
            assert (message.body == b"") == is_tombstone
            if is_tombstone and message.content_type == "application/json":
                old = changes[message.headers["Tailrace-Position"]].old
                assert old is not None
                assert json.loads(message.headers["Tailrace-Key"]) == {"id": int(bytes(old[0]))}  # type: ignore[arg-type]
            if message.content_type == "application/msgpack":
                assert bytes(message.headers["Tailrace-Key"]).startswith(b"\x81\xa2id")


# Exchanges


def test_a_repeated_step_has_the_same_ids(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    """Progress is stored after each batch, so that only the last batch can be repeated."""
    log, queue = GeneratedLog(tmp_path, Server(10)), make_queue(rabbitmq_server)
    driver = DeliveryDriver(queue, log.settings)
    _crash(driver, log)
    assert Counter(positions(queue.consume())) == log.expected()
    (tmp_path / "store/cursors/tested/progress.json").unlink()  # as if the process died before it stored that
    deliver(driver)
    found = queue.consume()
    assert Counter(positions(found)) == log.expected() + log.expected()
    assert found[: len(found) // 2] == found[len(found) // 2 :]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_bodies_of_any_size(rabbitmq_server: RabbitMqServer, tmp_path: Path, kind: str) -> None:
    """Those that are larger than a frame are divided."""

    class Sizes(ServerWithSizes):
        sizes = (0, 100, 131_000, 131_064, 131_065, 140_000, 400_000)

    log, queue = GeneratedLog(tmp_path, Sizes(11), 20), make_queue(rabbitmq_server, {"x-queue-type": kind})
    deliver(DeliveryDriver(queue, log.settings))
    found = {m.headers["Tailrace-Position"]: json.loads(m.body) for m in queue.consume()}
    bodies = {position: payload["data"]["body"] for position, payload in found.items() if "data" in payload}
    expected = {str(c.position): bytes(c.new[1]).decode() for c in log.server.changes if c.new is not None}  # type: ignore[arg-type]
    assert bodies == expected


def test_unroutable_messages_are_dead_letters_until_a_queue_is_bound(
    rabbitmq_server: RabbitMqServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_transport, "_PAUSES_S", (0.01, 0.01))
    log, queue = GeneratedLog(tmp_path, Server(12)), make_queue(rabbitmq_server)
    queue.bind("*.public.t100", "*.public.t101", f"{queue.prefix}.messages-of-applications")
    with pytest.raises(PoisonError, match=r"routing key q\d+\.public\.t102: NO_ROUTE \(312\), 3 times") as caught:
        deliver(DeliveryDriver(queue, log.settings))
    assert set(caught.value.positions) <= {str(p) for p in log.expected("t102")}
    driver = DeliveryDriver(queue, log.settings, on_poison="dead_letter")
    deliver(driver)
    letters = log.dead_letters()
    assert letters == set(log.expected("t102"))
    assert set(positions(queue.consume())) == set(log.expected()) - letters
    queue.bind("#")
    log.request_replay()
    with driver.stepper() as one:
        replay(one)
        assert one.dead_letters == 0
    assert set(positions(queue.consume())) == set(log.expected())


def test_a_full_queue_is_retried_in_order(
    rabbitmq_server: RabbitMqServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the messages that it rejected, none is published after its successors only."""
    log = GeneratedLog(tmp_path, Server(13))
    queue = make_queue(rabbitmq_server, {"x-max-length": 20, "x-overflow": "reject-publish"})
    # Only this module's: other threads of the process sleep too.
    monkeypatch.setattr(exchange_transport, "time", SimpleNamespace(sleep=lambda _: queue.consume()))
    monkeypatch.setattr(exchange_transport, "_PAUSES_S", (0.0,) * 50)
    deliver(DeliveryDriver(queue, log.settings))
    found = queue.consume()
    assert set(positions(found)) == set(log.expected())
    by_destination: dict[str, list[Position]] = {}
    for message, position in zip(found, positions(found), strict=True):
        by_destination.setdefault(message.destination, []).append(position)
    for own in by_destination.values():
        lasts = {position: index for index, position in enumerate(own)}
        assert sorted(lasts, key=lambda position: lasts[position]) == sorted(lasts), "an earlier change comes last"


def test_after_a_failure_later_messages_of_the_key_follow_again() -> None:
    messages = _messages("a", [(100, n) for n in range(6)])
    messages = replace(messages, destinations=pa.array(["a", "b", "a", "b", "a", "c"]))
    assert exchange_transport._repetition(messages, {2: "rejected", 5: "returned"}).tolist() == [2, 4, 5]


def test_a_message_too_large_for_the_broker_is_a_dead_letter(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    class Sizes(ServerWithSizes):
        sizes = (10, 10, 10, MAX_MESSAGE_BYTES + 1)

    log, queue = GeneratedLog(tmp_path, Sizes(14), 20), make_queue(rabbitmq_server)
    with pytest.raises(PoisonError, match=r"a message of 2,000,\d+ bytes, and the broker accepts 2,000,000") as caught:
        deliver(DeliveryDriver(queue, log.settings))
    assert "max_message_size" in caught.value.hint
    deliver(DeliveryDriver(queue, log.settings, on_poison="dead_letter"))
    letters = log.dead_letters()
    assert letters
    assert set(positions(queue.consume())) == set(log.expected()) - letters


def test_a_missing_exchange(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    log = GeneratedLog(tmp_path, Server(15))
    queue = make_queue(rabbitmq_server, exchange="absent")
    with pytest.raises(SinkRefused, match="exchange absent does not exist") as caught:
        DeliveryDriver(queue, log.settings).make_stepper().open()
    assert "rabbitmqadmin declare exchange name=absent" in caught.value.hint


def test_the_default_exchange(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    """Its routing keys are names of queues."""
    log, queue = GeneratedLog(tmp_path, Server(16)), make_queue(rabbitmq_server, exchange="")
    queue.more = {**queue.more, "routing_key": queue.prefix, "logical_messages": queue.prefix}
    deliver(DeliveryDriver(queue, log.settings, tables=["public.t100"]))
    expected = Counter(c.position for c in log.server.changes if c.table in ("t100", None))
    assert Counter(positions(queue.consume())) == expected
