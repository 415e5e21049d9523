"""Converts copy-data frames of the replication connection to rows of the log, vectorised with numpy.

It does not read values. From a batch of XLogData frames it derives the log's columns: each message's transaction and
its ordinal there, and where transactions end. BEGIN, RELATION and TYPE become state, not rows. Changes of Tailrace's
own tables are counted and left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Lsn, Relation
from tailrace.errors import DecodeError
from tailrace.log_rows import I64, U8, LogRows, RowBatch

# XLogData is 'w', start LSN, end LSN, send time, then the pgoutput message.
HEADER = 25
_START_LSN = 1
_SEND_TIME = 17

# PostgreSQL counts microseconds from 2000-01-01.
EPOCH_SHIFT_US = 946_684_800_000_000

_NOT_PGOUTPUT = "is the server behind a proxy that changes bytes? The log is not affected"

# Arrow estimates the output's size as rows times stop, which overflows with its default stop.
_NO_STOP = 1 << 31

B, C, D, INSERT, M, ORIGIN, R, T, U, Y = (ord(c) for c in "BCDIMORTUY")
_IS_ROW = np.zeros(256, dtype=np.bool_)
_IS_ROW[[C, D, INSERT, M, ORIGIN, T, U]] = True
_IS_CHANGE = np.zeros(256, dtype=np.int64)
_IS_CHANGE[[D, INSERT, M, T, U]] = 1
_IN_TRANSACTION = np.zeros(256, dtype=np.bool_)
_IN_TRANSACTION[[B, D, INSERT, ORIGIN, T, U]] = True
_SHORTEST = np.full(256, np.iinfo(np.int64).max)
_SHORTEST[[B, C, D, INSERT, M, ORIGIN, R, T, U, Y]] = [21, 26, 8, 8, 15, 10, 10, 6, 8, 7]
"""The bytes that a message of each kind has at least. Others are never sent."""
_HAS_RELATION = np.zeros(256, dtype=np.bool_)
_HAS_RELATION[[D, INSERT, U]] = True


@dataclass(slots=True)
class OpenTransaction:
    """The transaction that the stream is currently in, carried from batch to batch."""

    commit_lsn: int = 0
    commit_ts: int = 0
    xid: int = 0
    ordinal: int = 0
    """The ordinal of the next change."""
    left_out: int = 0
    """How many of its changes were left out so far."""
    is_open: bool = False
    """Whether its commit is still to come."""


@dataclass(frozen=True, slots=True)
class Frames:
    """XLogData frames, concatenated: they take a fraction of the memory of a million small objects."""

    data: bytes
    lengths: I64

    @property
    def size(self) -> int:
        return len(self.data)

    @staticmethod
    def of(frames: Sequence[bytes | memoryview]) -> Frames:
        return Frames(b"".join(frames), np.fromiter(map(len, frames), dtype=np.int64, count=len(frames)))

    @staticmethod
    def concat(parts: Sequence[Frames]) -> Frames:
        if len(parts) == 1:
            return parts[0]
        return Frames(b"".join(p.data for p in parts), np.concatenate([p.lengths for p in parts]))


@dataclass(frozen=True, slots=True)
class MessageIndex:
    """The place and kind of each message in a batch of frames."""

    data: bytes
    starts: I64
    """Where each frame starts, header included."""
    ends: I64
    kind: U8

    @staticmethod
    def of(frames: Frames) -> MessageIndex:
        ends = np.cumsum(frames.lengths)
        starts = ends - frames.lengths
        if frames.lengths.min() <= HEADER:
            raise DecodeError("the stream has a frame without a message", _NOT_PGOUTPUT)
        kind = np.frombuffer(frames.data, dtype=np.uint8)[starts + HEADER]
        for short in np.flatnonzero(frames.lengths - HEADER < _SHORTEST[kind]):
            size = frames.lengths[short] - HEADER
            raise DecodeError(f"the stream has a message {chr(kind[short])!r} of {size} bytes", _NOT_PGOUTPUT)
        return MessageIndex(frames.data, starts, ends, kind)

    def descriptions(self) -> list[tuple[int, bytes]]:
        """RELATION and TYPE messages, each with its index among the messages."""
        indexes = np.flatnonzero((self.kind == R) | (self.kind == Y))
        return [(int(i), self.data[int(self.starts[i]) + HEADER : int(self.ends[i])]) for i in indexes]


def read(
    messages: MessageIndex,
    transaction: OpenTransaction,
    skip_below: int = 0,
    described: Sequence[tuple[int, Relation]] = (),
    own: Collection[int] = (),
) -> RowBatch:
    """Convert messages (at least one) to rows of the log, and update `transaction`.

    Transactions that commit below `skip_below` are left out, because the log holds them. `described` are the relations
    that these messages describe, each with its message's index; `own` are the oids of the relations that were already
    known as Tailrace's own.
    """
    data, starts, ends, kind = messages.data, messages.starts, messages.ends, messages.kind
    buffer = np.frombuffer(data, dtype=np.uint8)
    message = starts + HEADER

    # The transaction of each message: 0 is the one carried in, then one for each BEGIN.
    begins = np.flatnonzero(kind == B)
    at_begin = message[begins]
    commit_lsns = np.concatenate([[transaction.commit_lsn], _be64(buffer, at_begin + 1)])
    commit_tss = np.concatenate([[transaction.commit_ts], _be64(buffer, at_begin + 9) + EPOCH_SHIFT_US])
    xids = np.concatenate([[transaction.xid], _be32(buffer, at_begin + 17)])
    which = np.cumsum(kind == B)
    commit_lsn, commit_ts, xid = commit_lsns[which], commit_tss[which], xids[which]
    commits = np.flatnonzero(kind == C)
    _check_transactions(kind, which, commit_lsn, _be64(buffer, message[commits] + 2), transaction)

    # A message outside any transaction becomes a transaction of its own at the last byte of its record. Its LSN is the
    # record's end, where the commit of another transaction may start.
    logical = np.flatnonzero(kind == M)
    alone = logical[buffer[message[logical] + 1] == 0]
    weight = _IS_CHANGE[kind]
    if len(alone):
        commit_lsn[alone] = _be64(buffer, message[alone] + 2) - 1
        commit_ts[alone] = _be64(buffer, starts[alone] + _SEND_TIME) + EPOCH_SHIFT_US
        xid[alone] = 0
        weight[alone] = 0
    # TRUNCATE of several tables is one change per table.
    truncates = np.flatnonzero(kind == T)
    weight[truncates] = _be32(buffer, message[truncates] + 1)
    if not np.array_equal(ends[truncates] - message[truncates], 6 + 4 * weight[truncates]):
        raise DecodeError("the stream has a TRUNCATE of another size than its number of tables", _NOT_PGOUTPUT)

    counted = np.cumsum(weight)
    base = np.concatenate([[-transaction.ordinal], counted[begins]])
    ordinal = counted - weight - base[which]
    ordinal[alone] = 0
    transaction.commit_lsn, transaction.commit_ts = int(commit_lsns[-1]), int(commit_tss[-1])
    transaction.xid, transaction.ordinal = int(xids[-1]), int(counted[-1] - base[-1])

    relation_id = np.zeros(len(kind), dtype=np.int64)
    with_relation = np.flatnonzero(_HAS_RELATION[kind])
    relation_id[with_relation] = _be32(buffer, message[with_relation] + 1)

    # The commit of a transaction without changes is left out: otherwise a sink's own write would cause its next one.
    # PostgreSQL 14 also sends transactions without published changes.
    changes = ordinal[commits]
    is_new = commit_lsn >= skip_below
    repeated = 0 if is_new.all() else int(_IS_CHANGE[kind[~is_new]].sum())
    is_row = _IS_ROW[kind] & is_new
    own_changes = _own_changes(relation_id, described, own)
    if len(own_changes) or transaction.left_out:
        is_row[own_changes] = False
        left_out = np.bincount(which[own_changes], minlength=len(begins) + 1)
        left_out[0] += transaction.left_out
        transaction.left_out = int(left_out[-1])
        changes -= left_out[which[commits]]
    is_row[commits] &= changes > 0

    end_lsn, committed_rows = 0, 0
    ending = np.concatenate([commits, alone])
    ended = np.concatenate([_be64(buffer, message[commits] + 10), commit_lsn[alone] + 1])
    if len(ending) and ended.max() > skip_below:
        end_lsn = int(ended.max())
        committed_rows = int(np.count_nonzero(is_row[: int(ending.max()) + 1]))

    before = np.cumsum(is_row)
    defined = [(int(before[index]), relation) for index, relation in described]  # the description itself is not a row

    offsets = np.concatenate([[0], ends]).astype(np.int32)
    payload = pa.BinaryArray.from_buffers(pa.binary(), len(kind), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    if not is_row.all():
        payload = payload.filter(pa.array(is_row))
        commit_lsn, ordinal, commit_ts, xid = commit_lsn[is_row], ordinal[is_row], commit_ts[is_row], xid[is_row]
        kind, relation_id, starts = kind[is_row], relation_id[is_row], starts[is_row]
    lsn = _be64(buffer, starts + _START_LSN)
    payload = pc.binary_slice(payload, HEADER, stop=_NO_STOP)
    rows = LogRows(commit_lsn, ordinal, lsn, xid, commit_ts, kind, relation_id, payload)
    return RowBatch(rows, committed_rows, end_lsn, defined, repeated, len(own_changes))


def _check_transactions(kind: U8, which: I64, commit_lsn: I64, committed: I64, transaction: OpenTransaction) -> None:
    """Raise unless all changes are inside transactions, whose commits have the LSNs that their beginnings announced."""
    is_open = which - np.cumsum(kind == C) + transaction.is_open
    if not np.array_equal(committed, commit_lsn[kind == C]) or (is_open[kind == C] != 0).any():
        raise DecodeError("the stream has a commit that does not belong to its transaction", _NOT_PGOUTPUT)
    for stray in np.flatnonzero(_IN_TRANSACTION[kind] & (is_open != 1)):
        lsn = Lsn(commit_lsn[stray])
        raise DecodeError(
            f"the stream has a message {chr(kind[stray])!r} outside transactions near {lsn}", _NOT_PGOUTPUT
        )
    transaction.is_open = bool(is_open[-1])


def _own_changes(relation_id: I64, described: Sequence[tuple[int, Relation]], own: Collection[int]) -> I64:
    """The indexes of changes to Tailrace's own relations, each judged by its latest description."""
    if not own and not any(relation.is_own for _, relation in described):
        return np.zeros(0, dtype=np.int64)
    is_own = np.zeros(len(relation_id), dtype=np.bool_)
    for oid in own:
        is_own |= relation_id == oid
    for index, relation in described:
        is_own[index:][relation_id[index:] == relation.oid] = relation.is_own
    return np.flatnonzero(is_own)


def _be64(buffer: U8, at: I64) -> I64:
    """Read big-endian 64-bit integers: a window starts at every byte, then one gather selects those at `at`."""
    return _gather(buffer, at, np.dtype(">i8"))


def _be32(buffer: U8, at: I64) -> I64:
    return _gather(buffer, at, np.dtype(">u4"))


def _gather(buffer: U8, at: I64, dtype: np.dtype[np.generic]) -> I64:
    if not len(at):
        return np.zeros(0, dtype=np.int64)
    windows = np.ndarray(len(buffer) - dtype.itemsize + 1, dtype, buffer.data, strides=(1,))
    return windows[at].astype(np.int64)
