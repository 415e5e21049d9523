"""Streams: bounded batches of whole transactions, each once, resumed from their offset; few requests when idle."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from tests import oracle
from tests.e2e.captured_database import captured
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress
from tests.log.stream import Capture, Server, split_randomly, write
from tests.spark.logs import as_json, captured_to, stream
from tests.spark.test_source import table_rows

from tailrace.change import Lsn
from tailrace.embedded.process import wait_until
from tailrace.errors import CorruptError
from tailrace.log import change_text, planner
from tailrace.log.planner import Offset
from tailrace.log.reader import LogReader
from tailrace.spark.options import Options
from tailrace.spark.schema import Pinned
from tailrace.spark.stream import IDLE_SEGMENTS, StreamReader
from tailrace.store import ObjectInfo, Store


class Run:
    """A running query. `batches` has the rows of each batch."""

    def __init__(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> None:
        self.batches: list[list[Row]] = []
        trigger = trigger or {"processingTime": "0 seconds"}
        self.query = (
            frame.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", checkpoint.as_uri())
            .trigger(**trigger)
            .start()
        )

    def _take(self, frame: DataFrame, _: int) -> None:
        self.batches.append(frame.collect())

    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]

    def wait_for(self, count: int) -> list[Row]:
        """Wait until this many rows have arrived."""
        done = wait_until(lambda: len(self.rows()) >= count or not self.query.isActive, 240)
        if (failure := self.query.exception()) is not None:
            raise failure
        assert done, f"{len(self.rows())} of {count}"
        return self.rows()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()


def in_order(rows: list[Row]) -> list[str]:
    return [as_json(row) for row in sorted(rows, key=lambda row: (row.commit_lsn, row.ordinal))]


def test_batches_are_bounded_even_after_a_restart(
    spark: SparkSession, tmp_path: Path, file_address: StoreAddress
) -> None:
    """Ten segments per batch, at the beginning and when a query resumes after many changes."""
    store = Store.open(*file_address)
    server = Server(1).work(60)
    capture = Capture(store)
    parts = list(split_randomly(random.Random(1), server.frames(), 6))
    half = len(parts) // 2
    for part in parts[:half]:
        capture.add(part)
    reader = LogReader(store)
    now = planner.next_batch(reader, planner.start_offset(reader, None), planner.UNLIMITED).end.lsn
    first = [c for c in server.changes if c.position.commit_lsn < now]
    checkpoint = tmp_path / "checkpoint"
    with Run(stream(spark, store, max_segments_per_batch=10), checkpoint) as run:
        rows = run.wait_for(len(first))
    assert in_order(rows) == [change_text.to_json(change) for change in first]
    bounds = [(offset["segment"]) for offset in offsets(checkpoint)]
    for part in parts[half:]:
        capture.add(part)
    with Run(stream(spark, store, max_segments_per_batch=10), checkpoint) as again:
        more = again.wait_for(len(server.changes) - len(first))
    assert in_order([*rows, *more]) == [change_text.to_json(change) for change in server.changes]
    later = [offset["segment"] for offset in offsets(checkpoint)][len(bounds) :]
    assert len(bounds) > 1
    assert len(later) > 1, "all changes since then were in one batch"
    headers = {s.id: s.metadata() for s in reader.list()}
    for low, high in zip([0, *bounds, *later], [*bounds, *later], strict=False):
        # A transaction that spans segments is never divided, so a batch may be a little larger.
        ends = [id for id in range(low + 1, high + 1) if (h := headers[id]) is not None and h.committed_rows]
        assert high - low <= 10 or ends[0] > low + 9 or ends == [high]
    whole = [{row.commit_lsn for row in batch} for batch in (*run.batches, *again.batches)]
    assert sum(map(len, whole)) == len(set().union(*whole)), "a transaction is in several batches"


def offsets(checkpoint: Path) -> list[dict[str, Any]]:
    """The offsets in the query's checkpoint, batch by batch."""
    import json

    files = sorted((p for p in (checkpoint / "offsets").iterdir() if p.name.isdecimal()), key=lambda p: int(p.name))
    return [json.loads(file.read_text().splitlines()[2]) for file in files]


def test_one_large_transaction_is_one_batch(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    with captured(database, tmp_path, segment_bytes=4096) as log:
        log.execute("INSERT INTO t VALUES (0)")
        log.catch_up()  # the columns come from the log
        options = {"max_segments_per_batch": 1, "max_bytes_per_batch": 1}
        with Run(stream(spark, log.store, table="public.t", **options), tmp_path / "checkpoint") as run:
            run.wait_for(1)
            log.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 500) i", "DELETE FROM t")
            rows = run.wait_for(1002)
        assert len(LogReader(log.store).list()) > 8
    assert [len(batch) for batch in run.batches if batch] == [1, 500, 501]
    assert sorted(row.id for row in rows if row.id is not None) == list(range(501))


