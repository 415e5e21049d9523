"""PostgreSQL's texts of a lake's rows, whatever read them: tasks import it, without DuckDB."""

from __future__ import annotations

import pyarrow as pa

from tailrace.change import Relation
from tailrace.column_name import unused_name
from tailrace.sinks.iceberg.iceberg_schema import stored_texts


def lake_texts(relation: Relation, batch: pa.RecordBatch) -> pa.RecordBatch:
    """PostgreSQL's texts of stored rows."""
    special: dict[str, dict[int, str]] = {}
    name = unused_name("_special", relation)
    if name in batch.schema.names:
        for row, entries in enumerate(batch.column(batch.schema.names.index(name)).to_pylist()):
            for column, text in entries or ():
                special.setdefault(column, {})[row] = text
    arrays = []
    # By index: DuckDB does not distinguish `Id` from `id`, and renames the second.
    for index, column in enumerate(relation.columns):
        array = batch.column(index)
        if not pa.types.is_string(array.type):
            array = stored_texts(array, column, special.get(column.name, {}))
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in relation.columns])
