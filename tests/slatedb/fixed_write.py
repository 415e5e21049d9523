"""A fixed workload for any version of SlateDB's binding: `python fixed_write.py DIRECTORY CODEC`.

Imports nothing but the binding, because it runs with the one that `make_data.py` installed. The database then holds
`ENTRIES` and, after it was opened again, `LAST`, each in one file or two after a fence.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

TTL_MS = 3_600_000
BATCH: list[tuple[str, bytes, bytes | None]] = [
    *(("put", f"user:{n * 37 % 60:04}".encode(), f"value {n}".encode() * (n % 7)) for n in range(60)),
    *(("delete", f"user:{n:04}:gone".encode(), None) for n in range(0, 60, 9)),
    *(("merge", f"user:{n:04}:sum".encode(), f"+{n}".encode()) for n in range(0, 60, 13)),
    ("put", b"user:large", b"0123456789" * 700),
    ("put", b"\x00", b""),
    ("put", b"\xff" * 300, b"\x00" * 30),
]
TRANSACTION: list[tuple[str, bytes, bytes | None]] = [
    ("put", b"account:1", b"90"),
    ("put", b"account:2", b"110"),
    ("delete", b"account:3", None),
]
ENTRIES: list[tuple[str, bytes, bytes | None]] = [
    *(("put", b"a", b"1"), ("delete", b"a", None), ("merge", b"m", b"x"), ("merge", b"m", b"y")),
    ("put", b"expires", b"soon"),
    *sorted(BATCH, key=lambda entry: entry[1]),
    *TRANSACTION,
]
"""Kind, key and value of what is written first, as the WAL orders it: by key within a batch or transaction."""
LAST: tuple[str, bytes, bytes | None] = ("put", b"again", b"2")


def join(key: bytes, existing: bytes | None, operand: bytes) -> bytes:
    return (existing or b"") + operand


def main(directory: Path, codec: str) -> None:
    import slatedb

    settings = {"flush_interval": "1h", "compression_codec": None if codec == "none" else codec.capitalize()}
    if hasattr(slatedb, "SlateDB"):
        _write_before_0_12(slatedb, directory, settings)
    else:
        asyncio.run(_write(directory, settings))


def _write_before_0_12(slatedb: Any, directory: Path, settings: dict[str, Any]) -> None:
    file = directory / "settings.json"
    file.write_text(json.dumps(settings))

    def open_() -> Any:
        path = str(directory / "db").strip("/")
        return slatedb.SlateDB(path, "file:///", merge_operator=join, settings=str(file))

    db = open_()
    later = {"await_durable": False}
    db.put_with_options(b"a", b"1", **later)
    db.delete_with_options(b"a", **later)
    db.merge_with_options(b"m", b"x", **later)
    db.merge_with_options(b"m", b"y", **later)
    db.put_with_options(b"expires", b"soon", ttl=TTL_MS, **later)
    for entries in (BATCH, TRANSACTION):
        batch = slatedb.WriteBatch()
        for kind, *arguments in entries:
            getattr(batch, kind)(*(argument for argument in arguments if argument is not None))
        db.write_with_options(batch, **later)
    db.flush_with_options("wal")
    db.close()
    db = open_()
    db.put_with_options(LAST[1], LAST[2], **later)
    db.flush_with_options("wal")
    db.close()


async def _write(directory: Path, settings: dict[str, Any]) -> None:
    from slatedb import uniffi

    class Join(uniffi.MergeOperator):  # type: ignore[misc]
        def merge(self, key: bytes, existing_value: bytes | None, operand: bytes) -> bytes:
            return join(key, existing_value, operand)

    async def open_() -> Any:
        builder = uniffi.DbBuilder(str(directory / "db").strip("/"), uniffi.ObjectStore.resolve("file:///"))
        chosen = uniffi.Settings.default()
        for name, value in settings.items():
            chosen.set(name, json.dumps(value))
        builder.with_settings(chosen)
        builder.with_merge_operator(Join())
        return await builder.build()

    # Until 0.15 a write waits for its flush unless told otherwise; since 0.16 it returns a handle to wait with.
    waits = hasattr(uniffi.Ttl, "EXPIRE_AFTER_TICKS")
    later = uniffi.WriteOptions(**{"await_durable": False} if waits else {})
    ttl = (uniffi.Ttl.EXPIRE_AFTER_TICKS if waits else uniffi.Ttl.EXPIRE_AFTER_MILLIS)(TTL_MS)
    never = uniffi.Ttl.NO_EXPIRY()
    db = await open_()
    await db.put_with_options(b"a", b"1", uniffi.PutOptions(ttl=never), later)
    await db.delete_with_options(b"a", later)
    await db.merge_with_options(b"m", b"x", uniffi.MergeOptions(ttl=never), later)
    await db.merge_with_options(b"m", b"y", uniffi.MergeOptions(ttl=never), later)
    await db.put_with_options(b"expires", b"soon", uniffi.PutOptions(ttl=ttl), later)
    batch = uniffi.WriteBatch()
    for kind, *arguments in BATCH:
        getattr(batch, kind)(*(argument for argument in arguments if argument is not None))
    await db.write_with_options(batch, later)
    transaction = await db.begin(uniffi.IsolationLevel.SNAPSHOT)
    for kind, *arguments in TRANSACTION:
        await getattr(transaction, kind)(*(argument for argument in arguments if argument is not None))
    await transaction.commit_with_options(later)
    flush = uniffi.FlushOptions(flush_type=uniffi.FlushType.WAL)
    await db.flush_with_options(flush)
    await db.shutdown()
    db = await open_()
    await db.put_with_options(LAST[1], LAST[2], uniffi.PutOptions(ttl=never), later)
    await db.flush_with_options(flush)
    await db.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
