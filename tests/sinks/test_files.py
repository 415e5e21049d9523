"""The files sink delivers every change once despite failures, with the source's exact values."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import oracle
from tests.capturing import CaptureThread, current_lsn
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.fixtures.store import StoreAddress
from tests.pgoutput import read
from tests.stepping import DrivenStepper
from tests.workload import Workload

from tailrace import settings
from tailrace.capture.postgres.bootstrap import Bootstrap
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.change import Change, Column, Lsn, Position, Relation, Type
from tailrace.delivery import cursors
from tailrace.delivery import step as step_module
from tailrace.delivery.contract import Load, Parallel, State, Step
from tailrace.delivery.lag import Lag, LagMeter
from tailrace.delivery.sink_settings import ConfiguredSink, SinkContext, SinkSettings
from tailrace.delivery.task import Task, TaskResult
from tailrace.embedded.postgres import Postgres
from tailrace.errors import ConfigError, CorruptError, FencedError, StoreRefused
from tailrace.images import Images
from tailrace.log import change_text, planner
from tailrace.log.decoding import DELETE, ChangePositions, TableChanges, no_images
from tailrace.log.planner import Offset
from tailrace.log.reader import LogReader
from tailrace.log.retention import cursors as retained_cursors
from tailrace.log.snapshot import SnapshotReader, encoded_names
from tailrace.sinks.files import FilesOptions, FilesSink
from tailrace.sinks.files import sink as files_sink
from tailrace.sinks.files.file_format import MIB, ParquetFormat
from tailrace.store import FileStore, Store
from tailrace.types import mapping


class Log(NamedTuple):
    """A captured log, and the source's rows at the time of the snapshots and at the end."""

    store: settings.StoreSettings
    before: dict[tuple[str, str], oracle.Rows]
    after: dict[tuple[str, str], oracle.Rows]


def run_pickled(tasks: Sequence[Task], parallel: Parallel) -> list[TaskResult]:
    """Pass the tasks through pickle, as for executors."""
    return [pickle.loads(pickle.dumps(task)).run() for task in tasks]


def make_stepper(log: Log, url: str, name: str, common: dict[str, Any] | None = None, **options: Any) -> DrivenStepper:
    sink = FilesSink(name, FilesOptions(url=url, **options), SinkContext(log.store))
    return DrivenStepper(
        ConfiguredSink(SinkSettings(type="files", name=name, **(common or {})), sink),
        log.store,
        run_pickled,
        parallelism=lambda: 2,
    )


def deliver_all(stepper: DrivenStepper, limits: planner.BatchLimits | None = None) -> None:
    """Load missing tables, then deliver up to the log's end, in steps whose ends depend only on their starts."""
    stepper.open()
    stepper.load_missing()
    reader = LogReader(Store.open(stepper._settings.url, stepper._settings.options))
    while True:
        batch = planner.next_batch(reader, stepper.offset(), limits)
        # After a restart, the offset of a cursor is in the previous segment, which may have no rows left.
        if batch.end.lsn <= stepper.offset().lsn:
            break
        stepper.deliver(batch.end)
    stepper.close()


def contents(address: StoreAddress) -> dict[str, bytes]:
    store = Store.open(*address)
    found = {}
    for info in store.list(""):
        data = store.get(info.key)
        assert data is not None
        found[info.key] = data
    return found


