"""Commands in the server's protocol: one at a time, or a column of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Position
from tailrace.errors import PoisonError
from tailrace.log.segment import payload_buffers

MAX_VALUE_BYTES: Final = 512 * 1024 * 1024
"""The server's limit (`proto-max-bulk-len`), unless it was raised."""
Piece = Union["pa.Array", bytes]
"""The argument of each row's command, or the same one for all rows."""
_JOINED_BYTES: Final = 64 * 1024
"""Smaller parts of a batch are copied together before they are sent; larger ones are sent as they are."""


def command(*arguments: str | bytes | int) -> bytes:
    """Return one command."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def argument(values: Piece) -> Piece:
    """Return an argument of each row's command as the protocol has it; NULL stays NULL."""
    if isinstance(values, bytes):
        return b"$%d\r\n%b\r\n" % (len(values), values)
    data = values.cast(pa.binary())
    size = pc.binary_length(data).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(b"$", size, b"\r\n", data, b"\r\n", b"")


def head(count: pa.Array | int) -> Piece:
    """Return the beginning of a command, which says how many arguments follow."""
    if isinstance(count, int):
        return b"*%d\r\n" % count
    return pc.binary_join_element_wise(b"*", count.cast(pa.string()).cast(pa.binary()), b"\r\n", b"")


def concatenate(encoded: pa.Array) -> memoryview:
    """Return all values one after the other, as they are in memory."""
    return payload_buffers(encoded)[1]


@dataclass(frozen=True)
class Arguments:
    """Values as arguments of one command, encoded once for several."""

    data: memoryview
    count: int

    @classmethod
    def of(cls, values: pa.Array | Sequence[bytes]) -> Arguments:
        column = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
        encoded = argument(column)
        assert isinstance(encoded, pa.Array)
        return cls(concatenate(encoded), len(column))


def require_sizes(columns: Sequence[pa.Array], position: Callable[[int], Position], name: str) -> None:
    """Raise a PoisonError for rows that are too large for the server.

    Args:
        columns: The values of the rows.
        position: Returns the position of a row.
        name: The table or stream, for the message.
    """
    if sum(column.nbytes for column in columns) <= MAX_VALUE_BYTES:
        return
    sizes = sum(pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64) for column in columns)
    large = tuple([str(position(int(row))) for row in np.flatnonzero(sizes > MAX_VALUE_BYTES)])
    if large:
        raise PoisonError(
            f"{name}, {large[0]}: the row is larger than {MAX_VALUE_BYTES:,} bytes, the server's limit",
            "Exclude the column with `columns`, or make the change a dead letter (on_poison).",
            large,
        )


@dataclass
class CommandBatch:
    """Commands that are sent together."""

    count: int = 0
    _parts: list[bytes | memoryview] = field(default_factory=list)

    def add(self, *arguments: str | bytes | int) -> None:
        self._parts.append(command(*arguments))
        self.count += 1

    def add_encoded(self, commands: memoryview, count: int) -> None:
        """Add commands that are encoded already."""
        self._parts.append(commands)
        self.count += count

    def add_many(self, *arguments: str | bytes, values: Arguments | pa.Array | Sequence[bytes]) -> None:
        """Add one command that ends in all the values. Without values there is no command."""
        more = values if isinstance(values, Arguments) else Arguments.of(values)
        if not more.count:
            return
        first = command(*arguments).partition(b"\r\n")[2]
        self._parts += [b"*%d\r\n" % (len(arguments) + more.count) + first, more.data]
        self.count += 1

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yield the commands' bytes in large parts."""
        joined = bytearray()
        for part in self._parts:
            if len(part) < _JOINED_BYTES:
                joined += part
                continue
            if joined:
                yield bytes(joined)
                joined = bytearray()
            yield part
        if joined:
            yield bytes(joined)

    def __bool__(self) -> bool:
        return self.count > 0
