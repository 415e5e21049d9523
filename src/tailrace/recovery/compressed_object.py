"""Objects of the archive and of backups: a zstd frame, then a skippable frame with the SHA-256 of the content.

`zstd -d` reads such an object and ignores the second frame. The checksum matters: recovery takes a WAL record with a
wrong CRC for the end of the WAL, so a damaged object must never reach it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import pyarrow as pa

from tailrace.errors import CorruptError, FencedError
from tailrace.store import Store

_SKIPPABLE: Final = 0x184D2A50
_MAGIC: Final = b"TRZ1"
_TRAILER: Final = struct.Struct("<II4sQ32s")
# The fastest level: WAL must be compressed as fast as one server writes it.
_CODEC: Final = pa.Codec("zstd", compression_level=1)


def compress(content: bytes | memoryview) -> bytes:
    trailer = _TRAILER.pack(_SKIPPABLE, _TRAILER.size - 8, _MAGIC, len(content), hashlib.sha256(content).digest())
    return bytes(_CODEC.compress(content, asbytes=True)) + trailer


def decompress(data: bytes, where: str) -> bytes:
    """Return the content. Raises CorruptError unless it is exactly what was written; `where` names the object."""
    hint = "the object was damaged or overwritten: restore it from a copy of the store"
    if len(data) < _TRAILER.size:
        raise CorruptError(f"{where} is too short", hint)
    skippable, _, magic, size, digest = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    if skippable != _SKIPPABLE or magic != _MAGIC:
        raise CorruptError(f"{where} does not end in a checksum", hint)
    try:
        frame = memoryview(data)[: -_TRAILER.size]
        content = bytes(pa.decompress(frame, decompressed_size=size, codec="zstd", asbytes=True))
    except (OSError, MemoryError, OverflowError, pa.ArrowException) as error:
        raise CorruptError(f"{where} cannot be decompressed", hint) from error
    if hashlib.sha256(content).digest() != digest:
        raise CorruptError(f"{where} has a wrong checksum", hint)
    return content


def create(store: Store, key: str, content: bytes | memoryview) -> int:
    """Create an object durably and return its size. Raises FencedError if the key holds another content."""
    data = compress(content)
    create_compressed(store, key, data, content)
    return len(data)


def create_compressed(store: Store, key: str, data: bytes, content: bytes | memoryview) -> None:
    """Create an object from `data`, which is the compressed `content`.

    An object with the same content, perhaps compressed in another way, is a success: the previous attempt was not lost
    after all.
    """
    if not store.create(key, data) and read(store, key) != content:
        raise FencedError(
            f"{store.url}: {key} exists with other bytes",
            "another server or another process writes here: give each its own [store] url",
        )


def read(store: Store, key: str) -> bytes | None:
    """Return the content of an object; None if there is none."""
    data = store.get(key)
    return None if data is None else decompress(data, f"{store.url}: {key}")
