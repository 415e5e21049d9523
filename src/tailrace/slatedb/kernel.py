"""The compiled loops over the blocks of an SST: `measure` checks every byte, then `fill` writes Arrow's buffers.

`measure` reads nothing outside its blocks, whatever they contain, and returns the sizes that `fill` needs. `fill` must
only be given blocks that `measure` accepted. `write_messages` and `write_commits` write entries as messages of the log.

An entry of format version 2 shares a prefix with the key before it, one of version 1 with the first key of its block.
"""

from __future__ import annotations

from typing import Any

from numba import types

from tailrace.pgoutput.kernel import BYTES, FLAG, LONG, LONGS, OUT, PAIR, Bytes, Longs, compiled

PUT, DELETE, MERGE = 0, 1, 2
"""Kinds of entries, in the order of `EntryKind`."""

CUT, SIZE, PREFIX, FLAGS, TOMBSTONE, OFFSET, EMPTY = -1, -2, -3, -4, -5, -6, -7
REASONS = {
    CUT: "an entry continues after the end of its block",
    SIZE: "a length has more than 32 bits",
    PREFIX: "an entry shares more bytes than the key before it has",
    FLAGS: "an entry has flags that are not known",
    TOMBSTONE: "a delete has a value",
    OFFSET: "the block's offsets do not point to its entries",
    EMPTY: "an entry has no key",
}

_TOMBSTONE, _EXPIRES, _CREATED, _MERGES, _KNOWN = 1, 2, 4, 8, 15

# next, shared, key start, key length, value start, value length, seq, flags, expire_ts, create_ts; seq is unsigned, and
# `next` is one of REASONS if the entry cannot be read.
_Entry = tuple[int, int, int, int, int, int, int, int, int, int]
_ENTRY: Any = types.UniTuple(types.int64, 10)  # type: ignore[no-untyped-call]
_TIMES: Any = types.UniTuple(types.int64, 3)  # type: ignore[no-untyped-call]
_GRID: Any = types.int64[:, ::1]


