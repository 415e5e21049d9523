"""Converts chunks of the log to rows of the change stream, column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.delivery.context import Contexts
from tailrace.log import json_columns
from tailrace.log.change_text import content_text
from tailrace.log.decoding import ChangePositions, Chunk, LogicalMessages, TableChanges
from tailrace.spark.schema import CHANGES

Mask = npt.NDArray[np.bool_]


def batch(chunk: Chunk, contexts: Contexts) -> pa.RecordBatch | None:
    """Return the chunk's changes in log order. None: it has no changes."""
    parts = [part for part in chunk if len(part.at)]
    if not parts:
        return None
    batches = [_messages(p) if isinstance(p, LogicalMessages) else _changes(p, contexts) for p in parts]
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    order = np.lexsort((table.column("ordinal").to_numpy(), table.column("commit_lsn").to_numpy()))
    return table.take(pa.array(order)).combine_chunks().to_batches()[0]


def _changes(changes: TableChanges, contexts: Contexts) -> pa.RecordBatch:
    relation, count = changes.relation, len(changes)
    return _batch(
        changes.at,
        {
            "operation": json_columns.operations(changes.operation),
            "schema": repeated(relation.schema, count),
            "table": repeated(relation.name, count),
            "relation_id": pa.array(np.full(count, relation.oid, np.int64)),
            "key": json_columns.keys(changes),
            "before": json_columns.befores(changes),
            "after": json_columns.afters(changes),
            "unchanged": names_where(changes.new.unchanged, [c.name for c in relation.columns], count),
            "context": contexts.of_changes(changes.at),
            "message": repeated(" ".join(changes.truncate_options) or None, count),
        },
    )


def _messages(messages: LogicalMessages) -> pa.RecordBatch:
    return _batch(
        messages.at,
        {
            "operation": repeated("MESSAGE", len(messages)),
            "unchanged": names_where({}, [], len(messages)),
            "message_prefix": pa.array(messages.prefix, pa.string()),
            "message": pa.array([content_text(content) for content in messages.content], pa.string()),
        },
    )


def _batch(at: ChangePositions, known: dict[str, pa.Array]) -> pa.RecordBatch:
    columns = dict(zip(CHANGES.names, position_columns(at), strict=False)) | known
    arrays = [columns[f.name] if f.name in columns else pa.nulls(len(at), f.type) for f in CHANGES]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGES)


def position_columns(at: ChangePositions) -> list[pa.Array]:
    """Return position, commit LSN, ordinal, LSN, transaction and time, which the change stream and typed rows share."""
    numbers = [pa.array(values) for values in (at.commit_lsn, at.ordinal, at.lsn, at.xid)]
    times = pa.array(at.committed_at_us).view(CHANGES.field("committed_at").type)
    return [json_columns.positions(at), *numbers, times]


def repeated(text: str | None, count: int) -> pa.StringArray:
    """Return a column that repeats one text."""
    if text is None:
        return pa.nulls(count, pa.string())
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int32)))


def names_where(masks: Mapping[int, Mask], names: Sequence[str], count: int) -> pa.ListArray:
    """Return, for each row, the names of the columns whose masks include it."""
    indexes = sorted(masks)
    if not indexes:
        return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))
    rows, columns = np.nonzero(np.stack([masks[i] for i in indexes], axis=1))
    offsets = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
    values = pa.array([names[i] for i in indexes], pa.string()).take(pa.array(columns))
    return pa.ListArray.from_arrays(pa.array(offsets), values)
