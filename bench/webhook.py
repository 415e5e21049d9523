"""Webhooks: a ready log sent to a receiver on this machine, compared with bare `http.client` posting the same bytes.

The bare client posts bodies and headers that are made before its clock starts, over as many connections. The receiver
is a process of its own and shares the processors.
"""

from __future__ import annotations

import http.client
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.sql import SparkSession

from bench.http_receiver import Receiver
from bench.ready_log import ReadyLog, make
from bench.report import Report
from bench.throughput import ROW, TABLE
from tailrace import settings, sinks
from tailrace.delivery.sink_settings import SinkContext
from tailrace.embedded.postgres import Postgres
from tailrace.log import decoding, planner
from tailrace.log.reader import LogReader
from tailrace.settings import Secret
from tailrace.sinks.messages.encoder import PositionIds
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.webhook import WebhookOptions, WebhookSink, request_plan
from tailrace.sinks.webhook.request_content import ContentFormat, RequestMaker
from tailrace.sinks.webhook.request_plan import MessageOrder, RequestLimits
from tailrace.sinks.webhook.signature import signature_headers
from tailrace.spark import engine_session
from tailrace.spark.engine import Engine
from tailrace.store import Store

_SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
_ROUNDS = 3
_LIMIT_S = 600.0
_BATCHED, _SINGLE = 1_000_000, 50_000


@dataclass(frozen=True)
class _Load:
    changes: int
    batch: int
    least: float


def run(report: Report) -> None:
    report.title("webhook: a ready log sent to a receiver on this machine")
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        spark = engine_session.start(settings.Settings(), ()).wait()
        try:
            for load in (_Load(_BATCHED, 100, 50_000), _Load(_SINGLE, 1, 2_000)):
                with Postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server:
                    inserts = (
                        f"DO $$ BEGIN FOR i IN 0..{load.changes // 1000 - 1} LOOP"
                        f" INSERT INTO t SELECT {ROW} FROM generate_series(i * 1000 + 1, i * 1000 + 1000) g; COMMIT;"
                        " END LOOP; END $$"
                    )
                    log = make(server, "inserts", f"{name}/log{load.batch}", [TABLE.format(name="t")], [inserts])
                _measure(report, log, load, spark)
        finally:
            spark.stop()


def _measure(report: Report, log: ReadyLog, load: _Load, spark: SparkSession) -> None:
    ours: list[float] = []
    bare: list[float] = []
    size = 0
    prepared = _requests(log, load.batch)
    for round_ in range(_ROUNDS + 1):
        with Receiver() as receiver:
            bare.append(_post(prepared, receiver))
            assert receiver.counts()[0] == len(prepared)
            ours.append(_deliver(log, load, receiver, spark, f"hook{round_}"))
            requests, size = receiver.counts()
            assert requests >= load.changes / load.batch
    changes = load.changes + 1
    per = "1 change" if load.batch == 1 else f"{load.batch} changes"
    report.section(f"{load.changes:,} inserts, {per} a request, signed; median of three rounds after one to warm up")
    rate, alone = (changes / statistics.median(times[1:]) for times in (ours, bare))
    report.line("bare http.client, same requests", f"{alone:,.0f} changes/s")
    report.line("deliver", f"{rate:,.0f} changes/s", f"want ≥ {load.least:,.0f}", ok=rate >= load.least)
    report.line("ratio to the bare client", f"{rate / alone:.2f}", f"{size / 1e6:.0f} MB of bodies")


def _deliver(log: ReadyLog, load: _Load, receiver: Receiver, spark: SparkSession, name: str) -> float:
    sink = {"type": "webhook", "name": name, "url": receiver.url, "secret": _SECRET, "allow_private": True}
    configured = settings.Settings(
        store=settings.StoreSettings(url=log.store_url), sinks=({**sink, "batch": load.batch},)
    )
    engine = Engine(configured, sinks.from_settings(configured, {}), spark=spark)
    began = time.monotonic()
    engine.start()
    try:
        done = engine.wait(engine.end(), _LIMIT_S)
        seconds = time.monotonic() - began
        assert done, engine.sinks[name].error or "not delivered in time"
    finally:
        engine.stop()
    return seconds


_Request = tuple[dict[str, str], bytes]


def _requests(log: ReadyLog, batch: int) -> list[_Request]:
    """Make the headers and bodies that the sink would send."""
    store = settings.StoreSettings(log.store_url)
    options = WebhookOptions(url="http://127.0.0.1/hook", secret=Secret(_SECRET), batch=batch, allow_private=True)
    sink = WebhookSink("bench", options, SinkContext(store))
    sink.open()
    reader = LogReader(Store.open(log.store_url))
    slices = planner.next_batch(reader, planner.start_offset(reader, None), planner.UNLIMITED).slices
    limits = RequestLimits(batch, options.batch_bytes, options.connections)
    made: list[_Request] = []
    for _, chunk in decoding.chunks(reader, slices, decoding.ChangeFilter(), as_text=True):
        if encoded := sink.encoder().encode(chunk, PositionIds()):
            messages = OutgoingMessages.joined(encoded)
            maker = RequestMaker(messages, ContentFormat("tailrace", "json", batch > 1))
            for planned in request_plan.plan(MessageOrder.of(messages), limits):
                content = maker.make(planned.rows)
                signed = signature_headers(options.keys, content.id, int(time.time()), content.content)
                made.append(({**content.headers, **signed}, content.content))
    return made


def _post(requests: Sequence[_Request], receiver: Receiver) -> float:
    connections = WebhookOptions().connections

    def post(first: int) -> None:
        client = http.client.HTTPConnection("127.0.0.1", receiver.port)
        for headers, body in requests[first::connections]:
            client.request("POST", "/hook", body, headers)
            client.getresponse().read()
        client.close()

    began = time.monotonic()
    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(post, range(connections)))
    return time.monotonic() - began
