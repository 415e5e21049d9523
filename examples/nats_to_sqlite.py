"""A table in SQLite, kept like the one in PostgreSQL by what a `nats` sink publishes. Needs nats-py and msgpack.

    python examples/nats_to_sqlite.py nats://localhost:4222 orders copy.db id

the last being the columns of its key.

Asks what the table looks like, listens to its changes, asks for a snapshot, writes its rows, then applies every change
that was committed since: no row is missed and none is there twice.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
from typing import Any

import msgpack
import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy


def decoded(data: bytes) -> Any:
    return json.loads(data) if data.startswith((b"{", b"[")) else msgpack.unpackb(data)


def lsn(text: str) -> int:
    high, low = text.partition(":")[0].split("/")
    return int(high, 16) << 32 | int(low, 16)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Copy:
    """The table in SQLite."""

    def __init__(self, database: sqlite3.Connection, table: str) -> None:
        self._database = database
        self._table = quoted(table)

    def make(self, schema: dict[str, Any]) -> None:
        """As the schema says; columns that came since are added."""
        columns = ", ".join(quoted(column["name"]) for column in schema["columns"])
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})")
        there = {row[1] for row in self._database.execute(f"PRAGMA table_info({self._table})")}
        for column in schema["columns"]:
            if column["name"] not in there:
                self._database.execute(f"ALTER TABLE {self._table} ADD COLUMN {quoted(column['name'])}")

    def fill(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._insert(row)

    def empty(self) -> None:
        self._database.execute(f"DELETE FROM {self._table}")

    def apply(self, change: dict[str, Any], key: list[str]) -> None:
        data = change["data"]
        match change["operation"]:
            case "INSERT":
                self._insert(data)
            case "UPDATE":
                was = change.get("old_key") or {name: data[name] for name in key}
                # What PostgreSQL did not send, because it is large and the same as before, is not in `data`.
                sets = ", ".join(f"{quoted(name)} = ?" for name in data)
                values = [plain(value) for value in data.values()]
                self._database.execute(f"UPDATE {self._table} SET {sets} {where(was)}", [*values, *was.values()])
            case "DELETE":
                was = {name: data[name] for name in key}
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
    stream = connection.jetstream()
    database = sqlite3.connect(path)
    try:
        copy = Copy(database, table)
        schema = await (await stream.key_value("schemas")).get(table)
        copy.make(decoded(schema.value or b""))
        # First listen, then ask: what is committed after the snapshot comes after this.
        changes = await stream.subscribe(
            f"cdc.{table}.*", ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
        )
        answer = await connection.request(f"snapshot.request.{table}", timeout=60)
        meta = decoded(answer.data)
        if "error" in meta:
            raise SystemExit(meta["error"])
        await load(stream, copy, meta)
        database.commit()
        while stop is None or not stop.is_set():
            try:
                message = await changes.next_msg(timeout=0.2)
            except nats.errors.TimeoutError:
                continue
            take(copy, message, key, lsn(meta["lsn"]))
            database.commit()
        await changes.unsubscribe()
    finally:
        database.close()
        await connection.close()


async def load(stream: JetStreamContext, copy: Copy, meta: dict[str, Any]) -> None:
    copy.empty()
    subject = f"init.snap.{meta['table']}.{meta['snapshot_id']}.*"
    chunks = await stream.subscribe(subject, ordered_consumer=True)
    for _ in range(meta["batch_count"]):
        copy.fill(decoded((await chunks.next_msg(timeout=60)).data)["data"])
    await chunks.unsubscribe()


def take(copy: Copy, message: Msg, key: list[str], since: int) -> None:
    """Changes that the snapshot has already are older than it."""
    if lsn((message.headers or {})["Tailrace-Position"]) < since:
        return
    if message.subject.endswith(".schema"):
        copy.make(decoded(message.data))
    else:
        copy.apply(decoded(message.data), key)


if __name__ == "__main__":
    asyncio.run(follow(sys.argv[1], sys.argv[2], sys.argv[4:], sys.argv[3]))