@pytest.fixture(scope="module")
def log(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Log:
    """A log with all types, TOAST, TRUNCATE, added and dropped columns, odd names and messages, and snapshots of every
    table."""
    database = make_database(postgres)
    given = settings.Settings(
        source=settings.SourceSettings(url=database.url, tables=("*.*",)),
        store=settings.StoreSettings((tmp_path_factory.mktemp("files") / "store").as_uri()),
        capture=settings.CaptureSettings(seal_after_ms=5, segment_bytes=64 * 1024),
        snapshot=settings.SnapshotSettings(chunk_rows=20),
    )
    store = Store.open(given.store.url)
    workload = Workload(database.connect, seed=5, ddl=True, exclusive=0.03)
    workload.create()
    workload.run(40)
    bootstrap = Bootstrap(given, store)
    with database.connect() as connection:

        def rows() -> dict[tuple[str, str], oracle.Rows]:
            return {(t.schema, t.name): oracle.rows(connection, t.schema, t.name) for t in workload.tables}

        with CaptureThread(given, store, snapshots=bootstrap) as capture:
            assert bootstrap.wait(60)
            assert bootstrap.error is None
            bootstrap.stop()
            before = rows()
            workload.run(80)
            workload.stop()
            big = "INSERT INTO simple (id) SELECT generate_series(10000, 11000)"
            connection.execute(f"BEGIN; {big}; DELETE FROM simple WHERE id >= 10000; COMMIT".encode())
            capture.wait_for(current_lsn(connection))
        after = rows()
    drop_database(database)  # every test uses the same slot name
    return Log(given.store, before, after)


@pytest.fixture(autouse=True)
def _many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "SMALL_BYTES", 0)
    monkeypatch.setattr(files_sink, "FILE_BYTES", 100 * 1024)
    monkeypatch.setattr(files_sink, "BUFFER_BYTES", 200 * 1024)


def logged_changes(log: Log) -> dict[Position, Change]:
    return {change.position: change for change in LogReader(Store.open(log.store.url)).changes()}


def expected_changes(log: Log) -> dict[Position, Change]:
    """Return what the sink gets besides snapshots: changes committed since each table's snapshot, and messages."""
    snapshots = SnapshotReader(Store.open(log.store.url))
    lsns = {snapshot.relation.oid: snapshot.lsn for snapshot in snapshots.list()}
    start = min(lsns.values())
    return {
        position: change
        for position, change in logged_changes(log).items()
        if position.commit_lsn >= (start if change.relation is None else lsns[change.relation.oid])
    }


LIMITS = planner.BatchLimits(segments=40, bytes=400 * 1024)


def test_json_lines_contain_the_log_and_the_snapshots(log: Log, store_address: StoreAddress) -> None:
    url, options = store_address
    deliver_all(make_stepper(log, url, f"json-{url[:2]}", options=options), LIMITS)
    expected = expected_changes(log)
    positions = list(expected)
    found: dict[Position, str] = {}
    loaded: dict[tuple[str, str], Counter[str]] = {}
    for key, data in contents(store_address).items():
        directory, date, name = key.split("/")
        assert data.endswith(b"\n")
        assert name.endswith(".jsonl")
        for line in data.decode().split("\n")[:-1]:
            record = json.loads(line)
            table = (record["schema"], record["table"])
            assert directory == ("_messages" if table == (None, None) else encoded_names(*table))
            assert date == f"date={record['committed_at'][:10]}"
            if record["operation"] == "SNAPSHOT":
                after = line[line.index('"after": ') + 9 : line.index(', "unchanged": []')]
                loaded.setdefault(table, Counter())[after] += 1
            else:
                position = Position.parse(record["position"])
                assert position not in found
                found[position] = line
    assert sorted(found) == positions
    for index, position in enumerate(positions):
        is_last = index + 1 == len(positions) or positions[index + 1].commit_lsn != position.commit_lsn
        text = change_text.to_json(expected[position])
        assert found[position] == text[:-1] + f', "is_last": {json.dumps(is_last)}' + "}"
    relations = {(r.schema, r.name): r for r in SnapshotReader(Store.open(log.store.url)).tables()}
    assert {table: len(rows) for table, rows in loaded.items()} == {t: len(r) for t, r in log.before.items() if r}
    for table, objects in loaded.items():
        assert objects == Counter(_object(relations[table], row) for row in log.before[table].elements())
    assert len(positions) > 2000


def _object(relation: Relation, row: oracle.Row) -> str:
    pairs = zip(relation.columns, row, strict=True)
    return (
        "{" + ", ".join(f"{json.dumps(c.name, ensure_ascii=False)}: {mapping(c).json_text(v)}" for c, v in pairs) + "}"
    )


