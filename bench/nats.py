"""NATS JetStream: a ready log drained into a stream on disk, compared with a bare receiver and a bare publisher.

The bare publisher sends the frames that the sink would send, over the same connection with the same window. They are
made before its clock starts, so the difference is the cost of reading, decoding and encoding.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import threading
import time
from unittest.mock import patch

import nats
import numpy as np
import psutil
from nats.js.api import ConsumerConfig, DeliverPolicy

from bench.delivery_latency import Capturing
from bench.ready_log import ReadyLog, make
from bench.replica import INSERTS
from bench.report import Report
from bench.throughput import TABLE, receive
from tailrace import settings, sinks
from tailrace.delivery.sink_settings import SinkSettings
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.log import decoding, planner
from tailrace.log.reader import LogReader
from tailrace.sinks.messages.encoder import MessageEncoder
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.tailrace_envelope import TailraceEnvelope
from tailrace.sinks.nats import NatsOptions, compression, jetstream, message_batch
from tailrace.sinks.nats.client import NatsClient
from tailrace.sinks.nats.message_batch import Sender
from tailrace.sinks.nats.message_id import MessageIds
from tailrace.sinks.nats.schema_bucket import SchemaBucket
from tailrace.sinks.nats.snapshot_responder import SnapshotResponder
from tailrace.spark import engine_session
from tailrace.spark.engine import Engine
from tailrace.store import Store

_SMALL = (
    "CREATE TABLE small (id int PRIMARY KEY, customer int, status text, total numeric(10,2), placed_at timestamptz)"
)
_SMALL_ROWS = """
INSERT INTO small SELECT g, g % 5000, (ARRAY['new', 'paid', 'sent', 'cancelled'])[1 + g % 4], (g % 9000) / 100.0,
    '2026-01-01 00:00:00+00'::timestamptz + g * interval '37 seconds' FROM generate_series(1, 500000) g
