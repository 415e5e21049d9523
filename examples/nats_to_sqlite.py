"""A table in SQLite, kept like the one in PostgreSQL by what a `nats` sink publishes. Needs nats-py, msgpack and
zstandard.

    python examples/nats_to_sqlite.py nats://localhost:4222 orders copy.db id

the last being the columns of its key.

Asks what the table looks like, listens to its changes, asks for a snapshot, writes its rows, then applies every change
that was committed since: no row is missed and none is there twice. Begins anew where changes alone do not tell: when it
was so slow that the stream dropped some before they were read, or when a column came whose default old rows have.
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
TOGETHER = 1000
"""Changes that are committed at once, if so many come."""


def decoded(data: bytes) -> Any:
    return json.loads(data) if data.startswith((b"{", b"[")) else msgpack.unpackb(data)


def lsn(text: str) -> int:
    high, low = text.partition(":")[0].split("/")
    return int(high, 16) << 32 | int(low, 16)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class AgainError(Exception):
    """A snapshot is needed."""


class Copy:
    """The table in SQLite."""

    def __init__(self, database: sqlite3.Connection, table: str, key: list[str]) -> None:
        self._database = database
        self._table = quoted(table)
        self._key = key

    def make(self, schema: dict[str, Any]) -> bool:
        """As the schema says; columns that came since are added. Whether old rows may have a default there."""
        columns = ", ".join(quoted(column["name"]) for column in schema["columns"])
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})")
        there = {row[1] for row in self._database.execute(f"PRAGMA table_info({self._table})")}
        new = [column for column in schema["columns"] if column["name"] not in there]
        for column in new:
            self._database.execute(f"ALTER TABLE {self._table} ADD COLUMN {quoted(column['name'])}")
        key = ", ".join(map(quoted, self._key))
        self._database.execute(f"CREATE INDEX IF NOT EXISTS by_key ON {self._table} ({key})")
        return any(column["column_default"] is not None for column in new)

    def fill(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._insert(row)

    def empty(self) -> None:
        self._database.execute(f"DELETE FROM {self._table}")

    def apply(self, change: dict[str, Any]) -> None:
        data = change["data"]
        match change["operation"]:
            case "INSERT":
                self._insert(data)
            case "UPDATE":
                was = change.get("old_key") or {name: data[name] for name in self._key}
                # What PostgreSQL did not send, because it is large and the same as before, is not in `data`.
                sets = ", ".join(f"{quoted(name)} = ?" for name in data)
                values = [plain(value) for value in data.values()]
                self._database.execute(f"UPDATE {self._table} SET {sets} {where(was)}", [*values, *was.values()])
            case "DELETE":
                was = {name: data[name] for name in self._key}
                self._database.execute(f"DELETE FROM {self._table} {where(was)}", list(was.values()))
            case "TRUNCATE":
                self.empty()

    def _insert(self, row: dict[str, Any]) -> None:
        names = ", ".join(map(quoted, row))
        marks = ", ".join("?" * len(row))
        values = [plain(value) for value in row.values()]
        self._database.execute(f"INSERT INTO {self._table} ({names}) VALUES ({marks})", values)


def where(key: dict[str, Any]) -> str:
    return "WHERE " + " AND ".join(f"{quoted(name)} = ?" for name in key)


def plain(value: Any) -> Any:
    """SQLite has no JSON values of its own."""
    return json.dumps(value) if isinstance(value, dict | list) else value


async def follow(url: str, table: str, key: list[str], path: str, stop: threading.Event | None = None) -> None:
    connection = await nats.connect(url)
    database = sqlite3.connect(path)
    try:
        copy = Copy(database, table, key)
        while stop is None or not stop.is_set():
            with suppress(AgainError):
                await keep(connection, table, copy, database, stop)
    finally:
        database.close()
        await connection.close()


async def keep(
    connection: Client, table: str, copy: Copy, database: sqlite3.Connection, stop: threading.Event | None
) -> None:
    """From a snapshot on, until it is to stop."""
    stream = connection.jetstream()
    schema = await (await stream.key_value("schemas")).get(table)
    copy.make(decoded(schema.value or b""))
    seen = (await stream.stream_info(STREAM)).state.last_seq
    # First listen, then ask: what is committed after the snapshot comes after this.
    changes = await stream.subscribe(
        f"cdc.{table}.*", ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    )
    try:
        answer = await connection.request(f"snapshot.request.{table}", timeout=60)
        meta = decoded(answer.data)
        if "error" in meta:
            raise SystemExit(meta["error"])
        await load(stream, copy, table, meta)
        database.commit()
        while stop is None or not stop.is_set():
            count, last = 0, seen
            try:
                while count < TOGETHER:
                    message = await changes.next_msg(timeout=0.2)
                    take(copy, message, lsn(meta["lsn"]))
                    count, last = count + 1, message.metadata.sequence.stream
            except nats.errors.TimeoutError:
                pass
            with suppress(nats.errors.Error):  # the server is away: it is asked the next time
                seen = await read_on(stream, changes, seen, last)
            database.commit()
    finally:
        await changes.unsubscribe()


async def read_on(stream: JetStreamContext, changes: JetStreamContext.PushSubscription, seen: int, last: int) -> int:
    """Up to which number of the stream nothing is missing, if nothing was up to `seen`, and `last` is read."""
    state = (await stream.stream_info(STREAM)).state
    if state.first_seq > seen + 1:
        raise AgainError("the stream dropped changes before they were read")
    # Other tables' messages have numbers too.
    waiting = (await changes.consumer_info()).num_pending or changes.pending_msgs
    return last if waiting else max(last, state.last_seq)


async def load(stream: JetStreamContext, copy: Copy, table: str, meta: dict[str, Any]) -> None:
    copy.empty()
    unpacked = await unpacker(stream, f"init.dict.{table}.{meta['snapshot_id']}")
    chunks = await stream.subscribe(f"init.snap.{table}.{meta['snapshot_id']}.*", ordered_consumer=True)
    for _ in range(meta["batch_count"]):
        data = (await chunks.next_msg(timeout=60)).data
        copy.fill(decoded(unpacked.decompress(data) if data.startswith(ZSTD) else data)["data"])
    await chunks.unsubscribe()


async def unpacker(stream: JetStreamContext, subject: str) -> zstandard.ZstdDecompressor:
    """With the dictionary that chunks were compressed with, if there is one."""
    try:
        dictionary = (await stream.get_last_msg("INIT", subject)).data or b""
    except nats.js.errors.NotFoundError:
        return zstandard.ZstdDecompressor()
    return zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary))


def take(copy: Copy, message: Msg, since: int) -> None:
    """Changes that the snapshot has already are older than it."""
    if lsn((message.headers or {})["Tailrace-Position"]) < since:
        return
    if message.subject.endswith(".schema"):
        if copy.make(decoded(message.data)):
            raise AgainError("old rows may have the default of a new column")
    else:
        copy.apply(decoded(message.data))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(follow(sys.argv[1], sys.argv[2], sys.argv[4:], sys.argv[3]))
