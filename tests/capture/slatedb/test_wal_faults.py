"""What a stream of WAL files notices: files that are gone, writes past the WAL, another database in the same place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore
from tests.capture.slatedb.database_writer import DatabaseWriter
from tests.capture.slatedb.test_capture import Scene, directory, scene  # noqa: F401 (fixtures)
from tests.slatedb.test_wal_reader import LateStore

from slatedb import uniffi
from tailrace.capture.capture import Capture
from tailrace.capture.slatedb import database as slate_database
from tailrace.capture.slatedb import wal_stream
from tailrace.capture.slatedb.check import inspect_slatedb, slatedb_status
from tailrace.capture.slatedb.database import Manifest, SlateDatabase
from tailrace.capture.slatedb.session import open_wal
from tailrace.capture.slatedb.wal_converter import ResumeToken, WalPortion
from tailrace.capture.slatedb.wal_stream import WalStream
from tailrace.errors import GapError, SourceError, WrongSource
from tailrace.finding import can_run
from tailrace.settings.slatedb import SlateDbSettings
from tailrace.slatedb.wal_reader import WalReader


def stream_of(scene: Scene) -> WalStream:  # noqa: F811
    """A stream from the first file on."""
    source = scene.settings.slatedb
    assert source is not None
    return WalStream(open_wal(source), ResumeToken(0), 0, SlateDatabase(source))


def drain(stream: WalStream) -> None:
    while stream.receive().portions:
        pass


def poll_until_it_fails(stream: WalStream) -> None:
    for _ in range(1000):
        stream.receive()


def write_past_the_wal(directory: Path) -> None:  # noqa: F811
    with DatabaseWriter(directory, wal_enabled=False) as writer:
        writer.put(b"past", b"the WAL")
        writer.put(b"a", b"2")
        writer.flush_table()


def test_writes_past_the_wal_need_a_snapshot(scene: Scene, directory: Path) -> None:  # noqa: F811
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        scene.capture()
    write_past_the_wal(directory)
    with pytest.raises(GapError, match="did not go through the WAL") as raised:
        Capture(scene.settings, scene.store).run()
    assert "--accept-gap" in raised.value.hint
    scene.capture(accept_gap=True)
    assert scene.state() == {b"a": b"2", b"past": b"the WAL"}
    scene.assert_sound()


def test_writes_past_the_wal_are_noticed_after_it_was_switched_on_again(scene: Scene, directory: Path) -> None:  # noqa: F811
    """Capture looks when everything in sorted tables seems to be in the WAL as well."""
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        scene.capture()
    write_past_the_wal(directory)
    with DatabaseWriter(directory) as writer:
        writer.put(b"b", b"3")
        writer.flush_table()
        for _ in range(2):
            with pytest.raises(GapError, match="up to sequence number 3, but its WAL ended at 1"):
                scene.capture()
        scene.capture(accept_gap=True)
        writer.put(b"c", b"4")
        writer.flush()
        scene.capture()
        assert scene.state() == writer.scan()
    scene.assert_sound()


def test_accepting_a_gap_that_is_none_changes_nothing(scene: Scene, directory: Path) -> None:  # noqa: F811
    with DatabaseWriter(directory) as writer:
        scene.capture()
        for number in range(3):
            writer.put(b"a", b"%d" % number)
            writer.flush()
        writer.flush_table()
        scene.capture(accept_gap=True)
        assert scene.state() == writer.scan()
    headers = [file.metadata() for file in scene.reader().list()]
    assert [header.gap_from for header in headers if header is not None and header.gap_from is not None] == []


def test_transactions_that_were_given_up_are_no_gap(scene: Scene, directory: Path) -> None:  # noqa: F811
    """They use a sequence number too, here the last one of a writer and the first one of the next."""
    with DatabaseWriter(directory) as writer:
        scene.capture()
        for _ in range(2):
            writer.put(b"a", b"1")
            writer.flush()
            give_up_a_transaction(writer)
    for is_in_tables in (False, True):
        with DatabaseWriter(directory) as writer:
            give_up_a_transaction(writer)
            writer.put(b"b", b"2")
            writer.flush()
            if is_in_tables:
                writer.flush_table()
            scene.capture()
            assert scene.state() == writer.scan()


def give_up_a_transaction(writer: DatabaseWriter) -> None:
    async def work() -> None:
        first, second = [await writer.db.begin(uniffi.IsolationLevel.SNAPSHOT) for _ in range(2)]
        await first.put(b"x", b"1")
        await second.put(b"x", b"2")
        await first.commit()
        with pytest.raises(uniffi.Error, match="conflict"):
            await second.commit()

    writer.run(work())


@pytest.mark.parametrize("is_followed", [True, False])
def test_garbage_collection_overtakes_a_stream(
    scene: Scene,  # noqa: F811
    directory: Path,  # noqa: F811
    is_followed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files are removed after they were listed. The last of them is missed by comparing with the manifest."""
    monkeypatch.setattr(wal_stream, "_BUSY_S", 0.0)
    with DatabaseWriter(directory) as writer:
        for number in range(30):
            writer.put(b"a", b"%d" % number)
            writer.flush()
        stream = stream_of(scene)
        assert stream.receive().portions
        writer.collect_garbage()
        if is_followed:
            writer.put(b"a", b"last")
            writer.flush()
        with pytest.raises(GapError, match=r"WAL files \d+ to \d+ were removed by garbage collection") as raised:
            poll_until_it_fails(stream)
        assert "--accept-gap" in raised.value.hint


