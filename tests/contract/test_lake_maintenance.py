"""Maintenance of a lake: every engine sees the same rows before, during and after it."""

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
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.lake import Lake, engine
from tests.e2e.captured_database import CapturedDatabase, captured
from tests.fixtures.postgres import Database
from tests.stepping import DrivenStepper

from tailrace import settings
from tailrace.change import Lsn
from tailrace.delivery.contract import State
from tailrace.errors import FencedError, SinkError, TailraceError
from tailrace.lake.options import IcebergOptions
from tailrace.lake.point import SnapshotSummary
from tailrace.lake.warehouse import Warehouse
from tailrace.log import planner
from tailrace.query.as_of import AsOf
from tailrace.query.lake_view import LakeView
from tailrace.sinks.iceberg import datafile, file_merge, table_maintenance
from tailrace.sinks.iceberg.iceberg_schema import IcebergField
from tailrace.sinks.iceberg.java_catalog import JavaCatalog
from tailrace.sinks.iceberg.lake_table import LakeTable
from tailrace.sinks.iceberg.sink import IcebergSink

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int, note text)"
_TABLES = ["public.t", "public.u"]
_CHANGES_OF_U = (0, 1, 4, 7, 8, 10)
"""The steps that change `u`; each changes `t`. So the two keep snapshots of different steps."""


class FollowedLake:
    """A lake that follows a table `t`. `follow` delivers everything in the log."""

    def __init__(self, log: CapturedDatabase, lake: Lake, stepper: DrivenStepper) -> None:
        self.log = log
        self.lake = lake
        self.stepper = stepper

    def follow(self) -> None:
        self.log.catch_up()
        self.stepper.deliver(planner.latest_offset(self.stepper._reader))

    @property
    def sink(self) -> IcebergSink:
        assert isinstance(self.stepper.sink, IcebergSink)
        return self.stepper.sink

    @property
    def table(self) -> LakeTable:
        return next(t for t in self.sink._require_open().tables if t.name == "public.t")

    def assert_same(self) -> None:
        found = next(t for t in self.lake.point().tables if t.name == "public.t")
        assert self.lake.rows(found) == oracle.rows(self.log.connection, "public", "t")


@pytest.fixture
def following(database: Database, tmp_path: Path, spark: SparkSession) -> Iterator[FollowedLake]:
    database.execute(_TABLE)
    lake = Lake(tmp_path / "lake")
    with captured(database, tmp_path) as log:
        delivering = DeliveryDriver(
            lake, settings.StoreSettings(log.store.url), start="earliest", tables=["public.t", "public.u"]
        )
        with delivering.stepper() as stepper:
            yield FollowedLake(log, lake, stepper)


def test_engines_agree_on_many_deleted_rows(following: FollowedLake, spark: SparkSession) -> None:
    """Tens of thousands of deleted rows in one file: DuckDB 1.5 returned some of them."""
    log = following.log
    # A step of more than `SMALL_BYTES` has two tasks, and two files: 100,000 rows are about as many.
    log.execute("INSERT INTO t SELECT i, i, 'n' || i FROM generate_series(1, 80000) i")
    following.follow()
    log.execute("DELETE FROM t WHERE id % 5 < 3", "UPDATE t SET n = -n WHERE id % 7 = 0")
    following.follow()
    _assert_engines_agree(following, spark)
    lake, lineage = following.sink._require_open().context, _lineage(following, spark)
    assert table_maintenance.merge(lake, following.table, 1 << 30) == 2
    _assert_engines_agree(following, spark)
    assert _lineage(following, spark) == lineage, "rows keep their lineage when they move"
    log.execute("UPDATE t SET id = id + 1000000 WHERE id % 3 = 0", "DELETE FROM t WHERE n < 0")
    following.follow()
    _assert_engines_agree(following, spark)
    lineage = _lineage(following, spark)
    table_maintenance.compact(lake, following.table, table_maintenance.FILE_BYTES, 1 << 30)
    _assert_engines_agree(following, spark)
    assert _lineage(following, spark) == lineage
    log.execute("DELETE FROM t WHERE id % 11 = 0", "INSERT INTO t VALUES (-1, -1, 'last')")
    following.follow()
    lineage = _lineage(following, spark)
    assert table_maintenance.merge(lake, following.table, 1 << 30) == 2
    assert _lineage(following, spark) == lineage
    _assert_engines_agree(following, spark)
    assert table_maintenance.merge(lake, following.table, 1 << 30) == 0, "a single file is not merged"