@compiled(PAIR(BYTES, LONG, LONG))
def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned integer of at most 32 bits and the place after it, or one of REASONS instead of the place."""
    value = LONG(0)
    for shift in range(0, 35, 7):
        if at >= end:
            return LONG(0), LONG(CUT)
        byte = LONG(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value, at) if value <= 0xFFFFFFFF else (LONG(0), LONG(SIZE))
    return LONG(0), LONG(SIZE)


@compiled(LONG(BYTES, LONG, LONG))
def _big_endian(data: Bytes, at: int, size: int) -> int:
    value: int = LONG(0)
    for k in range(size):
        value = value << 8 | LONG(data[at + k])
    return value


@compiled(_ENTRY(LONG))
def _unreadable(reason: int) -> _Entry:
    zero = LONG(0)
    return LONG(reason), zero, zero, zero, zero, zero, zero, zero, zero, zero


@compiled(_TIMES(BYTES, LONG, LONG, LONG))
def _times(data: Bytes, at: int, end: int, flags: int) -> tuple[int, int, int]:
    """The place after the times, or one of REASONS instead; when the entry expires; when it was created."""
    expires, created = LONG(0), LONG(0)
    if flags & _EXPIRES:
        if end - at < 8:
            return LONG(CUT), expires, created
        expires = _big_endian(data, at, 8)
        at += 8
    if flags & _CREATED:
        if end - at < 8:
            return LONG(CUT), expires, created
        created = _big_endian(data, at, 8)
        at += 8
    return at, expires, created


@compiled(_ENTRY(BYTES, LONG, LONG))
def _entry_1(data: Bytes, at: int, end: int) -> _Entry:
    if end - at < 4:
        return _unreadable(CUT)
    shared, length = _big_endian(data, at, 2), _big_endian(data, at + 2, 2)
    key = at + 4
    if end - key < length + 9:
        return _unreadable(CUT)
    at = key + length
    seq, flags = _big_endian(data, at, 8), LONG(data[at + 8])
    at, expires, created = _times(data, at + 9, end, flags)
    if at < 0:
        return _unreadable(at)
    size = LONG(0)
    if not flags & _TOMBSTONE:
        if end - at < 4:
            return _unreadable(CUT)
        size = _big_endian(data, at, 4)
        at += 4
        if end - at < size:
            return _unreadable(CUT)
    return at + size, shared, key, length, at, size, seq, flags, expires, created


@compiled(_ENTRY(BYTES, LONG, LONG))
def _entry_2(data: Bytes, at: int, end: int) -> _Entry:
    shared, at = _varint(data, at, end)
    if at < 0:
        return _unreadable(at)
    length, at = _varint(data, at, end)
    if at < 0:
        return _unreadable(at)
    size, key = _varint(data, at, end)
    if key < 0:
        return _unreadable(key)
    if end - key < length + size + 9:
        return _unreadable(CUT)
    value = key + length
    at = value + size
    seq, flags = _big_endian(data, at, 8), LONG(data[at + 8])
    at, expires, created = _times(data, at + 9, end, flags)
    if at < 0:
        return _unreadable(at)
    if flags & _TOMBSTONE and size:
        return _unreadable(TOMBSTONE)
    return at, shared, key, length, value, size, seq, flags, expires, created


@compiled(LONG(BYTES, LONGS, LONGS, LONG, LONGS, LONGS))
def measure(data: Bytes, start: Longs, end: Longs, version: int, first_seq: Longs, totals: Longs) -> int:
    """Check the blocks from `start` to `end`. Return -1, or the first block that cannot be read.

    `first_seq` receives the sequence number of each block's first entry. `totals` receives the number of entries and
    the bytes of their keys and of their values, or one of REASONS and its place in `data`.
    """
    entries, keys, values = LONG(0), LONG(0), LONG(0)
    for block in range(len(start)):
        at, stop = start[block], end[block] - 2
        count = _big_endian(data, stop, 2) if stop >= at else LONG(0)
        offset = stop - 2 * count
        if count == 0 or offset < at:
            totals[0], totals[1] = OFFSET, at
            return block
        stop = offset
        before, is_first = LONG(0), True
        while at < stop:
            entry = _entry_1(data, at, stop) if version == 1 else _entry_2(data, at, stop)
            next, shared, length, flags = entry[0], entry[1], entry[3], entry[7]
            reason = LONG(0)
            if next < 0:
                reason = next
            elif shared > before:
                reason = LONG(PREFIX)
            elif shared + length == 0:
                reason = LONG(EMPTY)
            elif flags & ~_KNOWN or (flags & _TOMBSTONE and flags & _MERGES):
                reason = LONG(FLAGS)
            elif count and _big_endian(data, offset, 2) == at - start[block]:
                count -= 1
                offset += 2
                if version != 1 and shared:
                    reason = LONG(OFFSET)
            elif version == 1:
                reason = LONG(OFFSET)
            if reason:
                totals[0], totals[1] = reason, at
                return block
            if is_first:
                first_seq[block] = entry[6]
            if is_first or version != 1:
                before = shared + length
            is_first = False
            entries += 1
            keys += shared + length
            values += entry[5]
            at = next
        if count or is_first:
            totals[0], totals[1] = OFFSET, at
            return block
    totals[0], totals[1], totals[2] = entries, keys, values
    return -1


@compiled(types.void(BYTES, LONGS, LONGS, LONG, OUT, LONGS, OUT, LONGS, OUT, LONGS, LONGS, OUT, LONGS, OUT))
def fill(
    data: Bytes,
    start: Longs,
    end: Longs,
    version: int,
    kind: Bytes,
    key_offset: Longs,
    key: Bytes,
    value_offset: Longs,
    value: Bytes,
    seq: Longs,
    create_ts: Longs,
    has_create_ts: Bytes,
    expire_ts: Longs,
    has_expire_ts: Bytes,
) -> None:
    """Write the entries of blocks that `measure` accepted into arrays of the sizes that it returned."""
    row, key_at, value_at = 0, 0, 0
    for block in range(len(start)):
        at, stop = start[block], end[block] - 2
        stop -= 2 * _big_endian(data, stop, 2)
        prefix, is_first = key_at, True
        while at < stop:
            entry = _entry_1(data, at, stop) if version == 1 else _entry_2(data, at, stop)
            at, shared, suffix, length, begin, size, seq[row], flags, expire_ts[row], create_ts[row] = entry
            kind[row] = DELETE if flags & _TOMBSTONE else MERGE if flags & _MERGES else PUT
            has_expire_ts[row] = 1 if flags & _EXPIRES else 0
            has_create_ts[row] = 1 if flags & _CREATED else 0
            key_offset[row], value_offset[row] = key_at, value_at
            for k in range(shared):
                key[key_at + k] = key[prefix + k]
            for k in range(length):
                key[key_at + shared + k] = data[suffix + k]
            for k in range(size):
                value[value_at + k] = data[begin + k]
            if is_first or version != 1:
                prefix = key_at
            is_first = False
            key_at += shared + length
            value_at += size
            row += 1
    key_offset[row], value_offset[row] = key_at, value_at


@compiled(types.void(OUT, LONG, LONG, LONG))
def _put_number(out: Bytes, at: int, number: int, size: int) -> None:
    """Write a big-endian number."""
    for k in range(size):
        out[at + k] = (number >> (8 * (size - 1 - k))) & 255


@compiled(LONG(OUT, LONG, BYTES, LONG, LONG))
def _put_hex(out: Bytes, at: int, data: Bytes, begin: int, end: int) -> int:
    """Write a cell with bytea's hex text. Return the place after it."""
    out[at] = 116  # t
    _put_number(out, at + 1, 2 + 2 * (end - begin), 4)
    out[at + 5] = 92  # a backslash
    out[at + 6] = 120  # x
    at += 7
    for k in range(begin, end):
        byte = LONG(data[k])
        high, low = byte >> 4, byte & 15
        out[at] = 48 + high if high < 10 else 87 + high
        out[at + 1] = 48 + low if low < 10 else 87 + low
        at += 2
    return at