@dataclass(frozen=True)
class Row:
    """One row of a Parquet file, comparable with the log's images."""

    relation: Relation
    operation: str
    is_last: bool
    new: read.Row
    old: read.Row


def parquet_rows(data: bytes) -> Iterator[tuple[Position, Row]]:
    table = pq.ParquetFile(pa.BufferReader(data)).read()
    relation = Relation.from_json(table.schema.metadata[b"tailrace.relation"].decode())
    batch = table.combine_chunks().to_batches()[0]
    count = len(relation.columns)

    def named(name: str) -> pa.Array:
        return batch.column(batch.schema.names.index(name))

    def images(columns: list[pa.Array], special: pa.Array, present: list[bool]) -> list[read.Row]:
        schema = pa.schema([pa.field(c.name, a.type) for c, a in zip(relation.columns, columns, strict=True)])
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        unchanged = named("_unchanged").to_pylist() if columns is own else [[]] * len(batch)
        masks = {i: [c.name in names for names in unchanged] for i, c in enumerate(relation.columns)}
        return read.image_rows(
            Images(rows, np.array(present), {i: np.array(m) for i, m in masks.items() if any(m)}, special)
        )

    own = batch.columns[:count]
    operations = named("_operation").to_pylist()
    before = named("_before")
    new = images(own, named("_special"), [o in ("INSERT", "UPDATE", "SNAPSHOT") for o in operations])
    old_columns = [before.field(i) for i in range(count)]
    old = images(old_columns, named("_before_special"), before.is_valid().to_pylist())
    lasts = named("_is_last").to_pylist()
    for i, position in enumerate(named("_position").to_pylist()):
        parsed = Position.parse(position)
        assert [*parsed] == [named("_commit_lsn")[i].as_py(), named("_ordinal")[i].as_py()]
        yield parsed, Row(relation, operations[i], lasts[i], new[i], old[i])


def test_parquet_contains_the_log_and_the_snapshots(log: Log, tmp_path: Path) -> None:
    address = StoreAddress(tmp_path.as_uri(), {})
    deliver_all(make_stepper(log, address.url, "parquet", format="parquet"), LIMITS)
    expected = {p: c for p, c in expected_changes(log).items() if c.relation is not None}
    found: dict[Position, Row] = {}
    replica = oracle.Replica()
    snapshots = {s.relation.oid: s for s in SnapshotReader(Store.open(log.store.url)).list()}
    messages = 0
    for key, data in contents(address).items():
        if key.startswith("_messages/"):
            messages += pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows
            continue
        for position, row in parquet_rows(data):
            if row.operation == "SNAPSHOT":
                assert position.commit_lsn == snapshots[row.relation.oid].lsn
                assert row.new is not None
                replica.load(row.relation, [_with_special(row.new, row.relation)])
            else:
                assert position not in found
                found[position] = row
    assert messages == len(expected_changes(log)) - len(expected)
    assert sorted(found) == list(expected)
    for position, change in expected.items():
        row = found[position]
        assert (row.relation, row.operation) == (change.relation, change.operation)
        assert change.relation is not None
        assert row.new == read.plain_image(change.relation, change.new)
        assert row.old == read.plain_image(change.relation, change.old)
        replica.apply(
            replace(
                change,
                old=None if row.old is None else _with_special(row.old, row.relation),
                new=None if row.new is None else _with_special(row.new, row.relation),
            )
        )
    for (schema, table), rows in log.after.items():
        relation = replica.relation(schema, table)
        # The log has only columns under which changes were made.
        if relation is not None and relation.columns and _width(rows) in (0, len(relation.columns)):
            typed = Counter(_with_special(read.plain_image(relation, row), relation) for row in rows.elements())
            assert replica.rows(schema, table) == typed, table


def _width(rows: oracle.Rows) -> int:
    return len(next(iter(rows), ()))


