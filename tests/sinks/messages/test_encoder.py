"""The encoder: messages in log order, and the changes that cannot be encoded, by position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from tests.pgoutput import build
from tests.sinks.messages import runs

from tailrace.change import Position
from tailrace.errors import PoisonError
from tailrace.log.decoding import ChangePositions, TableChanges
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.message import SCHEMA_ORDER, Message, OutgoingMessages
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.tailrace_envelope import TailraceEnvelope

TABLE = runs.table(("id", "int4"), ("note", "text"))


def _encoder(envelope: TailraceEnvelope) -> MessageEncoder:
    return MessageEncoder(envelope, DestinationTemplate.parse("{schema}.{table}"), lambda prefix: f"message.{prefix}")


def test_messages_one_by_one() -> None:
    encoder = _encoder(TailraceEnvelope(ENCODINGS["json"]))
    chunk = [runs.changes(TABLE, build.insert((b"1", b"x")), build.delete((b"1", None)))]
    first, last = OutgoingMessages.joined(encoder.encode(chunk, PositionIds())).messages()
    assert isinstance(first, Message)
    assert (first.destination, first.key, first.position) == ("public.orders", b'{"id":1}', Position.parse("0/1000:0"))
    assert first.headers == {
        "Tailrace-Position": "0/1000:0",
        "Tailrace-Xid": "771",
        "Tailrace-Committed-At": "2026-01-31T12:00:00.123456Z",
        "Tailrace-Last": "false",
    }
    assert first.value == (
        b'{"data":{"id":1,"note":"x"},"msg_id":"0/1000:0","operation":"INSERT","relation_id":16384,'
        b'"schema":"public","subject":"public.orders","table":"orders"}'
    )
    assert last.headers["Tailrace-Last"] == "true"
    assert last.key == b'{"id":1}'


def test_logical_messages_are_published() -> None:
    encoder = _encoder(TailraceEnvelope(ENCODINGS["json"]))
    (found,) = encoder.encode([runs.logical_messages(("app", b"hello"))], PositionIds())
    assert found.destinations.to_pylist() == ["message.app"]
    assert runs.values(found)[0]["content"] == "hello"


@dataclass(frozen=True)
class FaultyEnvelope(TailraceEnvelope):
    """Fails for a run with faulty rows, as Arrow does for a value that a type cannot hold, and for long runs."""

    faulty: tuple[int, ...] = ()
    longest: int = 1000

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        if len(changes) > self.longest or any(int(ordinal) in self.faulty for ordinal in changes.at.ordinal):
            raise pa.ArrowInvalid("a value, which must not be in any message")
        return super().change_messages(changes, destinations, ids)


def test_changes_that_cannot_be_encoded_are_named() -> None:
    encoder = _encoder(FaultyEnvelope(ENCODINGS["json"], faulty=(2, 5)))
    run = runs.changes(TABLE, *(build.insert((b"%d" % n, b"x")) for n in range(8)))
    with pytest.raises(PoisonError, match=r"public\.orders, 0/1000:2: a value cannot be encoded") as caught:
        encoder.encode([run], PositionIds())
    assert caught.value.positions == ("0/1000:2", "0/1000:5")


def test_a_run_that_is_too_large_for_one_array_is_divided() -> None:
    encoder = _encoder(FaultyEnvelope(ENCODINGS["json"], longest=3))
    run = runs.changes(TABLE, *(build.insert((b"%d" % n, b"x")) for n in range(8)))
    (found,) = encoder.encode([run], PositionIds())
    assert [value["data"]["id"] for value in runs.values(found)] == list(range(8))


def test_messages_of_several_runs_are_joined_in_log_order() -> None:
    def messages(ordinals: list[int], order: int, name: str, header: str | None = None) -> OutgoingMessages:
        count = len(ordinals)
        at = runs.positions(count)
        texts = pa.array([f"{name}{ordinal}" for ordinal in ordinals])
        headers = {} if header is None else {header: pa.array(["1"] * count)}
        at = ChangePositions(at.commit_lsn, np.array(ordinals), at.lsn, at.xid, at.committed_at_us, at.is_last)
        return OutgoingMessages(at, texts, texts, texts.cast(pa.binary()), np.full(count, order), None, headers)

    joined = OutgoingMessages.joined(
        [messages([0, 3], 0, "a"), messages([1, 2], 0, "b", "X"), messages([3], SCHEMA_ORDER, "schema")]
    )
    assert joined.ids.to_pylist() == ["a0", "b1", "b2", "schema3", "a3"]
    assert joined.is_change.tolist() == [True, True, True, False, True]
    assert [message.headers.get("X") for message in joined.messages()] == [None, "1", "1", None, None]
