"""Merges: the log has the value after each, and it is what the database's own scan says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.capture.slatedb.database_writer import MERGE_OPERATOR, DatabaseWriter, RandomWrites
from tests.capture.slatedb.test_capture import Scene, directory, mirrored, scene  # noqa: F401 (fixtures)
from tests.capturing import CaptureThread
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.destinations import JsonLines, Mirror
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace.capture.slatedb import merge_resolver
from tailrace.capture.slatedb.bootstrap import SlateDbBootstrap
from tailrace.capture.slatedb.check import inspect_slatedb
from tailrace.capture.slatedb.database import SlateDatabase
from tailrace.capture.slatedb.merge_resolver import MergeResolver
from tailrace.capture.slatedb.session import open_database
from tailrace.capture.slatedb.wal_converter import ResumeToken
from tailrace.errors import ConfigError, GapError, SinkRefused, SourceRefused
from tailrace.log.reader import LogReader
from tailrace.settings import StoreSettings
from tailrace.settings.slatedb import SlateDbSettings, ValueSettings
from tailrace.store import Store


@pytest.fixture
def merging(scene: Scene) -> Scene:  # noqa: F811
    return scene.with_source(merge_operator=MERGE_OPERATOR)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_destinations_equal_the_scan(
    seed: int,
    merging: Scene,
    directory: Path,  # noqa: F811
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With restarts, and with each portion a newer checkpoint if the database wrote tables."""
    monkeypatch.setattr(merge_resolver, "_LEAST_MOVE_S", 0.0)
    monkeypatch.setattr(merge_resolver, "_MOVE_S", 0.0)
    driver = DeliveryDriver(Mirror(database), merging.settings.store)
    writes = RandomWrites(seed, 20, has_merges=True)
    with DatabaseWriter(directory) as writer:
        writes.run(writer, 60)
        for _ in range(4):
            merging.capture()
            merging.deliver(driver)
            assert merging.state_with_expiry() == writer.scan_with_expiry()
            assert mirrored(database) == writer.scan()
            writes.run(writer, 60)
    merging.assert_sound()
    assert open_database(_source(merging)).find_checkpoint(_checkpoint_id(merging)) is not None


