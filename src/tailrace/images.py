"""Decoded row images, as Arrow columns: what sinks and states get, whatever source the changes come from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Images:
    """The old or the new images of a batch, one row per message."""

    batch: pa.RecordBatch
    """One column of the mapped type for each column of the relation. A NULL may also mean that there is no value: see
    `present`, `unchanged` and `special`."""
    present: Mask
    """Which messages have this image."""
    unchanged: dict[int, Mask]
    """Column index → rows whose TOASTed value the update did not touch and PostgreSQL did not send. Columns without
    such rows are absent."""
    special: pa.MapArray | None
    """For each row: column name → text of the values that the column's Arrow type cannot hold; NULL if it has none."""

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: npt.NDArray[np.int64] | Mask) -> Images:
        """Select rows by number or by mask."""
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        indices = pa.array(places)
        arrays = [column.take(indices) for column in self.batch.columns]
        unchanged = {column: mask[places] for column, mask in self.unchanged.items() if mask[places].any()}
        special = None if self.special is None else self.special.take(indices)
        if special is not None and special.null_count == len(special):
            special = None
        return Images(record_batch(arrays, self.batch.schema, len(places)), self.present[places], unchanged, special)


def record_batch(arrays: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    if not arrays:  # a batch without arrays would have no rows
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
