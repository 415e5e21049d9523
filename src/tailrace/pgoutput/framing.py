"""Copy-data frames as they come off the replication connection → rows of the log, vectorised with numpy.

Nothing here looks at a row's values. From a batch of XLogData frames it derives the log's columns: whose transaction a
message belongs to, its ordinal in it, where transactions end. BEGIN, RELATION and TYPE become state, not rows. Rows of
Tailrace's own tables are counted and left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Relation

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

# XLogData: 'w', start LSN, end LSN, send time, then the pgoutput message.
HEADER = 25
_START_LSN = 1
_SEND_TIME = 17

# PostgreSQL counts microseconds from 2000-01-01.
EPOCH_SHIFT_US = 946_684_800_000_000

# Arrow multiplies rows by the stop to guess the output's size, and its default stop overflows that.
_NO_STOP = 1 << 31

B, C, D, INSERT, M, ORIGIN, R, T, U, Y = (ord(c) for c in "BCDIMORTUY")
_KEPT = np.zeros(256, dtype=np.bool_)
_KEPT[[C, D, INSERT, M, ORIGIN, T, U]] = True
_IS_CHANGE = np.zeros(256, dtype=np.int64)
_IS_CHANGE[[D, INSERT, M, T, U]] = 1
_HAS_RELATION = np.zeros(256, dtype=np.bool_)
_HAS_RELATION[[D, INSERT, U]] = True


@dataclass(slots=True)
class Transaction:
    """The transaction that the stream is inside of, carried from batch to batch."""

    commit_lsn: int = 0
    commit_ts: int = 0
    xid: int = 0
    ordinal: int = 0
    """The next change's."""
    left_out: int = 0
    """How many of its changes so far."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the log, one array a column."""

    commit_lsn: I64
    ordinal: I64
    lsn: I64
    xid: I64
    commit_ts: I64
    """Microseconds from 1970."""
    kind: U8
    relation_id: I64
    payload: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.kind)

    def columns(self) -> Iterator[npt.NDArray[np.generic]]:
        yield from (
            self.commit_lsn,
            self.ordinal,
            self.lsn,
            self.xid,
            self.commit_ts,
            self.kind,
            self.relation_id,
        )

    def slice(self, start: int, stop: int) -> Rows:
        columns = [c[start:stop] for c in self.columns()]
        return Rows._of(columns, self.payload.slice(start, stop - start))

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        if len(parts) == 1:
            return parts[0]
        columns = [np.concatenate(c) for c in zip(*(p.columns() for p in parts), strict=True)]
        return Rows._of(columns, pa.concat_arrays([p.payload for p in parts]))

    @staticmethod
    def _of(columns: Sequence[npt.NDArray[Any]], payload: pa.BinaryArray) -> Rows:
        commit_lsn, ordinal, lsn, xid, commit_ts, kind, relation_id = columns
        return Rows(commit_lsn, ordinal, lsn, xid, commit_ts, kind, relation_id, payload)

    @staticmethod
    def empty() -> Rows:
        none = np.zeros(0, dtype=np.int64)
        return Rows(none, none, none, none, none, none.astype(np.uint8), none, pa.array([], pa.binary()))


@dataclass(frozen=True, slots=True)
class Batch:
    """What a run of frames adds to the log."""

    rows: Rows
    committed_rows: int
    """How many of the rows, from the first, belong to transactions that are complete; 0 if none ended here."""
    end_lsn: int
    """Every transaction that commits below this has been seen whole; 0 if none ended here."""
    defined: list[tuple[int, Relation]] = field(default_factory=list)
    """Relations that are described here, each with the row it stands before."""
    repeated: int = 0
    """Changes of transactions that the log has."""
    left_out: int = 0
    """Changes of Tailrace's own relations."""


@dataclass(frozen=True, slots=True)
class Frames:
    """XLogData frames end to end: a fraction of the memory that a million small objects take."""

    data: bytes
    lengths: I64

    @staticmethod
    def of(frames: Sequence[bytes | memoryview]) -> Frames:
        return Frames(b"".join(frames), np.fromiter(map(len, frames), dtype=np.int64, count=len(frames)))

    @staticmethod
    def concat(parts: Sequence[Frames]) -> Frames:
        if len(parts) == 1:
            return parts[0]
        return Frames(b"".join(p.data for p in parts), np.concatenate([p.lengths for p in parts]))


@dataclass(frozen=True, slots=True)
class Messages:
    """Where the messages of frames stand, and which they are."""

    data: bytes
    starts: I64
    """Of the frames."""
    ends: I64
    kind: U8

    @staticmethod
    def of(frames: Frames) -> Messages:
        ends = np.cumsum(frames.lengths)
        starts = ends - frames.lengths
        return Messages(frames.data, starts, ends, np.frombuffer(frames.data, dtype=np.uint8)[starts + HEADER])

    def descriptions(self) -> list[tuple[int, bytes]]:
        """RELATION and TYPE messages, each with its place among the messages."""
        places = np.flatnonzero((self.kind == R) | (self.kind == Y))
        return [(int(i), self.data[int(self.starts[i]) + HEADER : int(self.ends[i])]) for i in places]