def _with_special(row: read.Row, relation: Relation) -> Any:
    """Return a row's values, including the special ones."""
    assert row is not None
    values, special = row
    return tuple([special.get(c.name, _hashable(v)) for c, v in zip(relation.columns, values, strict=True)])


def _hashable(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value


SMALL = """
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE "B/..b" (id int PRIMARY KEY, v text, n numeric);
INSERT INTO a SELECT i, repeat('s', 500) FROM generate_series(1, 300) i;
"""


@pytest.fixture(scope="module")
def small(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Log:
    """A log for a few steps, with a load, several tables, several files per part, and a change of columns."""
    database = make_database(postgres)
    database.execute(SMALL)
    given = settings.Settings(
        source=settings.SourceSettings(url=database.url),
        store=settings.StoreSettings((tmp_path_factory.mktemp("small") / "store").as_uri()),
        capture=settings.CaptureSettings(seal_after_ms=5, segment_bytes=64 * 1024),
    )
    store = Store.open(given.store.url)
    bootstrap = Bootstrap(given, store)
    with database.connect() as connection, CaptureThread(given, store, snapshots=bootstrap) as capture:
        assert bootstrap.wait(60)
        bootstrap.stop()
        for statement in (
            "BEGIN; INSERT INTO a SELECT i, repeat('x', 900) FROM generate_series(1000, 1150) i;"
            " INSERT INTO \"B/..b\" SELECT i, 'b', i FROM generate_series(1, 5) i; COMMIT",
            "SELECT pg_logical_emit_message(true, 'p', 'm')",
            "ALTER TABLE a ADD w int DEFAULT 7",
            'BEGIN; UPDATE a SET w = id WHERE id >= 1000; TRUNCATE "B/..b"; COMMIT',
            "DELETE FROM a WHERE id % 2 = 0",
            *[f"INSERT INTO \"B/..b\" SELECT i, 'b', i FROM generate_series({n}00, {n}20) i" for n in range(1, 6)],
            "INSERT INTO a SELECT i, 'last' FROM generate_series(5000, 5020) i",
        ):
            connection.execute(statement.encode())
            capture.wait_for(current_lsn(connection))
    drop_database(database)
    return Log(given.store, {}, {})


class Crash(Exception):
    """The process is killed."""


@contextmanager
def crashing(monkeypatch: pytest.MonkeyPatch, at: int | None) -> Iterator[list[str]]:
    """Crash after the given number of durable writes. Yields the keys that were written."""
    keys: list[str] = []
    original = FileStore.replace

    def replace_(self: FileStore, key: str, data: bytes) -> None:
        original(self, key, data)
        keys.append(key)
        if len(keys) == at:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "replace", replace_)
        yield keys


@pytest.mark.parametrize("format_", ["jsonl", pytest.param("parquet", marks=pytest.mark.soak)])
def test_a_crash_at_any_write_changes_nothing(
    small: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    monkeypatch.setattr(files_sink, "FILE_BYTES", 40 * 1024)
    limits = planner.BatchLimits(segments=4)
    undisturbed = StoreAddress((tmp_path / "undisturbed").as_uri(), {})
    with crashing(monkeypatch, None) as keys:
        deliver_all(make_stepper(small, undisturbed.url, f"{format_}-whole", format=format_), limits)
    expected = contents(undisturbed)
    assert len({key.partition("/")[0] for key in expected}) == 3
    assert any(key.rpartition("-")[2].startswith("0001") for key in expected)  # split by size
    assert any("-00001-" in key and "-rows-" not in key for key in expected)  # several parts
    assert len(keys) > 12
    for at in range(1, len(keys)):
        address = StoreAddress((tmp_path / str(at)).as_uri(), {})
        with crashing(monkeypatch, at), pytest.raises(Crash):
            deliver_all(make_stepper(small, address.url, f"{format_}-{at}", format=format_), limits)
        # In half of the cases the log is longer and the parallelism lower by then: the pending step must not change.
        is_longer = at % 2 == 0
        with monkeypatch.context() as patched:
            patched.setattr(step_module, "SMALL_BYTES", 1 << 40 if is_longer else 0)
            deliver_all(
                make_stepper(small, address.url, f"{format_}-{at}", format=format_), None if is_longer else limits
            )
        found = contents(address)
        assert is_longer or found == expected, keys[at - 1]
        assert read_records(found) == read_records(expected), keys[at - 1]


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_a_full_disk_stops_the_sink_without_losing_changes(
    small: Log, small_disk: Path, tmp_path: Path, format_: str
) -> None:
    limits = planner.BatchLimits(segments=4)
    undisturbed = StoreAddress((tmp_path / "undisturbed").as_uri(), {})
    deliver_all(make_stepper(small, undisturbed.url, f"{format_}-roomy", format=format_), limits)
    expected = contents(undisturbed)
    (small_disk / "others").write_bytes(bytes(200 * 1024))
    address = StoreAddress((small_disk / "files").as_uri(), {})
    with pytest.raises(StoreRefused, match="disk full") as refused:
        deliver_all(make_stepper(small, address.url, f"{format_}-full", format=format_), limits)
    assert refused.value.hint == "free some space; nothing was lost"
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    deliver_all(make_stepper(small, address.url, f"{format_}-full", format=format_), limits)
    assert contents(address) == expected


def read_records(files: dict[str, bytes]) -> list[tuple[str, str]]:
    """Return operation and position of all records in files of either format."""
    found = []
    for key, data in files.items():
        if key.endswith(".parquet"):
            columns = pq.ParquetFile(pa.BufferReader(data)).read(["_operation", "_position"]).to_pydict()
            found += list(zip(columns["_operation"], columns["_position"], strict=True))
        else:
            records = [json.loads(line) for line in data.splitlines()]
            found += [(record["operation"], record["position"]) for record in records]
    return sorted(found)


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=12), st.integers(1, 6))
def test_a_repeated_step_has_the_same_parts(slices: list[tuple[int, bool]], parallelism: int) -> None:
    sink = FilesSink("s", FilesOptions(url="file:///x"), SinkContext(settings.StoreSettings("memory://parts")))
    stepper = DrivenStepper(
        ConfiguredSink(SinkSettings(name="s"), sink),
        settings.StoreSettings("memory://parts"),
        parallelism=lambda: parallelism,
    )
    found = tuple(planner.Slice(n, 0, 1, size * MIB, goes_on) for n, (size, goes_on) in enumerate(slices))
    batch = planner.LogBatch(found, Offset(0, Lsn(0)), Offset(len(found), Lsn(9)))
    parts = stepper._divided(batch)
    assert stepper._divided(batch, len(parts)) == parts


