"""Reads tables of FlatBuffers, without generated code and never outside the buffer.

Only what SlateDB's SST files need: scalars, byte vectors and vectors of tables. A field that the writer left out has
its default, 0 or None. Whatever does not fit into the buffer raises ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator


class FlatbufferTable:
    """One table. A field is its number in the schema, counted from 0."""

    __slots__ = ("_data", "_fields", "_position")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        vtable = position - _read("<i", data, position)
        size = _read("<H", data, vtable)
        if size < 4 or size % 2 or vtable + size > len(data):
            raise ValueError("a table's field list does not fit into the buffer")
        self._fields = struct.unpack_from(f"<{size // 2 - 2}H", data, vtable + 4)

    @staticmethod
    def root(data: bytes) -> FlatbufferTable:
        return FlatbufferTable(data, _read("<I", data, 0))

    def long(self, field: int) -> int:
        """An unsigned 64-bit integer."""
        at = self._place(field)
        return 0 if at is None else _read("<Q", self._data, at)

    def byte(self, field: int) -> int:
        at = self._place(field)
        return 0 if at is None else _read("<b", self._data, at)

    def vector(self, field: int) -> bytes | None:
        """A vector of bytes."""
        at = self._target(field)
        if at is None:
            return None
        length = _read("<I", self._data, at)
        if length > len(self._data) - at - 4:
            raise ValueError("a vector does not fit into the buffer")
        return self._data[at + 4 : at + 4 + length]

    def tables(self, field: int) -> Iterator[FlatbufferTable]:
        """A vector of tables."""
        at = self._target(field)
        if at is None:
            return
        length = _read("<I", self._data, at)
        if length * 4 > len(self._data) - at - 4:
            raise ValueError("a vector does not fit into the buffer")
        for place in range(at + 4, at + 4 + 4 * length, 4):
            yield FlatbufferTable(self._data, place + _read("<I", self._data, place))

    def _place(self, field: int) -> int | None:
        offset = self._fields[field] if field < len(self._fields) else 0
        return self._position + offset if offset else None

    def _target(self, field: int) -> int | None:
        at = self._place(field)
        return None if at is None else at + _read("<I", self._data, at)


def _read(layout: str, data: bytes, at: int) -> int:
    # struct counts a negative offset from the end of the buffer.
    if at < 0 or at + struct.calcsize(layout) > len(data):
        raise ValueError("an offset points outside the buffer")
    value: int = struct.unpack_from(layout, data, at)[0]
    return value
