"""A lake that is kept in shape: what queries see is the same before, while and after, by every engine."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession
from tests import oracle
from tests.contract.delivering import Delivering
from tests.contract.lake import Lake, engine
from tests.e2e.captured import Captured, captured
from tests.fixtures.postgres import Database

from tailrace import settings
from tailrace.errors import FencedError, SinkError, TailraceError
from tailrace.log import plan
from tailrace.sinks.iceberg import datafile, merging, upkeep
from tailrace.sinks.iceberg.catalog import Catalog
from tailrace.sinks.iceberg.datafile import Warehouse
from tailrace.sinks.iceberg.options import IcebergOptions
from tailrace.sinks.iceberg.point import Held
from tailrace.sinks.iceberg.schema import Field
from tailrace.sinks.iceberg.sink import IcebergSink
from tailrace.sinks.iceberg.table import LakeTable
from tailrace.sinks.stepper import Stepper

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int, note text)"


class Following:
    """A lake that follows a table `t`, as far as the log goes whenever it is asked."""

    def __init__(self, log: Captured, lake: Lake, stepper: Stepper) -> None:
        self.log = log
        self.lake = lake
        self.stepper = stepper

    def follow(self) -> None:
        self.log.catch_up()
        self.stepper.deliver(plan.latest(self.stepper._reader))

    @property
    def sink(self) -> IcebergSink:
        assert isinstance(self.stepper.sink, IcebergSink)
        return self.stepper.sink

    @property
    def table(self) -> LakeTable:
        return next(t for t in self.sink._opened().tables if t.name == "public.t")

    def assert_same(self) -> None:
        found = next(t for t in self.lake.point().tables if t.name == "public.t")
        assert self.lake.rows(found) == oracle.rows(self.log.connection, "public", "t")


@pytest.fixture
def following(database: Database, tmp_path: Path, spark: SparkSession) -> Iterator[Following]:
    database.execute(_TABLE)
    lake = Lake(tmp_path / "lake")
    with captured(database, tmp_path) as log:
        delivering = Delivering(lake, settings.Store(log.store.url), start="earliest", tables=["public.t"])
        with delivering.stepper() as stepper:
            yield Following(log, lake, stepper)


def test_engines_agree_on_many_deleted_rows(following: Following, spark: SparkSession) -> None:
    """Tens of thousands of rows of one file: DuckDB 1.5 showed some of them again."""
    log = following.log
    log.execute("INSERT INTO t SELECT i, i, 'n' || i FROM generate_series(1, 100000) i")
    following.follow()
    log.execute("DELETE FROM t WHERE id % 5 < 3", "UPDATE t SET n = -n WHERE id % 7 = 0")
    following.follow()
    _assert_engines_agree(following, spark)
    lake, lineage = following.sink._opened().lake, _lineage(following, spark)
    assert upkeep.merge(lake, following.table, 1 << 30) == 2
    _assert_engines_agree(following, spark)
    assert _lineage(following, spark) == lineage, "rows that move are the same rows"
    log.execute("UPDATE t SET id = id + 1000000 WHERE id % 3 = 0", "DELETE FROM t WHERE n < 0")
    following.follow()
    _assert_engines_agree(following, spark)
    lineage = _lineage(following, spark)
    upkeep.compact(lake, following.table, upkeep.FILE_BYTES, 1 << 30)
    _assert_engines_agree(following, spark)
    assert _lineage(following, spark) == lineage
    log.execute("DELETE FROM t WHERE id % 11 = 0", "INSERT INTO t VALUES (-1, -1, 'last')")
    following.follow()
    lineage = _lineage(following, spark)
    assert upkeep.merge(lake, following.table, 1 << 30) == 2
    assert _lineage(following, spark) == lineage
    _assert_engines_agree(following, spark)
    assert upkeep.merge(lake, following.table, 1 << 30) == 0, "one file is not merged"


def _lineage(following: Following, spark: SparkSession) -> set[tuple[Any, ...]]:
    rows = spark.read.format("iceberg").load(following.table.metadata)
    return {tuple(row) for row in rows.select("id", "_row_id", "_last_updated_sequence_number").collect()}


_SUMS = "count(*), sum(id), sum(n), count(DISTINCT note), min(note), max(note)"


def _assert_engines_agree(following: Following, spark: SparkSession) -> None:
    """PostgreSQL, DuckDB, Spark and pyiceberg on the same sums."""
    assert {_groups(file) for file in Path(following.table.directory, "data").glob("*.parquet")} == {1}
    row = following.log.connection.execute(f"SELECT {_SUMS} FROM t".encode()).fetchone()
    told = [str(value) for value in row or ()]
    metadata, snapshot = following.table.metadata, following.table.snapshot
    duck = engine().execute(f"SELECT {_SUMS} FROM iceberg_scan('{metadata}', snapshot_from_id = {snapshot})").fetchone()
    assert [str(value) for value in duck or ()] == told
    spark.read.format("iceberg").load(metadata).createOrReplaceTempView("t")
    assert [str(value) for value in spark.sql(f"SELECT {_SUMS} FROM t").collect()[0]] == told
    scanned = StaticTable.from_metadata(metadata).scan(snapshot_id=snapshot).to_arrow()
    found = engine().execute(f"SELECT {_SUMS} FROM scanned").fetchone()
    assert [str(value) for value in found or ()] == told
    assert scanned.num_rows == int(told[0])


def _groups(file: Path) -> int:
    return int(pq.ParquetFile(file).metadata.num_row_groups)


def test_a_data_file_has_one_group_of_rows(tmp_path: Path) -> None:
    """Of a file with several, and with rows that are gone, DuckDB 1.4 gives now these rows and now those."""
    ids = pa.array(range(2_000_000))
    warehouse = Warehouse(IcebergOptions(warehouse=tmp_path.as_uri()))
    written = datafile.write(warehouse, str(tmp_path), [Field(1, "id", "long")], [ids])
    assert (written.rows, _groups(Path(written.location))) == (2_000_000, 1)


def test_upkeep_between_steps(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_MANY_FILES", 4)
    monkeypatch.setattr(upkeep, "_EXPIRE_S", 0.0)
    log = following.log
    counts = []
    for number in range(12):
        log.execute(
            f"INSERT INTO t SELECT i, {number}, 'x' FROM generate_series({number * 10}, {number * 10 + 9}) i",
            "UPDATE t SET n = n + 1 WHERE id % 4 = 1",
            f"DELETE FROM t WHERE id = {number * 10}",
            f"UPDATE t SET id = id + 1000 WHERE id = {number * 10 + 5}",
        )
        following.follow()
        before = following.lake.point()
        following.sink.tend()
        after = following.lake.point()
        assert after.cursor == before.cursor
        # Whoever looks at the earlier point still sees it, and the same rows.
        assert following.lake.rows(before.tables[0]) == following.lake.rows(after.tables[0])
        following.assert_same()
        counts.append(upkeep._totals(following.table)["total-data-files"])
    assert max(counts) <= 6, "files are merged again and again"
    assert following.table.held is not None
    assert following.table.held.cursor <= following.lake.point().cursor


def test_history_is_kept_as_long_as_it_should_be(following: Following) -> None:
    """A snapshot that was the newest at the cutoff stays, however old it is: it is what a query sees there."""
    for number in range(6):
        following.log.execute(f"INSERT INTO t VALUES ({number}, 0, '')")
        following.follow()
    history = upkeep._history(following.sink._opened().lake.warehouse.get(following.table.metadata))
    assert len(history) == 6
    cutoff = history[3][1] + timedelta(milliseconds=1)
    old = upkeep.superseded(history, cutoff)
    assert old == [number for number, _ in history[:3]]
    assert upkeep.superseded(history, datetime.now(UTC) + timedelta(days=1)) == [number for number, _ in history[:-1]]
    upkeep.expire(following.table, old)
    left = upkeep._history(following.sink._opened().lake.warehouse.get(following.table.metadata))
    assert left == history[3:]
    scan = f"iceberg_scan('{following.table.metadata}', snapshot_from_id = {history[3][0]})"
    assert engine().execute(f"SELECT count(*) FROM {scan}").fetchone() == (4,)
    following.assert_same()


def test_orphans_are_removed_and_nothing_else(following: Following) -> None:
    following.log.execute("INSERT INTO t SELECT i, 0, 'x' FROM generate_series(1, 10) i")
    following.follow()
    following.log.execute("DELETE FROM t WHERE id < 4")
    following.follow()
    data = Path(following.table.directory) / "data"
    named = set(data.iterdir())
    (data / "left.parquet").write_bytes(b"of a step that never ended")
    lake = following.sink._opened().lake
    assert upkeep.remove_orphans(lake, following.table, datetime.now(UTC) - timedelta(days=1)) == 0
    assert upkeep.remove_orphans(lake, following.table, datetime.now(UTC) + timedelta(minutes=1)) == 1
    assert set(data.iterdir()) == named
    following.assert_same()


def _somebody_elses(following: Following) -> Any:
    """The same table, as another process has it."""
    catalog = Catalog(IcebergOptions(warehouse=following.lake.directory.as_uri()))
    return catalog, catalog.load(("public", "t"))


def test_compaction_by_somebody_else(following: Following, spark: SparkSession) -> None:
    """The step that it conflicts with is done again on what is there now."""
    log = following.log
    for number in range(6):
        log.execute(f"INSERT INTO t SELECT i, 0, 'x' FROM generate_series({number * 10}, {number * 10 + 9}) i")
        following.follow()
    log.execute("DELETE FROM t WHERE id = 3")
    following.follow()
    catalog, table = _somebody_elses(following)
    catalog.actions().rewriteDataFiles(table).binPack().option("rewrite-all", "true").execute()
    log.execute("DELETE FROM t WHERE id = 13", "UPDATE t SET n = 1 WHERE id = 23")
    with pytest.raises(SinkError, match="sink tested") as raised:
        following.follow()
    assert raised.value.retry
    following.stepper.open()
    following.follow()
    following.assert_same()


def test_a_merge_that_somebody_else_comes_before(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up, nothing is there twice, and the next one goes by what is there then."""
    monkeypatch.setattr(upkeep, "_MANY_FILES", 3)
    for number in range(5):
        following.log.execute(f"INSERT INTO t VALUES ({number}, 0, 'x'), ({number + 10}, 0, 'y')")
        following.follow()
    following.log.execute("DELETE FROM t WHERE id = 13")
    following.follow()
    merged = merging.merged

    def late(*given: Any) -> Any:
        catalog, table = _somebody_elses(following)
        catalog.actions().rewriteDataFiles(table).binPack().option("rewrite-all", "true").execute()
        return merged(*given)

    with monkeypatch.context() as patched:
        patched.setattr(merging, "merged", late)
        with pytest.raises(SinkError) as raised:
            following.sink.tend()
    assert raised.value.retry
    following.stepper.open()
    following.log.execute("UPDATE t SET n = 1 WHERE id < 3", "INSERT INTO t VALUES (99, 1, 'z')")
    following.follow()
    following.sink.tend()
    following.assert_same()


