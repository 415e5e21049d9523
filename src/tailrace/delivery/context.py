"""Matches the context that an application attaches to its transactions with the changes in them. Pure, vectorised.

An application attaches context with `pg_logical_emit_message(true, '_bemi', '<json>')`. A transaction's only message
is the context of all its changes, before and after it. With several messages, each applies to adjacent changes: to the
changes that follow it if a context precedes the transaction's first change, and to the changes that precede it
otherwise; changes after the last message belong to that one. Messages with other prefixes and non-transactional
messages are ignored.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import decoding
from tailrace.log.change_text import content_text
from tailrace.log.decoding import ChangeFilter, ChangePositions, LogicalMessages
from tailrace.log.jsonb import is_jsonb
from tailrace.log.planner import Slice
from tailrace.log.reader import LogReader

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PREFIX: Final = "_bemi"
# A transaction has fewer changes than this, and what is decoded at once has fewer than 2^23 transactions.
_MAX_CHANGES: Final = 1 << 40


@dataclass(frozen=True)
class ContextRange:
    """Changes of one transaction that share a context, from the first ordinal to the last."""

    commit_lsn: int
    first: int
    last: int
    text: str


@dataclass(frozen=True)
class Contexts:
    """The contexts of some transactions, in log order."""

    commit_lsn: I64
    ordinal: I64
    is_leading: Mask
    """Only messages precede it in its transaction."""
    texts: pa.StringArray

    @classmethod
    def of(cls, messages: Iterable[LogicalMessages], render: Callable[[bytes], str] = content_text) -> Contexts:
        """The contexts among logical messages.

        Args:
            messages: All messages of the transactions, with any prefix: they decide which contexts are leading.
            render: Converts a message's content to the context's text.
        """
        rows = sorted(
            (int(part.at.commit_lsn[row]), int(part.at.ordinal[row]), part.prefix[row], part.content[row])
            for part in messages
            for row in range(len(part))
            if part.transactional[row]
        )
        found: list[tuple[int, int, bool, str]] = []
        for commit_lsn, group in itertools.groupby(rows, key=lambda entry: entry[0]):
            # A message whose ordinal is its number among the messages has no change before it.
            found += [
                (commit_lsn, ordinal, ordinal == number, render(content))
                for number, (_, ordinal, prefix, content) in enumerate(group)
                if prefix == PREFIX
            ]
        positions = np.array([entry[:2] for entry in found], np.int64).reshape(-1, 2)
        is_leading = np.array([leading for _, _, leading, _ in found], np.bool_)
        return cls(positions[:, 0], positions[:, 1], is_leading, pa.array([text for *_, text in found], pa.string()))

    @classmethod
    def in_slices(cls, reader: LogReader, slices: Iterable[Slice]) -> Contexts:
        """The contexts of the transactions in slices, which must be whole. No change is decoded.

        Args:
            reader: The log.
            slices: Slices of its segments. A message may be in another segment than the changes it applies to.
        """
        found = decoding.chunks(reader, slices, ChangeFilter(others=False), as_text=True)
        return cls.of(part for _, chunk in found for part in chunk if isinstance(part, LogicalMessages))

    def __len__(self) -> int:
        return len(self.texts)

    def of_transaction(self, commit_lsn: int) -> Contexts:
        """The contexts of one transaction."""
        low, high = np.searchsorted(self.commit_lsn, [commit_lsn, commit_lsn + 1])
        rows = slice(int(low), int(high))
        return Contexts(self.commit_lsn[rows], self.ordinal[rows], self.is_leading[rows], self.texts[rows])

    def joined(self, later: Contexts) -> Contexts:
        """These contexts, followed by later ones."""
        return Contexts(
            np.concatenate([self.commit_lsn, later.commit_lsn]),
            np.concatenate([self.ordinal, later.ordinal]),
            np.concatenate([self.is_leading, later.is_leading]),
            pa.concat_arrays([self.texts, later.texts]),
        )

    def of_changes(self, at: ChangePositions) -> pa.StringArray:
        """Each change's context; NULL if its transaction has none."""
        if not len(self):
            return pa.nulls(len(at), pa.string())
        index, has_context = self._indexes(at)
        return self.texts.take(pa.array(index, mask=~has_context))

    def sizes(self, at: ChangePositions) -> I64:
        """The size of each change's context, in bytes."""
        if not len(self):
            return np.zeros(len(at), np.int64)
        index, has_context = self._indexes(at)
        return np.where(has_context, pc.binary_length(self.texts).to_numpy().astype(np.int64)[index], 0)

    @property
    def begin_transaction(self) -> bool:
        """Whether a context precedes the first change of the transaction, if all of these are of one."""
        return bool(len(self)) and bool(self.is_leading[0])

    def ranges(self) -> Iterator[ContextRange]:
        """The changes of each context, if all of these are of one transaction."""
        ordinals, unbounded = self.ordinal.tolist(), int(np.iinfo(np.int64).max)
        edges = [*ordinals, unbounded] if self.begin_transaction else [0, *ordinals[:-1], unbounded]
        for number, text in enumerate(self.texts.to_pylist()):
            yield ContextRange(int(self.commit_lsn[number]), edges[number], edges[number + 1], text)

    def _indexes(self, at: ChangePositions) -> tuple[I64, Mask]:
        """Which context each change has, and whether it has one."""
        count = len(self)
        transactions, keys = self._keys
        # The transaction of a change without context is not found: whatever its neighbours are, they have other LSNs.
        own = np.searchsorted(transactions, at.commit_lsn) * _MAX_CHANGES + at.ordinal
        following = np.searchsorted(keys, own, side="right")
        before, after = following - 1, np.minimum(following, count - 1)
        has_before = (before >= 0) & (self.commit_lsn[before] == at.commit_lsn)
        has_after = (following < count) & (self.commit_lsn[after] == at.commit_lsn)
        takes_before = has_before & (self._have_leading(at.commit_lsn) | ~has_after)
        return np.where(takes_before, before, after), has_before | has_after

    @functools.cached_property
    def _keys(self) -> tuple[I64, I64]:
        """The transactions' commit LSNs, and each context's position as one number."""
        transactions, index = np.unique(self.commit_lsn, return_inverse=True)
        return transactions, index * _MAX_CHANGES + self.ordinal

    def _have_leading(self, commit_lsn: I64) -> Mask:
        """Whether each transaction has a context before its first change."""
        first = np.minimum(np.searchsorted(self.commit_lsn, commit_lsn), len(self) - 1)
        found: Mask = (self.commit_lsn[first] == commit_lsn) & self.is_leading[first]
        return found


def as_jsonb(content: bytes) -> str:
    """A context as JSON that jsonb accepts; content that is not becomes a JSON string, so that nothing is lost."""
    text = content_text(content)
    return text if is_jsonb(text) else json.dumps(text.replace("\0", "\\u0000"), ensure_ascii=False)
