"""Builds SST files from entries: an encoder of format versions 1 and 2, for tests.

The binding reads what it builds: `test_oracle.py` proves that.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa

from tailrace.slatedb.row_entry import EntryKind, RowEntry

Transform = Callable[[bytes], bytes]

COMPRESS: dict[str, Transform] = {
    "none": lambda data: data,
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True),
    "zlib": zlib.compress,
    "lz4": lambda data: struct.pack("<I", len(data)) + pa.compress(data, "lz4_raw", asbytes=True),
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
}
"""In the order of their numbers in the info."""


def sst(
    entries: Sequence[RowEntry],
    *,
    version: int = 2,
    codec: str = "none",
    block_size: int = 4096,
    restart_interval: int = 16,
    transform: Transform = lambda data: data,
) -> bytes:
    """A file with the entries in this order. `transform` changes blocks and index, as a block transformer does."""

    def stored(data: bytes) -> bytes:
        return checked(transform(COMPRESS[codec](data)))

    blocks: list[bytes] = []
    index: list[list[Any]] = []
    for group in _groups(entries, block_size):
        block = block_1(group) if version == 1 else block_2(group, restart_interval)
        first = struct.pack(">Q", group[0].seq) if version == 2 else group[0].key
        index.append([("<Q", sum(map(len, blocks))), first])
        blocks.append(stored(block))
    return file(blocks, stored(flatbuffer([index])), index[0][1] if index else None, version, codec)


def file(blocks: Iterable[bytes], index: bytes, first: bytes | None, version: int, codec: str) -> bytes:
    """A file of parts that have their checksums."""
    data = b"".join(blocks)
    numbers = (("<Q", number) for number in (len(data), len(index), len(data), 0))
    info = checked(flatbuffer([first, *numbers, ("<b", list(COMPRESS).index(codec)), ("<b", version - 1)]))
    return data + index + info + struct.pack(">QH", len(data) + len(index), version)


def checked(data: bytes) -> bytes:
    return data + struct.pack(">I", zlib.crc32(data))


def block_1(entries: Sequence[RowEntry]) -> bytes:
    data, offsets = b"", list[int]()
    for entry in entries:
        shared = _shared(entries[0].key, entry.key) if offsets else 0
        offsets.append(len(data))
        data += struct.pack(">HH", shared, len(entry.key) - shared) + entry.key[shared:] + _sequel(entry)
        if entry.value is not None:
            data += struct.pack(">I", len(entry.value)) + entry.value
    return data + struct.pack(f">{len(offsets) + 1}H", *offsets, len(offsets))


def block_2(entries: Sequence[RowEntry], restart_interval: int = 16) -> bytes:
    data, restarts, before = b"", list[int](), b""
    for number, entry in enumerate(entries):
        if number % restart_interval == 0:
            restarts.append(len(data))
            before = b""
        shared, value = _shared(before, entry.key), entry.value or b""
        data += b"".join(map(varint, (shared, len(entry.key) - shared, len(value))))
        data += entry.key[shared:] + value + _sequel(entry)
        before = entry.key
    return data + struct.pack(f">{len(restarts) + 1}H", *restarts, len(restarts))


def varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def flatbuffer(fields: Sequence[Any]) -> bytes:
    """A table. A field is None if it is absent, a layout and a number, bytes, or a list of tables."""
    out = bytearray(4)
    struct.pack_into("<I", out, 0, _table(out, fields))
    return bytes(out)


def _table(out: bytearray, fields: Sequence[Any]) -> int:
    # Each field takes eight bytes after the table's first four, so that all numbers are aligned.
    vtable = len(out) + -len(out) % 4
    size = 4 + 2 * len(fields)
    table = vtable + size + (4 - vtable - size) % 8
    slots = [0 if field is None else 4 + 8 * n for n, field in enumerate(fields)]
    out += bytes(table + 4 + 8 * len(fields) - len(out))
    struct.pack_into(f"<HH{len(fields)}H", out, vtable, size, 4 + 8 * len(fields), *slots)
    struct.pack_into("<i", out, table, table - vtable)
    for slot, field in zip(slots, fields, strict=True):
        at = table + slot
        if isinstance(field, tuple):
            struct.pack_into(field[0], out, at, field[1])
        elif isinstance(field, bytes):
            struct.pack_into("<I", out, at, _vector(out, len(field), field) - at)
        elif isinstance(field, list):
            vector = _vector(out, len(field), bytes(4 * len(field)))
            struct.pack_into("<I", out, at, vector - at)
            for here, child in zip(range(vector + 4, len(out), 4), field, strict=True):
                struct.pack_into("<I", out, here, _table(out, child) - here)
    return table


def _vector(out: bytearray, count: int, content: bytes) -> int:
    out += bytes(-len(out) % 4)
    at = len(out)
    out += struct.pack("<I", count) + content
    return at


def _groups(entries: Sequence[RowEntry], block_size: int) -> list[list[RowEntry]]:
    groups: list[list[RowEntry]] = []
    size = 0
    for entry in entries:
        own = len(entry.key) + len(entry.value or b"") + 40
        if not groups or size + own > block_size:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += own
    return groups


def _shared(one: bytes, other: bytes) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _sequel(entry: RowEntry) -> bytes:
    """Sequence number, flags and times."""
    flags = {EntryKind.PUT: 0, EntryKind.DELETE: 1, EntryKind.MERGE: 8}[entry.kind]
    flags |= (entry.expire_ts is not None) << 1 | (entry.create_ts is not None) << 2
    times = (time for time in (entry.expire_ts, entry.create_ts) if time is not None)
    return struct.pack(">QB", entry.seq, flags) + b"".join(struct.pack(">q", time) for time in times)
