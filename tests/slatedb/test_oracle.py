"""The entries equal those that SlateDB's own binding reads, row for row."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.slatedb import binding, build, fixed_write
from tests.slatedb.make_data import DATA

from slatedb import uniffi
from tailrace.slatedb.row_entry import EntryKind, RowEntry
from tailrace.slatedb.wal_reader import WalReader


def entries(directory: Path) -> list[RowEntry]:
    found = list[RowEntry]()
    for file in WalReader("", directory.as_uri()).list():
        iterator = file.iterator()
        assert iterator is not None
        found += iterator
    return found


def binding_entries(directory: Path) -> list[RowEntry]:
    found = binding.read(directory, [file.id for file in WalReader("", directory.as_uri()).list()])
    # Only the order of files before 0.11 changes: the binding returns it as it is stored.
    return sorted(found, key=lambda entry: entry.seq)


@pytest.mark.parametrize("folder", sorted(DATA.iterdir()), ids=lambda folder: folder.name)
def test_files_of_every_version_are_read(folder: Path) -> None:
    found = entries(folder)
    assert found == binding_entries(folder)
    assert [(e.kind.value, e.key, e.value) for e in found] == [*fixed_write.ENTRIES, fixed_write.LAST]
    (expiring,) = (entry for entry in found if entry.expire_ts is not None)
    assert expiring.create_ts is not None
    assert expiring.expire_ts == expiring.create_ts + fixed_write.TTL_MS


class RandomWork:
    """Writes of all kinds, from a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    async def __call__(self, db: Any) -> None:
        chance = self._chance
        for _ in range(40):
            acts = (self._single, self._single, self._expiring, self._batch, self._transaction)
            await chance.choice(acts)(db)
            if chance.random() < 0.1:
                await db.flush_with_options(binding.FLUSH_WAL)

    def _key(self) -> bytes:
        chance = self._chance
        return chance.choice([b"user:", b"order/eu/", b"\x00\xff", b"k" * 300]) + str(chance.randrange(200)).encode()

    def _value(self) -> bytes:
        chance = self._chance
        size = chance.choice([0, 1, 10, 100, 100, 5000, 100_000])
        return chance.choice([bytes(size), chance.randbytes(size), b"abc" * (size // 3)])

    async def _single(self, db: Any) -> None:
        kind = self._chance.choice(["put", "put", "delete", "merge"])
        await getattr(db, kind)(self._key(), *([] if kind == "delete" else [self._value()]))

    async def _expiring(self, db: Any) -> None:
        ttl, options = uniffi.Ttl.EXPIRE_AFTER_MILLIS(self._chance.randrange(1, 10**9)), uniffi.WriteOptions()
        await db.put_with_options(self._key(), self._value(), uniffi.PutOptions(ttl=ttl), options)
        await db.merge_with_options(self._key(), self._value(), uniffi.MergeOptions(ttl=ttl), options)

    async def _batch(self, db: Any) -> None:
        batch = uniffi.WriteBatch()
        for _ in range(self._chance.randrange(1, 60)):
            kind = self._chance.choice(["put", "put", "put", "delete", "merge"])
            getattr(batch, kind)(self._key(), *([] if kind == "delete" else [self._chance.randbytes(30)]))
        await db.write(batch)

    async def _transaction(self, db: Any) -> None:
        transaction = await db.begin(uniffi.IsolationLevel.SERIALIZABLE_SNAPSHOT)
        for _ in range(self._chance.randrange(1, 10)):
            await self._single(transaction)
        await (transaction.rollback if self._chance.random() < 0.2 else transaction.commit)()


@pytest.mark.parametrize("codec", binding.CODECS)
def test_random_writes_with_each_codec_are_read(codec: str, tmp_path: Path) -> None:
    for seed in (1, 2):  # opened twice: the second fence is in the middle
        binding.write(tmp_path / "db", RandomWork(seed), codec=codec)
    found = entries(tmp_path / "db")
    assert {entry.kind for entry in found} == set(EntryKind)
    assert len({entry.seq for entry in found}) > 60
    assert found == binding_entries(tmp_path / "db")


def test_wal_in_a_store_of_its_own_is_read(tmp_path: Path) -> None:
    binding.write(tmp_path / "db", RandomWork(3), is_wal_separate=True)
    assert [folder.name for folder in (tmp_path / "db").iterdir()] == ["wal"]
    found = entries(tmp_path / "db")
    assert len(found) > 40
    assert found == binding_entries(tmp_path / "db")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("codec", binding.CODECS)
def test_binding_reads_what_the_tests_build(version: int, codec: str, tmp_path: Path) -> None:
    kinds = [*EntryKind, EntryKind.PUT]
    built = [
        RowEntry(
            *(kind := kinds[n % 4], b"key:%d" % (n % 50)),
            *(None if kind is EntryKind.DELETE else b"v" * n, n + 1),
            *(n * 7 if n % 3 else None, -n if n % 5 == 0 and kind is not EntryKind.DELETE else None),
        )
        for n in range(200)
    ]
    (tmp_path / "wal").mkdir()
    file = tmp_path / "wal" / f"{1:020}.sst"
    file.write_bytes(build.sst(built, version=version, codec=codec, block_size=1024))
    assert binding_entries(tmp_path) == built
    assert entries(tmp_path) == built
