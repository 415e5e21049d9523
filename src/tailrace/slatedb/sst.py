"""The parts of an SST file: footer, info, index and blocks, each with its checksum.

    blocks | filter? | index | statistics? | info | offset of the info (8 bytes) | format version (2 bytes)

Numbers outside FlatBuffers are big-endian. Every part before the last two ends with a CRC-32 of the bytes that are
stored. A block transformer, such as encryption, works between compression and checksum, on all parts except the info.
So a part that has the right checksum and makes no sense is not damaged, but not readable without the transformer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tailrace.errors import CorruptError, DecodeError
from tailrace.slatedb.codec import CODECS
from tailrace.slatedb.flatbuffer import FlatbufferTable

Longs = npt.NDArray[np.int64]

_VERSIONS = (1, 2)
_FOOTER_BYTES = 10
_CHECKSUM_BYTES = 4
_WAL = 1
"""`SstType` in the schema. SlateDB before 0.11 wrote none, and its index holds keys."""

DAMAGED = "restore the file from a copy, or start again from a snapshot of the database"
NEWER = "update Tailrace: a newer SlateDB may have written the file"
TRANSFORMED = (
    "if the database has a block transformer, such as encryption, its WAL cannot be read without it; "
    "otherwise a newer SlateDB may have written the file"
)


@dataclass(frozen=True, slots=True)
class SstInfo:
    """What a file's footer and info say about its parts."""

    version: int
    blocks_end: int
    index_offset: int
    index_end: int
    decompress: Callable[[bytes], bytes]
    is_wal: bool
    """Whether the index holds sequence numbers."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The decompressed blocks of a file: `data` from each `start` to each `end`."""

    version: int
    data: bytes
    start: Longs
    end: Longs
    first_seq: Longs | None
    """The sequence number of each block's first entry according to the index; None if it holds keys."""


def read_blocks(data: bytes, name: str) -> Blocks:
    """Check and decompress the blocks of a file that is not empty.

    Args:
        data: The whole file.
        name: The file's name, for errors.
    """
    info = _read_info(data, name)
    offsets, firsts = _read_index(data, info, name)
    stored = [_stored(data, *place, f"{name}: block {n}") for n, place in enumerate(pairwise(offsets))]
    try:
        blocks = [info.decompress(block) for block in stored]
    except ValueError as error:
        raise DecodeError(f"{name}: a block is not damaged, but cannot be read: {error}", TRANSFORMED) from error
    bounds = np.cumsum([0, *map(len, blocks)], dtype=np.int64)
    first_seq = None
    if info.is_wal:
        if any(len(first) != 8 for first in firsts):
            raise DecodeError(f"{name}: the index has no sequence numbers", NEWER)
        first_seq = np.frombuffer(b"".join(firsts), ">i8").astype(np.int64)
    return Blocks(info.version, b"".join(blocks), bounds[:-1], bounds[1:], first_seq)


def _read_info(data: bytes, name: str) -> SstInfo:
    size = len(data) - _FOOTER_BYTES
    offset = int.from_bytes(data[size : size + 8], "big")
    if size < 0 or offset > size:
        raise CorruptError(f"{name} is truncated: it ends without the offset of its info", DAMAGED)
    version = int.from_bytes(data[size + 8 :], "big")
    if version not in _VERSIONS:
        raise DecodeError(f"{name} has format version {version}; only versions 1 and 2 can be read", NEWER)
    try:
        info = FlatbufferTable.root(_stored(data, offset, size, f"{name}: info"))
        index_offset, index_end = info.long(1), info.long(1) + info.long(2)
        blocks_end = info.long(3) if info.long(4) else index_offset
        codec, sst_type = info.byte(5), info.byte(6)
    except ValueError as error:
        raise DecodeError(f"{name}: the info is not damaged, but cannot be read: {error}", NEWER) from error
    if not blocks_end <= index_offset <= index_end <= offset:
        raise DecodeError(f"{name}: the info names parts that are not in the file", NEWER)
    if not 0 <= codec < len(CODECS):
        raise DecodeError(f"{name}: compression {codec} is not known", NEWER)
    return SstInfo(version, blocks_end, index_offset, index_end, CODECS[codec], sst_type == _WAL)


def _read_index(data: bytes, info: SstInfo, name: str) -> tuple[list[int], list[bytes]]:
    """Where the blocks begin, and at last where they end; and what the index says about each block's first entry."""
    stored = _stored(data, info.index_offset, info.index_end, f"{name}: index")
    try:
        index = FlatbufferTable.root(info.decompress(stored))
        blocks = [(block.long(0), block.vector(1) or b"") for block in index.tables(0)]
    except ValueError as error:
        raise DecodeError(f"{name}: the index is not damaged, but cannot be read: {error}", TRANSFORMED) from error
    # Before 0.14, a fence was not an empty file but one without blocks.
    offsets = [*(offset for offset, _ in blocks), info.blocks_end]
    if offsets[0] != 0 or any(one >= next for one, next in pairwise(offsets)):
        raise DecodeError(f"{name}: the index is not damaged, but does not name the file's blocks", TRANSFORMED)
    return offsets, [first for _, first in blocks]


def _stored(data: bytes, start: int, end: int, part: str) -> bytes:
    """A part as it is stored, without its checksum."""
    checksum = end - _CHECKSUM_BYTES
    stored = data[start:checksum]
    if checksum < start or zlib.crc32(stored) != int.from_bytes(data[checksum:end], "big"):
        raise CorruptError(f"{part} is damaged: its checksum is wrong", DAMAGED)
    return stored
