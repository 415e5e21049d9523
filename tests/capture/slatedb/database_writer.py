"""A SlateDB database that a test writes through the binding, step by step."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.slatedb import binding

from slatedb import uniffi
from tailrace.capture.slatedb.database import SlateDatabase
from tailrace.settings.slatedb import SlateDbSettings

EVERYTHING = uniffi.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=True)


def append(key: bytes, existing: bytes | None, operand: bytes) -> bytes:
    """The databases' merge operator."""
    return (existing or b"") + operand


MERGE_OPERATOR = f"{__name__}:append"


class Append(uniffi.MergeOperator):  # type: ignore[misc]
    def merge(self, key: bytes, existing_value: bytes | None, operand: bytes) -> bytes:
        return append(key, existing_value, operand)


class DatabaseWriter:
    """The database's writer, on an event loop in a thread of its own.

    The WAL is flushed when `flush` is called. With `wal`, the WAL is in that directory. With `source`, the database is
    the one that it names, and not in the directory.
    """

    def __init__(
        self, directory: Path, wal: Path | None = None, source: SlateDbSettings | None = None, **settings: object
    ) -> None:
        self.directory = directory
        self._wal = wal
        self._source = source if source is not None else SlateDbSettings(url=directory.as_uri())
        # A flush of the table waits for the compactor, which looks every five seconds by default.
        self._settings = {"flush_interval": "1h", "compactor_options.poll_interval": "50ms", **settings}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.db = self.run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.db.shutdown())
        except uniffi.Error:
            if error is None and not self.is_fenced:
                raise
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    is_fenced = False
    """Whether another writer opened the database."""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def put(self, key: bytes, value: bytes, ttl_ms: int | None = None) -> None:
        if ttl_ms is None:
            self.run(self.db.put(key, value))
            return
        options = uniffi.PutOptions(ttl=uniffi.Ttl.EXPIRE_AFTER_MILLIS(ttl_ms))
        self.run(self.db.put_with_options(key, value, options, uniffi.WriteOptions()))

    def delete(self, key: bytes) -> None:
        self.run(self.db.delete(key))

    def merge(self, key: bytes, operand: bytes, ttl_ms: int | None = None) -> None:
        if ttl_ms is None:
            self.run(self.db.merge(key, operand))
            return
        options = uniffi.MergeOptions(ttl=uniffi.Ttl.EXPIRE_AFTER_MILLIS(ttl_ms))
        self.run(self.db.merge_with_options(key, operand, options, uniffi.WriteOptions()))

    def write(self, puts: dict[bytes, bytes], deletes: tuple[bytes, ...] = ()) -> None:
        """One batch."""
        batch = uniffi.WriteBatch()
        for key, value in puts.items():
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        self.run(self.db.write(batch))

    def flush(self) -> None:
        """Write a WAL file."""
        self.run(self.db.flush_with_options(binding.FLUSH_WAL))

    def flush_table(self) -> None:
        """Write a sorted table, so that the WAL up to here is no longer needed."""
        self.run(self.db.flush_with_options(binding.FLUSH_TABLE))

    def collect_garbage(self) -> None:
        self.flush_table()
        binding.collect_garbage(self.directory)

    def scan(self) -> dict[bytes, bytes]:
        return {key: value for key, (value, _) in self.scan_with_expiry().items()}

    def scan_with_expiry(self) -> dict[bytes, tuple[bytes, int | None]]:
        """Values, and when they expire in milliseconds since 1970."""

        async def rows() -> dict[bytes, tuple[bytes, int | None]]:
            iterator = await self.db.scan(EVERYTHING)
            found: dict[bytes, tuple[bytes, int | None]] = {}
            while batch := await iterator.next_batch(1000):
                found |= {row.key: (row.value, row.expire_ts) for row in batch}
            return found

        found: dict[bytes, tuple[bytes, int | None]] = self.run(rows())
        return found

    async def _open(self) -> Any:
        store, path = SlateDatabase(self._source)._store(self._source.url)
        builder = uniffi.DbBuilder(path, store)
        chosen = uniffi.Settings.default()
        for name, value in self._settings.items():
            chosen.set(name, json.dumps(value))
        builder.with_settings(chosen)
        if self._wal is not None:
            wal = uniffi.ObjectStoreBuilder(uniffi.ObjectStoreType.LOCAL)
            wal.with_config("local_path", str(self._wal))
            builder.with_wal_object_store(wal.build())
        builder.with_merge_operator(Append())
        return await builder.build()


class RandomWrites:
    """Puts, deletes of rows that may not exist, merges if wanted, and batches, from a seed."""

    def __init__(self, seed: int, keys: int = 60, *, has_ttl: bool = True, has_merges: bool = False) -> None:
        self._has_merges = has_merges
        self._chance = random.Random(seed)
        self._keys = keys
        self._has_ttl = has_ttl

    def run(self, writer: DatabaseWriter, count: int) -> None:
        chance = self._chance
        for _ in range(count):
            if self._has_merges and chance.random() < 0.5:
                ttl_ms = chance.choice([None, 10**9, 2 * 10**9]) if self._has_ttl else None
                writer.merge(self._key(), chance.randbytes(chance.choice([1, 5])), ttl_ms)
            match chance.randrange(8):
                case 0 | 1 | 2 | 3:
                    writer.put(self._key(), self._value(), 10**9 if self._has_ttl and chance.random() < 0.2 else None)
                case 4 | 5:
                    writer.delete(self._key())
                case _:
                    keys = {self._key() for _ in range(chance.randrange(1, 12))}
                    puts = {key: self._value() for key in keys if chance.random() < 0.7}
                    writer.write(puts, tuple(keys - puts.keys()) or (b"never there",))
            if chance.random() < 0.15:
                writer.flush()
            if chance.random() < 0.04:
                writer.flush_table()
        writer.flush()

    def _key(self) -> bytes:
        return self._chance.choice([b"user:", b"\x00\xff\x27\\"]) + str(self._chance.randrange(self._keys)).encode()

    def _value(self) -> bytes:
        size = self._chance.choice([0, 1, 10, 100, 3000])
        return self._chance.randbytes(size)
