"""Capture of SlateDB: whatever happens to writer, WAL and capture, the destinations equal the database's own scan."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.capture.slatedb.database_writer import MERGE_OPERATOR, DatabaseWriter, RandomWrites
from tests.capturing import CaptureThread
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.destinations import JsonLines, Mirror
from tests.fixtures.postgres import Database
from tests.stepping import in_order

from slatedb import uniffi
from tailrace import settings
from tailrace.capture.capture import Capture
from tailrace.capture.slatedb import wal_converter, wal_stream
from tailrace.capture.slatedb.bootstrap import SlateDbBootstrap
from tailrace.capture.slatedb.check import inspect_slatedb, slatedb_status
from tailrace.capture.slatedb.database import SlateDatabase
from tailrace.capture.slatedb.expiry import expiry_ms
from tailrace.capture.slatedb.session import SlateDbSession
from tailrace.capture.slatedb.wal_converter import ResumeToken
from tailrace.capture.slatedb.wal_stream import WalStream
from tailrace.change import Lsn
from tailrace.delivery.lag import LagMeter
from tailrace.errors import DecodeError, GapError, SinkRefused, SourceRefused, WrongSource
from tailrace.finding import Severity, can_run
from tailrace.log import decoding, planner, source_record
from tailrace.log.change_text import to_json
from tailrace.log.decoding import ChangeFilter, TableChanges
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader, announcement
from tailrace.log.verify import verify
from tailrace.ops.probe import sink_statuses
from tailrace.settings.slatedb import SlateDbSettings, ValueSettings
from tailrace.sinks.nats.message_id import MessageIds
from tailrace.slatedb.wal_reader import WalReader
from tailrace.state import table_state
from tailrace.state.table_state import slices_between
from tailrace.store import Store

Rows = Mapping[bytes, bytes]


@dataclass
class Scene:
    """A database, and a log that it is captured into."""

    settings: settings.Settings
    store: Store

    def capture(self, *, accept_gap: bool = False, snapshots: bool = True) -> None:
        """Capture all that is in the WAL now, and take the snapshots that are missing."""
        bootstrap = SlateDbBootstrap(self.settings, self.store) if snapshots else None
        try:
            Capture(self.settings, self.store, until="current", accept_gap=accept_gap, snapshots=bootstrap).run()
            if bootstrap is not None:
                assert bootstrap.wait(60)
                assert bootstrap.error is None
        finally:
            if bootstrap is not None:
                bootstrap.stop()

    def written_lsn(self) -> Lsn:
        """The position after all that the WAL has now."""
        assert self.settings.slatedb is not None
        return SlateDbSession(self.settings.slatedb, self.store, None).current_lsn()

    def reader(self) -> LogReader:
        return LogReader(self.store)

    def has_snapshot(self) -> bool:
        return bool(SnapshotReader(self.store).list())

    def state(self) -> dict[bytes, bytes]:
        """The rows of snapshot and log."""
        return {key: value for key, (value, _) in self.state_with_expiry().items()}

    def state_with_expiry(self) -> dict[bytes, tuple[bytes, int | None]]:
        reader = self.reader()
        state = table_state.find(reader, "slatedb", "users")
        found: dict[bytes, tuple[bytes, int | None]] = {}
        for part in range(2):
            for images in table_state.rows(state, reader, part, 2):
                batch = images.batch
                expiries = expiry_ms(batch["expires_at"]).to_pylist()
                values = zip(batch["value"].to_pylist(), expiries, strict=True)
                rows = dict(zip(batch["key"].to_pylist(), values, strict=True))
                assert not rows.keys() & found.keys()
                found |= rows
        return found

    def deliver(self, driver: DeliveryDriver) -> None:
        driver.deliver(planner.latest_offset(LogReader(self.store)), in_order)

    def assert_sound(self) -> None:
        assert list(verify(self.store)) == []

    def with_source(self, **changes: Any) -> Scene:
        assert self.settings.slatedb is not None
        return Scene(replace(self.settings, slatedb=replace(self.settings.slatedb, **changes)), self.store)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    store = Store.open((tmp_path / "store").as_uri())
    source = SlateDbSettings(url=(tmp_path / "db").as_uri(), name="users")
    return Scene(
        settings.Settings(
            store=settings.StoreSettings(store.url),
            capture=settings.CaptureSettings(seal_after_ms=5),
            snapshot=settings.SnapshotSettings(chunk_bytes=64 * 1024),
            slatedb=source,
        ),
        store,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "db"


def mirrored(database: Database) -> dict[bytes, bytes]:
    with database.connect() as connection:
        return {bytes(key): bytes(value) for key, value in connection.execute("SELECT key, value FROM slatedb.users")}


def replayed(files: JsonLines) -> dict[bytes, bytes]:
    """The rows that the changes in the files add up to."""
    found: dict[bytes, bytes] = {}
    for raw in sorted(files._lines(), key=lambda raw: raw["operation"] != "SNAPSHOT"):
        if raw["operation"] == "DELETE":
            found.pop(_bytes(raw["key"]["key"]), None)
        else:
            found[_bytes(raw["after"]["key"])] = _bytes(raw["after"]["value"])
    return found


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_destinations_equal_the_scan(
    seed: int, scene: Scene, directory: Path, database: Database, tmp_path: Path
) -> None:
    files = JsonLines(tmp_path / "files")
    drivers = [DeliveryDriver(place, scene.settings.store) for place in (Mirror(database), files)]
    writes = RandomWrites(seed)
    with DatabaseWriter(directory) as writer:
        writes.run(writer, 60)
        for _ in range(3):
            scene.capture()
            for driver in drivers:
                scene.deliver(driver)
            expected = writer.scan()
            assert scene.state() == expected
            assert mirrored(database) == expected
            assert replayed(files) == expected
            writes.run(writer, 60)
    scene.assert_sound()
    (snapshot,) = SnapshotReader(scene.store).list()
    announced = announcement(scene.store)
    assert announced is not None
    assert json.loads(announced)["id"] == snapshot.id


def test_snapshots_under_load_are_exact(scene: Scene, directory: Path) -> None:
    """A snapshot is taken while the writer goes on, tables are compacted and garbage is collected."""
    writes = RandomWrites(5)
    with DatabaseWriter(directory, None, None, **BUSY_COMPACTION) as writer:
        writes.run(writer, 30)
        with CaptureThread(scene.settings, scene.store, snapshots=SlateDbBootstrap(scene.settings, scene.store)) as run:
            for _ in range(4):
                writes.run(writer, 30)
                bootstrap = SlateDbBootstrap(scene.settings, scene.store)
                bootstrap.begin(None, Lsn(1 << 62))  # no snapshot is new enough
                writes.run(writer, 30)
                assert bootstrap.wait(60)
                bootstrap.stop()
                run.wait_for(scene.written_lsn())
                writer.collect_garbage()
                assert scene.state() == writer.scan()
    scene.assert_sound()


def test_restart_of_capture_loses_and_repeats_nothing(scene: Scene, directory: Path) -> None:
    writes = RandomWrites(7)
    with DatabaseWriter(directory) as writer:
        for _ in range(3):
            with CaptureThread(scene.settings, scene.store) as run:
                writes.run(writer, 20)
                run.wait(lambda run=run: run.capture.progress.changes)
            writes.run(writer, 10)
        scene.capture()
        assert scene.state() == writer.scan()
    positions = [change.position for change in LogReader(scene.store).changes()]
    assert len(set(positions)) == len(positions)
    scene.assert_sound()


def test_batches_are_whole_transactions(scene: Scene, directory: Path) -> None:
    with DatabaseWriter(directory) as writer:
        scene.capture()
        writer.write({b"a": b"1", b"b": b"2", b"c": b"3"}, (b"d",))
        writer.flush()
        scene.capture()
    changes = list(LogReader(scene.store).changes())
    assert len({change.position.commit_lsn for change in changes}) == 1
    assert [change.position.ordinal for change in changes] == [0, 1, 2, 3]
    assert [change.operation for change in changes] == ["UPDATE", "UPDATE", "UPDATE", "DELETE"]


@pytest.mark.parametrize("has_merges", [False, True])
def test_files_that_are_read_in_pieces_give_the_same_log(
    scene: Scene, directory: Path, tmp_path: Path, has_merges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches begin in one piece and in one segment, and end in another. Capture restarts in the middle."""
    if has_merges:
        scene = scene.with_source(merge_operator=MERGE_OPERATOR)
    other = Store.open((tmp_path / "in pieces").as_uri())
    small = replace(scene.settings, store=settings.StoreSettings(other.url))
    in_pieces = Scene(replace(small, capture=settings.CaptureSettings(seal_after_ms=0, segment_bytes=2000)), other)
    writes = RandomWrites(13, has_merges=has_merges, has_ttl=False)
    with DatabaseWriter(directory, None, None, **BUSY_COMPACTION) as writer:
        scene.capture()
        in_pieces.capture()
        for _ in range(2):
            writes.run(writer, 40)
            scene.capture()
            with monkeypatch.context() as patch:
                patch.setattr(wal_converter, "_PIECE_BYTES", 150)
                in_pieces.capture()
        assert in_pieces.state() == writer.scan()
    whole, parts = ([to_json(c) for c in one.reader().changes()] for one in (scene, in_pieces))
    assert parts == whole
    headers = [file.metadata() for file in in_pieces.reader().list()]
    assert [h for h in headers if h is not None and h.rows and not h.ends_at_commit], "no batch spans segments"
    in_pieces.assert_sound()