"""
_ROUNDS = 3
_LIMIT_S = 600.0
_PER_SECOND = 50
_COMMITS = 1000
_WARMING = 500


def run(report: Report) -> None:
    report.title("NATS: a ready log drained into JetStream, on disk")
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        Postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server,
    ):
        log = make(server, "inserts", f"{name}/log", [TABLE.format(name="t"), _SMALL, _SMALL_ROWS], [INSERTS])
        _drain(report, log)
        _snapshots(report, log)
    _latency(report)


def _drain(report: Report, log: ReadyLog) -> None:
    spark = engine_session.start(settings.Settings(), ()).wait()
    ours: list[float] = []
    bare: list[float] = []
    received: list[float] = []
    processors: list[float] = []
    try:
        with log.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
            assert row is not None
            for round_ in range(_ROUNDS + 1):
                received.append(receive(log.server, connection, str(row[0]), "tailrace", log.database))
                with NatsServer() as server:
                    bare.append(_publish(log, server))
                with NatsServer() as server:
                    configured = settings.Settings(
                        store=settings.StoreSettings(url=log.store_url),
                        sinks=({"type": "nats", "name": f"bus{round_}", "url": server.url},),
                    )
                    engine = Engine(configured, sinks.from_settings(configured, {}), spark=spark)
                    before, began = _cpu(), time.monotonic()
                    engine.start()
                    try:
                        done = engine.wait(engine.end(), _LIMIT_S)
                        ours.append(time.monotonic() - began)
                        assert done, engine.sinks[f"bus{round_}"].error or "not delivered in time"
                        processors.append(_cpu() - before)
                    finally:
                        engine.stop()
                    _check(server)
    finally:
        spark.stop()
    events = 1_000_001
    report.section("1M inserts, 1,000 a transaction; median of three rounds after one to warm up")
    rate, alone, only = (events / statistics.median(times[1:]) for times in (ours, bare, received))
    report.line("pg_recvlogical into nothing", f"{only:,.0f} events/s")
    report.line("bare publisher of the same frames", f"{alone:,.0f} events/s")
    least = min(60_000, 0.6 * alone)
    report.line("deliver", f"{rate:,.0f} events/s", f"want ≥ {least:,.0f}", ok=rate >= least)
    report.line("ratio to pg_recvlogical", f"{rate / only:.2f}")
    report.line("ratio to the bare publisher", f"{rate / alone:.2f}")
    report.line("CPU seconds per million", f"{statistics.median(processors[1:]):.1f}", "ours, Spark's Java included")


def _publish(log: ReadyLog, server: NatsServer) -> float:
    """Make the frames, then start the clock."""
    reader = LogReader(Store.open(log.store_url))
    batch = planner.next_batch(reader, planner.start_offset(reader, None), planner.UNLIMITED)
    options = NatsOptions(url=server.url)
    client = NatsClient(options, "bench")
    try:
        jetstream.ensure_stream(client, "CDC", ["cdc.>"], jetstream.retention(3600), create=True)
        envelope, ids = TailraceEnvelope(ENCODINGS["msgpack"], has_keys=False), MessageIds(0)
        encoder = MessageEncoder(envelope, options.template, options.message_subject)
        made: list[tuple[memoryview, message_batch.I64]] = []
        last = 0
        for chunk in decoding.chunks(reader, batch.slices, decoding.ChangeFilter(), as_text=True):
            runs = [run for run in chunk[1] if isinstance(run, decoding.TableChanges)]
            messages = message_batch.merge(encoder.encode(runs, ids), Sender("bench", 0))
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
    assert state["messages"] == state["last_seq"] == 1_000_001, state


def _cpu() -> float:
    """The CPU seconds of this process and its children, except the servers."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            name = process.name()
            if name.startswith(("postgres", "nats-server", "pg_", "sh")):
                continue
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def _latency(report: Report) -> None:
    report.title(f"NATS: commit → a consumer of the stream, {_COMMITS} transactions at {_PER_SECOND} a second")
    with (
        Postgres() as source,
        NatsServer() as server,
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory,
        source.connect() as connection,
    ):
        connection.execute("CREATE TABLE t (id serial PRIMARY KEY, note text)")
        with Capturing(source, directory):
            store = Store.open(directory)
            assert wait_until(lambda: any(i.key.endswith("meta.json") for i in store.list("snapshots")), 60)
            configured = settings.Settings(
                store=settings.StoreSettings(url=directory), sinks=({"type": "nats", "name": "bus", "url": server.url},)
            )
            engine = Engine(configured, sinks.from_settings(configured, {}))
            engine.start()
            seen: list[float] = []
            committed: list[float] = []
            finished = threading.Event()
            watcher = threading.Thread(target=lambda: asyncio.run(_watch(server.url, seen, finished)))
            try:
                connection.execute("INSERT INTO t (note) VALUES ('first')")
                assert wait_until(lambda: engine.wait(engine.end(), 0), 120), engine.sinks["bus"].error
                watcher.start()
                assert wait_until(lambda: len(seen) >= 1, 60), "the consumer did not start in time"
                seen.clear()
                rng = random.Random(1)
                for _ in range(_WARMING + _COMMITS):
                    time.sleep(rng.expovariate(_PER_SECOND))
                    connection.execute("INSERT INTO t (note) VALUES ('x')")
                    committed.append(time.time())
                assert wait_until(lambda: len(seen) >= len(committed), 60), "messages did not arrive in time"
            finally:
                finished.set()
                watcher.join()
                engine.stop()
    spans = np.array([1000 * (s - c) for s, c in zip(seen, committed, strict=True)][_WARMING:])
    report.section("after 500 to warm up")
    for percent, want in ((50, 150), (95, None)):
        figure = float(np.percentile(spans, percent))
        ok = None if want is None else figure <= want
        report.line(f"p{percent}", f"{figure:.0f} ms", f"want ≤ {want}" if want else "", ok=ok)


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
