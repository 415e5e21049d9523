"""A WAL file's bytes as Arrow columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.errors import CorruptError, DecodeError
from tailrace.slatedb import sst
from tailrace.slatedb.row_entry import SCHEMA, EntryKind
from tailrace.slatedb.sst import Blocks

_KINDS = pa.array([kind.value for kind in EntryKind], pa.string())


def decode(data: bytes, name: str) -> pa.RecordBatch:
    """The entries of a WAL file in the order in which they were written, with the columns of `SCHEMA`.

    An empty file has no entries: a writer creates one to fence the writers before it.

    Args:
        data: The whole file.
        name: The file's name, for errors.
    """
    if not data:
        return pa.RecordBatch.from_pylist([], SCHEMA)
    blocks = sst.read_blocks(data, name)
    content = np.frombuffer(blocks.data, np.uint8)
    rows = _columns(blocks, content, *_measure(blocks, content, name))
    seq = rows["seq"].to_numpy()
    if (seq[1:] < seq[:-1]).any():  # SlateDB before 0.11 stored the entries of a file in the order of their keys
        rows = rows.take(pa.array(np.argsort(seq, kind="stable")))
    return rows


def _measure(blocks: Blocks, content: npt.NDArray[np.uint8], name: str) -> tuple[int, int, int]:
    """Check the blocks. Return the number of entries, and the bytes of their keys and of their values."""
    from tailrace.slatedb import kernel  # imported here, because it loads the compiler

    first_seq, totals = np.zeros(len(blocks.start), np.int64), np.zeros(3, np.int64)
    failed = kernel.measure(content, blocks.start, blocks.end, blocks.version, first_seq, totals)
    if failed >= 0:
        place, reason = totals[1] - blocks.start[failed], kernel.REASONS[int(totals[0])]
        raise DecodeError(f"{name}: block {failed} is not damaged, but at byte {place} {reason}", sst.TRANSFORMED)
    if blocks.first_seq is not None and (moved := np.flatnonzero(first_seq != blocks.first_seq)).size:
        raise CorruptError(f"{name}: block {moved[0]} is not the one that the index names", sst.DAMAGED)
    entries, key_bytes, value_bytes = totals.tolist()
    return entries, key_bytes, value_bytes


def _columns(
    blocks: Blocks, content: npt.NDArray[np.uint8], entries: int, key_bytes: int, value_bytes: int
) -> pa.RecordBatch:
    from tailrace.slatedb import kernel

    kind, key, value = (np.empty(size, np.uint8) for size in (entries, key_bytes, value_bytes))
    key_offset, value_offset = (np.empty(entries + 1, np.int64) for _ in range(2))
    seq, create_ts, expire_ts = (np.empty(entries, np.int64) for _ in range(3))
    has_create_ts, has_expire_ts = (np.empty(entries, np.uint8) for _ in range(2))
    kernel.fill(
        *(content, blocks.start, blocks.end, blocks.version),
        *(kind, key_offset, key, value_offset, value, seq),
        *(create_ts, has_create_ts, expire_ts, has_expire_ts),
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.DictionaryArray.from_arrays(kind.view(np.int8), _KINDS),
            _array(pa.large_binary(), None, key_offset, key),
            _array(pa.large_binary(), kind != kernel.DELETE, value_offset, value),
            _array(pa.uint64(), None, seq),
            _array(pa.int64(), has_create_ts, create_ts),
            _array(pa.int64(), has_expire_ts, expire_ts),
        ],
        schema=SCHEMA,
    )


def _array(type: pa.DataType, is_valid: Any, values: Any, data: Any = None) -> pa.Array:
    """An array of values, or of byte strings: then `values` are their offsets in `data`."""
    validity = None if is_valid is None else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    if data is None:
        return pa.Array.from_buffers(type, len(values), [validity, pa.py_buffer(values)])
    return pa.Array.from_buffers(type, len(values) - 1, [validity, pa.py_buffer(values), pa.py_buffer(data)])