def test_removed_files_are_a_gap_even_if_none_follows(scene: Scene, directory: Path) -> None:  # noqa: F811
    """SlateDB leaves its last file, but a lifecycle rule of a bucket may not."""
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        scene.capture()
        writer.put(b"a", b"2")
        writer.flush()
        writer.flush_table()
        for path in (directory / "wal").iterdir():
            path.unlink()
        assert "removed by garbage collection" in str(slatedb_status(scene.settings, scene.store).error)
        with pytest.raises(GapError, match="removed by garbage collection"):
            scene.capture()
        scene.capture(accept_gap=True)
        writer.put(b"b", b"3")
        writer.flush()
        scene.capture()
        assert scene.state() == writer.scan() == {b"a": b"2", b"b": b"3"}


def test_removed_files_that_the_log_has_are_reported_as_no_gap(scene: Scene, directory: Path) -> None:  # noqa: F811
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        scene.capture()
    for _ in range(2):
        with DatabaseWriter(directory) as writer:
            writer.collect_garbage()
    assert slatedb_status(scene.settings, scene.store).error is None
    assert can_run(inspect_slatedb(scene.settings))
    scene.capture()


class NoManifests:
    def newest(self) -> Manifest:
        return Manifest(0, 0, 0)

    def newest_first(self) -> Iterator[Manifest]:
        yield self.newest()


def test_a_store_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The binding itself repeats its requests for ever."""
    monkeypatch.setattr(slate_database, "_TIMEOUT_S", 0.5)
    options = {"endpoint": "http://127.0.0.1:1", "access_key_id": "a", "secret_access_key": "b", "region": "c"}
    database = SlateDatabase(SlateDbSettings(url="s3://bucket/db", name="users", options=options))
    with pytest.raises(SourceError, match="did not respond") as raised:
        database.create_checkpoint()
    assert raised.value.retry


def test_a_file_that_appears_during_the_listing_is_no_gap() -> None:
    backend = MemoryStore()
    obstore.put(backend, "wal/00000000000000000009.sst", b"")
    reader = WalReader("", LateStore(backend, "wal/00000000000000000008.sst"))
    stream = WalStream(reader, ResumeToken(7), 0, NoManifests())
    portions = [portion for _ in range(2) for portion in stream.receive().portions]
    tokens = [portion.resume for portion in portions if isinstance(portion, WalPortion)]
    assert [ResumeToken.parse(token).wal_id for token in tokens if token is not None] == [8, 9]
    with pytest.raises(GapError, match="WAL files 6 to 7 were removed"):
        WalStream(reader, ResumeToken(5), 0, NoManifests())


@pytest.mark.parametrize("has_more_files", [True, False])
def test_a_database_made_anew_is_noticed_while_capture_runs(
    scene: Scene,  # noqa: F811
    directory: Path,  # noqa: F811
    has_more_files: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its next file fits by id and sequence number; or it has none yet."""
    monkeypatch.setattr(wal_stream, "_BUSY_S", 1e9 if has_more_files else 0.0)
    monkeypatch.setattr(wal_stream, "_MANIFEST_S", 0.0)
    with DatabaseWriter(directory) as writer:
        writer.put(b"a", b"1")
        writer.flush()
        stream = stream_of(scene)
        drain(stream)
    other = directory.with_name("another")
    with DatabaseWriter(other) as writer:
        for number in range(9):
            writer.put(b"a", b"%d" % number)
        writer.flush()
        if has_more_files:
            writer.put(b"b", b"1")
            writer.flush()
    directory.rename(directory.with_name("first"))
    other.rename(directory)
    with pytest.raises(WrongSource, match="the database was made anew"):
        poll_until_it_fails(stream)