@compiled(types.void(BYTES, BYTES, LONGS, BYTES, LONGS, BYTES, _GRID, _GRID, LONG, FLAG, LONGS, OUT))
def write_messages(
    kind: Bytes,
    key: Bytes,
    key_offset: Longs,
    value: Bytes,
    value_offset: Longs,
    text: Bytes,
    text_start: Longs,
    text_length: Longs,
    oid: int,
    has_operand: bool,
    place: Longs,
    out: Bytes,
) -> None:
    """Write each entry at its place in `out`, as pgoutput's UPDATE with a new image, or DELETE with an old key.

    `text_start` and `text_length` locate the texts of the columns after the value, in `text`; a negative length is
    NULL. The last column is the operand of a merge if `has_operand`. A merge does not send the columns of its value.
    """
    texts = text_start.shape[0]
    columns = 2 + texts + (1 if has_operand else 0)
    for row in range(len(kind)):
        at = place[row]
        is_delete = kind[row] == DELETE
        out[at] = 68 if is_delete else 85  # D, U
        _put_number(out, at + 1, oid, 4)
        out[at + 5] = 75 if is_delete else 78  # K, N
        _put_number(out, at + 6, columns, 2)
        at = _put_hex(out, at + 8, key, key_offset[row], key_offset[row + 1])
        if kind[row] == PUT:
            at = _put_hex(out, at, value, value_offset[row], value_offset[row + 1])
        else:
            out[at] = 110 if is_delete else 117  # n, u
            at += 1
        for column in range(texts):
            length = text_length[column, row]
            if length < 0 or is_delete:
                out[at] = 117 if kind[row] == MERGE and column > 0 else 110
                at += 1
                continue
            out[at] = 116
            _put_number(out, at + 1, length, 4)
            at += 5
            begin = text_start[column, row]
            for k in range(length):
                out[at + k] = text[begin + k]
            at += length
        if has_operand:
            if kind[row] == MERGE:
                at = _put_hex(out, at, value, value_offset[row], value_offset[row + 1])
            else:
                out[at] = 110
                at += 1


@compiled(types.void(LONGS, LONGS, LONGS, OUT))
def write_commits(seq: Longs, time: Longs, place: Longs, out: Bytes) -> None:
    """Write pgoutput's COMMIT of each transaction at its place in `out`. Times are PostgreSQL's."""
    for row in range(len(seq)):
        at = place[row]
        out[at] = 67  # C
        out[at + 1] = 0
        _put_number(out, at + 2, seq[row], 8)
        _put_number(out, at + 10, seq[row] + 1, 8)
        _put_number(out, at + 18, time[row], 8)
