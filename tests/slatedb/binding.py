"""SlateDB's own binding: it writes databases for the tests and is their oracle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from slatedb import uniffi
from tailrace.slatedb.row_entry import EntryKind, RowEntry

_KINDS = {
    uniffi.RowEntryKind.VALUE: EntryKind.PUT,
    uniffi.RowEntryKind.TOMBSTONE: EntryKind.DELETE,
    uniffi.RowEntryKind.MERGE: EntryKind.MERGE,
}
CODECS = ("none", "snappy", "zlib", "lz4", "zstd")
FLUSH_WAL = uniffi.FlushOptions(flush_type=uniffi.FlushType.WAL)
FLUSH_TABLE = uniffi.FlushOptions(flush_type=uniffi.FlushType.MEM_TABLE)


class _Join(uniffi.MergeOperator):  # type: ignore[misc]
    def merge(self, key: bytes, existing_value: bytes | None, operand: bytes) -> bytes:
        return (existing_value or b"") + operand


def write(
    directory: Path | str,
    work: Callable[[Any], Awaitable[None]],
    *,
    codec: str = "none",
    is_wal_separate: bool = False,
    **settings: Any,
) -> None:
    """Open the database in a directory, let `work` write to it, and close it.

    The WAL is flushed by `work` and at the end, and by time only if `settings` say so. With `is_wal_separate`, the
    directory holds only the WAL, and the rest of the database is in memory.
    """

    async def run() -> None:
        builder = uniffi.DbBuilder(_path(directory), _store("memory:///" if is_wal_separate else "file:///"))
        if is_wal_separate:
            builder.with_wal_object_store(_store())
        chosen = uniffi.Settings.default()
        names = {"flush_interval": "1h", "compression_codec": None if codec == "none" else codec.capitalize()}
        for name, value in (names | settings).items():
            chosen.set(name, json.dumps(value))
        builder.with_settings(chosen)
        builder.with_merge_operator(_Join())
        db = await builder.build()
        await work(db)
        await db.flush_with_options(FLUSH_WAL)
        await db.shutdown()

    asyncio.run(run())


def read(directory: Path, ids: list[int]) -> list[RowEntry]:
    """The entries of the files with these consecutive ids."""

    async def run() -> list[RowEntry]:
        iterator = await uniffi.SlateDbWalReader(_path(directory), _store()).iterator(ids[0])
        found: list[RowEntry] = []
        for id in ids:
            batch = await iterator.next()
            assert batch is not None
            assert batch.last_consumed_wal_file_id == id
            found += [RowEntry(_KINDS[r.kind], r.key, r.value, r.seq, r.create_ts, r.expire_ts) for r in batch.rows]
        return found

    return asyncio.run(run())


def collect_garbage(directory: Path) -> None:
    """Remove all files of the WAL that the database no longer needs, whatever their age."""
    options = uniffi.GarbageCollectorOptions(
        wal_options=uniffi.GarbageCollectorDirectoryOptions(min_age_ms=0, dry_run=False)
    )
    admin = uniffi.AdminBuilder(_path(directory), _store()).build()
    asyncio.run(admin.run_gc_once(options))


def _store(url: str = "file:///") -> Any:
    return uniffi.ObjectStore.resolve(url)


def _path(directory: Path | str) -> str:
    return str(directory).strip("/")
