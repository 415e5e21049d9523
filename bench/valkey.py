"""Valkey: a ready log drained into hashes, JSON and a stream, compared with bare transactions of equal commands.

The bare publisher sends the commands that the sink would send, in transactions of the same size over one connection,
and waits once for the server's disk. They are made before its clock starts, so the difference is the cost of reading,
decoding, encoding, of the fence and of the sink's state.
"""

from __future__ import annotations

import tempfile
import threading
import time
from functools import partial

import redis

from bench.message_sink import EVENTS, Drain, chunks, measure_latency
from bench.ready_log import ReadyLog, make
from bench.replica import INSERTS
from bench.report import Report
from bench.throughput import TABLE
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.valkey import ValkeyServer
from tailrace.log.decoding import Chunk
from tailrace.sinks.messages.batching import merge_small
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.command import CommandBatch
from tailrace.sinks.valkey.entry_id import EntryId, entry_ids
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.row_change import row_changes
from tailrace.sinks.valkey.row_encoding import ROW_ENCODINGS
from tailrace.sinks.valkey.sink_state import await_durability
from tailrace.sinks.valkey.stream_transport import entry_commands

_LEAST_RATIO = 0.6


def run(report: Report) -> None:
    report.title("Valkey: a ready log drained in transactions")
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        Postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server,
    ):
        log = make(server, "inserts", f"{name}/log", [TABLE.format(name="t")], [INSERTS])
        for mode in ("hash", "json", "stream"):
            report.section(f"1M inserts, 1,000 a transaction, mode {mode}; median of three after a first")
            drain = Drain(mode, ValkeyServer, partial(_sink, mode), partial(_publish, log, mode), partial(_check, mode))
            drain.run(report, log, float("inf"), _LEAST_RATIO)
    with ValkeyServer() as valkey:
        measure_latency(report, "Valkey, hashes", _sink("hash", valkey), partial(_watch, valkey))


def _sink(mode: str, server: ValkeyServer) -> dict[str, str]:
    return {"type": "valkey", "url": server.url, "mode": mode, "start": "earliest"}


def _publish(log: ReadyLog, mode: str, server: ValkeyServer) -> float:
    """Make the commands, then start the clock."""
    options = ValkeyOptions(url=server.url, mode=mode)
    make_batch = _entries if mode == "stream" else _rows
    made = [make_batch(options, chunk) for chunk in merge_small(chunks(log))]
    client = ValkeyClient(options, "bench")
    try:
        began = time.monotonic()
        for batch in made:
            assert client.transaction(batch) is not None
        await_durability(client, options)
        return time.monotonic() - began
    finally:
        client.close()


def _rows(options: ValkeyOptions, chunk: Chunk) -> CommandBatch:
    batch = CommandBatch()
    for change in row_changes(chunk, options.template("inserts")):
        if options.mode == "hash":
            batch.add_many("UNLINK", values=change.keys)
        rows = ROW_ENCODINGS[options.mode].encode(change.relation, change.keys, change.rows, 0)
        batch.add_encoded(rows.commands, rows.count)
        batch.add_many("SADD", f"rows:{change.relation.oid}", values=rows.keys)
    return batch


def _entries(options: ValkeyOptions, chunk: Chunk) -> CommandBatch:
    envelope = options.make_envelope("bench", "inserts", "", "ce_")
    encoder = MessageEncoder(envelope, options.template("inserts").names)
    batch = CommandBatch()
    if encoded := encoder.encode(chunk, PositionIds()):
        commands = entry_commands(OutgoingMessages.joined(encoded))
        none = [EntryId()] * len(commands.streams.dictionary)
        ids, _ = entry_ids(commands.at, commands.streams.indices.to_numpy(), none)
        batch.add_encoded(commands.with_ids(ids), len(ids))
    return batch


def _check(mode: str, server: ValkeyServer) -> None:
    """Check that the server has each row, or each change, once."""
    client = redis.Redis(port=server.port)
    if mode == "stream":
        found = client.xlen("public:t") + client.xlen("public:finished")
    else:
        found = sum(1 for key in client.scan_iter("public:*", count=10_000) if key)
    assert found == EVENTS, f"{found} keys or entries"


def _watch(server: ValkeyServer, seen: list[float], finished: threading.Event) -> None:
    """Poll the number of keys. The sink's own keys are there from the start."""
    client = redis.Redis(port=server.port)
    own = len(client.keys("tailrace:*"))
    count = 0
    while not finished.wait(0.002):
        now = client.dbsize() - own
        seen.extend([time.time()] * (now - count))
        count = now