def test_columns_that_change_while_a_query_runs(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    """Its columns stay the same. Values of newer columns are in `_special`, and a restart adds the columns."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text, n int)")
    checkpoint = tmp_path / "checkpoint"
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1, 'x', 7)")
        log.catch_up()
        with Run(stream(spark, log.store, table="public.t"), checkpoint) as run:
            run.wait_for(1)
            for statement in (
                "ALTER TABLE t ADD e numeric(6,2) DEFAULT 1.5, ADD f text",
                "INSERT INTO t VALUES (2, 'y', 8, 2.5)",
                "ALTER TABLE t RENAME a TO b",
                "ALTER TABLE t RENAME TO u",
                "INSERT INTO u VALUES (3, 'z', 9, 'NaN', 'f')",
                "ALTER TABLE u DROP b",
                "ALTER TABLE u ALTER n TYPE text",
                "INSERT INTO u VALUES (4, 'ten')",
                "DELETE FROM u WHERE id = 4",
            ):
                log.execute(statement)
                log.catch_up()
            rows = run.wait_for(5)
        found = [(r._operation, r.id, r.a, r.n, r._special) for r in sorted(rows, key=lambda row: row._commit_lsn)]
        assert found == [
            ("INSERT", 1, "x", 7, None),
            ("INSERT", 2, "y", 8, {"e": "2.50"}),
            ("INSERT", 3, "z", 9, {"e": "NaN", "f": "f"}),
            ("INSERT", 4, None, None, {"n": "ten", "e": "1.50"}),
            ("DELETE", None, None, None, None),
        ]
        log.execute("INSERT INTO u VALUES (5, 'eleven', 3)")
        log.catch_up()
        with Run(stream(spark, log.store, table="public.u"), checkpoint) as again:
            (row,) = again.wait_for(1)
        assert (row.id, row.n, float(row.e)) == (5, "eleven", 3.0)
        assert oracle.rows(log.connection, "public", "u")
        from tests.spark.logs import load

        table = load(spark, log.store, table="public.u").where("_operation = 'INSERT' AND id <> 4").toArrow()
        relation = [c.relation for c in log.changes() if c.relation][-1]
        assert table_rows(table, relation) == oracle.rows(log.connection, "public", "u")


def test_starting_at_an_lsn_or_at_the_end(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        second = log.changes("t")[1].position.commit_lsn
        options = {"table": "public.t"}
        with (
            Run(stream(spark, log.store, starting="latest", **options), tmp_path / "latest") as latest,
            Run(stream(spark, log.store, starting=str(second), **options), tmp_path / "lsn") as by_lsn,
        ):
            assert [row.id for row in by_lsn.wait_for(1)] == [2]
            assert wait_until(lambda: bool(latest.query.recentProgress), 120)
            log.execute("INSERT INTO t VALUES (3)")
            assert [row.id for row in latest.wait_for(1)] == [3]
            assert [row.id for row in by_lsn.wait_for(2)] == [2, 3]


def test_available_now_reads_everything_and_ends(
    spark: SparkSession, tmp_path: Path, s3_address: StoreAddress, database: Database
) -> None:
    """From S3. `availableNow` is one batch, so the limits are removed."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with captured_to(database, s3_address, segment_bytes=4096) as log:
        for start in (0, 100):
            for id in range(start, start + 30):
                log.execute(f"INSERT INTO t VALUES ({id})")
            log.catch_up()
            options = {"max_segments_per_batch": "unlimited", "max_bytes_per_batch": "unlimited", "table": "public.t"}
            run = Run(stream(spark, s3_address, **options), tmp_path / "checkpoint", availableNow=True)
            assert run.query.awaitTermination(240)
            assert sorted(row.id for row in run.rows()) == list(range(start, start + 30))


def test_starting_a_query_does_not_change_the_environment_that_queries_share(
    spark: SparkSession, tmp_path: Path, file_address: StoreAddress
) -> None:
    """Spark puts keys into an unlocked Java HashMap. Two sinks that started at once broke it, and all tasks failed."""
    write(Store.open(*file_address), Server(1).work(5))
    frame = stream(spark, file_address)
    session: Any = spark._jsparkSession
    shared = session.sessionState().dataSourceManager().lookupDataSource("tailrace").dataSourceCls().envVars()
    before = set(shared)
    with Run(frame, tmp_path / "checkpoint", availableNow=True) as run:
        assert run.query.awaitTermination(120)
    assert run.rows()
    assert set(shared) == before


def test_another_log_is_refused(spark: SparkSession, tmp_path: Path, file_address: StoreAddress) -> None:
    """The store was emptied and filled with a log that is as long as before, longer, or shorter."""
    store = Store.open(*file_address)

    def fill(seed: int, transactions: int) -> Server:
        shutil.rmtree(tmp_path / "store" / "log", ignore_errors=True)
        server = Server(seed).work(transactions)
        capture = Capture(store)
        for part in split_randomly(random.Random(0), server.frames(), 20):
            capture.add(part)
        return server

    checkpoint = tmp_path / "checkpoint"
    with Run(stream(spark, store), checkpoint) as run:
        run.wait_for(len(fill(1, 20).changes))
    for seed, transactions in ((2, 20), (2, 60), (2, 3)):
        fill(seed, transactions)
        with (
            Run(stream(spark, store), checkpoint) as again,
            pytest.raises(StreamingQueryException, match="another log"),
        ):
            again.wait_for(10_000)
        assert not again.rows()


class RequestRecorder(Store):
    """A store that records its requests."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.url, store._backend)
        self.requests: list[str] = []

    def get(self, key: str) -> bytes | None:
        self.requests.append(f"GET {key}")
        return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self.requests.append(f"GET {key}")
        return super().get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo | None:
        self.requests.append(f"HEAD {key}")
        return super().head(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        self.requests.append(f"LIST {prefix}")
        return super().list(prefix, after)


class Watched(StreamReader):
    """A reader as in Spark's process, on a store that records requests."""

    def __init__(self, store: Store, poll_interval_ms: int = 0, **options: Any) -> None:
        super().__init__(
            Options(store.url, poll_interval_ms=poll_interval_ms, **options), Pinned(Offset(0, Lsn(0)), None)
        )
        self.store = RequestRecorder(store)
        self._opened = LogReader(self.store)

    def moves(self) -> tuple[int, int]:
        """Call `latestOffset`, and return the segments before and after."""
        before = self._offset.segment if self._offset else 0
        return before, self.latestOffset()["segment"]


def test_an_idle_log_costs_one_request_per_poll(store_of_one: tuple[Store, Capture, Server]) -> None:
    store, _, _ = store_of_one
    reader = Watched(store)
    reader.latestOffset()
    last = reader.latestOffset()["segment"]
    reader.store.requests.clear()
    for _ in range(20):
        assert reader.latestOffset()["segment"] == last
    assert reader.store.requests == [f"HEAD log/{last + 1:020d}.parquet"] * 20
    patient = Watched(store, poll_interval_ms=60_000)
    patient.latestOffset()
    patient.latestOffset()
    patient.store.requests.clear()
    for _ in range(20):
        patient.latestOffset()
    assert patient.store.requests == [], "requests were sent within the interval"


@pytest.fixture
def store_of_one(file_address: StoreAddress) -> tuple[Store, Capture, Server]:
    store = Store.open(*file_address)
    server = Server(1)
    server.transaction(3)
    capture = Capture(store)
    capture.add(server.frames())
    return store, capture, server


def test_idle_segments_make_no_batches(store_of_one: tuple[Store, Capture, Server]) -> None:
    store, capture, server = store_of_one
    reader = Watched(store)
    start, end = reader.moves()
    assert (start, end) == (0, 1)
    for _ in range(IDLE_SEGMENTS - 1):
        capture.idle(capture.writer.end_lsn)
        assert reader.moves() == (1, 1)
    capture.idle(capture.writer.end_lsn)
    assert reader.moves() == (1, 1 + IDLE_SEGMENTS), "they must be passed eventually, because retention may remove them"
    capture.add(server.transaction(2).frames)
    assert reader.moves()[1] == IDLE_SEGMENTS + 2


def test_a_reader_does_not_go_backwards(store_of_one: tuple[Store, Capture, Server]) -> None:
    store, capture, server = store_of_one
    reader = Watched(store)
    first = reader.latestOffset()
    capture.add(server.transaction(2).frames)
    second = reader.latestOffset()
    assert reader.partitions(second, second) == []
    assert len(reader.partitions(first, second)) == 1
    with pytest.raises(CorruptError, match="went back"):
        reader.partitions(second, first)
    with pytest.raises(CorruptError, match="not a Tailrace offset"):
        reader.partitions({"offset": 3}, second)
    with pytest.raises(CorruptError, match="another log"):
        reader.partitions(first | {"link": "0" * 64}, second)


def test_offsets_of_a_batch_are_whole_transactions(file_address: StoreAddress) -> None:
    """However the log is divided, and however often the offset is requested."""
    store = Store.open(*file_address)
    server = Server(4)
    capture = Capture(store)
    capture.add(server.frames() or [])
    reader = Watched(store, max_segments_per_batch=1)
    whole = set()
    for size in (1, 8, 2, 20):
        sent = server.transaction(size)
        for frame in sent.frames:
            capture.add([frame])
            reader.latestOffset()
        whole.add(reader.latestOffset()["lsn"])
        assert Lsn.parse(reader.latestOffset()["lsn"]) == sent.end_lsn
    assert len([list(g) for _, g in groupby(sorted(whole))]) == 4


@pytest.mark.parametrize(
    ("ended_by", "code"), [("EOFError", 0), ("BrokenPipeError", 0), ("ValueError('what failed')", 1)]
)
def test_a_source_whose_query_has_ended_prints_nothing(ended_by: str, code: int) -> None:
    """Spark's runner would print that its connection is closed. Other errors are still printed."""
    program = (
        "from tailrace.spark.stream import StreamReader\n"
        f"try:\n    raise {ended_by}\nfinally:\n    StreamReader(None, None).stop()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code
    assert ("what failed" in done.stderr) == bool(code), done.stderr
    assert code or done.stderr == ""
