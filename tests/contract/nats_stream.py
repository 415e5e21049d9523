"""A JetStream stream as a destination, read with nats-py like any consumer, and compared field by field with the log.

The expected messages are built here, value by value, from the changes that `LogReader` returns. No code of the sink is
used.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

import msgpack
import nats
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy, StreamConfig, StreamState
from nats.js.errors import BadRequestError, KeyNotFoundError
from tests.contract.destinations import assert_same
from tests.contract.expected_envelope import ExpectedEnvelope, difference, normalize

from tailrace.change import Change, Lsn, Position, Relation
from tailrace.embedded.nats import NatsServer
from tailrace.log.change_text import content_text
from tailrace.log.ddl_message import OWN_PREFIXES
from tailrace.log.timestamp import format_timestamp

_numbers = itertools.count(1)

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Message:
    sequence: int
    subject: str
    headers: Mapping[str, str]
    payload: Any

    @property
    def position(self) -> Position:
        return Position.parse(self.headers["Tailrace-Position"])


@dataclass
class NatsStream:
    server: NatsServer
    encoding: str = "msgpack"
    more: Mapping[str, Any] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def stream(self) -> str:
        return f"T{self.number}"

    @property
    def subject(self) -> str:
        return f"t{self.number}"

    def settings(self) -> Mapping[str, Any]:
        return {
            "type": "nats",
            "url": self.server.url,
            "stream": self.stream,
            "subject": self.subject,
            "bucket": self.stream,
            "encoding": self.encoding,
            **self.more,
        }

    def make(self, **config: Any) -> None:
        """Create the stream, or change its configuration."""

        async def make(stream: JetStreamContext) -> None:
            wanted = StreamConfig(name=self.stream, subjects=[f"{self.subject}.>"], **config)
            try:
                await stream.add_stream(wanted)
            except BadRequestError:
                await stream.update_stream(wanted)

        self._with(make)

    def state(self) -> StreamState:
        async def read(stream: JetStreamContext) -> StreamState:
            return (await stream.stream_info(self.stream)).state

        return self._with(read)

    def publish(self, token: str, content: bytes, id: str | None = None) -> None:
        """Publish a message as another client."""

        async def publish(stream: JetStreamContext) -> None:
            headers = None if id is None else {"Nats-Msg-Id": id}
            await stream.publish(f"{self.subject}.{token}", content, headers=headers)

        self._with(publish)

    def wait_for_more(self) -> None:
        """Wait until the stream has one more message."""

        async def wait(stream: JetStreamContext) -> None:
            subscription = await stream.subscribe(
                f"{self.subject}.>", ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
            )
            await subscription.next_msg(timeout=60)
            await subscription.unsubscribe()

        self._with(wait)

    def wait_for_duplicate_window(self) -> bool:
        """Wait until the server has forgotten all ids that it knows now."""

        async def is_forgotten(stream: JetStreamContext) -> bool:
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline:
                ack = await stream.publish(f"{self.subject}.probe", b"", headers={"Nats-Msg-Id": "probe"})
                if ack.seq != first and not ack.duplicate:
                    return True
            return False

        async def probe(stream: JetStreamContext) -> int:
            return (await stream.publish(f"{self.subject}.probe", b"", headers={"Nats-Msg-Id": "probe"})).seq

        first = self._with(probe)
        return self._with(is_forgotten)

    def _with(self, work: Callable[[JetStreamContext], Awaitable[Answer]]) -> Answer:
        async def run() -> Answer:
            connection = await nats.connect(self.server.url, user_credentials=self.more.get("credentials"))
            try:
                return await work(connection.jetstream(timeout=30))
            finally:
                await connection.close()

        return asyncio.run(run())

    def messages(self) -> list[Message]:
        """The sink's messages, in the stream's order."""
        return [message for message in self._with(self._messages) if "Tailrace-Sink" in message.headers]

    def changes(self) -> list[Message]:
        """The messages of changes."""
        return [message for message in self.messages() if "Tailrace-Schema" not in message.headers]

    async def _messages(self, stream: JetStreamContext) -> list[Message]:
        wanted = (await stream.stream_info(self.stream)).state.messages
        found: list[Message] = []
        subscription = await stream.subscribe(
            f"{self.subject}.>", ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
        )
        while len(found) < wanted:
            raw = await subscription.next_msg(timeout=30)
            headers = raw.headers or {}
            payload = self._decode(raw.data) if "Tailrace-Sink" in headers else raw.data
            found.append(Message(raw.metadata.sequence.stream, raw.subject, headers, payload))
        await subscription.unsubscribe()
        return found

    def _decode(self, data: bytes) -> Any:
        return msgpack.unpackb(data) if self.encoding == "msgpack" else json.loads(data)

    def assert_matches(self, changes: Iterable[Change], end: Lsn, types: Mapping[int, str]) -> None:
        """Assert that the stream has exactly the changes that commit below `end`, in order. `types`: names by oid."""
        expected = [c for c in changes if c.position.commit_lsn < end and c.prefix not in OWN_PREFIXES]
        self._assert_schemas([m for m in self.messages() if "Tailrace-Schema" in m.headers], expected, types)
        found = self.changes()
        assert_same([m.position for m in found], [c.position for c in expected])
        assert [m.position for m in found] == sorted(m.position for m in found), "out of order"
        ids = [m.headers["Nats-Msg-Id"] for m in found]
        assert len(set(ids)) == len(ids)
        lasts = {c.position.commit_lsn: c.position for c in expected}
        seen: set[str] = set()
        for message, change in zip(found, expected, strict=True):
            self._assert_content(message, change, seen)
            assert message.headers["Tailrace-Xid"] == str(change.xid)
            assert message.headers["Tailrace-Committed-At"] == format_timestamp(change.committed_at)
            is_last = lasts[change.position.commit_lsn] == change.position
            assert message.headers["Tailrace-Last"] == ("true" if is_last else "false"), change.position

    def _assert_schemas(self, found: Sequence[Message], changes: Iterable[Change], types: Mapping[int, str]) -> None:
        """Assert that a schema precedes the first change with new columns, and that the bucket has the last schemas. A
        schema may also precede a table's first change, if its snapshot had other columns."""
        shapes: dict[str, Any] = {}
        names: dict[int, str] = {}
        firsts = set()
        due = []
        for change in changes:
            if change.relation is None:
                continue
            table, columns = change.relation.name, _columns(change.relation, types)
            names[change.relation.oid] = table
            firsts |= {change.position} if table not in shapes else set()
            if shapes.setdefault(table, columns) != columns:
                due.append((change.position, f"{self.subject}.{token(table)}.schema", columns))
            shapes[table] = columns
        schemas = [(m.position, m.subject, m.payload["columns"]) for m in found]
        assert [one for one in schemas if one[0] not in firsts] == due
        entries = self.entries()
        assert not (shapes.keys() - set(names.values())) & entries.keys(), "a renamed table has its old entry"
        for table, columns in shapes.items():
            if table not in names.values():
                continue
            entry = entries[table]
            assert entry["columns"] == columns
            assert entry["table"] == table
            assert entry["schema"].endswith(f".{table}")
            assert isinstance(entry["timestamp"], int)
            assert entry.keys() == {"table", "schema", "timestamp", "columns"}

    def entries(self) -> dict[str, Any]:
        """The entries of the KV bucket. Keys are the names, with special characters escaped as `=XX`."""

        async def read(stream: JetStreamContext) -> dict[str, Any]:
            bucket, prefix = await stream.key_value(self.stream), f"$KV.{self.stream}."
            # Not bucket.keys(): it finds none if the server has sent all of them before the client looks.
            info = await stream.stream_info(f"KV_{self.stream}", subjects_filter=f"{prefix}>")
            keys = [subject.removeprefix(prefix) for subject in info.state.subjects or {}]
            found = {}
            for key in keys:
                with suppress(KeyNotFoundError):
                    found[unquote(key.replace("=", "%"))] = self._decode((await bucket.get(key)).value or b"")
            return found

        return self._with(read)

    def _assert_content(self, message: Message, change: Change, seen: set[str]) -> None:
        operation = change.operation.name.lower()
        name = "message" if change.relation is None else f"{token(str(change.table))}-{operation}"
        plain = f"{int(change.lsn):x}-{name}"
        is_first = plain not in seen
        if change.relation is not None and change.relation.is_upsert:
            is_first = change.position.ordinal == 0  # all changes of a batch have one LSN
        wanted = plain if is_first else f"{plain}-{change.position.ordinal}"
        seen.add(plain)
        assert message.headers["Nats-Msg-Id"] == wanted
        if change.relation is None:
            assert message.subject == f"{self.subject}._message.{token(change.prefix or '') or '%'}"
            expected: dict[str, Any] = {
                "content": content_text(change.content or b""),
                "msg_id": wanted,
                "operation": "MESSAGE",
                "prefix": change.prefix,
                "subject": message.subject,
            }
        else:
            assert message.subject == f"{self.subject}.{token(change.relation.name)}.{operation}"
            envelope = ExpectedEnvelope(self.encoding)
            expected = {
                "data": envelope.data(change),
                "msg_id": wanted,
                "operation": change.operation.name,
                "relation_id": change.relation.oid,
                "schema": change.relation.schema,
                "subject": message.subject,
                "table": change.relation.name,
                **envelope.more(change),
            }
        found, due = normalize(message.payload), normalize(expected)
        assert found == due, f"{change.position}: {difference(found, due)}"


def _columns(relation: Relation, types: Mapping[int, str]) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "position": place if column.number is None else column.number,
            "data_type": types[column.type.oid],
            "is_nullable": column.nullable,
            "column_default": column.default,
        }
        for place, column in enumerate(relation.columns, 1)
    ]


def token(name: str) -> str:
    return "".join(f"%{ord(c):02X}" if c.isspace() or c in ".*>%" or ord(c) < 32 or ord(c) == 127 else c for c in name)
