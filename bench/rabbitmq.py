"""RabbitMQ: a ready log drained into a stream, compared with a bare producer of equal bytes.

The bare producer is rstream's `send_batch`, with a publisher's name, so that the broker deduplicates as it does for the
sink. It gets the messages as bytes, which are made before its clock starts. The rate to a queue is for information.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
import time
from functools import partial
from typing import Any

import aio_pika
import rstream

from bench.message_sink import EVENTS, Drain, chunks, measure_latency
from bench.ready_log import ReadyLog, make
from bench.replica import INSERTS
from bench.report import Report
from bench.throughput import TABLE
from tailrace import settings, sinks
from tailrace.embedded import rabbitmq
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.rabbitmq import RabbitMqServer
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.rabbitmq import RabbitMqOptions, stream_message
from tailrace.sinks.rabbitmq.binary_column import join
from tailrace.sinks.rabbitmq.stream_client import StreamClient
from tailrace.sinks.rabbitmq.stream_frame import StreamChunk
from tailrace.spark import engine_session
from tailrace.spark.engine import Engine

_STREAM = "bench.public.t"
_FINISHED = "bench.public.finished"
_POSITION = re.compile(rb"Tailrace-Position\xa1.([0-9A-F/:]+)", re.DOTALL)
_BATCH = 10_000
_LIMIT_S = 600.0


def run(report: Report) -> None:
    report.title("RabbitMQ: a ready log drained into a stream, exactly once")
    if not rabbitmq.is_installed():
        report.line("RabbitMQ", "is not installed: skipped")
        return
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        Postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server,
    ):
        log = make(server, "inserts", f"{name}/log", [TABLE.format(name="t")], [INSERTS])
        report.section("1M inserts, 1,000 a transaction; median of three after a first")
        Drain("stream", RabbitMqServer, _sink, partial(_publish, log), _check).run(report, log)
        report.section("the same into a classic queue, at least once; for information")
        _drain_into_queue(report, log)
    with RabbitMqServer() as broker:
        measure_latency(report, "RabbitMQ", _sink(broker), partial(_watch, broker))


def _options(server: RabbitMqServer) -> RabbitMqOptions:
    return RabbitMqOptions(url=server.url, stream="bench.{schema}.{table}", stream_port=server.stream_port, create=True)


def _sink(server: RabbitMqServer) -> dict[str, Any]:
    options = _options(server)
    return {
        "type": "rabbitmq",
        "url": server.url,
        "stream": options.stream,
        "stream_port": options.stream_port,
        "create": True,
        "start": "earliest",
    }


def _queue_sink(server: RabbitMqServer) -> dict[str, Any]:
    about = {"exchange": "amq.topic", "routing_key": "bench.{schema}.{table}", "start": "earliest"}
    return {"type": "rabbitmq", "url": server.url, **about}


def _messages(log: ReadyLog, options: RabbitMqOptions) -> list[OutgoingMessages]:
    envelope = options.make_envelope("bench", "inserts", "bench", "")
    encoder = MessageEncoder(envelope, options.template("inserts"))
    found = [encoder.encode(chunk, PositionIds()) for chunk in chunks(log)]
    return [OutgoingMessages.joined(encoded) for encoded in found if encoded]


def _publish(log: ReadyLog, server: RabbitMqServer) -> float:
    """Make the messages, then start the clock."""
    options = _options(server)
    made: list[bytes] = []
    for messages in _messages(log, options):
        heads = stream_message.encode(messages, "tailrace/bench", options.message_format)
        made += join([heads, messages.values]).to_pylist()
    return asyncio.run(_send(server, made))


async def _send(server: RabbitMqServer, made: list[bytes]) -> float:
    finished = asyncio.Event()
    confirmed = 0

    def confirm(status: rstream.ConfirmationStatus) -> None:
        nonlocal confirmed
        assert status.is_confirmed
        confirmed += 1
        if confirmed == len(made):
            finished.set()

    async with rstream.Producer(
        "127.0.0.1", server.stream_port, username=server.user, password=server.password
    ) as producer:
        await producer.create_stream(_STREAM)
        began = time.monotonic()
        for start in range(0, len(made), _BATCH):
            batch = made[start : start + _BATCH]
            await producer.send_batch(_STREAM, batch, publisher_name="bench", on_publish_confirm=confirm)
        await finished.wait()
        return time.monotonic() - began


def _check(server: RabbitMqServer) -> None:
    """Check that the streams have each message once."""
    client = StreamClient(_options(server), "check")
    positions: list[bytes] = []

    def visit(chunk: StreamChunk, end: int) -> bool:
        positions.extend(match[1] for entry in chunk.entries if (match := _POSITION.search(entry)) is not None)
        return chunk.next_offset < end

    try:
        for stream in (_STREAM, _FINISHED):
            ends: list[int] = []
            client.read(stream, None, lambda chunk, ends=ends: bool(ends.append(chunk.next_offset)))  # type: ignore[misc]
            client.read(stream, 0, partial(visit, end=ends[0]))
    finally:
        client.close()
    distinct = len(set(positions))
    assert len(positions) == distinct == EVENTS, f"{len(positions)} messages, {distinct} positions"


def _drain_into_queue(report: Report, log: ReadyLog) -> None:
    spark = engine_session.start(settings.Settings(), ()).wait()
    try:
        with RabbitMqServer() as server:
            asyncio.run(_declare(server))
            configured = settings.Settings(
                store=settings.StoreSettings(url=log.store_url), sinks=({"name": "queue", **_queue_sink(server)},)
            )
            engine = Engine(configured, sinks.from_settings(configured, {}), spark=spark)
            began = time.monotonic()
            engine.start()
            try:
                assert engine.wait(engine.end(), _LIMIT_S), engine.sinks["queue"].error or "not delivered in time"
                seconds = time.monotonic() - began
            finally:
                engine.stop()
            assert asyncio.run(_declare(server)) == EVENTS
    finally:
        spark.stop()
    report.line("deliver", f"{EVENTS / seconds:,.0f} events/s")


async def _declare(server: RabbitMqServer) -> int:
    """Declare a queue that gets everything, and return how many messages it has."""
    async with await aio_pika.connect(server.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("bench", durable=True)
        await queue.bind("amq.topic", "bench.#")
        return queue.declaration_result.message_count or 0


def _watch(server: RabbitMqServer, seen: list[float], finished: threading.Event) -> None:
    async def watch() -> None:
        async with rstream.Consumer(
            "127.0.0.1", server.stream_port, username=server.user, password=server.password
        ) as consumer:
            await consumer.subscribe(_STREAM, lambda *_: seen.append(time.time()), decoder=bytes)
            while not finished.is_set():
                await asyncio.sleep(0.05)

    asyncio.run(watch())
