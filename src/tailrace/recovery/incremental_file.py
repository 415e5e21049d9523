"""The changed blocks of one file, as an incremental backup holds them. Reads pieces of any size, writes blocks.

The format is PostgreSQL's: a magic number, the number of blocks, the length before which unchanged blocks come from
earlier backups, the blocks' numbers, padding to a block if there are any, then the blocks.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from tailrace.errors import CorruptError
from tailrace.recovery.backup_record import CHOOSE_ANOTHER

_MAGIC: Final = 0xD3AE1F0D
_HEADER: Final = struct.Struct("=III")


class BlockOverlay:
    """Lays the blocks over an existing file. `is_newest` says that no later backup of the chain changes the file."""

    def __init__(self, fd: int, block_bytes: int, *, is_newest: bool, where: str) -> None:
        self._fd = fd
        self._block_bytes = block_bytes
        self._is_newest = is_newest
        self._where = where
        self._buffer = bytearray()
        self._numbers: tuple[int, ...] | None = None
        self._padding = 0
        self._written = 0

    def write(self, piece: memoryview) -> None:
        self._buffer += piece
        if self._numbers is None and not self._read_header():
            return
        assert self._numbers is not None
        if self._padding:
            skipped = min(self._padding, len(self._buffer))
            del self._buffer[:skipped]
            self._padding -= skipped
        blocks = len(self._buffer) // self._block_bytes
        with memoryview(self._buffer) as view:
            for index in range(blocks):
                if self._written == len(self._numbers):
                    raise self._damage()
                with view[index * self._block_bytes : (index + 1) * self._block_bytes] as block:
                    os.pwrite(self._fd, block, self._numbers[self._written] * self._block_bytes)
                self._written += 1
        del self._buffer[: blocks * self._block_bytes]

    def finish(self) -> None:
        if self._numbers is None or self._buffer or self._padding or self._written != len(self._numbers):
            raise self._damage()

    def _read_header(self) -> bool:
        """Read the header once it is complete. Cut or extend the file to where earlier backups may contribute."""
        if len(self._buffer) < _HEADER.size:
            return False
        magic, count, length = _HEADER.unpack_from(self._buffer)
        if magic != _MAGIC:
            raise self._damage()
        size = _HEADER.size + 4 * count
        if len(self._buffer) < size:
            return False
        self._numbers = struct.unpack_from(f"={count}I", self._buffer, _HEADER.size)
        self._padding = -size % self._block_bytes if count else 0
        del self._buffer[:size]
        if self._is_newest:
            os.ftruncate(self._fd, length * self._block_bytes)
        return True

    def _damage(self) -> CorruptError:
        return CorruptError(f"{self._where} is not a file of an incremental backup", CHOOSE_ANOTHER)
