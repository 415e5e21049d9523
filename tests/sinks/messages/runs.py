"""Runs of changes, made by hand from pgoutput messages."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from tests.pgoutput import build

from tailrace.change import Column, Relation
from tailrace.log.decoding import TRUNCATE, ChangePositions, LogicalMessages, TableChanges, no_images
from tailrace.pgoutput.decoder import decode
from tailrace.sinks.messages.message import OutgoingMessages

COMMITTED_AT_US = 1_769_860_800_123_456
"""2026-01-31T12:00:00.123456Z"""
COMMIT_LSN = 0x1000


def table(
    *columns: tuple[str, str] | Column, key: tuple[str, ...] = ("id",), schema: str = "public", name: str = "orders"
) -> Relation:
    """A table whose columns have these names and types."""
    made = [
        one if isinstance(one, Column) else Column(one[0], build.type_(one[1]), nullable=one[0] not in key)
        for one in columns
    ]
    with_identity = [replace(column, is_identity=column.name in key) for column in made]
    return Relation(build.OID, schema, name, "d", tuple(with_identity), key)


def positions(count: int) -> ChangePositions:
    """The positions of one transaction's changes."""
    return ChangePositions(
        np.full(count, COMMIT_LSN),
        np.arange(count),
        np.arange(count) + 0x800,
        np.full(count, 771),
        np.full(count, COMMITTED_AT_US),
        np.arange(count) == count - 1,
    )


def changes(relation: Relation, *payloads: bytes) -> TableChanges:
    """A run of the changes in pgoutput messages, all in one transaction."""
    decoded = decode(relation, pa.array(payloads, pa.binary()), as_text=True)
    operations = np.array([payload[0] for payload in payloads], np.uint8)
    target = relation.schema, relation.name
    return TableChanges(
        relation, positions(len(payloads)), operations, decoded.old, decoded.old_is_key, decoded.new, target=target
    )


def truncate(relation: Relation) -> TableChanges:
    none = no_images(relation, 1, as_text=True)
    operations = np.array([TRUNCATE], np.uint8)
    target = relation.schema, relation.name
    return TableChanges(relation, positions(1), operations, none, np.zeros(1, np.bool_), none, target=target)


def logical_messages(*pairs: tuple[str, bytes]) -> LogicalMessages:
    prefixes, contents = tuple(p for p, _ in pairs), tuple(c for _, c in pairs)
    return LogicalMessages(positions(len(pairs)), prefixes, contents, np.ones(len(pairs), np.bool_))


def values(messages: OutgoingMessages) -> list[Any]:
    """The values of messages that are encoded as JSON; None for a tombstone."""
    return [None if value is None else json.loads(value) for value in messages.values.to_pylist()]


def keys(messages: OutgoingMessages) -> list[Any]:
    assert messages.keys is not None
    return [None if key is None else json.loads(key) for key in messages.keys.to_pylist()]
