"""Backups hold what PostgreSQL's manifest says, build on each other, and expire without breaking a chain."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.fixtures.postgres import running
from tests.fixtures.store import StoreAddress
from tests.recovery.scene import ArchiveThread, archive_all, back_up, configured, new_directory

from tailrace.change import Lsn
from tailrace.cli import main
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, CorruptError, SourceError, SourceRefused
from tailrace.recovery import backup_record, compressed_object
from tailrace.recovery.backup import is_covered, take_backup
from tailrace.recovery.backup_reader import BackupReader, verify
from tailrace.recovery.backup_record import BackupFile, BackupRecord, chain, list_backups
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.expiry import plan_expiry
from tailrace.recovery.wal_archive import WalArchive
from tailrace.settings import ArchiveSettings, Settings, SourceSettings
from tailrace.store import Store

_CHAIN = 4


@dataclass
class BackedUp:
    server: Postgres
    store: Store
    records: list[BackupRecord]


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackedUp]:
    """A full backup and incremental ones, with a tablespace, and files that grow, shrink, go and come in between."""
    store = Store.open(str(tmp_path_factory.mktemp("store")))
    with running(18, summarize_wal=True, autovacuum=False) as server, server.connect() as connection:
        space = new_directory(server.directory, "space")
        connection.execute(f"CREATE TABLESPACE space LOCATION '{space}'".encode())
        connection.execute("CREATE ROLE copier LOGIN REPLICATION")
        records = []
        with ArchiveThread(configured(server, synchronous=True), store):
            for number in range(_CHAIN):
                _change(connection, number)
                records.append(back_up(server, store, "incremental" if number else "full"))
        yield BackedUp(server, store, records)


def _change(connection: Any, number: int) -> None:
    run = connection.execute
    if number == 0:
        run("CREATE TABLE large AS SELECT n, md5(n::text) note FROM generate_series(1, 60000) n")
        run("CREATE TABLE shrinking AS SELECT n, md5(n::text) note FROM generate_series(1, 20000) n")
        run("CREATE TABLE moved TABLESPACE space AS SELECT n FROM generate_series(1, 5000) n")
        run("CREATE TABLE dropped TABLESPACE space AS SELECT 1 n")
        run("VACUUM (FREEZE) shrinking")  # so that later only its end changes
        return
    run(f"UPDATE large SET note = 'changed' WHERE n % 5000 = {number}".encode())
    if number == 1:
        run("DELETE FROM shrinking WHERE n > 15000")
        run("VACUUM (TRUNCATE) shrinking")
        run("DROP TABLE dropped")
        run("INSERT INTO moved SELECT n FROM generate_series(1, 5000) n")
    if number == 2:
        run("INSERT INTO shrinking SELECT n, 'again' FROM generate_series(1, 9000) n")
        run("CREATE TABLE later TABLESPACE space AS SELECT n FROM generate_series(1, 3000) n")
        run("VACUUM moved")
    if number == 3:
        run("TRUNCATE later")
        run("INSERT INTO large SELECT n, 'more' FROM generate_series(1, 30000) n")


def test_chain_becomes_what_pg_combinebackup_makes_of_it(backed_up: BackedUp, workspace: Path) -> None:
    for length in range(2, _CHAIN + 1):
        records = chain(backed_up.records[length - 1], list_backups(backed_up.store))
        assert [record.id for record in records] == [record.id for record in backed_up.records[:length]]
        (tablespace,) = records[-1].tablespaces
        ours = workspace / f"ours{length}"
        copy = DataDirectory(new_directory(workspace, ours.name), {tablespace.oid: workspace / f"space{length}"})
        copy.prepare()
        copy.write(backed_up.store, records)
        theirs = _combine(backed_up, records, workspace / str(length), tablespace.oid)
        assert _content(ours) == _content(theirs)
        assert any(path.startswith("pg_tblspc/") and content for path, content in _content(ours).items())


def test_the_index_of_a_backup_is_not_trusted(
    backed_up: BackedUp, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(**changes: Any) -> DataDirectory:
        def read(store: Store, id_: str) -> list[BackupFile]:
            files = backup_record.read_index(store, id_)
            return [dataclasses.replace(f, **changes) if f.path == "PG_VERSION" else f for f in files]

        monkeypatch.setattr("tailrace.recovery.backup_reader.read_index", read)
        copy = DataDirectory(new_directory(workspace, f"planted{len(list(workspace.iterdir()))}"))
        copy.prepare()
        copy.write(backed_up.store, backed_up.records[:1])
        return copy

    restored = planted(mode=0o104777)
    assert (restored.path / "PG_VERSION").stat().st_mode & 0o7777 == 0o770
    for path in ("../outside", "/tmp/outside", "base/../../outside"):
        with pytest.raises(CorruptError):
            planted(path=path)
    assert not (workspace / "outside").exists()


def test_a_claimed_size_takes_no_memory() -> None:
    data = bytearray(compressed_object.compress(b"content"))
    data[-40:-32] = (1 << 62).to_bytes(8, "little")
    with pytest.raises(CorruptError, match="claims to hold"):
        compressed_object.decompress(bytes(data), "the object")


@pytest.mark.parametrize("content", [b"raw content", b"compressed content " * 200], ids=["raw", "compressed"])
def test_no_damaged_byte_passes(content: bytes) -> None:
    data = compressed_object.compress(content)
    assert compressed_object.decompress(data, "the object") == content
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        try:
            found = compressed_object.decompress(bytes(damaged), "the object")
        except CorruptError:
            continue
        assert found == content, place  # the length of the skippable frame, which is not read


def _combine(backed_up: BackedUp, records: list[BackupRecord], directory: Path, oid: int) -> Path:
    """Write each backup as pg_basebackup would have, and have PostgreSQL combine them."""
    directory.mkdir()
    for number, record in enumerate(records):
        _write_plain(backed_up.store, record, directory / str(number), directory / f"space{number}", oid)
    combined, space = directory / "combined", directory / "space"
    command: list[str | Path] = [backed_up.server.bin("pg_combinebackup"), "--no-sync", "--no-manifest", "-o", combined]
    command += ["-T", f"{directory / f'space{len(records) - 1}'}={space}"]
    command += [directory / str(number) for number in range(len(records))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return combined


def _write_plain(store: Store, record: BackupRecord, directory: Path, space: Path, oid: int) -> None:
    reader = BackupReader(store, record)
    (directory / "pg_tblspc").mkdir(parents=True)
    space.mkdir()
    (directory / "pg_tblspc" / str(oid)).symlink_to(space)
    contents: dict[str, bytearray] = {}

    def open_file(file: BackupFile) -> Any:
        contents[file.path] = bytearray()
        return contents[file.path].extend

    reader.read(None, open_file)
    for file in reader.files:
        path = directory / file.path
        if file.kind == "directory":
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[file.path])
    (directory / "backup_manifest").write_bytes(backup_record.read_manifest(store, record.id))


def _content(directory: Path) -> dict[str, bytes | None]:
    """All files and directories under a data directory and in its tablespaces."""
    found: dict[str, bytes | None] = {}
    for root, directories, files in os.walk(directory, followlinks=True):
        for name in (*directories, *files):
            path = Path(root) / name
            found[str(path.relative_to(directory))] = None if path.is_dir() else path.read_bytes()
    return found


def test_verify_reads_every_object_and_finds_any_damage(backed_up: BackedUp) -> None:
    store = backed_up.store
    for record in backed_up.records:
        verify(store, record)
    full = backed_up.records[0]
    for key in sorted(info.key for info in store.list(full.prefix) if not info.key.endswith("meta.json")):
        content = store.get(key)
        assert content is not None
        for damaged in (None, content[:-1], content[:200] + bytes([content[200] ^ 1]) + content[201:]):
            store.delete(key)
            if damaged is not None:
                store.create(key, damaged)
            with pytest.raises(CorruptError):
                verify(store, full)
        store.replace(key, content)
    # An intact object in the wrong place.
    first, second = (backup_record.data_key(full.id, number) for number in (0, 1))
    content = store.get(first)
    assert content is not None
    store.replace(first, store.get(second) or b"")
    with pytest.raises(CorruptError, match="differs from the manifest"):
        verify(store, full)
    store.replace(first, content)
    verify(store, full)


def test_commands_list_verify_and_expire(backed_up: BackedUp) -> None:
    env = {"TAILRACE_STORE_URL": backed_up.store.url}

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["backup", *arguments], env=env)
        assert done.exit_code == 0, done.output
        return done.stdout

    assert [line.split()[-2:] for line in run("ls").splitlines()] == [["not", "verified"]] * _CHAIN
    full = backed_up.records[0]
    assert "files match the manifest" in run("verify", full.id)
    assert "verified 2" in run("ls").splitlines()[0]
    shown = CliRunner().invoke(main, ["backup", "expire", "--keep", "1m"], env=env, input="n\n").stdout
    assert "segment of WAL, 000000010000000000000001 to " in shown
    assert "backup " not in shown, "the only full backup stays, with what builds on it"
    assert shown.endswith("nothing was removed\n")
    assert "removed 0 backups" in run("expire", "--keep", "1m", "--yes")
    assert run("expire", "--keep", "1m", "--yes") == "nothing to remove\n"
    assert all(is_covered(WalArchive.require(backed_up.store), record) for record in backed_up.records)
    missing = CliRunner().invoke(main, ["backup", "verify", "no-such-backup"], env=env)
    assert missing.exit_code == 2


def test_a_role_with_replication_suffices_and_a_backup_counts_once_the_archive_covers_it(
    backed_up: BackedUp, file_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(*file_address)
    copier = Settings(
        source=SourceSettings(url=backed_up.server.url_of("postgres", "copier")),
        archive=ArchiveSettings(slot="copier", synchronous=True),
    )
    with monkeypatch.context() as context:
        context.setattr("tailrace.recovery.backup._ARCHIVE_SECONDS", 0)
        with pytest.raises(ConfigError, match="has no archive"):
            take_backup(copier, store)
    with ThreadPoolExecutor() as pool:
        early = pool.submit(take_backup, copier, store)
        assert not wait_until(early.done, 0.3), "it waits for the archive"
        with ArchiveThread(copier, store):
            early.result(60)
    record = take_backup(copier, store)
    assert not is_covered(WalArchive.require(store), record)
    with ArchiveThread(copier, store):
        assert wait_until(lambda: is_covered(WalArchive.require(store), record), 30)
    verify(store, record)
    with backed_up.server.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot('copier')")


def test_a_backup_that_begins_before_the_archive_is_refused(backed_up: BackedUp, file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    archive_all(backed_up.server, store)
    archive = WalArchive.require(store)
    for stored in archive.segments[:-1]:
        store.delete(stored.segment.key)
    assert archive.last is not None
    later = dataclasses.replace(archive.last.segment, number=archive.last.segment.number + 1000)
    store.create(later.key, b"as if the archive had begun here")
    for info in store.list(archive.last.segment.parts_prefix):
        store.delete(info.key)
    with pytest.raises(SourceError, match="before the archive"):
        take_backup(configured(backed_up.server), store)
    assert not list(store.list(backup_record.PREFIX))


def test_an_interrupted_backup_leaves_nothing(backed_up: BackedUp) -> None:
    before = [info.key for info in backed_up.store.list(backup_record.PREFIX)]
    calls = iter(range(100))
    with pytest.raises(SourceError, match="cancelled"):
        take_backup(configured(backed_up.server), backed_up.store, is_cancelled=lambda: next(calls) > 2)
    assert [info.key for info in backed_up.store.list(backup_record.PREFIX)] == before


def test_incremental_backups_need_17(file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    with running(16) as server:
        archive_all(server, store)
        with pytest.raises(SourceRefused, match="incremental backups need 17"):
            take_backup(configured(server), store, "incremental")


@pytest.mark.parametrize("seed", range(200))
def test_expiry_breaks_no_chain_and_keeps_every_moment_of_the_window(seed: int) -> None:
    rng = random.Random(seed)
    now = datetime(2026, 11, 18, tzinfo=UTC)
    records: list[BackupRecord] = []
    for number in range(rng.randint(1, 14)):
        parent = rng.choice(records[-3:]).id if records and rng.random() < 0.6 else None
        records.append(_record(number, parent, now - timedelta(days=30 - 2 * number)))
    counting = {record.id: rng.random() < 0.9 for record in records}
    verified = {record.id: rng.random() < 0.5 for record in records}
    begins = now - timedelta(days=rng.randint(0, 35))
    removed = plan_expiry(records, counting, verified, begins)
    gone = {record.id for record in removed}
    stay = [record for record in records if record.id not in gone]

    for record in stay:
        assert not gone & {link.id for link in chain(record, records)}, "a chain is broken"
    order = [record.start_lsn for record in removed]
    assert order == sorted(order, reverse=True), "a backup goes before those that it builds on"
    assert not removed or any(record.parent is None and verified[record.id] for record in stay)
    # The moment at which the window begins, if it could be restored before, still can be.
    possible = [record for record in records if counting[record.id] and record.ended_at <= begins]
    if possible:
        assert any(counting[record.id] and record.ended_at <= begins for record in stay)
    assert not [record for record in removed if record.ended_at > begins and record.parent is None]


def _record(number: int, parent: str | None, at: datetime) -> BackupRecord:
    return BackupRecord(
        id=f"backup{number:02}",
        system_id="1",
        server_version=180000,
        timeline=1,
        start_lsn=Lsn(number * 1000),
        end_lsn=Lsn(number * 1000 + 10),
        started_at=at,
        ended_at=at,
        parent=parent,
        chunk_bytes=1,
        block_bytes=8192,
        size=1,
        stored_bytes=1,
        files=1,
        role="postgres",
    )
