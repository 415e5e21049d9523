"""Decompresses the parts of an SST. Each codec frames its output's size in its own way.

No memory is allocated for a size that the input cannot decompress to. Input that does not follow its codec raises
ValueError.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa

# No byte expands to more than this. Snappy copies at most 64 bytes by 3; each byte of a length in LZ4 adds at most 255.
_SNAPPY_EXPANSION = 32
_LZ4_EXPANSION = 256


def decompress_none(data: bytes) -> bytes:
    return data


def decompress_snappy(data: bytes) -> bytes:
    """Snappy's raw format: a varint of the size, then the stream."""
    size = shift = at = 0
    while True:
        if at == len(data) or shift > 28:
            raise ValueError("snappy: no size")
        size |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            break
    return _decompress("snappy", data, size, _SNAPPY_EXPANSION)


def decompress_zlib(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data)
    except zlib.error as error:
        raise ValueError(f"zlib: {error}") from error
    if not stream.eof or stream.unused_data:
        raise ValueError("zlib: the stream does not end with its input")
    return found


def decompress_lz4(data: bytes) -> bytes:
    """LZ4's block format after a 4-byte, little-endian size."""
    if len(data) < 4:
        raise ValueError("lz4: no size")
    return _decompress("lz4_raw", data[4:], int.from_bytes(data[:4], "little"), _LZ4_EXPANSION)


def decompress_zstd(data: bytes) -> bytes:
    """A frame. Its header may leave out the size, so it is read as a stream."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            found: bytes = stream.read()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"zstd: {error}") from error
    return found


def _decompress(codec: str, data: bytes, size: int, expansion: int) -> bytes:
    if size > len(data) * expansion:
        raise ValueError(f"{codec}: {size} bytes cannot come from {len(data)}")
    try:
        found: bytes = pa.decompress(data, size, codec, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{codec}: {error}") from error
    return found


CODECS: tuple[Callable[[bytes], bytes], ...] = (
    decompress_none,
    decompress_snappy,
    decompress_zlib,
    decompress_lz4,
    decompress_zstd,
)
"""By `CompressionFormat` of SlateDB's schema."""