def test_wal_in_a_store_of_its_own_is_captured(scene: Scene, directory: Path, tmp_path: Path) -> None:
    wal = tmp_path / "wal store"
    wal.mkdir()
    writes = RandomWrites(3)
    own = scene.with_source(wal_url=(wal / str(directory).strip("/")).as_uri())
    with DatabaseWriter(directory, wal) as writer:
        writes.run(writer, 40)
        with pytest.raises(SourceRefused, match="has no WAL file") as raised:
            scene.capture()
        assert "wal_url" in raised.value.hint
        own.capture()
        writes.run(writer, 40)
        own.capture()
        assert own.state() == writer.scan()


def test_removed_files_stop_capture_until_the_gap_is_accepted(
    scene: Scene, directory: Path, database: Database
) -> None:
    driver = DeliveryDriver(Mirror(database), scene.settings.store)
    writes = RandomWrites(11)
    with DatabaseWriter(directory) as writer:
        writes.run(writer, 30)
        scene.capture()
        scene.deliver(driver)
        writer.put(b"lost", b"in the gap")
        writes.run(writer, 30)
        writer.collect_garbage()
        writer.put(b"after", b"the gap")
        writer.flush()
        status = slatedb_status(scene.settings, scene.store)
        assert re.search(r"WAL files? \d+( to \d+)? (was|were) removed .*--accept-gap", str(status.error))
        assert not can_run(inspect_slatedb(scene.settings))
        with pytest.raises(GapError, match=r"WAL files? \d+( to \d+)? (was|were) removed") as raised:
            scene.capture()
        assert "--accept-gap" in raised.value.hint
        scene.capture(accept_gap=True)
        assert scene.state() == writer.scan()
        with pytest.raises(GapError):
            scene.deliver(driver)
        stepper = driver.make_stepper()
        stepper.rewind("snapshot")
        stepper.sink.close()
        scene.deliver(driver)
        assert mirrored(database) == writer.scan()
    assert len(SnapshotReader(scene.store).list()) == 2


