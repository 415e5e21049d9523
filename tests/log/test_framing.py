"""Vectorised framing against a slow model that reads one frame after the other."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from tests.log.stream import Server, cut

from tailrace.pgoutput import framing
from tailrace.pgoutput.framing import Frames, Rows, Transaction

Row = tuple[int, int, int, int, int, str, int, bytes]


@dataclass
class Model:
    """What one frame after the other adds to the log."""

    skip_below: int = 0
    commit_lsn: int = 0
    commit_ts: int = 0
    xid: int = 0
    ordinal: int = 0
    rows: list[Row] = field(default_factory=list)
    committed_rows: int = 0
    end_lsn: int = 0
    descriptions: list[tuple[int, bytes]] = field(default_factory=list)

    def read(self, frames: Sequence[bytes]) -> None:
        self.rows, self.committed_rows, self.end_lsn, self.descriptions = [], 0, 0, []
        for frame in frames:
            (lsn,) = struct.unpack_from(">Q", frame, 1)
            (sent_at,) = struct.unpack_from(">q", frame, 17)
            self._message(lsn, sent_at, frame[25:])

    def _message(self, lsn: int, sent_at: int, payload: bytes) -> None:
        match chr(payload[0]):
            case "B":
                self.commit_lsn, micros, self.xid = struct.unpack_from(">QqI", payload, 1)
                self.commit_ts, self.ordinal = micros + framing.EPOCH_SHIFT_US, 0
            case "R" | "Y":
                self.descriptions.append((len(self.rows), payload))
            case "C":
                (end_lsn,) = struct.unpack_from(">Q", payload, 10)
                if self.ordinal:
                    self._keep(lsn, payload)
                self._end(end_lsn)
            case "O":
                self._keep(lsn, payload)
            case "M" if payload[1] == 0:
                (end_lsn,) = struct.unpack_from(">Q", payload, 2)
                if end_lsn > self.skip_below:
                    self.rows.append((end_lsn - 1, 0, lsn, 0, sent_at + framing.EPOCH_SHIFT_US, "M", 0, payload))
                self._end(end_lsn)
            case "T":
                self._keep(lsn, payload)
                self.ordinal += int(struct.unpack_from(">I", payload, 1)[0])
            case kind:
                self._keep(lsn, payload, 0 if kind == "M" else int(struct.unpack_from(">I", payload, 1)[0]))
                self.ordinal += 1

    def _keep(self, lsn: int, payload: bytes, relation_id: int = 0) -> None:
        if self.commit_lsn >= self.skip_below:
            row = (self.commit_lsn, self.ordinal, lsn, self.xid, self.commit_ts, chr(payload[0]), relation_id, payload)
            self.rows.append(row)

    def _end(self, end_lsn: int) -> None:
        if end_lsn > self.skip_below:
            self.end_lsn, self.committed_rows = end_lsn, len(self.rows)


def rows_of(rows: Rows) -> Iterator[Row]:
    for i in range(len(rows)):
        numbers = (int(c[i]) for c in (rows.commit_lsn, rows.ordinal, rows.lsn, rows.xid, rows.commit_ts))
        yield *numbers, chr(rows.kind[i]), int(rows.relation_id[i]), rows.payload[i].as_py()


@pytest.mark.parametrize("seed", range(30))
def test_framing_is_the_models(seed: int) -> None:
    server = Server(seed).work(40)
    rng = random.Random(seed)
    # Sent again from the beginning, some of which the log has already.
    skip_below = rng.choice([0, rng.choice(server.sent).end_lsn, server.sent[-1].end_lsn])
    model, transaction = Model(skip_below), Transaction()
    for part in cut(rng, server.frames(), rng.choice([1, 3, 12, 500])):
        model.read(part)
        batch = framing.read(Frames.of(part), transaction, skip_below)
        assert list(rows_of(batch.rows)) == model.rows
        assert (batch.committed_rows, batch.end_lsn) == (model.committed_rows, model.end_lsn)
        assert batch.descriptions == model.descriptions


def test_how_a_stream_is_cut_changes_nothing() -> None:
    frames = Server(7).work(200).frames()
    whole = framing.read(Frames.of(frames), Transaction())
    for most in (1, 2, 30):
        transaction = Transaction()
        parts = [framing.read(Frames.of(p), transaction).rows for p in cut(random.Random(most), frames, most)]
        assert list(rows_of(Rows.concat(parts))) == list(rows_of(whole.rows))


def test_frames_joined_are_the_same_frames() -> None:
    frames = Server(8).work(20).frames()
    joined = Frames.concat([Frames.of(part) for part in cut(random.Random(0), frames)])
    assert joined.data == b"".join(frames)
    assert list(joined.lengths) == [len(f) for f in frames]
