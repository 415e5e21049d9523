"""The reader lists, reads and follows WAL files, and notices when files are gone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore
from tests.fixtures.store import StoreAddress
from tests.slatedb import binding, fixed_write, read
from tests.slatedb.make_data import DATA

from tailrace import WalReader
from tailrace.embedded.process import wait_until
from tailrace.errors import CorruptError, StoreRefused
from tailrace.slatedb.row_entry import EntryKind, RowEntry
from tailrace.slatedb.wal_reader import WalFile, WalReaderCounters
from tailrace.store import ObjectInfo, Store

FOLDER = DATA / "0.17.0-none"


@pytest.fixture(params=["file", "s3", "local store", "memory store"])
def reader(request: pytest.FixtureRequest) -> WalReader:
    """A reader of the files of FOLDER, under the path `apps/shop` of each kind of store."""
    target: Any = {"local store": LocalStore, "memory store": MemoryStore}.get(request.param)
    options: dict[str, str] = {}
    if target is not None:
        directory = request.getfixturevalue("tmp_path") if target is LocalStore else None
        target = backend = target(directory) if directory else target()
    else:
        address: StoreAddress = request.getfixturevalue(f"{request.param}_address")
        target, options = address
        backend = Store.open(target, options)._backend
    for file in (FOLDER / "wal").iterdir():
        obstore.put(backend, f"apps/shop/wal/{file.name}", file.read_bytes())
    obstore.put(backend, "apps/shop/wal/notes.txt", b"no WAL file")
    obstore.put(backend, "apps/shop/compacted/00000000000000000002.sst", b"no WAL file")
    obstore.put(backend, "apps/shop/wal2/00000000000000000009.sst", b"no WAL file")
    return WalReader("apps/shop", target, options)


def ids(files: list[WalFile]) -> list[int]:
    return [file.id for file in files]


def test_files_are_listed_and_read_from_any_store(reader: WalReader) -> None:
    count = len(list((FOLDER / "wal").iterdir()))
    assert ids(reader.list()) == list(range(1, count + 1))
    assert ids(reader.list(2, 4)) == [2, 3]
    assert ids(reader.list(stop=2)) == [1]
    assert ids(reader.list(0)) == ids(reader.list())
    assert reader.list(count + 1) == []
    assert reader.list(3, 3) == []
    assert read.all_entries(reader.list()) == binding.read(FOLDER, list(range(1, count + 1)))
    for file in reader.list():
        assert file.next_id == file.id + 1
        metadata = file.metadata()
        assert metadata is not None
        assert metadata.location == f"apps/shop/wal/{file.id:020}.sst"
        assert metadata.size == (FOLDER / "wal" / f"{file.id:020}.sst").stat().st_size
        assert abs(metadata.last_modified - datetime.now(UTC)) < timedelta(minutes=5)
    absent = reader.get(count + 1)
    assert (absent.metadata(), absent.iterator(), absent.rows()) == (None, None, None)
    assert reader.gap(count + 1) is None


def test_rows_and_entries_are_the_same() -> None:
    for file in WalReader("", FOLDER.as_uri()).list():
        rows, iterator = file.rows(), file.iterator()
        assert rows is not None
        assert iterator is not None
        entries = list(iter(iterator.next_entry, None))
        assert iterator.next_entry() is None
        assert rows["kind"].to_pylist() == [entry.kind.value for entry in entries]
        for name in ("key", "value", "seq", "create_ts", "expire_ts"):
            assert rows[name].to_pylist() == [getattr(entry, name) for entry in entries]


@pytest.mark.parametrize(
    "path", ["shop", "/shop/", "a//b", "a/./b", "Größe 🐘", "".join(map(chr, range(32, 127))), "tab\tline\nend\x7f"]
)
def test_path_is_that_of_the_writers_builder(path: str, tmp_path: Path) -> None:
    async def work(db: Any) -> None:
        await db.put(b"key", path.encode())

    binding.write(f"{tmp_path}/{path}", work)
    entries = read.all_entries(WalReader(path, tmp_path.as_uri()).list())
    assert [entry.value for entry in entries] == [path.encode()]


def test_missing_directory_is_refused_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="no such directory"):
        WalReader("db", (tmp_path / "wrong").as_uri())
    assert not (tmp_path / "wrong").exists()


def test_error_names_the_file() -> None:
    store = MemoryStore()
    obstore.put(store, "db/wal/00000000000000000007.sst", b"damaged")
    with pytest.raises(CorruptError, match=r"db/wal/00000000000000000007\.sst is truncated"):
        WalReader("db", store).get(7).iterator()


def test_follower_sees_every_write_of_a_live_writer(tmp_path: Path) -> None:
    """It only polls `get(next_id)`; the database is opened three times meanwhile."""
    writes = [b"key:%d" % n for n in range(90)]

    async def work(part: list[bytes], db: Any) -> None:
        for key in part:
            await (await db.put(key, key)).await_durable()

    def write() -> None:
        for start in (0, 30, 60):
            binding.write(tmp_path / "db", partial(work, writes[start : start + 30]), flush_interval="5ms")

    writer = threading.Thread(target=write)
    writer.start()
    reader = WalReader("db", tmp_path.as_uri())
    next_id, seen = 1, list[RowEntry]()

    def poll() -> bool:
        nonlocal next_id
        file = reader.get(next_id)
        if (iterator := file.iterator()) is not None:
            seen.extend(iterator)
            next_id = file.next_id
        return len(seen) == len(writes)

    assert wait_until(poll, 60)
    writer.join()
    assert [(entry.kind, entry.key, entry.value) for entry in seen] == [(EntryKind.PUT, key, key) for key in writes]
    assert seen == binding.read(tmp_path / "db", list(range(1, next_id)))
    assert reader.counters.lists == 0
    assert reader.counters.heads == 0


def test_files_that_garbage_collection_removed_are_a_gap(tmp_path: Path) -> None:
    async def work(db: Any) -> None:
        for n in range(6):
            await db.put(b"key", str(n).encode())
            await db.flush_with_options(binding.FLUSH_WAL)
        await db.flush_with_options(binding.FLUSH_TABLE)

    async def more(db: Any) -> None:
        await db.put(b"key", b"last")

    binding.write(tmp_path / "db", work)
    reader = WalReader("db", tmp_path.as_uri())
    before = ids(reader.list())
    binding.write(tmp_path / "db", more)
    binding.collect_garbage(tmp_path / "db")
    files = reader.list()
    gone = range(2, next(id for id in ids(files) if id > 2))
    assert len(gone) >= 5
    assert set(gone) <= set(before)
    assert reader.get(2).iterator() is None
    assert reader.gap(2) == gone
    assert reader.gap(gone.stop) is None
    assert reader.gap(files[-1].next_id) is None
    assert [entry.value for entry in read.all_entries(reader.list(gone.stop))][-1] == b"last"


class LateStore(Store):
    """A store in which a file appears while it is being listed, too late for the listing."""

    def __init__(self, backend: MemoryStore, key: str) -> None:
        super().__init__("late", backend)
        self._key = key

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        found = super().list(prefix, after)
        obstore.put(self._backend, self._key, b"")
        return found


def test_file_that_appears_after_a_miss_is_no_gap() -> None:
    backend = MemoryStore()
    obstore.put(backend, "db/wal/00000000000000000009.sst", b"")
    reader = WalReader("db", LateStore(backend, "db/wal/00000000000000000008.sst"))
    assert reader.get(8).iterator() is None
    assert reader.gap(8) is None
    assert reader.get(8).iterator() is not None
    assert reader.gap(5) == range(5, 8)


def test_operations_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tailrace.slatedb")
    reader = WalReader("", FOLDER.as_uri())
    files = reader.list()
    assert reader.counters == WalReaderCounters(lists=1)
    size = sum(metadata.size for file in files if (metadata := file.metadata()))
    entries = read.all_entries(files)
    reader.get(99).metadata()
    reader.get(99).iterator()
    assert len(entries) == len(fixed_write.ENTRIES) + 1
    assert reader.counters == WalReaderCounters(
        lists=1, heads=len(files) + 1, reads=len(files) + 1, absent=2, read_bytes=size, read_entries=len(entries)
    )
    assert len(caplog.records) == 1 + 2 * (len(files) + 1)
    url = FOLDER.as_uri()
    assert caplog.messages[0] == f"listed wal/ of {url} from None to None: {len(files)} files"
    assert caplog.messages[-2:] == [f"looked up WAL file 99 of {url}: absent", f"read WAL file 99 of {url}: absent"]