def test_removed_files_that_the_log_has_are_no_gap(scene: Scene, directory: Path) -> None:
    """Openings of the database leave fences. Nothing is lost if garbage collection removes them."""
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        scene.capture()
        writer.collect_garbage()
    with DatabaseWriter(directory) as writer:
        writer.collect_garbage()
        writer.put(b"b", b"2")
        writer.flush()
        scene.capture()
        assert scene.state() == {b"a": b"1", b"b": b"2"}


def test_database_made_anew_is_noticed(scene: Scene, directory: Path) -> None:
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        scene.capture()
    shutil.rmtree(directory)
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"another")
        writer.flush()
        with pytest.raises(WrongSource, match="another database"):
            scene.capture()


def test_fenced_writer_that_is_still_alive_adds_nothing(scene: Scene, directory: Path) -> None:
    with DatabaseWriter(directory) as first:
        first.put(b"a", b"1")
        first.flush()
        scene.capture()
        with DatabaseWriter(directory) as second:
            first.is_fenced = True
            with pytest.raises(uniffi.Error):  # by either, depending on when it notices
                RandomWrites(1).run(first, 1)
            second.put(b"b", b"2")
            second.flush()
            scene.capture()
            assert scene.state() == second.scan() == {b"a": b"1", b"b": b"2"}