def test_rows_that_somebody_else_wrote(following: Following, spark: SparkSession) -> None:
    following.log.execute("INSERT INTO t VALUES (1, 1, 'ours')")
    following.follow()
    _, table = _somebody_elses(following)
    table.newDelete().deleteFromRowFilter(_always(following)).commit()
    with pytest.raises(FencedError, match="somebody else changed its rows"):
        following.stepper.open()


def _always(following: Following) -> Any:
    return following.sink._opened().lake.catalog.java.Expressions.alwaysTrue()


def test_a_commit_that_nobody_knows_the_end_of(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made, and the answer got lost: it is looked up, and nothing is written twice."""
    finish = LakeTable._finish
    following.log.execute("INSERT INTO t SELECT i, 0, 'x' FROM generate_series(1, 10) i")
    following.follow()
    following.log.execute("UPDATE t SET n = 1 WHERE id < 5", "INSERT INTO t VALUES (11, 1, 'y')")

    def lost(self: LakeTable) -> None:
        finish(self)
        raise SinkError("the answer got lost", "look it up")

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "_finish", lost)
        with pytest.raises(SinkError, match="the answer got lost"):
            following.follow()
    following.stepper.open()
    following.log.execute("UPDATE t SET n = 2 WHERE id = 1", "INSERT INTO t VALUES (12, 1, 'z')")
    following.follow()
    following.assert_same()


def test_a_disk_that_is_full_now_or_in_the_middle_of_a_commit(
    small_disk: Path, database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Whatever did not find room, a data file or what Iceberg writes about it: nothing is half there afterwards."""
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    database.execute(_TABLE)
    lake, filler = Lake(small_disk / "lake"), small_disk / "others"
    failures = 0
    with captured(database, tmp_path) as log:
        delivering = Delivering(lake, settings.Store(log.store.url), start="earliest", tables=["public.t"])
        with delivering.stepper() as stepper:
            following = Following(log, lake, stepper)
            for number, free in enumerate((None, 0, 4, 12, 20, 32)):
                if free is not None:
                    room = shutil.disk_usage(small_disk).free
                    filler.write_bytes(bytes(room - free * 1024))
                log.execute(
                    f"INSERT INTO t SELECT i, {number}, 'x' FROM generate_series({number * 10}, {number * 10 + 9}) i",
                    f"UPDATE t SET n = -1 WHERE id % 10 = {number}",
                    f"DELETE FROM t WHERE id = {number * 10}",
                )
                try:
                    following.follow()
                except TailraceError:
                    failures += 1
                    filler.unlink()
                    stepper.open()
                    following.follow()
                filler.unlink(missing_ok=True)
                following.assert_same()
    assert failures >= 3


def test_what_a_snapshot_says_of_itself(following: Following) -> None:
    log = following.log
    log.execute(
        "COMMENT ON TABLE t IS 'what there is'",
        "COMMENT ON COLUMN t.note IS 'said about it'",
        "INSERT INTO t VALUES (1, 1, 'x')",
    )
    following.follow()
    table = StaticTable.from_metadata(following.table.metadata)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    held = Held.of(snapshot.summary.additional_properties)
    assert held == following.table.held
    assert snapshot.summary["last_flush_lsn"] == str(following.lake.point().cursor)
    change = next(c for c in log.changes("t"))
    assert snapshot.summary["tailrace.position"] == str(change.position)
    assert held is not None
    assert held.committed_at == change.committed_at
    assert table.properties["comment"] == "what there is"
    assert table.metadata.format_version == 3
    schema = table.schema()
    assert [schema.find_column_name(number) for number in schema.identifier_field_ids] == ["id"]
    assert schema.find_field("note").doc == "said about it"
    assert schema.find_field("id").required
    assert not schema.find_field("n").required
    rows = Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())
    assert rows == Counter([(1, 1, "x")])
