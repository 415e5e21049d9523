"""Changes as typed rows: the table's columns as they are after the change, and what there is to say about it.

The columns that are not the table's own begin with `_`; where the table has a column of that name, with one more.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from tailrace import types
from tailrace.change import Relation
from tailrace.log import json
from tailrace.log.decoding import At, Messages, TableChanges
from tailrace.pgoutput.columns import Images

RELATION: Final = "tailrace.relation"
"""Schema metadata: the relation's definition, as docs/log-format.md describes it."""


def batch_of(part: TableChanges | Messages) -> pa.RecordBatch:
    if isinstance(part, Messages):
        columns = {
            **_about(part.at, pa.array(["MESSAGE"] * len(part), pa.string())),
            "prefix": pa.array(part.prefix, pa.string()),
            "content": pa.array(part.content, pa.binary()),
            "transactional": pa.array(part.transactional),
        }
        return pa.RecordBatch.from_pydict(columns)
    relation = part.relation
    more = {
        **_about(part.at, json.operations(part.operation)),
        "_before": _before(part.old),
        "_unchanged": _unchanged(part.new, relation),
        "_special": _special(part.new),
        "_before_special": _special(part.old),
    }
    fields = list(part.new.batch.schema)
    for name, array in more.items():
        fields.append(pa.field(free_name(name, relation), array.type))
    schema = pa.schema(fields, {RELATION: relation.to_json()})
    return pa.RecordBatch.from_arrays([*part.new.batch.columns, *more.values()], schema=schema)


def _about(at: At, operations: pa.StringArray) -> dict[str, pa.Array]:
    return {
        "_operation": operations,
        "_position": json.positions(at),
        "_commit_lsn": pa.array(at.commit_lsn),
        "_ordinal": pa.array(at.ordinal),
        "_lsn": pa.array(at.lsn),
        "_xid": pa.array(at.xid),
        "_committed_at": pa.array(at.committed_at_us, pa.timestamp("us", "UTC")),
        "_is_last": pa.array(at.is_last),
    }


def about(changes: TableChanges) -> tuple[pa.Array, ...]:
    """Operation, position, LSN and ordinal, transaction, time, and what was not sent."""
    at = changes.at
    return (
        json.operations(changes.operation),
        json.positions(at),
        pa.array(at.commit_lsn),
        pa.array(at.ordinal),
        pa.array(at.xid),
        pa.array(at.committed_at_us, pa.timestamp("us", "UTC")),
        _unchanged(changes.new, changes.relation),
    )


def _before(old: Images) -> pa.StructArray:
    """The row that was there, or what identifies it."""
    # Parquet has no struct without fields; of a table without columns, there is nothing to say but that.
    fields = list(old.batch.schema) or [pa.field("_", pa.null())]
    arrays = old.batch.columns or [pa.nulls(len(old))]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~old.present, pa.bool_()))


def _special(images: Images) -> pa.MapArray:
    return pa.nulls(len(images), types.SPECIALS) if images.special is None else images.special


def _unchanged(new: Images, relation: Relation) -> pa.ListArray:
    """The names of columns that were not sent, of each row."""
    places = sorted(new.unchanged)
    if not places:
        offsets, names = np.zeros(len(new) + 1, np.int32), np.empty(0, np.int64)
    else:
        unsent = np.stack([new.unchanged[place] for place in places], axis=1)
        offsets = np.concatenate([[0], np.cumsum(unsent.sum(axis=1))]).astype(np.int32)
        names = np.nonzero(unsent)[1]
    texts = pa.array([relation.columns[place].name for place in places], pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), texts.take(pa.array(names)))


def free_name(name: str, relation: Relation) -> str:
    """A name for a column of ours that the table's own leave free."""
    # Spark and DuckDB do not tell `A` from `a`.
    while any(column.name.lower() == name for column in relation.columns):
        name = f"_{name}"
    return name
