"""Debezium's heartbeats: messages that show that changes would be delivered if there were any."""

from __future__ import annotations

from typing import Final

from tailrace.sinks.messages.connect_payload import ConnectPayload, ConnectStruct
from tailrace.sinks.messages.connect_schema import struct_schema
from tailrace.sinks.messages.debezium_schema import dump
from tailrace.sinks.messages.payload import Integers, Texts

_KEY_SCHEMA: Final = dump(
    struct_schema(
        "io.debezium.connector.common.ServerNameKey", [{"type": "string", "optional": False, "field": "serverName"}]
    )
)
_SCHEMA: Final = dump(
    struct_schema("io.debezium.connector.common.Heartbeat", [{"type": "int64", "optional": False, "field": "ts_ms"}])
)


def heartbeat_destination(prefix: str) -> str:
    return f"__debezium-heartbeat.{prefix}"


def heartbeat_payloads(prefix: str, now_ms: int) -> tuple[ConnectPayload, ConnectPayload]:
    """Return the key and the value of a heartbeat."""
    key = ConnectStruct([("serverName", Texts(prefix))])
    return ConnectPayload(_KEY_SCHEMA, key), ConnectPayload(_SCHEMA, ConnectStruct([("ts_ms", Integers(now_ms))]))
