"""The entries equal those that SlateDB's own binding reads, row for row."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.slatedb import binding, fixed_write, random_file, read
from tests.slatedb.make_data import DATA

from slatedb import uniffi
from tailrace.slatedb.row_entry import EntryKind, RowEntry
from tailrace.slatedb.wal_reader import WalReader


def entries(directory: Path) -> list[RowEntry]:
    return read.all_entries(WalReader("", directory.as_uri()).list())


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


@settings(derandomize=True, deadline=None, max_examples=150)
@given(random_file.files())
def test_random_files_are_read(tmp_path_factory: pytest.TempPathFactory, file: tuple[list[RowEntry], bytes]) -> None:
    """This also proves that the tests build files as SlateDB does."""
    directory = tmp_path_factory.getbasetemp() / "random"
    (directory / "wal").mkdir(parents=True, exist_ok=True)
    (directory / "wal" / f"{1:020}.sst").write_bytes(file[1])
    expected = binding_entries(directory)
    assert entries(directory) == expected
    assert expected == sorted(file[0], key=lambda entry: entry.seq)
