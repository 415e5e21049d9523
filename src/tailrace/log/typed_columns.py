"""Changes as typed Arrow columns: the table's columns after the change, and metadata about the change.

Names of metadata columns begin with `_`, and with more underscores if the table has a column of that name.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from tailrace import types
from tailrace.change import Relation
from tailrace.column_name import unused_name
from tailrace.images import Images
from tailrace.log import json_columns
from tailrace.log.decoding import ChangePositions, LogicalMessages, TableChanges

RELATION: Final = "tailrace.relation"
"""Key of the schema metadata with the relation's definition, which docs/log-format.md describes."""


def to_record_batch(part: TableChanges | LogicalMessages) -> pa.RecordBatch:
    """A batch with one row for each change or message."""
    if isinstance(part, LogicalMessages):
        columns = {
            **_metadata(part.at, pa.array(["MESSAGE"] * len(part), pa.string())),
            "prefix": pa.array(part.prefix, pa.string()),
            "content": pa.array(part.content, pa.binary()),
            "transactional": pa.array(part.transactional),
        }
        return pa.RecordBatch.from_pydict(columns)
    relation = part.relation
    metadata = {
        **_metadata(part.at, json_columns.operations(part.operation)),
        "_before": _before(part.old),
        "_unchanged": _unchanged(part.new, relation),
        "_special": _special(part.new),
        "_before_special": _special(part.old),
    }
    fields = list(part.new.batch.schema)
    for name, array in metadata.items():
        fields.append(pa.field(unused_name(name, relation), array.type))
    schema = pa.schema(fields, {RELATION: relation.to_json()})
    return pa.RecordBatch.from_arrays([*part.new.batch.columns, *metadata.values()], schema=schema)


def _metadata(at: ChangePositions, operations: pa.StringArray) -> dict[str, pa.Array]:
    return {
        "_operation": operations,
        "_position": json_columns.positions(at),
        "_commit_lsn": pa.array(at.commit_lsn),
        "_ordinal": pa.array(at.ordinal),
        "_lsn": pa.array(at.lsn),
        "_xid": pa.array(at.xid),
        "_committed_at": pa.array(at.committed_at_us, pa.timestamp("us", "UTC")),
        "_is_last": pa.array(at.is_last),
    }


def metadata_columns(changes: TableChanges) -> tuple[pa.Array, ...]:
    """Operation, position, commit LSN, ordinal, transaction id, commit time, and the columns that were not sent."""
    at = changes.at
    return (
        json_columns.operations(changes.operation),
        json_columns.positions(at),
        pa.array(at.commit_lsn),
        pa.array(at.ordinal),
        pa.array(at.xid),
        pa.array(at.committed_at_us, pa.timestamp("us", "UTC")),
        _unchanged(changes.new, changes.relation),
    )


def _before(old: Images) -> pa.StructArray:
    """The old row, or its identity columns."""
    # Parquet has no struct without fields, so a table without columns gets a placeholder.
    fields = list(old.batch.schema) or [pa.field("_", pa.null())]
    arrays = old.batch.columns or [pa.nulls(len(old))]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~old.present, pa.bool_()))


def _special(images: Images) -> pa.MapArray:
    return pa.nulls(len(images), types.SPECIALS) if images.special is None else images.special


def _unchanged(new: Images, relation: Relation) -> pa.ListArray:
    """For each row, the names of the columns that were not sent."""
    indexes = sorted(new.unchanged)
    if not indexes:
        offsets, names = np.zeros(len(new) + 1, np.int32), np.empty(0, np.int64)
    else:
        unsent = np.stack([new.unchanged[index] for index in indexes], axis=1)
        offsets = np.concatenate([[0], np.cumsum(unsent.sum(axis=1))]).astype(np.int32)
        names = np.nonzero(unsent)[1]
    texts = pa.array([relation.columns[index].name for index in indexes], pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), texts.take(pa.array(names)))