def test_retention_keeps_undelivered_changes(small: Log, tmp_path: Path) -> None:
    stepper = make_stepper(small, tmp_path.as_uri(), "retained")
    deliver_all(stepper, planner.BatchLimits(segments=1, bytes=1))
    assert stepper.cursor is not None
    position = retained_cursors(Store.open(small.store.url))["retained"]
    assert position == (stepper.cursor - 1, 0)


def test_a_sink_at_the_end_of_the_log_has_no_lag(small: Log, tmp_path: Path) -> None:
    deliver_all(make_stepper(small, tmp_path.as_uri(), "done"))
    again = make_stepper(small, tmp_path.as_uri(), "done")
    again.open()
    meter = LagMeter(Store.open(small.store.url))
    meter.follow()
    assert meter.backlog("done", again.cursor).lag(again.cursor, 0) == Lag(0, 0.0)


def test_a_rewind_keeps_existing_files(small: Log, tmp_path: Path) -> None:
    address = StoreAddress(tmp_path.as_uri(), {})
    stepper = make_stepper(small, address.url, "rewound")
    deliver_all(stepper)
    first = contents(address)
    changes = [c for c in logged_changes(small).values() if c.relation is not None]
    middle = changes[-1].position.commit_lsn
    stepper.rewind(str(middle))
    deliver_all(make_stepper(small, address.url, "rewound"))
    second = contents(address)
    assert {key: second[key] for key in first} == first
    again = [json.loads(line)["position"] for key in second if key not in first for line in second[key].splitlines()]
    replayed = [str(p) for p in logged_changes(small) if p.commit_lsn >= middle]
    assert sorted(again) == sorted(replayed)


