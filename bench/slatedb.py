"""SlateDB's WAL: files that the binding wrote, read into columns beside the binding's own reader; then as a source.

The clock of the readers is the processor's time, because the binding reads with several threads. Both read the same
files, from the page cache. As a source, the time is what passes until all entries are in durable segments, and from a
durable write of the binding to the log, on an S3 server of this machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import Report
from slatedb import uniffi
from tailrace import WalReader
from tailrace.capture.capture import Capture
from tailrace.capture.slatedb.database import SlateDatabase
from tailrace.capture.slatedb.session import SlateDbSession
from tailrace.capture.slatedb.wal_converter import ResumeToken
from tailrace.change import Lsn
from tailrace.embedded.s3 import S3Server
from tailrace.log import source_record
from tailrace.log.writer import LogWriter
from tailrace.settings import Settings, SlateDbSettings
from tailrace.store import Store

_FILES = 10
_BATCHES = 20
_ENTRIES = 500
"""Of a batch. One in ten is a delete."""
_ROUNDS = 5
_WANT = 500_000
_WANT_RATIO = 5
_WANT_SEGMENTS = 200_000
_SOURCE_FILES = 40
"""As a source: enough that starting and stopping, a tenth of a second, does not count."""
_WRITES = 200


def run(report: Report) -> None:
    count = _FILES * _BATCHES * _ENTRIES
    report.title(f"SlateDB: {count:,} entries of about 100 bytes in {_FILES} WAL files")
    for codec in ("none", "snappy", "zlib", "lz4", "zstd"):
        report.section(f"codec {codec}")
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(_write(directory, codec))
            binding = count / _seconds(_read_binding, directory, count)
            columns = count / _seconds(_read_columns, directory, count)
            objects = count / _seconds(_read_objects, directory, count)
        report.line("the binding", f"{binding:,.0f} entries/s")
        want = f"want ≥ {_WANT:,} and {_WANT_RATIO} times the binding: {columns / binding:.1f} times"
        is_met = columns >= _WANT and columns >= _WANT_RATIO * binding
        report.line("WalFile.rows()", f"{columns:,.0f} entries/s", want, ok=is_met)
        report.line("WalFile.iterator()", f"{objects:,.0f} entries/s", f"{objects / binding:.1f} times the binding")
    report.section("as a source")
    _measure_source(report)
    _measure_latency(report)


def _measure_source(report: Report) -> None:
    count = _SOURCE_FILES * _BATCHES * _ENTRIES
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_write(directory, "none", _SOURCE_FILES))
        rates = []
        for number in range(_ROUNDS):
            store = Store.open((Path(directory) / f"log{number}").as_uri())
            source = SlateDbSettings(url=(Path(directory) / "db").as_uri(), name="bench")
            identity = SlateDbSession(source, store, None).identify()
            writer = LogWriter.open(store, identity)
            # From the first file on: the database has flushed its tables, so a checkpoint would begin after them.
            source_record.begin(store, writer, Lsn(1), ResumeToken(0).to_text())
            capture = Capture(Settings(slatedb=source), store, until="current")
            began = time.perf_counter()
            capture.run()
            rates.append(count / (time.perf_counter() - began))
            assert capture.progress.changes == count
    rate = statistics.median(rates[1:])
    report.line(
        f"{count:,} entries into segments",
        f"{rate:,.0f} entries/s",
        f"want ≥ {_WANT_SEGMENTS:,}",
        ok=rate >= _WANT_SEGMENTS,
    )


def _measure_latency(report: Report) -> None:
    with S3Server() as server:
        url = server.url_of("bench")
        source = SlateDbSettings(url=f"{url}/db", name="bench", options=server.options)
        store = Store.open(f"{url}/log", server.options)
        asyncio.run(_trickle(source, store, report))


async def _trickle(source: SlateDbSettings, store: Store, report: Report) -> None:
    bucket, path = SlateDatabase(source)._store(source.url)
    builder = uniffi.DbBuilder(path, bucket)
    settings = uniffi.Settings.default()
    settings.set("flush_interval", json.dumps("1h"))
    builder.with_settings(settings)
    db: Any = await builder.build()
    capture = Capture(Settings(slatedb=source), store)
    thread = threading.Thread(target=capture.run)
    thread.start()
    while not capture.is_streaming:
        await asyncio.sleep(0.01)
    times = []
    for number in range(_WRITES):
        await db.put(b"key", b"%d" % number)
        before = capture.progress.transactions
        await db.flush_with_options(uniffi.FlushOptions(flush_type=uniffi.FlushType.WAL))
        began = time.perf_counter()
        while capture.progress.transactions == before:
            await asyncio.sleep(0.001)
        times.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(random.Random(number).uniform(0, 0.1))
    capture.stop()
    thread.join()
    await db.shutdown()
    times.sort()
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    is_met = p50 <= 60 and p99 <= 150
    report.line("durable → in the log, S3", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms", "want ≤ 60 and 150", ok=is_met)


def _seconds(read: Callable[[str], int], directory: str, count: int) -> float:
    times = []
    for _ in range(_ROUNDS + 1):
        began = time.process_time()
        assert read(directory) == count
        times.append(time.process_time() - began)
    return statistics.median(times[1:])


def _read_columns(directory: str) -> int:
    batches = (file.rows() for file in WalReader("db", directory).list())
    return sum(rows.num_rows for rows in batches if rows is not None)


def _read_objects(directory: str) -> int:
    return sum(1 for file in WalReader("db", directory).list() for _ in file.iterator() or ())


def _read_binding(directory: str) -> int:
    async def read() -> int:
        reader = uniffi.SlateDbWalReader(_path(directory), uniffi.ObjectStore.resolve("file:///"))
        last = await reader.last_wal_file_id(0)
        iterator = await reader.iterator(1)
        found, at = 0, 0
        while at < last:
            batch = await iterator.next()
            found += len(batch.rows)
            at = batch.last_consumed_wal_file_id
        return found

    return asyncio.run(read())


async def _write(directory: str, codec: str, files: int = _FILES) -> None:
    builder = uniffi.DbBuilder(_path(directory), uniffi.ObjectStore.resolve("file:///"))
    settings = uniffi.Settings.default()
    settings.set("flush_interval", json.dumps("1h"))
    settings.set("compression_codec", json.dumps(None if codec == "none" else codec.capitalize()))
    builder.with_settings(settings)
    db: Any = await builder.build()
    chance = random.Random(1)
    for _ in range(files):
        for _ in range(_BATCHES):
            batch = uniffi.WriteBatch()
            for number in chance.sample(range(10**9), _ENTRIES):
                if number % 10:
                    note = chance.randbytes(20).hex().encode()
                    batch.put(
                        b"order:%012d" % number, b'{"status": "paid", "amount": %09d, "note": "%s"}' % (number, note)
                    )
                else:
                    batch.delete(b"order:%012d" % number)
            await db.write(batch)
        await db.flush_with_options(uniffi.FlushOptions(flush_type=uniffi.FlushType.WAL))
    await db.shutdown()


def _path(directory: str) -> str:
    return str(Path(directory) / "db").strip("/")
