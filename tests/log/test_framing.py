"""Vectorised framing, compared with a slow model that reads frame by frame."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from tests.log.stream import Capture, Server, read, read_frames, relation_of, split_randomly

from tailrace.change import Relation
from tailrace.log.verify import VerificationTotals, verify
from tailrace.log_rows import LogRows
from tailrace.pgoutput import framing
from tailrace.pgoutput.framing import Frames, OpenTransaction
from tailrace.store import Store

Row = tuple[int, int, int, int, int, str, int, bytes]


@dataclass
class Model:
    """What each frame adds to the log."""

    skip_below: int = 0
    commit_lsn: int = 0
    commit_ts: int = 0
    xid: int = 0
    ordinal: int = 0
    changes: int = 0
    """Changes of the transaction, without those left out."""
    own: set[int] = field(default_factory=set)
    rows: list[Row] = field(default_factory=list)
    committed_rows: int = 0
    end_lsn: int = 0
    defined: list[tuple[int, Relation]] = field(default_factory=list)

    def read(self, frames: Sequence[bytes]) -> None:
        self.rows, self.committed_rows, self.end_lsn, self.defined = [], 0, 0, []
        for frame in frames:
            (lsn,) = struct.unpack_from(">Q", frame, 1)
            (sent_at,) = struct.unpack_from(">q", frame, 17)
            self._message(lsn, sent_at, frame[25:])

    def _message(self, lsn: int, sent_at: int, payload: bytes) -> None:
        match chr(payload[0]):
            case "B":
                self.commit_lsn, micros, self.xid = struct.unpack_from(">QqI", payload, 1)
                self.commit_ts, self.ordinal, self.changes = micros + framing.EPOCH_SHIFT_US, 0, 0
            case "R":
                relation = relation_of(payload)
                self.defined.append((len(self.rows), relation))
                (self.own.add if relation.is_own else self.own.discard)(relation.oid)
            case "C":
                (end_lsn,) = struct.unpack_from(">Q", payload, 10)
                if self.changes:
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
                self.changes += 1
            case kind:
                relation_id = 0 if kind == "M" else int(struct.unpack_from(">I", payload, 1)[0])
                if relation_id not in self.own:
                    self._keep(lsn, payload, relation_id)
                    self.changes += 1
                self.ordinal += 1

    def _keep(self, lsn: int, payload: bytes, relation_id: int = 0) -> None:
        if self.commit_lsn >= self.skip_below:
            row = (self.commit_lsn, self.ordinal, lsn, self.xid, self.commit_ts, chr(payload[0]), relation_id, payload)
            self.rows.append(row)

    def _end(self, end_lsn: int) -> None:
        if end_lsn > self.skip_below:
            self.end_lsn, self.committed_rows = end_lsn, len(self.rows)


def rows_of(rows: LogRows) -> Iterator[Row]:
    for i in range(len(rows)):
        numbers = (int(c[i]) for c in (rows.commit_lsn, rows.ordinal, rows.lsn, rows.xid, rows.commit_ts))
        yield *numbers, chr(rows.kind[i]), int(rows.relation_id[i]), rows.payload[i].as_py()


OWN_TABLES = [frozenset[int](), frozenset({101}), frozenset({100, 101, 102})]


@pytest.mark.parametrize("own", OWN_TABLES, ids=len)
@pytest.mark.parametrize("seed", range(30))
def test_framing_equals_the_model(seed: int, own: frozenset[int]) -> None:
    server = Server(seed, own=own).work(40)
    rng = random.Random(seed)
    # Sent again from the beginning, including some that the log already has.
    skip_below = rng.choice([0, rng.choice(server.sent).end_lsn, server.sent[-1].end_lsn])
    model, transaction, known = Model(skip_below), OpenTransaction(), set[int]()
    for part in split_randomly(rng, server.frames(), rng.choice([1, 3, 12, 500])):
        model.read(part)
        batch = read_frames(part, transaction, skip_below, known)
        assert list(rows_of(batch.rows)) == model.rows
        assert (batch.committed_rows, batch.end_lsn) == (model.committed_rows, model.end_lsn)
        assert batch.defined == model.defined


@pytest.mark.parametrize("own", OWN_TABLES, ids=len)
def test_division_of_the_stream_does_not_matter(own: frozenset[int]) -> None:
    frames = Server(7, own=own).work(200).frames()
    whole = read_frames(frames)
    for most in (1, 2, 30):
        transaction, known = OpenTransaction(), set[int]()
        parts = [read_frames(p, transaction, 0, known).rows for p in split_randomly(random.Random(most), frames, most)]
        assert list(rows_of(LogRows.concat(parts))) == list(rows_of(whole.rows))


@pytest.mark.parametrize("own", OWN_TABLES[1:], ids=len)
@pytest.mark.parametrize("seed", range(4))
def test_a_log_without_tailraces_own_tables(store: Store, seed: int, own: frozenset[int]) -> None:
    """Divided anywhere and sent again, the log is sound, and other changes keep their positions."""
    rng = random.Random(seed)
    server = Server(seed, own=own).work(25, largest=12)
    for life in range(4):
        capture = Capture(store)
        parts = list(split_randomly(rng, server.frames(), 8))
        for part in parts[: len(parts) if life == 3 else rng.randint(1, len(parts))]:
            capture.add(part)
    assert read(store) == server.captured != server.changes
    tally = VerificationTotals()
    assert list(verify(store, tally)) == []
    assert tally.left_out > 0


@pytest.mark.parametrize("most", [1, 1000])
def test_a_transaction_without_captured_changes_leaves_no_rows(most: int) -> None:
    """Not even its commit, but possibly an origin, which is sent before any change."""
    server = Server(3, own=frozenset({100, 101, 102})).work(60, largest=3)
    transaction, known = OpenTransaction(), set[int]()
    batches = [
        read_frames(part, transaction, 0, known) for part in split_randomly(random.Random(0), server.frames(), most)
    ]
    rows = LogRows.concat([batch.rows for batch in batches])
    captured = {c.position.commit_lsn for c in server.captured}
    assert set(rows.commit_lsn[rows.kind != framing.ORIGIN].tolist()) == captured
    assert len(captured) < len({c.position.commit_lsn for c in server.changes})
    assert max(batch.end_lsn for batch in batches) == server.sent[-1].end_lsn, "they have been seen"


def test_joined_frames_equal_the_frames() -> None:
    frames = Server(8).work(20).frames()
    joined = Frames.concat([Frames.of(part) for part in split_randomly(random.Random(0), frames)])
    assert joined.data == b"".join(frames)
    assert list(joined.lengths) == [len(f) for f in frames]