def read(
    messages: Messages,
    transaction: Transaction,
    skip_below: int = 0,
    described: Sequence[tuple[int, Relation]] = (),
    own: Collection[int] = (),
) -> Batch:
    """Rows of the log for these messages, of which there is at least one; `transaction` is brought up to date.

    Transactions that commit below `skip_below` are left out: the log has them. `described` is what the messages'
    descriptions say, each with its place; `own` are the relations, by oid, that were Tailrace's own before.
    """
    data, starts, ends, kind = messages.data, messages.starts, messages.ends, messages.kind
    buffer = np.frombuffer(data, dtype=np.uint8)
    message = starts + HEADER

    # Which transaction: 0 is the one carried in, then one for each BEGIN.
    begins = np.flatnonzero(kind == B)
    at_begin = message[begins]
    commit_lsns = np.concatenate([[transaction.commit_lsn], _be64(buffer, at_begin + 1)])
    commit_tss = np.concatenate([[transaction.commit_ts], _be64(buffer, at_begin + 9) + EPOCH_SHIFT_US])
    xids = np.concatenate([[transaction.xid], _be32(buffer, at_begin + 17)])
    which = np.cumsum(kind == B)
    commit_lsn, commit_ts, xid = commit_lsns[which], commit_tss[which], xids[which]

    # A message outside any transaction is one of its own, at the last byte of its record: the LSN it comes with is that
    # record's end, where another transaction's commit may stand.
    said = np.flatnonzero(kind == M)
    alone = said[buffer[message[said] + 1] == 0]
    weight = _IS_CHANGE[kind]
    if len(alone):
        commit_lsn[alone] = _be64(buffer, message[alone] + 2) - 1
        commit_ts[alone] = _be64(buffer, starts[alone] + _SEND_TIME) + EPOCH_SHIFT_US
        xid[alone] = 0
        weight[alone] = 0
    # TRUNCATE of several tables is a change for each.
    truncates = np.flatnonzero(kind == T)
    weight[truncates] = _be32(buffer, message[truncates] + 1)

    counted = np.cumsum(weight)
    base = np.concatenate([[-transaction.ordinal], counted[begins]])
    ordinal = counted - weight - base[which]
    ordinal[alone] = 0
    transaction.commit_lsn, transaction.commit_ts = int(commit_lsns[-1]), int(commit_tss[-1])
    transaction.xid, transaction.ordinal = int(xids[-1]), int(counted[-1] - base[-1])

    relation_id = np.zeros(len(kind), dtype=np.int64)
    with_relation = np.flatnonzero(_HAS_RELATION[kind])
    relation_id[with_relation] = _be32(buffer, message[with_relation] + 1)

    # Without a change, not even the commit is kept: else what a sink writes down of itself would make it write again.
    # PostgreSQL 14 also sends transactions in which nothing is published.
    commits = np.flatnonzero(kind == C)
    changes = ordinal[commits]
    is_new = commit_lsn >= skip_below
    repeated = 0 if is_new.all() else int(_IS_CHANGE[kind[~is_new]].sum())
    kept = _KEPT[kind] & is_new
    of_own = _of_own(relation_id, described, own)
    if len(of_own) or transaction.left_out:
        kept[of_own] = False
        left_out = np.bincount(which[of_own], minlength=len(begins) + 1)
        left_out[0] += transaction.left_out
        transaction.left_out = int(left_out[-1])
        changes -= left_out[which[commits]]
    kept[commits] &= changes > 0

    end_lsn, committed_rows = 0, 0
    ending = np.concatenate([commits, alone])
    ended = np.concatenate([_be64(buffer, message[commits] + 10), commit_lsn[alone] + 1])
    if len(ending) and ended.max() > skip_below:
        end_lsn = int(ended.max())
        committed_rows = int(np.count_nonzero(kept[: int(ending.max()) + 1]))

    before = np.cumsum(kept)
    defined = [(int(before[place]), relation) for place, relation in described]  # which itself is not kept

    offsets = np.concatenate([[0], ends]).astype(np.int32)
    payload = pa.BinaryArray.from_buffers(pa.binary(), len(kind), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    if not kept.all():
        payload = payload.filter(pa.array(kept))
        commit_lsn, ordinal, commit_ts, xid = commit_lsn[kept], ordinal[kept], commit_ts[kept], xid[kept]
        kind, relation_id, starts = kind[kept], relation_id[kept], starts[kept]
    lsn = _be64(buffer, starts + _START_LSN)
    payload = pc.binary_slice(payload, HEADER, stop=_NO_STOP)
    rows = Rows(commit_lsn, ordinal, lsn, xid, commit_ts, kind, relation_id, payload)
    return Batch(rows, committed_rows, end_lsn, defined, repeated, len(of_own))


def _of_own(relation_id: I64, described: Sequence[tuple[int, Relation]], own: Collection[int]) -> I64:
    """Where changes of Tailrace's own relations are: of each what its last description says."""
    if not own and not any(relation.is_own for _, relation in described):
        return np.zeros(0, dtype=np.int64)
    is_own = np.zeros(len(relation_id), dtype=np.bool_)
    for oid in own:
        is_own |= relation_id == oid
    for place, relation in described:
        is_own[place:][relation_id[place:] == relation.oid] = relation.is_own
    return np.flatnonzero(is_own)


def _be64(buffer: U8, at: I64) -> I64:
    """Big-endian 64-bit integers at these places: a window that starts at every byte, then one gather."""
    return _gather(buffer, at, np.dtype(">i8"))


def _be32(buffer: U8, at: I64) -> I64:
    return _gather(buffer, at, np.dtype(">u4"))


def _gather(buffer: U8, at: I64, dtype: np.dtype[np.generic]) -> I64:
    if not len(at):
        return np.zeros(0, dtype=np.int64)
    windows = np.ndarray(len(buffer) - dtype.itemsize + 1, dtype, buffer.data, strides=(1,))
    return windows[at].astype(np.int64)