def test_an_idle_database_costs_one_request_a_poll_and_one_a_second(
    scene: Scene, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_stream, "_BUSY_S", 0.0)
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        assert scene.settings.slatedb is not None
        database = SlateDatabase(scene.settings.slatedb)
        reader = WalReader(directory.name, directory.parent.as_uri())
        stream = WalStream(reader, ResumeToken(0), 0, database)
        while stream.receive().portions:
            pass
        stream.receive()  # the first idle poll also compares the manifest
        before = reader.counters
        polls = 20
        for _ in range(polls):
            assert not stream.receive().portions
        after = reader.counters
        assert after.lists == before.lists
        assert after.heads + after.reads - before.heads - before.reads == polls
        assert stream._interval == 1.0, "it is asked once a second"
        writer.put(b"b", b"2")
        writer.flush()
        assert stream.receive().portions
        assert stream._interval < 0.05, "and often again after a write"
        stream.close(Lsn(0), Lsn(0))


def test_expiry_is_a_column(scene: Scene, directory: Path) -> None:
    with DatabaseWriter(directory) as writer:
        scene.capture()
        writer.put(b"a", b"1", ttl_ms=5000)
        writer.flush()
        scene.capture()
    (change,) = LogReader(scene.store).changes()
    assert change.after is not None
    expires_at = str(change.after["expires_at"])
    assert expires_at.startswith(f"{change.committed_at:%Y-}")
    assert expires_at.endswith("+00")


BUSY_COMPACTION = {
    "l0_sst_size_bytes": 4096,
    "manifest_poll_interval": "50ms",
    "compactor_options.poll_interval": "50ms",
    "compactor_options.commit_compacted_interval": "50ms",
    "compactor_options.worker.compactions_poll_interval": "50ms",
}

JSON_VALUES = ValueSettings(
    format="json", columns={"name": "text", "age": "int4", "paid": "numeric", "on": "bool", "tags": "jsonb"}
)


def test_values_are_decoded_to_columns(scene: Scene, directory: Path, database: Database) -> None:
    own = scene.with_source(value=JSON_VALUES)
    first = {"name": "Ada", "age": 36, "paid": 12.50, "on": True, "tags": ["x"], "other": 1}
    second = {"name": "Bo\u00e9 'q' \\", "age": None, "paid": 10**20}
    with DatabaseWriter(directory) as writer:
        writer.put(b"1", json.dumps(first).encode())
        writer.flush_table()
        own.capture()
        writer.put(b"2", json.dumps(second).encode())
        writer.flush()
        own.capture()
    own.deliver(DeliveryDriver(Mirror(database), own.settings.store))
    with database.connect() as connection:
        found = connection.execute(
            'SELECT name, age, paid::text, "on", tags FROM slatedb.users ORDER BY key'
        ).fetchall()
    assert found == [("Ada", 36, "12.5", True, ["x"]), ("Bo\u00e9 'q' \\", None, str(10**20), None, None)]


