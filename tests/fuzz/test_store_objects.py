"""Damaged segments, snapshots and settings: each gets an error that says so, and never gives a wrong row."""

from __future__ import annotations

import hashlib
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.capturing import configured
from tests.fixtures.postgres import Database
from tests.fuzz.mutation import ROUNDS, mutations
from tests.log.stream import Server, write

from tailrace import settings
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.change import Change
from tailrace.cli.init import TEMPLATE
from tailrace.errors import ConfigError, CorruptError, TailraceError
from tailrace.log import segment
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import FileStore


def seed_of(key: str) -> int:
    return zlib.crc32(key.encode())


def test_every_damage_to_a_segment_is_noticed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    write(store, Server(seed=4).work(20), most=30)
    keys = [info.key for info in store.list("log")]
    assert len(keys) > 3
    for key in keys:
        data = store.get(key)
        assert data is not None
        assert segment.unpack(data, key)
        for damaged in mutations(seed_of(key), data, ROUNDS // 3):
            with pytest.raises(CorruptError):
                segment.unpack(damaged, key)
            tail = segment_headers(damaged, key)
            assert tail in (None, segment_headers(data, key)), "a header is the original one, or refused"


def test_objects_that_somebody_forged(tmp_path: Path) -> None:
    """With the right checksums, as anybody can make them: an object is refused, or it has what its headers say."""
    store = FileStore(tmp_path)
    write(store, Server(seed=6).work(20), most=30)
    memory = psutil.Process().memory_info().rss
    refused = 0
    for key in [info.key for info in store.list("log")][:3]:
        data = store.get(key)
        assert data is not None
        footer = segment._footer_offset(data, key)
        plain = data[: footer - segment._CHECKSUMS] + data[footer:]
        for damaged in mutations(seed_of(key), plain, ROUNDS):
            try:
                contents = segment.unpack(_forged(damaged), key)
            except CorruptError:
                refused += 1
                continue
            for content in contents:
                assert len(content.rows) == content.header.rows
    assert refused > ROUNDS
    assert psutil.Process().memory_info().rss - memory < 300 << 20


def _forged(plain: bytes) -> bytes:
    """A Parquet file as an object with the checksums that it needs."""
    footer = max(len(plain) - 8 - int.from_bytes(plain[-8:-4], "little"), 0)
    body, rest = plain[:footer], plain[footer:]
    return b"".join((body, hashlib.sha256(body).digest(), hashlib.sha256(rest).digest(), rest))


def segment_headers(data: bytes, key: str) -> object:
    """What the planner reads from the end of an object; None if it is refused."""
    try:
        found = segment.unpack_headers(data, key)
    except CorruptError:
        return None
    # The reader refuses an object that is said to end in more bytes than it has.
    return None if isinstance(found, int) and found > len(data) else found


def test_a_reader_never_returns_a_wrong_change(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    server = Server(seed=5).work(30)
    write(store, server, most=30)
    captured = list(LogReader(store).changes())
    keys = [info.key for info in store.list("log")]
    for number, key in enumerate(keys):
        data = store.get(key)
        assert data is not None
        for damaged in mutations(number, data, max(ROUNDS // 30, 2)):
            store.replace(key, damaged)
            found: list[Change] = []
            with suppress(TailraceError):
                found.extend(LogReader(store).changes())
                pytest.fail(f"{key}: the damage was not noticed")
            assert found == captured[: len(found)]
        store.replace(key, data)
    assert list(LogReader(store).changes()) == captured


def test_damaged_metadata_of_a_snapshot(tmp_path: Path, database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t SELECT i, 'x' FROM generate_series(1, 9) i"
    )
    database.execute("CREATE PUBLICATION tailrace FOR TABLE t")
    store = FileStore(tmp_path)
    job = SnapshotJob(replace(configured(database), store=settings.StoreSettings(tmp_path.as_uri())))
    job.start()
    assert job.wait(60)
    assert job.error is None
    (key,) = [info.key for info in store.list("snapshots") if info.key.endswith("meta.json")]
    data = store.get(key)
    assert data is not None
    original = SnapshotReader(store).list()
    for damaged in mutations(1, data):
        store.replace(key, damaged)
        try:
            found = SnapshotReader(store).list()
        except TailraceError:
            continue
        assert found == original, damaged


def test_damaged_settings(tmp_path: Path) -> None:
    path = tmp_path / "tailrace.toml"
    lines = [line.removeprefix("# ") if " = " in line else line for line in TEMPLATE.splitlines()]
    refused = 0
    for damaged in mutations(3, "\n".join(lines).encode()):
        path.write_bytes(damaged)
        try:
            settings.load(path, {})
        except ConfigError:
            refused += 1
    assert refused > ROUNDS // 3
