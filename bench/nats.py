"""NATS JetStream: a ready log drained into a stream on disk, compared with a bare receiver and a bare publisher.

The bare publisher sends the frames that the sink would send, over the same connection with the same window. They are
made before its clock starts, so the difference is the cost of reading, decoding and encoding.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from functools import partial
from unittest.mock import patch

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy

from bench.message_sink import EVENTS, Drain, chunks, measure_latency
from bench.ready_log import ReadyLog, make
from bench.replica import INSERTS
from bench.report import Report
from bench.throughput import TABLE, receive
from tailrace import settings
from tailrace.delivery.sink_settings import SinkSettings
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.sinks.messages.encoder import MessageEncoder
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.tailrace_envelope import TailraceEnvelope
from tailrace.sinks.nats import NatsOptions, compression, jetstream, message_batch
from tailrace.sinks.nats.client import NatsClient
from tailrace.sinks.nats.message_batch import Sender
from tailrace.sinks.nats.message_id import MessageIds
from tailrace.sinks.nats.schema_bucket import SchemaBucket
from tailrace.sinks.nats.snapshot_responder import SnapshotResponder

_SMALL = (
    "CREATE TABLE small (id int PRIMARY KEY, customer int, status text, total numeric(10,2), placed_at timestamptz)"
)
_SMALL_ROWS = """
INSERT INTO small SELECT g, g % 5000, (ARRAY['new', 'paid', 'sent', 'cancelled'])[1 + g % 4], (g % 9000) / 100.0,
    '2026-01-01 00:00:00+00'::timestamptz + g * interval '37 seconds' FROM generate_series(1, 500000) g
"""
_LIMIT_S = 600.0


def run(report: Report) -> None:
    report.title("NATS: a ready log drained into JetStream, on disk")
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        Postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server,
    ):
        log = make(server, "inserts", f"{name}/log", [TABLE.format(name="t"), _SMALL, _SMALL_ROWS], [INSERTS])
        _drain(report, log)
        _snapshots(report, log)
    with NatsServer() as server:
        sink = {"type": "nats", "url": server.url}
        measure_latency(report, "NATS", sink, lambda seen, finished: asyncio.run(_watch(server.url, seen, finished)))


def _drain(report: Report, log: ReadyLog) -> None:
    with log.connect() as connection:
        row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert row is not None
        received = [receive(log.server, connection, str(row[0]), "tailrace", log.database) for _ in range(3)]
    report.section("1M inserts, 1,000 a transaction; median of three rounds after one to warm up")
    only = EVENTS / statistics.median(received)
    report.line("pg_recvlogical into nothing", f"{only:,.0f} events/s")
    drain = Drain("bus", NatsServer, lambda server: {"type": "nats", "url": server.url}, partial(_publish, log), _check)
    report.line("ratio to pg_recvlogical", f"{drain.run(report, log) / only:.2f}")


def _publish(log: ReadyLog, server: NatsServer) -> float:
    """Make the frames, then start the clock."""
    options = NatsOptions(url=server.url)
    client = NatsClient(options, "bench")
    try:
        jetstream.ensure_stream(client, "CDC", ["cdc.>"], jetstream.retention(3600), create=True)
        envelope, ids = TailraceEnvelope(ENCODINGS["msgpack"], has_keys=False), MessageIds(0)
        encoder = MessageEncoder(envelope, options.template, options.message_subject)
        made: list[tuple[memoryview, message_batch.I64]] = []
        last = 0
        for chunk in chunks(log):
            messages = message_batch.merge(encoder.encode(chunk, ids), Sender("bench", 0))
            if messages is not None:
                made.append(message_batch.encode_frames(messages, client.ack_subject, last))
                last += len(messages)
        began = time.monotonic()
        for data, ends in made:
            client.publish_frames(data, ends)
        return time.monotonic() - began
    finally:
        client.close()


def _snapshots(report: Report, log: ReadyLog) -> None:
    report.section("a snapshot on request: 500K small rows of 5 columns, in chunks of 10,000")
    sizes: dict[str, int] = {}
    for how, min_rows in (("plain", 0), ("zstd", 1 << 60), ("zstd, with a dictionary", 100)):
        with NatsServer(max_payload=8 << 20) as server, patch.object(compression, "_MIN_ROWS", min_rows):
            options = NatsOptions(url=server.url, zstd=how != "plain").validate()
            responder = SnapshotResponder(options, "bench", settings.StoreSettings(log.store_url), SinkSettings())
            client = NatsClient(options, "bench", "init.meta.small")
            try:
                # The sink creates these before it answers requests.
                jetstream.ensure_stream(client, options.stream, [f"{options.subject}.>"], {}, create=True)
                SchemaBucket(client, options, ENCODINGS["msgpack"]).ensure()
                responder.start()
                assert wait_until(lambda w=client: "error" not in w.request("$JS.API.STREAM.INFO.INIT"), 30)  # type: ignore[misc]
                began = time.monotonic()
                client.send("snapshot.request.small", b"")
                assert wait_until(lambda w=client: w.next_message(1.0) is not None, _LIMIT_S)  # type: ignore[misc]
                seconds = time.monotonic() - began
                sizes[how] = int(client.request("$JS.API.STREAM.INFO.INIT")["state"]["bytes"])
            finally:
                client.close()
                responder.stop()
        saved = 1 - sizes[how] / sizes["plain"]
        rate = f"{sizes['plain'] / seconds / 1e6:.0f} MB/s, {sizes[how] / 1e6:.0f} MB"
        is_last = how.endswith("dictionary")
        want = f"{saved:.1%} less" + (", want ≥ 85 %" if is_last else "")
        report.line(how, rate, want, ok=saved >= 0.85 if is_last else None)


def _check(server: NatsServer) -> None:
    """Check that the stream has every id once, by its own count and its last message."""
    client = NatsClient(NatsOptions(url=server.url), "check")
    try:
        state = client.request("$JS.API.STREAM.INFO.CDC")["state"]
    finally:
        client.close()
    assert state["messages"] == state["last_seq"] == EVENTS, state


async def _watch(url: str, seen: list[float], finished: threading.Event) -> None:
    connection = await nats.connect(url)

    async def noted(_: object) -> None:
        seen.append(time.time())

    subscription = await connection.jetstream().subscribe(
        "cdc.t.insert", cb=noted, ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
    )
    while not finished.is_set():
        await asyncio.sleep(0.05)
    await subscription.unsubscribe()
    await connection.close()
