"""The streams of one sink in a Valkey server, read by a client that is independent of Tailrace's own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.contract.message_destination import MESSAGES, MessageDestination, ReceivedMessage
from tests.contract.valkey_rows import connect, escaped

from tailrace.embedded.valkey import ValkeyServer

_numbers = itertools.count(1)


@dataclass
class ValkeyStreams(MessageDestination):
    server: ValkeyServer
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        connect(self.server).flushall()

    @property
    def prefix(self) -> str:
        return f"s{self.number}."

    def beside(self, name: str) -> ValkeyStreams:
        return ValkeyStreams(self.server)

    def settings(self) -> Mapping[str, Any]:
        return {
            "type": "valkey",
            "url": self.server.url,
            "mode": "stream",
            "key": f"{self.prefix}{{schema}}:{{table}}",
            "message_stream": f"{self.prefix}{MESSAGES}",
        }

    def name_of(self, schema: str, table: str) -> str:
        return f"{escaped(schema)}:{escaped(table)}"

    def received(self) -> Sequence[ReceivedMessage]:
        client = connect(self.server)
        found = []
        for stream in sorted(client.scan_iter(f"{self.prefix}*", _type="stream")):
            entries: Any = client.xrange(stream)
            for id, raw in entries:
                fields = {name.decode(): value for name, value in raw.items()}
                payload = json.loads(fields.pop("value"))
                key = fields.pop("key", None)
                headers = {name: value.decode() for name, value in fields.items()}
                subject = payload["subject"].removeprefix(self.prefix)
                name = stream.decode().removeprefix(self.prefix)
                message = ReceivedMessage(name, key, headers, payload | {"subject": subject})
                lsn = int(id.partition(b"-")[0]) & ((1 << 56) - 1)
                assert lsn == message.position.commit_lsn, f"{id} is not the id of {message.position}"
                found.append(message)
        return found
