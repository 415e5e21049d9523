"""Ids of stream entries, made of the changes' positions. Pure.

The id of an entry is `<commit LSN>-<8 × ordinal>`, in decimal. If a change makes several messages, they are numbered
from there. Ids in a stream have to rise, and a rewound sink publishes earlier positions again: the upper 8 bits of the
first number count how often that happened in this stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SinkRefused
from tailrace.log.decoding import ChangePositions

I64 = npt.NDArray[np.int64]

_LSN_BITS: Final = 56
_PER_CHANGE: Final = 8


class EntryId(NamedTuple):
    first: int = 0
    second: int = 0

    @classmethod
    def parse(cls, text: bytes) -> EntryId:
        first, _, second = text.decode().partition("-")
        return cls(int(first), int(second))

    def __str__(self) -> str:
        return f"{self.first}-{self.second}"


def entry_ids(at: ChangePositions, stream: I64, last: Sequence[EntryId]) -> tuple[pa.Array, list[EntryId]]:
    """Return the ids of entries, and the last id in each stream.

    Args:
        at: The positions of the entries, in order.
        stream: The stream of each, by number.
        last: The last id in each stream so far.
    """
    if len(at) and int(at.commit_lsn.max()) >> _LSN_BITS:
        raise SinkRefused("an LSN is too large to be part of an id in a stream", 'Use mode = "json".')
    second = at.ordinal * _PER_CHANGE + _numbers(at, stream)
    generation = np.zeros(len(last), np.int64)
    following = list(last)
    for number in range(len(last)):
        own = np.flatnonzero(stream == number)
        first_id = int(at.commit_lsn[own[0]]), int(second[own[0]])
        before = last[number].first >> _LSN_BITS
        repeats = (last[number].first & ((1 << _LSN_BITS) - 1), last[number].second) >= first_id
        generation[number] = before + (repeats and last[number] != EntryId())
        base = int(generation[number]) << _LSN_BITS
        following[number] = EntryId(base + int(at.commit_lsn[own[-1]]), int(second[own[-1]]))
    first = (generation.astype(np.uint64)[stream] << np.uint64(_LSN_BITS)) + at.commit_lsn.astype(np.uint64)
    texts = [pa.array(values).cast(pa.string()) for values in (first, second)]
    return pc.binary_join_element_wise(*texts, "-"), following


def _numbers(at: ChangePositions, stream: I64) -> I64:
    """Number the entries of each change in each stream."""
    order = np.lexsort((at.ordinal, at.commit_lsn, stream))
    rows = np.stack([stream, at.commit_lsn, at.ordinal])[:, order]
    is_first = np.append(True, (rows[:, 1:] != rows[:, :-1]).any(axis=0))
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    found = np.zeros(len(order), np.int64)
    found[order] = np.arange(len(order)) - begins
    if (found >= _PER_CHANGE).any():
        raise AssertionError("a change makes more messages than an id has numbers for")
    return found
