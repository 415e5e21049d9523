"""What tables look like, for consumers: one entry each in a KV bucket, and a message where one changes.

A message stands in the stream right before the first change that was made under the new shape. The bucket gets its
entry after that message: whoever dies in between finds the old entry, and the message by its position.
"""

from __future__ import annotations

import base64
import json
import re
import time
from typing import Any, Final
from urllib.parse import unquote

import msgpack

from tailrace.change import Relation
from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.nats.encoding import Encoding
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.stream import ensure, last_of_subject, like
from tailrace.sinks.nats.wire import Wire
from tailrace.types import data_type

_HISTORY: Final = 10
Shape = list[dict[str, Any]]


class Schemas:
    """The bucket, with what is known of it."""

    def __init__(self, wire: Wire, options: NatsOptions, encoding: Encoding) -> None:
        self.wire = wire
        self._options = options
        self._encoding = encoding
        self._known: dict[tuple[str, str], Shape | None] = {}

    def close(self) -> None:
        self.wire.close()

    def ensure(self) -> None:
        stream = f"KV_{self._options.bucket}"
        subjects = [f"$KV.{self._options.bucket}.>"]
        more = {
            "max_msgs_per_subject": _HISTORY,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            **like(self.wire, self._options.stream),
        }
        ensure(self.wire, stream, subjects, more, create=self._options.create)

    def differs(self, relation: Relation, target: tuple[str, str], before: Relation | None) -> bool:
        """Whether the table was something else before; by the bucket, if nothing is known; not if that says nothing."""
        if before is relation:
            return False
        known = self._shape(target) if before is None else shape(before)
        return known is not None and known != shape(relation)

    def lacks(self, target: tuple[str, str]) -> bool:
        return self._shape(target) is None

    def put(self, relation: Relation, target: tuple[str, str]) -> None:
        if self._shape(target) == shape(relation):
            return
        content = entry(relation, target, self._encoding)
        if len(content) > self.wire.max_payload:
            raise SinkRefused(
                f"what describes {'.'.join(target)} has {len(content):,} bytes, and the server takes"
                f" {self.wire.max_payload:,}",
                "raise max_payload of the NATS server",
            )
        answer = self.wire.tell(self._subject(target), content)
        if "error" in answer:
            raise SinkError(f"bucket {self._options.bucket}: {answer['error'].get('description')}", "is it full?")
        self._known[target] = shape(relation)

    def _shape(self, target: tuple[str, str]) -> Shape | None:
        if target not in self._known:
            raw = last_of_subject(self.wire, f"KV_{self._options.bucket}", self._subject(target))
            self._known[target] = None if raw is None else _shape_in(base64.b64decode(raw.get("data", "")))
        return self._known[target]

    def _subject(self, target: tuple[str, str]) -> str:
        return f"$KV.{self._options.bucket}." + ".".join(map(key, self._options.names(target)))


def described(wire: Wire, bucket: str, name: str) -> tuple[str, str] | None:
    """Schema and name of the table that the bucket has under a name as in subjects, whoever put it there."""
    own = ".".join(key(unquote(part)) for part in name.split("."))
    raw = last_of_subject(wire, f"KV_{bucket}", f"$KV.{bucket}.{own}")
    found = None if raw is None else _decoded(base64.b64decode(raw.get("data", "")))
    if found is None:
        return None
    return str(found["schema"]).removesuffix(f".{found['table']}"), str(found["table"])


def key(name: str) -> str:
    """A name as a key of a bucket: what is not allowed there as `=XX`."""
    return re.sub(r"[^-_A-Za-z0-9]", lambda m: "".join(f"={byte:02X}" for byte in m[0].encode()), name)


def shape(relation: Relation) -> Shape:
    return [
        {
            "name": column.name,
            "position": place if column.number is None else column.number,
            "data_type": data_type(column.type),
            "is_nullable": column.nullable,
            "column_default": column.default,
        }
        for place, column in enumerate(relation.columns, 1)
    ]


def entry(relation: Relation, target: tuple[str, str], encoding: Encoding) -> bytes:
    """What the bucket has, and what a message of a change says."""
    return encoding.plain(
        {
            "table": target[1],
            "schema": ".".join(target),
            "timestamp": int(time.time()),
            "columns": shape(relation),
        }
    )


def _shape_in(data: bytes) -> Shape | None:
    found = _decoded(data)
    return None if found is None else found["columns"]


def _decoded(data: bytes) -> dict[str, Any] | None:
    """An entry in either encoding; None of what is no entry of ours."""
    try:
        raw = json.loads(data) if data.startswith(b"{") else msgpack.unpackb(data)
        return {name: raw[name] for name in ("table", "schema", "columns")}
    except (ValueError, TypeError, KeyError):
        return None