def _lineage(following: FollowedLake, spark: SparkSession) -> set[tuple[Any, ...]]:
    rows = spark.read.format("iceberg").load(following.table.metadata)
    return {tuple(row) for row in rows.select("id", "_row_id", "_last_updated_sequence_number").collect()}


_SUMS = "count(*), sum(id), sum(n), count(DISTINCT note), min(note), max(note)"


def _assert_engines_agree(following: FollowedLake, spark: SparkSession) -> None:
    """PostgreSQL, DuckDB, Spark and pyiceberg return the same sums."""
    assert {_groups(file) for file in Path(following.table.directory, "data").glob("*.parquet")} == {1}
    row = following.log.connection.execute(f"SELECT {_SUMS} FROM t".encode()).fetchone()
    expected = [str(value) for value in row or ()]
    metadata, snapshot = following.table.metadata, following.table.snapshot
    duck = engine().execute(f"SELECT {_SUMS} FROM iceberg_scan('{metadata}', snapshot_from_id = {snapshot})").fetchone()
    assert [str(value) for value in duck or ()] == expected
    spark.read.format("iceberg").load(metadata).createOrReplaceTempView("t")
    assert [str(value) for value in spark.sql(f"SELECT {_SUMS} FROM t").collect()[0]] == expected
    scanned = StaticTable.from_metadata(metadata).scan(snapshot_id=snapshot).to_arrow()
    found = engine().execute(f"SELECT {_SUMS} FROM scanned").fetchone()
    assert [str(value) for value in found or ()] == expected
    assert scanned.num_rows == int(expected[0])


def _groups(file: Path) -> int:
    return int(pq.ParquetFile(file).metadata.num_row_groups)


def test_a_data_file_has_one_row_group(tmp_path: Path) -> None:
    """DuckDB 1.4 returns varying rows of a file with several row groups and deleted rows."""
    ids = pa.array(range(2_000_000))
    warehouse = Warehouse(IcebergOptions(warehouse=tmp_path.as_uri()))
    written = datafile.write(warehouse, str(tmp_path), [IcebergField(1, "id", "long")], [ids])
    assert (written.rows, _groups(Path(written.location))) == (2_000_000, 1)


def test_maintenance_between_steps(following: FollowedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_maintenance, "_MANY_FILES", 4)
    monkeypatch.setattr(table_maintenance, "_EXPIRE_S", 0.0)
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
        following.sink.maintain()
        after = following.lake.point()
        assert after.cursor == before.cursor
        # The earlier point is still readable, with the same rows.
        assert following.lake.rows(before.tables[0]) == following.lake.rows(after.tables[0])
        following.assert_same()
        counts.append(table_maintenance._totals(following.table)["total-data-files"])
    assert max(counts) <= 6, "small files are merged repeatedly"
    assert following.table.summary is not None
    assert following.table.summary.cursor <= following.lake.point().cursor


def test_history_is_retained_until_the_cutoff(following: FollowedLake) -> None:
    """The snapshot that was the newest at the cutoff stays, however old it is: a query at the cutoff reads it."""
    for number in range(6):
        following.log.execute(f"INSERT INTO t VALUES ({number}, 0, '')")
        following.follow()
    history = table_maintenance.history(following.sink._require_open().context, following.table)
    assert len(history) == 6
    cutoff = history[3].time + timedelta(milliseconds=1)
    old = table_maintenance.superseded_snapshots(history, cutoff)
    assert old == [snapshot.id for snapshot in history[:3]]
    assert table_maintenance.superseded_snapshots(history, datetime.now(UTC) + timedelta(days=1)) == [
        snapshot.id for snapshot in history[:-1]
    ]
    table_maintenance.expire(following.table, old)
    left = table_maintenance.history(following.sink._require_open().context, following.table)
    assert left == history[3:]
    scan = f"iceberg_scan('{following.table.metadata}', snapshot_from_id = {history[3].id})"
    assert engine().execute(f"SELECT count(*) FROM {scan}").fetchone() == (4,)
    following.assert_same()


