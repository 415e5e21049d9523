"""A damaged replication stream: it is refused, or its rows are those of the messages as they are. Never a crash."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from tests.fuzz.mutation import ROUNDS, mutations
from tests.log.stream import Server

from tailrace.errors import DecodeError
from tailrace.log_rows import RowBatch
from tailrace.pgoutput import framing, message
from tailrace.pgoutput.framing import Frames, MessageIndex, OpenTransaction

HEADER = framing.HEADER


def test_damaged_frames() -> None:
    frames = Server(seed=3).work(12).frames()
    rng = random.Random(1)
    refused = 0
    for number in range(ROUNDS * 4):
        at = rng.randrange(len(frames))
        (damaged,) = mutations(number, frames[at], 1)
        try:
            batch = _read([*frames[:at], damaged, *frames[at + 1 :]])
        except DecodeError:
            refused += 1
            continue
        kinds = [chr(kind) for kind in batch.rows.kind]
        for kind, payload in zip(kinds, batch.rows.payload.to_pylist(), strict=True):
            assert payload[:1] == kind.encode(), "each row has its own message"
            with suppress(DecodeError):
                message.parse(payload)
    assert refused > ROUNDS


@pytest.mark.parametrize("change", ["lost", "twice", "exchanged"])
def test_frames_that_are_not_in_order(change: str) -> None:
    """A commit or a beginning that is lost would give changes to another transaction."""
    server = Server(seed=4).work(20)
    frames = server.frames()
    refused = 0
    for at in range(len(frames) - 1):
        kind = frames[at][HEADER : HEADER + 1]
        if kind not in (b"B", b"C") or (change == "exchanged" and frames[at + 1][HEADER] in b"RM"):
            continue  # a description or a message outside transactions may be anywhere
        parts = {"lost": [], "twice": [frames[at]] * 2, "exchanged": [frames[at + 1], frames[at]]}
        with suppress(DecodeError):
            _read([*frames[:at], *parts[change], *frames[at + 1 + (change == "exchanged") :]])
            pytest.fail(f"{kind!r} was {change}, and nobody noticed")
        refused += 1
    assert refused > 20


def _read(frames: list[bytes]) -> RowBatch:
    messages = MessageIndex.of(Frames.of(frames))
    for _, text in messages.descriptions():
        message.parse(text)
    return framing.read(messages, OpenTransaction())
