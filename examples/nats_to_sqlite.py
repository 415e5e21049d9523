"""Keeps a copy of a PostgreSQL table in SQLite, from the messages of a `nats` sink.

Needs nats-py, msgpack and zstandard. The last arguments are the columns of the table's key:

    python examples/nats_to_sqlite.py nats://localhost:4222 orders copy.db id

Reads the table's columns, subscribes to its changes, requests a snapshot, writes the rows, then applies every change
committed since: no row is missed and none is there twice. Starts over from a new snapshot when changes alone are not
enough: when it was so slow that the stream dropped unread changes, or when a new column has a default in old rows.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
from contextlib import suppress
from typing import Any

import msgpack
import nats
import zstandard
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy

STREAM = "CDC"
ZSTD = zstandard.FRAME_HEADER
MAX_CHANGES = 1000
"""Changes per SQLite transaction, if as many arrive."""
TIMEOUT = 60
"""Seconds to wait for an answer of the server; a busy one needs several."""


def decode(data: bytes) -> Any:
    return json.loads(data) if data.startswith((b"{", b"[")) else msgpack.unpackb(data)


def parse_lsn(text: str) -> int:
    high, low = text.partition(":")[0].split("/")
    return int(high, 16) << 32 | int(low, 16)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class SnapshotNeededError(Exception):
    """The copy must start over from a new snapshot."""


class TableCopy:
    """The table in SQLite."""

    def __init__(self, database: sqlite3.Connection, table: str, key: list[str]) -> None:
        self._database = database
        self._table = quote(table)
        self._key = key

    def set_columns(self, schema: dict[str, Any]) -> bool:
        """Create the table or add new columns. Returns whether a new column has a default, which old rows may have."""
        columns = ", ".join(quote(column["name"]) for column in schema["columns"])
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})")
        existing = {row[1] for row in self._database.execute(f"PRAGMA table_info({self._table})")}
        new = [column for column in schema["columns"] if column["name"] not in existing]
        for column in new:
            self._database.execute(f"ALTER TABLE {self._table} ADD COLUMN {quote(column['name'])}")
        key = ", ".join(map(quote, self._key))
        self._database.execute(f"CREATE INDEX IF NOT EXISTS by_key ON {self._table} ({key})")
        return any(column["column_default"] is not None for column in new)

    def insert(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._insert(row)

    def clear(self) -> None:
        self._database.execute(f"DELETE FROM {self._table}")

    def apply(self, change: dict[str, Any]) -> None:
        data = change["data"]
        match change["operation"]:
            case "INSERT":
                self._insert(data)
            case "UPDATE":
                old_key = change.get("old_key") or {name: data[name] for name in self._key}
                # `data` lacks large unchanged values, which PostgreSQL does not send.
                assignments = ", ".join(f"{quote(name)} = ?" for name in data)
                values = [sqlite_value(value) for value in data.values()]
                self._database.execute(
                    f"UPDATE {self._table} SET {assignments} {where(old_key)}", [*values, *old_key.values()]
                )
            case "DELETE":
                key = {name: data[name] for name in self._key}
                self._database.execute(f"DELETE FROM {self._table} {where(key)}", list(key.values()))
            case "TRUNCATE":
                self.clear()

    def _insert(self, row: dict[str, Any]) -> None:
        names = ", ".join(map(quote, row))
        placeholders = ", ".join("?" * len(row))
        values = [sqlite_value(value) for value in row.values()]
        self._database.execute(f"INSERT INTO {self._table} ({names}) VALUES ({placeholders})", values)


def where(key: dict[str, Any]) -> str:
    return "WHERE " + " AND ".join(f"{quote(name)} = ?" for name in key)


def sqlite_value(value: Any) -> Any:
    """SQLite has no type for JSON values."""
    return json.dumps(value) if isinstance(value, dict | list) else value


async def follow(url: str, table: str, key: list[str], path: str, stop: threading.Event | None = None) -> None:
    connection = await nats.connect(url)
    database = sqlite3.connect(path)
    try:
        copy = TableCopy(database, table, key)
        while stop is None or not stop.is_set():
            with suppress(SnapshotNeededError):
                await replicate(connection, table, copy, database, stop)
    finally:
        database.close()
        await connection.close()


async def replicate(
    connection: Client, table: str, copy: TableCopy, database: sqlite3.Connection, stop: threading.Event | None
) -> None:
    """Load a snapshot, then apply changes until `stop` is set."""
    stream = connection.jetstream(timeout=TIMEOUT)
    schema = await (await stream.key_value("schemas")).get(table)
    copy.set_columns(decode(schema.value or b""))
    complete_to = (await stream.stream_info(STREAM)).state.last_seq
    # Subscribe before requesting the snapshot: then every later commit is received.
    changes = await stream.subscribe(
        f"cdc.{table}.*", ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    )
    try:
        answer = await connection.request(f"snapshot.request.{table}", timeout=TIMEOUT)
        metadata = decode(answer.data)
        if "error" in metadata:
            raise SystemExit(metadata["error"])
        await load(stream, copy, table, metadata)
        database.commit()
        while stop is None or not stop.is_set():
            count, last = 0, complete_to
            try:
                while count < MAX_CHANGES:
                    message = await changes.next_msg(timeout=0.2)
                    apply(copy, message, parse_lsn(metadata["lsn"]))
                    count, last = count + 1, message.metadata.sequence.stream
            except nats.errors.TimeoutError:
                pass
            with suppress(nats.errors.Error):  # the server is unreachable: check again next time
                complete_to = await check_complete(stream, changes, complete_to, last)
            database.commit()
    finally:
        await changes.unsubscribe()


async def check_complete(
    stream: JetStreamContext, changes: JetStreamContext.PushSubscription, complete_to: int, last: int
) -> int:
    """Return the sequence up to which no change is missing, given that of the last check and the last message read."""
    state = (await stream.stream_info(STREAM)).state
    if state.first_seq > complete_to + 1:
        raise SnapshotNeededError("the stream dropped unread changes")
    # Messages of other tables have sequences too.
    waiting = (await changes.consumer_info()).num_pending or changes.pending_msgs
    return last if waiting else max(last, state.last_seq)


async def load(stream: JetStreamContext, copy: TableCopy, table: str, metadata: dict[str, Any]) -> None:
    copy.clear()
    decompressor = await get_decompressor(stream, f"init.dict.{table}.{metadata['snapshot_id']}")
    chunks = await stream.subscribe(f"init.snap.{table}.{metadata['snapshot_id']}.*", ordered_consumer=True)
    for _ in range(metadata["batch_count"]):
        data = (await chunks.next_msg(timeout=TIMEOUT)).data
        copy.insert(decode(decompressor.decompress(data) if data.startswith(ZSTD) else data)["data"])
    await chunks.unsubscribe()


async def get_decompressor(stream: JetStreamContext, subject: str) -> zstandard.ZstdDecompressor:
    """Return a decompressor with the snapshot's dictionary, if it has one."""
    try:
        dictionary = (await stream.get_last_msg("INIT", subject)).data or b""
    except nats.js.errors.NotFoundError:
        return zstandard.ZstdDecompressor()
    return zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary))


def apply(copy: TableCopy, message: Msg, snapshot_lsn: int) -> None:
    """Apply a message, unless the snapshot already contains it."""
    if parse_lsn((message.headers or {})["Tailrace-Position"]) < snapshot_lsn:
        return
    if message.subject.endswith(".schema"):
        if copy.set_columns(decode(message.data)):
            raise SnapshotNeededError("old rows may have the default of a new column")
    else:
        copy.apply(decode(message.data))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(follow(sys.argv[1], sys.argv[2], sys.argv[4:], sys.argv[3]))
