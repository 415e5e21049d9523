"""Which context belongs to which change: what the application said in the same transaction. Pure, vectorised.

An application says it with `pg_logical_emit_message(true, '_bemi', '<json>')`. With one message in a transaction it is
the context of every change in it, wherever it stands. With several each belongs to the changes next to it: where the
transaction begins with a message, to those that follow it; else to those that it follows. Messages of others count for
nothing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.log.decoding import At, Messages
from tailrace.log.rendering import content_text
from tailrace.sinks.audit.exact import is_jsonb

I64 = npt.NDArray[np.int64]

PREFIX: Final = "_bemi"


@dataclass(frozen=True)
class Range:
    """Changes of one transaction that share a context, by their first and last ordinals."""

    commit_lsn: int
    first: int
    last: int
    text: str


@dataclass(frozen=True)
class Contexts:
    """Contexts in the log's order."""

    commit_lsn: I64
    ordinal: I64
    leads: npt.NDArray[np.bool_]
    """Nothing but messages is before it in its transaction."""
    texts: tuple[str, ...]

    @classmethod
    def of(cls, messages: Iterable[Messages]) -> Contexts:
        every = sorted(
            (int(said.at.commit_lsn[row]), int(said.at.ordinal[row]), said.prefix[row], said.content[row])
            for said in messages
            for row in range(len(said))
            if said.transactional[row]
        )
        found: list[tuple[int, int, bool, str]] = []
        for commit_lsn, own in itertools.groupby(every, key=lambda entry: entry[0]):
            found += [
                (commit_lsn, ordinal, ordinal == number, text_of(content))
                for number, (_, ordinal, prefix, content) in enumerate(own)
                if prefix == PREFIX
            ]
        places = np.array([entry[:2] for entry in found], np.int64).reshape(-1, 2)
        leads = np.array([is_lead for _, _, is_lead, _ in found], np.bool_)
        return cls(places[:, 0], places[:, 1], leads, tuple([text for *_, text in found]))

    def __len__(self) -> int:
        return len(self.texts)

    def within(self, commit_lsn: int) -> Contexts:
        """Those of one transaction."""
        low, high = np.searchsorted(self.commit_lsn, [commit_lsn, commit_lsn + 1])
        return Contexts(self.commit_lsn[low:high], self.ordinal[low:high], self.leads[low:high], self.texts[low:high])

    def joined(self, later: Contexts) -> Contexts:
        return Contexts(
            np.concatenate([self.commit_lsn, later.commit_lsn]),
            np.concatenate([self.ordinal, later.ordinal]),
            np.concatenate([self.leads, later.leads]),
            self.texts + later.texts,
        )

    def stitched(self, at: At) -> pa.StringArray:
        """The context of each change; NULL where its transaction has none."""
        if not len(self):
            return pa.nulls(len(at), pa.string())
        chosen, is_there = self._chosen(at)
        return pa.array(self.texts, pa.string()).take(pa.array(chosen, mask=~is_there))

    def sizes(self, at: At) -> I64:
        """How long the context of each change is."""
        if not len(self):
            return np.zeros(len(at), np.int64)
        chosen, is_there = self._chosen(at)
        return np.where(is_there, np.array([len(text.encode()) for text in self.texts], np.int64)[chosen], 0)

    def _chosen(self, at: At) -> tuple[I64, npt.NDArray[np.bool_]]:
        """Which context is each change's, and whether it has one."""
        count = len(self)
        following = _rank(self.commit_lsn, self.ordinal, at.commit_lsn, at.ordinal)
        before, after = following - 1, np.minimum(following, count - 1)
        has_before = (before >= 0) & (self.commit_lsn[before] == at.commit_lsn)
        has_after = (following < count) & (self.commit_lsn[after] == at.commit_lsn)
        takes_before = has_before & (self._leads(at.commit_lsn) | ~has_after)
        return np.where(takes_before, before, after), has_before | has_after

    @property
    def lead(self) -> bool:
        """Of the contexts of one transaction: it begins with one."""
        return bool(len(self)) and bool(self.leads[0])

    def ranges(self) -> Iterator[Range]:
        """The same for a whole transaction, these being its contexts: for changes that were written without them."""
        leads = self.lead
        for number, text in enumerate(self.texts):
            first = int(self.ordinal[number]) if leads else int(self.ordinal[number - 1]) if number else 0
            ends = self.ordinal[number + 1 :] if leads else self.ordinal[number : len(self) - 1]
            last = int(ends[0]) if len(ends) else np.iinfo(np.int64).max
            yield Range(int(self.commit_lsn[number]), first, int(last), text)

    def _leads(self, commit_lsn: I64) -> npt.NDArray[np.bool_]:
        """Whether a transaction begins with a context."""
        first = np.minimum(np.searchsorted(self.commit_lsn, commit_lsn), len(self) - 1)
        found: npt.NDArray[np.bool_] = (self.commit_lsn[first] == commit_lsn) & self.leads[first]
        return found


def text_of(content: bytes) -> str:
    """A context as JSON that jsonb takes; what is no JSON becomes a string, so that nothing is lost."""
    text = content_text(content)
    return text if is_jsonb(text) else json.dumps(text.replace("\0", "\\u0000"), ensure_ascii=False)


def _rank(commit_lsn: I64, ordinal: I64, of_commit: I64, of_ordinal: I64) -> I64:
    """How many of the pairs are below each of the others; both are compared as pairs."""
    commits = np.concatenate([commit_lsn, of_commit])
    ordinals = np.concatenate([ordinal, of_ordinal])
    order = np.lexsort((ordinals, commits))
    is_ours = order < len(commit_lsn)
    below = np.cumsum(is_ours)
    found = np.empty(len(commits), np.int64)
    found[order] = below
    return found[len(commit_lsn) :]
