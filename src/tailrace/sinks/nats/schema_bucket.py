"""The KV bucket that describes tables to consumers.

The bucket has one entry per table, until the table is renamed or dropped. A change of columns is also a message, which
precedes the first change made under the new columns. The entry is written after the message: after a crash in between,
the sink finds the old entry, and the message by its position.
"""

from __future__ import annotations

import base64
import json
import re
import time
from typing import Any, Final
from urllib.parse import unquote

import msgpack
import numpy as np
import pyarrow as pa

from tailrace.change import Relation
from tailrace.errors import SinkError, SinkRefused
from tailrace.log.decoding import TableChanges
from tailrace.sinks.messages.message import SCHEMA_ORDER, OutgoingMessages
from tailrace.sinks.messages.payload_encoding import PayloadEncoding
from tailrace.sinks.nats.client import NatsClient
from tailrace.sinks.nats.jetstream import ensure_stream, last_message, replicas_like
from tailrace.sinks.nats.options import NatsOptions
from tailrace.types import data_type

_HISTORY: Final = 10
ColumnDescriptions = list[dict[str, Any]]


class SchemaBucket:
    """The bucket, with a cache of its entries."""

    def __init__(self, client: NatsClient, options: NatsOptions, encoding: PayloadEncoding) -> None:
        self.client = client
        self._options = options
        self._encoding = encoding
        self._columns_by_table: dict[tuple[str, str], ColumnDescriptions | None] = {}

    def close(self) -> None:
        self.client.close()

    def ensure(self) -> None:
        stream = f"KV_{self._options.bucket}"
        subjects = [f"$KV.{self._options.bucket}.>"]
        config = {
            "max_msgs_per_subject": _HISTORY,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            **replicas_like(self.client, self._options.stream),
        }
        ensure_stream(self.client, stream, subjects, config, create=self._options.create)

    def differs(self, relation: Relation, target: tuple[str, str], before: Relation | None) -> bool:
        """Whether the columns differ from those of `before`, or of the bucket's entry if that is None.

        A table without an entry does not differ.
        """
        if before is relation:
            return False
        columns = self._columns(target) if before is None else describe_columns(before)
        return columns is not None and columns != describe_columns(relation)

    def lacks(self, target: tuple[str, str]) -> bool:
        return self._columns(target) is None

    def message(self, changes: TableChanges, subject: str, id: str) -> OutgoingMessages:
        """Return the message that announces a table's new columns, which apply from these changes on."""
        at = changes.at.take(np.array([0]))
        at.is_last[:] = False
        content = entry(changes.relation, changes.target, self._encoding)
        return OutgoingMessages(
            at, pa.array([subject]), pa.array([id]), pa.array([content], pa.binary()), np.array([SCHEMA_ORDER])
        )

    def put(self, relation: Relation, target: tuple[str, str]) -> None:
        if self._columns(target) == describe_columns(relation):
            return
        content = entry(relation, target, self._encoding)
        if len(content) > self.client.max_payload:
            raise SinkRefused(
                f"the description of {'.'.join(target)} has {len(content):,} bytes, and the server accepts"
                f" {self.client.max_payload:,}",
                "Raise max_payload of the NATS server.",
            )
        answer = self.client.publish(self._subject(target), content)
        if "error" in answer:
            raise SinkError(
                f"bucket {self._options.bucket}: {answer['error'].get('description')}", "Is the bucket full?"
            )
        self._columns_by_table[target] = describe_columns(relation)

    def remove(self, target: tuple[str, str]) -> None:
        """Delete the entry of a table, if it is that table's."""
        raw = last_message(self.client, f"KV_{self._options.bucket}", self._subject(target))
        found = None if raw is None else _decode(base64.b64decode(raw.get("data", "")))
        if found is None or found["schema"] != ".".join(target):
            return
        answer = self.client.publish(self._subject(target), b"", headers={"KV-Operation": "DEL"})
        if "error" in answer:
            raise SinkError(
                f"bucket {self._options.bucket}: {answer['error'].get('description')}", "Is the bucket full?"
            )
        self._columns_by_table[target] = None

    def _columns(self, target: tuple[str, str]) -> ColumnDescriptions | None:
        if target not in self._columns_by_table:
            raw = last_message(self.client, f"KV_{self._options.bucket}", self._subject(target))
            self._columns_by_table[target] = None if raw is None else _columns_in(base64.b64decode(raw.get("data", "")))
        return self._columns_by_table[target]

    def _subject(self, target: tuple[str, str]) -> str:
        return f"$KV.{self._options.bucket}." + ".".join(map(key, self._options.names(target)))


def find_table(client: NatsClient, bucket: str, name: str) -> tuple[str, str] | None:
    """Return schema and name of the table that any sink has described under a name as in subjects."""
    bucket_key = ".".join(key(unquote(part)) for part in name.split("."))
    raw = last_message(client, f"KV_{bucket}", f"$KV.{bucket}.{bucket_key}")
    found = None if raw is None else _decode(base64.b64decode(raw.get("data", "")))
    if found is None:
        return None
    return str(found["schema"]).removesuffix(f".{found['table']}"), str(found["table"])


def key(name: str) -> str:
    """Return a name as part of a bucket key. Characters that keys must not contain become `=XX`."""
    return re.sub(r"[^-_A-Za-z0-9]", lambda m: "".join(f"={byte:02X}" for byte in m[0].encode()), name)


def describe_columns(relation: Relation) -> ColumnDescriptions:
    return [
        {
            "name": column.name,
            "position": index if column.number is None else column.number,
            "data_type": data_type(column.type),
            "is_nullable": column.nullable,
            "column_default": column.default,
        }
        for index, column in enumerate(relation.columns, 1)
    ]


def entry(relation: Relation, target: tuple[str, str], encoding: PayloadEncoding) -> bytes:
    """Return the entry for the bucket, which is also the payload of a schema message."""
    return encoding.encode(
        {
            "table": target[1],
            "schema": ".".join(target),
            "timestamp": int(time.time()),
            "columns": describe_columns(relation),
        }
    )


def _columns_in(data: bytes) -> ColumnDescriptions | None:
    found = _decode(data)
    return None if found is None else found["columns"]


def _decode(data: bytes) -> dict[str, Any] | None:
    """Decode an entry in either encoding; None if it is not a Tailrace entry."""
    try:
        raw = json.loads(data) if data.startswith(b"{") else msgpack.unpackb(data)
        return {name: raw[name] for name in ("table", "schema", "columns")}
    except (ValueError, TypeError, KeyError):
        return None