def test_old_history_is_thinned_and_all_its_files_go(following: FollowedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays is as it was, in all tables at once; nothing else stays on disk."""
    middle = Lsn(0)
    monkeypatch.setattr(table_maintenance, "_minute", lambda one: one.summary.cursor > middle)
    execute = following.log.execute
    execute("CREATE TABLE u (id int PRIMARY KEY, t int)")
    expected = {}
    for number in range(12):
        changes = [f"INSERT INTO t VALUES ({number}, {number}, '')", f"UPDATE t SET n = -1 WHERE id = {number - 1}"]
        if number in _CHANGES_OF_U:
            changes.append(f"INSERT INTO u VALUES ({number}, (SELECT count(*) FROM t))")
        execute(*changes)
        following.follow()
        cursor = following.lake.point().cursor
        middle = cursor if number == 5 else middle
        expected[cursor] = number + 1
    context = following.sink._require_open().context
    tables = list(following.sink._require_open().tables)
    for table in tables:
        known = table_maintenance.history(context, table)
        old = table_maintenance.thinned_snapshots(known, datetime.now(UTC) + timedelta(days=1))
        assert len(known) - len(old) == 4, "the first and the last of each of the two minutes"
        table_maintenance.expire(table, old)
        left = table_maintenance.history(context, table)
        assert [one.id for one in left] == [one.id for one in known if one.id not in old]
        assert not table_maintenance.thinned_snapshots(left, datetime.now(UTC) + timedelta(days=1))
        files = [*Path(table.directory).rglob("*")]
        assert not [file for file in files if file.name.endswith(".crc")]
        assert len([file for file in files if file.name.startswith("snap-")]) == 4, "a manifest list each"
    point = following.lake.point()
    following.sink.rewind(State(point.cursor, {one.oid: one.since for one in point.tables if one.since is not None}))
    view = LakeView(context.warehouse.store, context.sink, context.warehouse.root)
    seen = {}
    for cursor in sorted(expected):
        version = view.version(AsOf(lsn=Lsn(cursor - 1)))
        assert version is not None
        assert not version.absent
        rows: dict[str, Any] = {}
        for name, column in (("t", "id"), ("u", "t")):
            shown = version.tables["public", name]
            scan = f"iceberg_scan('{shown.metadata}', snapshot_from_id = {shown.snapshot})"
            rows[name] = engine().execute(f"SELECT count(*), max({column}) FROM {scan}").fetchone()
        seen[cursor] = version.cursor
        in_t = expected[version.cursor]
        assert rows["t"] == (in_t, in_t - 1)
        assert rows["u"][1] == max(one for one in _CHANGES_OF_U if one < in_t) + 1, "u is of another moment than t"
        assert version.cursor <= cursor
    assert seen[middle] == middle, "the end of a minute is known"
    assert len(set(seen.values())) == 4, "the first and the last of t are known in u"
    following.assert_same()


def test_only_orphans_are_removed(following: FollowedLake) -> None:
    following.log.execute("INSERT INTO t SELECT i, 0, 'x' FROM generate_series(1, 10) i")
    following.follow()
    following.log.execute("DELETE FROM t WHERE id < 4")
    following.follow()
    data = Path(following.table.directory) / "data"
    named = set(data.iterdir())
    (data / "left.parquet").write_bytes(b"from an unfinished step")
    lake = following.sink._require_open().context
    assert table_maintenance.remove_orphans(lake, following.table, datetime.now(UTC) - timedelta(days=1)) == 0
    assert table_maintenance.remove_orphans(lake, following.table, datetime.now(UTC) + timedelta(minutes=1)) == 1
    assert set(data.iterdir()) == named
    following.assert_same()


def _as_another_writer(following: FollowedLake) -> Any:
    """A catalog and the table, as another process opens them."""
    catalog = JavaCatalog(IcebergOptions(warehouse=following.lake.directory.as_uri()))
    return catalog, catalog.load(("public", "t"))


def test_compaction_by_another_writer(following: FollowedLake, spark: SparkSession) -> None:
    """The conflicting step is retried on the table's current state."""
    log = following.log
    for number in range(6):
        log.execute(f"INSERT INTO t SELECT i, 0, 'x' FROM generate_series({number * 10}, {number * 10 + 9}) i")
        following.follow()
    log.execute("DELETE FROM t WHERE id = 3")
    following.follow()
    catalog, table = _as_another_writer(following)
    catalog.actions().rewriteDataFiles(table).binPack().option("rewrite-all", "true").execute()
    log.execute("DELETE FROM t WHERE id = 13", "UPDATE t SET n = 1 WHERE id = 23")
    with pytest.raises(SinkError, match="sink tested") as raised:
        following.follow()
    assert raised.value.retry
    following.stepper.open()
    following.follow()
    following.assert_same()


def test_a_merge_that_conflicts_with_another_writer(following: FollowedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge fails, no row is duplicated, and the next merge uses the table's current state."""
    monkeypatch.setattr(table_maintenance, "_MANY_FILES", 3)
    for number in range(5):
        following.log.execute(f"INSERT INTO t VALUES ({number}, 0, 'x'), ({number + 10}, 0, 'y')")
        following.follow()
    following.log.execute("DELETE FROM t WHERE id = 13")
    following.follow()
    merge_files = file_merge.merge_files

    def merge_too_late(*arguments: Any) -> Any:
        catalog, table = _as_another_writer(following)
        catalog.actions().rewriteDataFiles(table).binPack().option("rewrite-all", "true").execute()
        return merge_files(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(file_merge, "merge_files", merge_too_late)
        with pytest.raises(SinkError) as raised:
            following.sink.maintain()
    assert raised.value.retry
    following.stepper.open()
    following.log.execute("UPDATE t SET n = 1 WHERE id < 3", "INSERT INTO t VALUES (99, 1, 'z')")
    following.follow()
    following.sink.maintain()
    following.assert_same()


def test_rows_changed_by_another_writer_are_refused(following: FollowedLake, spark: SparkSession) -> None:
    following.log.execute("INSERT INTO t VALUES (1, 1, 'sink')")
    following.follow()
    _, table = _as_another_writer(following)
    table.newDelete().deleteFromRowFilter(_always(following)).commit()
    with pytest.raises(FencedError, match="another writer changed its rows"):
        following.stepper.open()


def _always(following: FollowedLake) -> Any:
    return following.sink._require_open().context.catalog.java.Expressions.alwaysTrue()


def test_a_commit_whose_result_is_lost(following: FollowedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit succeeded, but its result was lost: the sink looks it up and writes nothing twice."""
    commit_transaction = LakeTable._commit_transaction
    following.log.execute("INSERT INTO t SELECT i, 0, 'x' FROM generate_series(1, 10) i")
    following.follow()
    following.log.execute("UPDATE t SET n = 1 WHERE id < 5", "INSERT INTO t VALUES (11, 1, 'y')")

    def lose_result(self: LakeTable) -> None:
        commit_transaction(self)
        raise SinkError("the result was lost", "look it up")

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "_commit_transaction", lose_result)
        with pytest.raises(SinkError, match="the result was lost"):
            following.follow()
    following.stepper.open()
    following.log.execute("UPDATE t SET n = 2 WHERE id = 1", "INSERT INTO t VALUES (12, 1, 'z')")
    following.follow()
    following.assert_same()


def test_a_disk_that_is_full_at_different_times(
    small_disk: Path, database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Whether a data file or Iceberg's metadata did not fit: no partial change remains."""
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    database.execute(_TABLE)
    lake, filler = Lake(small_disk / "lake"), small_disk / "filler"
    failures = 0
    with captured(database, tmp_path) as log:
        delivering = DeliveryDriver(
            lake, settings.StoreSettings(log.store.url), start="earliest", tables=["public.t", "public.u"]
        )
        with delivering.stepper() as stepper:
            following = FollowedLake(log, lake, stepper)
            for number, free in enumerate((None, 0, 4, 12, 20, 32)):
                if free is not None:
                    available = shutil.disk_usage(small_disk).free
                    filler.write_bytes(bytes(available - free * 1024))
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


def test_the_summary_of_a_snapshot(following: FollowedLake) -> None:
    log = following.log
    log.execute(
        "COMMENT ON TABLE t IS 'the table'",
        "COMMENT ON COLUMN t.note IS 'the column'",
        "INSERT INTO t VALUES (1, 1, 'x')",
    )
    following.follow()
    table = StaticTable.from_metadata(following.table.metadata)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    summary = SnapshotSummary.from_dict(snapshot.summary.additional_properties)
    assert summary == following.table.summary
    assert snapshot.summary["last_flush_lsn"] == str(following.lake.point().cursor)
    change = next(c for c in log.changes("t"))
    assert snapshot.summary["tailrace.position"] == str(change.position)
    assert summary is not None
    assert summary.committed_at == change.committed_at
    assert table.properties["comment"] == "the table"
    assert table.metadata.format_version == 3
    schema = table.schema()
    assert [schema.find_column_name(number) for number in schema.identifier_field_ids] == ["id"]
    assert schema.find_field("note").doc == "the column"
    assert schema.find_field("id").required
    assert not schema.find_field("n").required
    rows = Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())
    assert rows == Counter([(1, 1, "x")])