@pytest.mark.parametrize("value", [b"no json", b"[1]", b'{"age": 1.5}', b'{"age": 3000000000}', b'{"name": {}}'])
def test_values_that_cannot_be_decoded_stop_capture(scene: Scene, directory: Path, value: bytes) -> None:
    own = scene.with_source(value=JSON_VALUES)
    with DatabaseWriter(directory) as writer:
        own.capture()
        writer.put(b"fine", b'{"name": "x"}')
        writer.put(b"user:7", value)
        writer.flush()
        with pytest.raises(DecodeError, match=r"0/2:0, key user:7: the value is not json"):
            own.capture()
        lenient = scene.with_source(value=replace(JSON_VALUES, undecodable="null"))
        lenient.capture()
    last = list(LogReader(scene.store).changes())[-1]
    assert last.after == {
        "key": b"user:7",
        "value": value,
        "expires_at": None,
        "name": None,
        "age": None,
        "paid": None,
        "on": None,
        "tags": None,
    }


def test_merges_stop_capture_unless_operands_are_wanted(scene: Scene, directory: Path) -> None:
    with DatabaseWriter(directory) as writer:
        scene.capture()
        writer.put(b"a", b"1")
        writer.merge(b"a", b"+2")
        writer.flush()
        with pytest.raises(SourceRefused, match="merges") as raised:
            scene.capture()
        assert "operands" in raised.value.hint
        scene.with_source(merges="operands").capture()
    changes = list(LogReader(scene.store).changes())
    assert [(c.after or {}).get("operand") for c in changes] == [None, b"+2"]
    assert changes[1].unchanged == ("value",)
    with pytest.raises(SinkRefused, match="0/2:0: the change is a merge"):
        scene.state()


def test_what_sinks_of_changes_derive_from_lsns(scene: Scene, directory: Path) -> None:
    """Message ids are unique although a batch has one LSN, and nobody takes sequence numbers for bytes."""
    with DatabaseWriter(directory) as writer:
        for _ in range(2):
            writer.write({b"a": b"1", b"c": b"2", b"d": b"3"}, (b"b",))  # U D U U
        writer.flush()
        scene.capture()
    reader, ids = LogReader(scene.store), MessageIds(0)
    slices = slices_between(reader, Lsn(1), reader.end_lsn())
    found = [
        id
        for _, chunk in decoding.chunks(reader, slices, ChangeFilter(messages=False))
        for run in chunk
        if isinstance(run, TableChanges)
        for id in ids.of_changes(run).to_pylist()
    ]
    assert len(set(found)) == 8
    assert found[4:6] == ["2-users-update", "2-users-delete-1"]
    meter = LagMeter(scene.store)
    meter.follow()
    lag = meter.backlog("sink", Lsn(1)).lag(Lsn(1), time.time())
    assert lag.bytes is None
    assert lag.seconds is not None
    assert source_record.slot(scene.store) is None


def test_check_reports_the_wal(scene: Scene, directory: Path) -> None:
    assert not can_run(inspect_slatedb(scene.settings))
    (finding,) = inspect_slatedb(scene.with_source(url="http://example.org/db").settings)
    assert "unknown scheme 'http'" in finding.message
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush_table()
        assert can_run(inspect_slatedb(scene.settings)), "capture starts the log"
        scene.capture()
        (new,) = sink_statuses(scene.store, [{"name": "mirror", "type": "postgres"}])
        assert (new.lag_bytes, new.lag_seconds) == (None, None), "it lacks the snapshot"
        (finding,) = inspect_slatedb(scene.settings)
        assert finding.severity is Severity.NOTE
        status = slatedb_status(scene.settings, scene.store)
        assert status.error is None
        assert status.unread_age_s == 0.0
        assert status.oldest_wal_age_s is not None
        writer.put(b"a", b"2")
        writer.flush()
        assert slatedb_status(scene.settings, scene.store).unread_age_s is not None
