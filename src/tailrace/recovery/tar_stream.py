"""Reads a tar archive as PostgreSQL sends it, in pieces of any size. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tailrace.errors import DecodeError

_BLOCK: Final = 512
_KINDS: Final[dict[bytes, Literal["file", "directory", "link"]]] = {
    b"0": "file",
    b"\0": "file",
    b"5": "directory",
    b"2": "link",
}


@dataclass(frozen=True, slots=True)
class TarMember:
    path: str
    kind: Literal["file", "directory", "link"]
    size: int
    mode: int
    modified_at: int
    """Seconds since 1970."""


class TarStream:
    """Cuts pieces of an archive into members and their content."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._left = 0
        self._padding = 0

    def feed(self, data: memoryview) -> Iterator[TarMember | memoryview]:
        """Yield each member when its header is complete, then its content in pieces."""
        while data:
            if self._left:
                piece = data[: self._left]
                self._left -= len(piece)
                data = data[len(piece) :]
                yield piece
            elif self._padding:
                skipped = min(self._padding, len(data))
                self._padding -= skipped
                data = data[skipped:]
            else:
                piece = data[: _BLOCK - len(self._header)]
                data = data[len(piece) :]
                self._header += piece
                if len(self._header) == _BLOCK:
                    member = _parse(bytes(self._header))
                    self._header.clear()
                    if member is not None:
                        self._left = member.size
                        self._padding = -member.size % _BLOCK
                        yield member

    @property
    def is_complete(self) -> bool:
        """Whether no member is cut off."""
        return not (self._left or self._padding or self._header)


def _parse(header: bytes) -> TarMember | None:
    """Parse a header; None for the zeros that end an archive."""
    if not any(header):
        return None
    checksum = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    kind = _KINDS.get(header[156:157])
    if _number(header[148:156]) != checksum or kind is None:
        raise DecodeError("the server sent a tar archive with an invalid header", "take the backup again")
    name = _text(header[:100])
    prefix = _text(header[345:500])
    return TarMember(
        (f"{prefix}/{name}" if prefix else name).rstrip("/"),
        kind,
        _number(header[124:136]) if kind == "file" else 0,
        _number(header[100:108]),
        _number(header[136:148]),
    )


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="surrogateescape")


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # a number that does not fit as octal digits
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    return int(field.strip(b" \0") or b"0", 8)
