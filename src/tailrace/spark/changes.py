"""Chunks of the log → the rows of the change stream, a column at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.log import json
from tailrace.log.decoding import At, Chunk, Messages, TableChanges
from tailrace.log.rendering import content_text
from tailrace.log.segment import Content
from tailrace.pgoutput import message
from tailrace.spark.schema import CHANGES

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CONTEXT: Final = "_bemi"
"""The prefix of the logical messages by which applications tell who changes rows, and why."""
_KIND_M: Final = ord("M")
# Of one transaction there are fewer changes than this, and in one part fewer transactions than 2^23.
_MOST_CHANGES: Final = 1 << 40


@dataclass(frozen=True)
class Contexts:
    """What was told in transactions about their changes."""

    commit_lsn: I64
    """Of the transactions, ascending."""
    place: I64
    """Of each telling: the transaction's index, then its ordinal."""
    texts: pa.StringArray

    @classmethod
    def of(cls, pieces: Iterable[tuple[Content, int, int]]) -> Contexts:
        """From rows of segments, in the log's order."""
        told: list[tuple[int, int, str]] = []
        for content, start, stop in pieces:
            rows = content.rows
            for row in np.flatnonzero(rows.kind[start:stop] == _KIND_M) + start:
                said = message.parse(rows.payload[int(row)].as_py())
                if isinstance(said, message.LogicalMessage) and said.prefix == CONTEXT:
                    told.append((int(rows.commit_lsn[row]), int(rows.ordinal[row]), content_text(said.content)))
        lsns = np.unique(np.array([lsn for lsn, _, _ in told], np.int64))
        index = np.searchsorted(lsns, np.array([lsn for lsn, _, _ in told], np.int64))
        ordinals = np.array([ordinal for _, ordinal, _ in told], np.int64)
        texts = pa.array([text for _, _, text in told], pa.string())
        return cls(lsns, index * _MOST_CHANGES + ordinals, texts)

    def at(self, at: At) -> pa.StringArray:
        """For each change the last that was told before it in its transaction, else the first after it."""
        if not len(self.place):
            return pa.nulls(len(at), pa.string())
        index = np.minimum(np.searchsorted(self.commit_lsn, at.commit_lsn), len(self.commit_lsn) - 1)
        is_told = self.commit_lsn[index] == at.commit_lsn
        before = np.searchsorted(self.place, index * _MOST_CHANGES + at.ordinal, side="right") - 1
        is_own = (before >= 0) & (self.place[before] // _MOST_CHANGES == index)
        return self.texts.take(pa.array(np.where(is_own, before, before + 1), mask=~is_told))


def batch(chunk: Chunk, contexts: Contexts) -> pa.RecordBatch | None:
    """The chunk's changes in the log's order; None when there are none."""
    parts = [part for part in chunk if len(part.at)]
    if not parts:
        return None
    batches = [_messages(p) if isinstance(p, Messages) else _changes(p, contexts) for p in parts]
    if len(batches) == 1:
        return batches[0]
    together = pa.Table.from_batches(batches).combine_chunks()
    order = np.lexsort((together.column("ordinal").to_numpy(), together.column("commit_lsn").to_numpy()))
    return together.take(pa.array(order)).combine_chunks().to_batches()[0]


def _changes(changes: TableChanges, contexts: Contexts) -> pa.RecordBatch:
    relation, count = changes.relation, len(changes)
    return _batch(
        changes.at,
        {
            "operation": json.operations(changes.operation),
            "schema": repeated(relation.schema, count),
            "table": repeated(relation.name, count),
            "relation_id": pa.array(np.full(count, relation.oid, np.int64)),
            "key": json.keys(changes),
            "before": json.befores(changes),
            "after": json.afters(changes),
            "unchanged": names_where(changes.new.unchanged, [c.name for c in relation.columns], count),
            "context": contexts.at(changes.at),
            "message": repeated(" ".join(changes.truncate_options) or None, count),
        },
    )


def _messages(messages: Messages) -> pa.RecordBatch:
    return _batch(
        messages.at,
        {
            "operation": repeated("MESSAGE", len(messages)),
            "unchanged": names_where({}, [], len(messages)),
            "message_prefix": pa.array(messages.prefix, pa.string()),
            "message": pa.array([content_text(content) for content in messages.content], pa.string()),
        },
    )


def _batch(at: At, known: dict[str, pa.Array]) -> pa.RecordBatch:
    where = dict(zip(CHANGES.names, standing(at), strict=False))
    columns = where | known
    arrays = [columns[f.name] if f.name in columns else pa.nulls(len(at), f.type) for f in CHANGES]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGES)


def standing(at: At) -> list[pa.Array]:
    """Position, commit LSN, ordinal, LSN, transaction, time: as both kinds of rows have them."""
    numbers = [pa.array(values) for values in (at.commit_lsn, at.ordinal, at.lsn, at.xid)]
    moments = pa.array(at.committed_at_us).view(CHANGES.field("committed_at").type)
    return [json.positions(at), *numbers, moments]


def repeated(text: str | None, count: int) -> pa.StringArray:
    if text is None:
        return pa.nulls(count, pa.string())
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int32)))


def names_where(masks: Mapping[int, Mask], names: Sequence[str], count: int) -> pa.ListArray:
    """For each row the names of the columns whose masks have it."""
    indexes = sorted(masks)
    if not indexes:
        return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))
    rows, columns = np.nonzero(np.stack([masks[i] for i in indexes], axis=1))
    offsets = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
    values = pa.array([names[i] for i in indexes], pa.string()).take(pa.array(columns))
    return pa.ListArray.from_arrays(pa.array(offsets), values)
