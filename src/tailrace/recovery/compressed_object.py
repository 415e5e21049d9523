"""Objects of the archive and of backups: zstd frames, then a skippable frame with the SHA-256 of these frames.

`zstd -d` reads such an object and ignores the second frame. The checksum matters: recovery takes a WAL record with a
wrong CRC for the end of the WAL, so a damaged object must never reach it.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from tailrace.errors import CorruptError, FencedError
from tailrace.store import Store

_SKIPPABLE: Final = 0x184D2A50
_MAGIC: Final = b"TRZ2"
_TRAILER: Final = struct.Struct("<II4sQ32s")
_MOST_BYTES: Final = 1 << 30
"""Of content: the largest segment of WAL. A damaged or planted size must not take the machine's memory."""
# The fastest level: WAL must be compressed as fast as one server writes it.
_CODEC: Final = pa.Codec("zstd", compression_level=1)
FRAME_BYTES: Final = 16 << 20
"""At most so much content is in one frame, because a frame is compressed as a whole."""
_PIECE_BYTES: Final = 4 << 20
_DAMAGED: Final = "the object was damaged or overwritten: restore it from a copy of the store"
# Smaller content is stored as it is, in a frame without compression. Compressing a few bytes takes as long as a tenth
# of a synchronous commit, and saves nothing: a file takes a block anyway, and a request costs the same.
_SMALL_BYTES: Final = 2048
# A zstd frame of one raw block: the descriptor says that a size of four bytes follows.
_RAW_FRAME: Final = struct.Struct("<IBI")
_FRAME_MAGIC: Final = 0xFD2FB528
_SINGLE_SEGMENT_SIZE_4: Final = 0xA0


class Compressor:
    """Compresses content piece by piece, so that only the result is held in memory, and once."""

    def __init__(self) -> None:
        self._object = io.BytesIO()
        self._digest = hashlib.sha256()
        self._is_finished = False
        self.content_bytes = 0
        """The bytes that were added."""

    def add(self, content: bytes | memoryview) -> None:
        """Add content, as a frame of its own."""
        is_small = len(content) <= _SMALL_BYTES
        frame = _raw_frame(content) if is_small else bytes(_CODEC.compress(content, asbytes=True))
        self._digest.update(frame)
        self.content_bytes += len(content)
        self._object.write(frame)
        if self.content_bytes > _MOST_BYTES:
            raise CorruptError(f"an object of {self.content_bytes:,} bytes could not be read again", "report this")

    def finish(self) -> bytes:
        """The whole object. Nothing can be added afterwards."""
        if not self._is_finished:
            self._is_finished = True
            size, digest = self.content_bytes, self._digest.digest()
            self._object.write(_TRAILER.pack(_SKIPPABLE, _TRAILER.size - 8, _MAGIC, size, digest))
        return self._object.getvalue()  # without a copy


def compress(content: bytes | memoryview) -> bytes:
    compressor = Compressor()
    view = memoryview(content)
    for start in range(0, max(len(view), 1), FRAME_BYTES):
        compressor.add(view[start : start + FRAME_BYTES])
    return compressor.finish()


def _raw_frame(content: bytes | memoryview) -> bytes:
    size = len(content)
    last_raw_block = (size << 3 | 1).to_bytes(3, "little")
    return b"".join((_RAW_FRAME.pack(_FRAME_MAGIC, _SINGLE_SEGMENT_SIZE_4, size), last_raw_block, content))


def decompress(data: bytes, where: str) -> bytes:
    """Return the content. Raises CorruptError unless it is exactly what was written; `where` names the object."""
    return _decompress(*_checked_frames(data, where), where)


def _decompress(frames: memoryview, size: int, where: str) -> bytes:
    try:
        content = bytes(pa.decompress(frames, decompressed_size=size, codec="zstd", asbytes=True))
    except (OSError, MemoryError, OverflowError, pa.ArrowException) as error:
        raise CorruptError(f"{where} cannot be decompressed", _DAMAGED) from error
    if len(content) != size:
        raise CorruptError(f"{where} does not have the size that it claims", _DAMAGED)
    return content


def _checked_frames(data: bytes, where: str) -> tuple[memoryview, int]:
    """The compressed content, and the size of the content. Raises CorruptError if the object was damaged."""
    if len(data) < _TRAILER.size:
        raise CorruptError(f"{where} is too short", _DAMAGED)
    skippable, _, magic, size, digest = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    if skippable != _SKIPPABLE or magic != _MAGIC:
        raise CorruptError(f"{where} does not end in a checksum", _DAMAGED)
    if size > _MOST_BYTES:
        raise CorruptError(f"{where} claims to hold {size:,} bytes", _DAMAGED)
    frames = memoryview(data)[: -_TRAILER.size]
    if hashlib.sha256(frames).digest() != digest:
        raise CorruptError(f"{where} has a wrong checksum", _DAMAGED)
    return frames, size


def _decompress_to(data: bytes, write: Callable[[bytes], object], where: str) -> int:
    """Pass on the content piece by piece, and return its size. Raises CorruptError if it was damaged."""
    frames, size = _checked_frames(data, where)
    if size <= FRAME_BYTES:  # twice as fast as in pieces
        write(_decompress(frames, size, where))
        return size
    passed = 0
    with pa.CompressedInputStream(pa.BufferReader(frames), "zstd") as stream:
        while piece := _read_piece(stream, where):
            passed += len(piece)
            write(piece)
    if passed != size:
        raise CorruptError(f"{where} does not have the size that it claims", _DAMAGED)
    return size


def _read_piece(stream: Any, where: str) -> bytes:
    try:
        return bytes(stream.read(_PIECE_BYTES))
    except (OSError, pa.ArrowException) as error:
        raise CorruptError(f"{where} cannot be decompressed", _DAMAGED) from error


def create(store: Store, key: str, content: bytes | memoryview) -> int:
    """Create an object durably and return its size. Raises FencedError if the key holds another content."""
    data = compress(content)
    create_compressed(store, key, data)
    return len(data)


def create_compressed(store: Store, key: str, data: bytes) -> None:
    """Create an object from compressed content.

    An object with the same content, perhaps compressed in another way, is a success: the previous attempt was not lost
    after all.
    """
    if not store.create(key, data) and not _holds(store, key, data):
        raise FencedError(
            f"{store.url}: {key} exists with other bytes",
            "another server or another process writes here: give each its own [store] url",
        )


def _holds(store: Store, key: str, data: bytes) -> bool:
    """Whether an object is undamaged and holds the content that `data` is."""
    found = store.get(key)
    if found is None:
        return False
    return _content_digest(found, f"{store.url}: {key}") == _content_digest(data, "this process's object")


def _content_digest(data: bytes, where: str) -> bytes:
    digest = hashlib.sha256()
    _decompress_to(data, digest.update, where)
    return digest.digest()


def read(store: Store, key: str) -> bytes | None:
    """Return the content of an object; None if there is none."""
    data = store.get(key)
    return None if data is None else decompress(data, f"{store.url}: {key}")


def read_to(store: Store, key: str, write: Callable[[bytes], object]) -> int | None:
    """Pass on the content of an object piece by piece, and return its size; None if there is no object.

    Raises CorruptError if the object is damaged, perhaps after its content was passed on.
    """
    data = store.get(key)
    return None if data is None else _decompress_to(data, write, f"{store.url}: {key}")