def test_checkpoints_move_while_capture_runs(
    merging: Scene,
    directory: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is in newer sorted tables is read from there, what is not is remembered, and old checkpoints are deleted."""
    monkeypatch.setattr(merge_resolver, "_LEAST_MOVE_S", 0.0)
    monkeypatch.setattr(merge_resolver, "_MOVE_S", 0.0)
    writes = RandomWrites(5, 20, has_ttl=False, has_merges=True)
    with DatabaseWriter(directory) as writer:
        writes.run(writer, 30)
        with CaptureThread(
            merging.settings, merging.store, snapshots=SlateDbBootstrap(merging.settings, merging.store)
        ) as run:
            first = _checkpoint_id(merging)
            for _ in range(15):
                writes.run(writer, 15)
                run.wait_for(merging.written_lsn())
            database = open_database(_source(merging))
            assert _checkpoint_id(merging) != first
            run.wait(lambda: database.find_checkpoint(first) is None)
        assert database.find_checkpoint(_checkpoint_id(merging)) is not None
        assert merging.state() == writer.scan()


@pytest.mark.soak
def test_merges_on_s3(
    merging: Scene,
    directory: Path,  # noqa: F811
    s3_address: StoreAddress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With restarts of capture and writer. Checkpoints, and single rows of them, are read from the bucket."""
    monkeypatch.setattr(merge_resolver, "_LEAST_MOVE_S", 0.0)
    monkeypatch.setattr(merge_resolver, "_MOVE_S", 0.0)
    url, options = s3_address
    merging = merging.with_source(url=f"{url}/db", options=options)
    stored = replace(merging.settings, store=StoreSettings(f"{url}/log", options=options))
    merging = Scene(stored, Store.open(f"{url}/log", options))
    writes = RandomWrites(3, 20, has_ttl=False, has_merges=True)
    checkpoints = set()
    for _ in range(4):
        with DatabaseWriter(directory, source=_source(merging)) as writer:
            writes.run(writer, 60)
            merging.capture()
            assert merging.state() == writer.scan()
            checkpoints.add(_checkpoint_id(merging))
    assert len(checkpoints) == 4
    merging.assert_sound()


def test_a_long_catch_up_remembers_each_key_once(
    merging: Scene,
    directory: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value after a merge is as large as the whole row, so that many merges of few rows would take much memory."""
    monkeypatch.setattr(merge_resolver, "_COMPACT_BYTES", 4096)
    sizes = []
    resolve = MergeResolver.resolve

    def measure(self: MergeResolver, entries: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        found = resolve(self, entries)
        sizes.append(self._recent.size)
        return found

    monkeypatch.setattr(MergeResolver, "resolve", measure)
    with DatabaseWriter(directory) as writer:
        merging.capture()
        for number in range(300):
            writer.merge(b"key %d" % (number % 3), b"%100d" % number)
            if number % 10 == 0:
                writer.flush()
        writer.flush()
        merging.capture()
        rows = writer.scan()
        assert merging.state() == rows
    least = sum(map(len, rows.values()))
    assert least < max(sizes) < 3 * least  # all versions are 50 times as much


def add(key: bytes, existing: bytes | None, operand: bytes) -> bytes:
    return json.dumps({"n": (json.loads(existing)["n"] if existing else 0) + int(operand)}).encode()


def fail(key: bytes, existing: bytes | None, operand: bytes) -> bytes:
    raise ValueError(f"the value is {operand!r}")


def give_text(key: bytes, existing: bytes | None, operand: bytes) -> str:
    return "text"


constant = 1


def test_changes_have_operand_and_value(
    merging: Scene,
    directory: Path,  # noqa: F811
    database: Database,
    tmp_path: Path,
) -> None:
    """Values are decoded after the merge. The row before comes from sorted tables, the WAL, or does not exist."""
    merging = merging.with_source(merge_operator=f"{__name__}:add", value=ValueSettings("json", {"n": "int4"}))
    files, mirror = JsonLines(tmp_path / "files"), Mirror(database)
    drivers = [DeliveryDriver(place, merging.settings.store) for place in (files, mirror)]
    with DatabaseWriter(directory) as writer:
        writer.put(b"table", b'{"n": 100}')
        writer.flush_table()
        writer.put(b"gone", b'{"n": 1000}')
        merging.capture()
        writer.delete(b"gone")
        for key in (b"table", b"gone", b"new"):
            writer.merge(key, b"7")
            writer.merge(key, b"1")
        writer.put(b"new", b'{"n": 5}')
        writer.merge(b"new", b"2")
        writer.flush()
        merging.capture()
        for driver in drivers:
            merging.deliver(driver)
    with database.connect() as connection:
        rows = connection.execute("SELECT convert_from(key, 'UTF8'), n, operand FROM slatedb.users ORDER BY key")
        assert list(rows) == [("gone", 8, None), ("new", 7, None), ("table", 108, None)]
    changes = [
        (int(raw["after"]["n"].removeprefix("number ")), raw["after"]["operand"])
        for raw in files._lines()
        if raw["operation"] == "UPDATE"
    ]
    merges = [(n, bytes.fromhex(operand[2:])) for n, operand in changes if operand is not None]
    assert merges == [(107, b"7"), (108, b"1"), (7, b"7"), (8, b"1"), (7, b"7"), (8, b"1"), (7, b"2")]


def test_capture_continues_after_garbage_collection(merging: Scene, directory: Path) -> None:  # noqa: F811
    """The row before a merge is in the log alone: neither in the WAL nor in the checkpoint."""
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        merging.capture()
        writer.put(b"a", b"2")
        writer.merge(b"a", b"3")
        writer.flush()
        merging.capture()
        writer.collect_garbage()
        writer.merge(b"a", b"4")
        writer.flush()
        merging.capture()
        assert merging.state() == writer.scan() == {b"a": b"234"}


def test_operands_without_values_are_resolved_later(scene: Scene, directory: Path) -> None:  # noqa: F811
    """The operator is set after capture has logged operands alone."""
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        scene.with_source(merges="operands").capture()
        writer.merge(b"a", b"2")
        writer.flush()
        scene.with_source(merges="operands").capture()
        writer.merge(b"a", b"3")
        writer.flush()
        merging = scene.with_source(merge_operator=MERGE_OPERATOR)
        merging.capture()
        last = list(LogReader(scene.store).changes())[-1]
        assert last.after is not None
        assert (last.after["value"], last.after["operand"]) == (b"123", b"3")
        with pytest.raises(SinkRefused, match="0/2:0: the change is a merge") as raised:
            merging.state()
        assert "merge_operator" in raised.value.hint


def test_a_checkpoint_that_is_gone_needs_a_snapshot(merging: Scene, directory: Path) -> None:  # noqa: F811
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        merging.capture()
        _delete_checkpoint(merging)
        writer.merge(b"a", b"2")
        writer.flush()
        merging.capture()  # sorted tables are behind the log: a new checkpoint serves as well
        assert merging.state() == writer.scan()
        _delete_checkpoint(merging)
        writer.merge(b"a", b"3")
        writer.flush_table()
        with pytest.raises(GapError, match="merges after 0/3 cannot be resolved") as raised:
            merging.capture()
        assert "--accept-gap" in raised.value.hint
        merging.capture(accept_gap=True)
        writer.merge(b"a", b"4")
        writer.flush()
        merging.capture()
        assert merging.state() == writer.scan() == {b"a": b"1234"}


def test_checkpoints_of_a_process_that_was_killed_are_deleted(
    merging: Scene,
    directory: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with DatabaseWriter(directory) as writer:
        writer.merge(b"a", b"1")
        writer.flush()
        merging.capture()
        database, used = open_database(_source(merging)), _checkpoint_id(merging)
        # As if it was killed before the log named newer ones.
        next = database.create_checkpoint(follows=used)
        last = database.create_checkpoint(follows=next.id)
        of_another_log = database.create_checkpoint()
        others = {database.create_checkpoint(follows=of_another_log.id).id, of_another_log.id}
        assert database.related_checkpoints(used) == {next.id, last.id}
        merging.capture()
        assert database.related_checkpoints(used) == {next.id, last.id}, "another capture may run"
        writer.merge(b"a", b"2")
        writer.flush()
        merging.capture()
        assert database.related_checkpoints(used) == set()
        assert {id for id in others | {used} if database.find_checkpoint(id) is not None} == others | {used}
        # As if it was killed after the log named a newer one.
        writer.flush_table()
        with monkeypatch.context() as patch:
            patch.setattr(merge_resolver, "_LEAST_MOVE_S", 0.0)
            patch.setattr(merge_resolver, "_MOVE_S", 0.0)
            patch.setattr(SlateDatabase, "delete_checkpoint", lambda *_: None)
            writer.merge(b"a", b"3")
            writer.flush()
            merging.capture()
        newer = _checkpoint_id(merging)
        assert used in database.related_checkpoints(newer)
        writer.merge(b"a", b"4")
        writer.flush()
        merging.capture()
        assert database.related_checkpoints(newer) == set()
        assert merging.state() == writer.scan() == {b"a": b"1234"}


def _delete_checkpoint(scene: Scene) -> None:  # noqa: F811
    database = open_database(_source(scene))
    assert database.find_checkpoint(_checkpoint_id(scene)) is not None
    database.delete_checkpoint(_checkpoint_id(scene))


def _source(scene: Scene) -> SlateDbSettings:  # noqa: F811
    assert scene.settings.slatedb is not None
    return scene.settings.slatedb


def _checkpoint_id(scene: Scene) -> str:  # noqa: F811
    """The checkpoint that the log's end names."""
    last = LogReader(scene.store).last()
    header = last.metadata() if last is not None else None
    assert header is not None
    assert header.resume is not None
    id = ResumeToken.parse(header.resume).checkpoint
    assert id is not None
    return id


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        ("no_such_module:append", "'no_such_module:append' cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:no_such_name", "cannot be imported: AttributeError"),
        (f"{__name__}:constant", "is not a function, but int"),
    ],
)
def test_an_operator_must_be_a_function(scene: Scene, directory: Path, operator: str, message: str) -> None:  # noqa: F811
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
    with pytest.raises(ConfigError, match=message):
        scene.with_source(merge_operator=operator).capture()
    (finding,) = inspect_slatedb(scene.with_source(merge_operator=operator).settings)
    assert message in finding.message


@pytest.mark.parametrize("is_in_tables", [False, True])
@pytest.mark.parametrize(("name", "what"), [("fail", "raised ValueError"), ("give_text", "returned str, not bytes")])
def test_an_operator_that_fails_stops_capture(
    scene: Scene,  # noqa: F811
    directory: Path,  # noqa: F811
    name: str,
    what: str,
    is_in_tables: bool,
) -> None:
    scene = scene.with_source(merge_operator=f"{__name__}:{name}")
    with DatabaseWriter(directory) as writer:
        writer.merge(b"secret key", b"secret value")
        if is_in_tables:
            writer.flush_table()
        else:
            writer.flush()
        with pytest.raises((SourceRefused, AssertionError)) as raised:
            scene.capture()
    error = raised.value
    text = str(error) + getattr(error, "hint", "")
    assert what in text
    assert "secret value" not in text
