"""Memory for received WAL that is used again: new memory costs more, because the system zeroes it."""

from __future__ import annotations

from typing import Final

# While frames are compressed as fast as they are filled, no more are free at a time.
_MOST_FREE: Final = 2


class Frame:
    """A part of a segment that is compressed as a whole."""

    def __init__(self, buffer: bytearray) -> None:
        self.buffer = buffer
        self._view = memoryview(buffer)
        self.size = 0
        """How much of it is filled."""
        self.is_compressed = False
        self.is_shared = False
        """Whether others use its content even when it is compressed."""

    @property
    def content(self) -> memoryview:
        return self._view[: self.size]

    def add(self, piece: memoryview) -> memoryview:
        """Copy as much of a piece as fits, and return the copy."""
        end = min(self.size + len(piece), len(self._view))
        copy = self._view[self.size : end]
        copy[:] = piece[: end - self.size]
        self.size = end
        return copy


class FramePool:
    """Frames of one size."""

    def __init__(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self._free: list[bytearray] = []

    def take(self) -> Frame:
        try:
            return Frame(self._free.pop())
        except IndexError:
            return Frame(bytearray(self.frame_bytes))

    def put_back(self, frame: Frame) -> None:
        """Let a frame's memory be used again. Nobody may use its content any more. From any thread."""
        if len(self._free) < _MOST_FREE:
            self._free.append(frame.buffer)