def test_an_abandoned_load_leaves_no_files(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer snapshot comes before the retry."""
    database = make_database(postgres)
    try:
        database.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a SELECT generate_series(1, 100)")
        log, take = _with_snapshot(database, tmp_path / "store")
        address = StoreAddress((tmp_path / "files").as_uri(), {})

        def rows() -> list[int]:
            records = [json.loads(line) for data in contents(address).values() for line in data.splitlines()]
            return sorted(record["after"]["id"] for record in records if record["operation"] != "MESSAGE")

        at = next(n for n in range(1, 100) if _crashed_with_files(log, address, monkeypatch, n))
        assert rows()
        take("INSERT INTO a VALUES (101)")
        deliver_all(make_stepper(log, address.url, f"given-up-{at}"))
        assert rows() == list(range(1, 102))
    finally:
        drop_database(database)


def _crashed_with_files(log: Log, address: StoreAddress, monkeypatch: pytest.MonkeyPatch, at: int) -> bool:
    with crashing(monkeypatch, at), pytest.raises(Crash):
        deliver_all(make_stepper(log, address.url, f"given-up-{at}"))
    return bool(contents(address))


def _with_snapshot(database: Database, directory: Path) -> tuple[Log, Callable[[str], None]]:
    given = settings.Settings(
        source=settings.SourceSettings(url=database.url),
        store=settings.StoreSettings(directory.as_uri()),
        capture=settings.CaptureSettings(seal_after_ms=5),
        snapshot=settings.SnapshotSettings(chunk_rows=30),
    )
    store = Store.open(given.store.url)

    def take(statement: str) -> None:
        with CaptureThread(given, store) as capture, database.connect() as connection:
            if statement:
                connection.execute(statement.encode())
            job = SnapshotJob(given, None)
            job.start()
            assert job.wait(60)
            capture.wait_for(current_lsn(connection))

    take("")
    return Log(given.store, {}, {}), take


def test_a_second_deliver_is_fenced(small: Log, tmp_path: Path) -> None:
    one, two = (make_stepper(small, tmp_path.as_uri(), "shared") for _ in range(2))
    one.open()
    two.open()
    one.load_missing()
    with pytest.raises(FencedError, match="sink shared is at"):
        two.load_missing()


@pytest.mark.parametrize(
    ("format_", "compression", "suffix"),
    [("jsonl", "gzip", ".jsonl.gz"), ("jsonl", "zstd", ".jsonl.zst"), ("parquet", "snappy", ".parquet")],
)
def test_compression(small: Log, tmp_path: Path, format_: str, compression: str, suffix: str) -> None:
    plain, packed = (StoreAddress((tmp_path / name).as_uri(), {}) for name in ("plain", "packed"))
    deliver_all(make_stepper(small, plain.url, f"plain-{suffix}", format=format_, compression="none"))
    deliver_all(make_stepper(small, packed.url, f"packed-{suffix}", format=format_, compression=compression))
    expected, found = contents(plain), contents(packed)

    def unpacked(data: bytes) -> Any:
        if format_ == "parquet":
            return pq.ParquetFile(pa.BufferReader(data)).read()
        if compression == "gzip":
            return gzip.decompress(data)
        return pa.input_stream(pa.BufferReader(data), compression=compression).read()

    assert all(key.endswith(suffix) for key in found)
    stems = {key.partition(".jsonl")[0].removesuffix(".parquet"): unpacked(data) for key, data in found.items()}
    plains = {key.removesuffix(".jsonl").removesuffix(".parquet"): data for key, data in expected.items()}
    assert stems.keys() == plains.keys()
    for stem, data in plains.items():
        assert stems[stem] == (unpacked(data) if format_ == "parquet" else data)


def test_tables_with_our_column_names_or_without_columns() -> None:
    names = ("_position", "_Before", "__special", "_special")
    columns = tuple(Column(name, Type(25, "pg_catalog", "text")) for name in names)
    for relation, expected in (
        (Relation(1, "s", "t", "d", columns), ["__position", "__before", "___special", "_before_special"]),
        (Relation(1, "s", "t", "f", ()), ["_position", "_before", "_special", "_before_special"]),
    ):
        numbers, no = np.zeros(2, np.int64), np.zeros(2, np.bool_)
        at, none = ChangePositions(numbers, numbers, numbers, numbers, numbers, no), no_images(relation, 2)
        changes = TableChanges(relation, at, np.full(2, DELETE, np.uint8), replace(none, present=~no), no, none)
        (fragment,) = ParquetFormat().encode(changes)
        table = pq.ParquetFile(pa.BufferReader(ParquetFormat().file([fragment]))).read()
        assert table.num_rows == 2
        ours = table.schema.names[len(relation.columns) :]
        assert [name for name in ours if name.endswith(("position", "before", "special"))] == expected


def test_shaped_changes_are_written_to_their_route(small: Log, tmp_path: Path) -> None:
    address = StoreAddress(tmp_path.as_uri(), {})
    common = {"tables": ("public.a",), "route": "lake.{schema}_{table}", "mask": {"public.a.v": "redact"}}
    deliver_all(make_stepper(small, address.url, "shaped", common))
    found = contents(address)
    assert {key.partition("/")[0] for key in found} == {"lake.public_a", "_messages"}
    records = [json.loads(line) for data in found.values() for line in data.splitlines()]
    assert {record["after"]["v"] for record in records if record["after"]} == {"***"}
    assert {(record["schema"], record["table"]) for record in records} == {("public", "a"), (None, None)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "url is missing"),
        ({"url": "http://x/y"}, "http://x/y is not supported"),
        ({"url": "file:///x", "compression": "snappy"}, "jsonl does not support compression 'snappy'"),
        ({"url": "file:///x", "format": "parquet", "compression": "zip"}, "parquet does not support compression 'zip'"),
    ],
)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FilesSink("s", FilesOptions(**options), SinkContext(settings.StoreSettings("memory://x")))


def test_a_stored_step_is_loaded_unchanged() -> None:
    store = Store.open("memory://stored")
    relation = Relation(
        7, "public", 'Ö"', "d", (Column("id", Type(23, "pg_catalog", "int4"), is_identity=True),), ("id",)
    )
    before, after = State(None, {}), State(Lsn(99), {7: Lsn(3)})
    loads = (Load(relation, ("a", "b"), "00-ff", Lsn(3)),)
    step = Step(before, after, Offset(1, Lsn(2)), Offset(4, Lsn(99)), 3, loads)
    stored = cursors.StoredState(before, step, 2, ("00-ee",))
    assert cursors.load(store, "s") is None
    cursors.save(store, "s", stored)
    assert cursors.load(store, "s") == stored


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version": 1}', b'{"version": 9}'])
def test_an_unreadable_state_is_an_error(data: bytes) -> None:
    store = Store.open("memory://damaged")
    store.replace("cursors/s/state.json", data)
    with pytest.raises(CorruptError):
        cursors.load(store, "s")


def test_a_new_sink_has_no_cursor() -> None:
    sink = FilesSink("s", FilesOptions(url="file:///x"), SinkContext(settings.StoreSettings("memory://nowhere")))
    assert sink.open() == State()
    assert sink.pending() is None
    sink.rewind(State(Lsn(5), {7: Lsn(3)}))
    assert sink.open() == State(Lsn(5), {7: Lsn(3)})
