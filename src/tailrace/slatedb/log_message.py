"""Entries of the WAL as rows of the log.

A put is pgoutput's UPDATE without an old image, a delete its DELETE with an old key, a batch ends with a COMMIT. So the
log has one decoder, whatever the source. The relation's identity says that an UPDATE may create its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.errors import DecodeError
from tailrace.log_rows import LogRows

I64 = npt.NDArray[np.int64]

_LARGEST_VALUE = 1 << 29
"""Bytes. The hex text of a larger value does not fit into a message."""
_LARGEST_PAYLOAD = (1 << 31) - 1
"""Bytes. Offsets of payloads have 32 bits."""
_COMMIT_BYTES = 26
_POSTGRES_EPOCH_US = 946_684_800_000_000
_LETTERS = np.frombuffer(b"UDU", np.uint8)
"""By kind of entry: put, delete, merge."""


def log_rows(
    entries: pa.RecordBatch,
    texts: Sequence[pa.Array],
    oid: int,
    committed_at_us: I64,
    *,
    first_ordinal: int = 0,
    ends: bool = True,
    has_operand: bool = False,
) -> LogRows:
    """Whole batches of entries as rows, each batch with its commit.

    Args:
        entries: At least one entry, with the columns of `tailrace.slatedb.row_entry.SCHEMA`, in the order of the WAL.
        texts: The texts of the columns after key and value, one array of strings for each column.
        oid: The relation.
        committed_at_us: For each entry, its time in microseconds since 1970.
        first_ordinal: The ordinal of the first entry, if earlier rows have the beginning of its batch.
        ends: Whether the last batch is complete.
        has_operand: Whether the last column is the operand of a merge.
    """
    from tailrace.slatedb import kernel  # imported here, because it loads the compiler

    count = entries.num_rows
    seq = entries["seq"].to_numpy().astype(np.int64)
    kind = entries["kind"].indices.to_numpy().astype(np.uint8)
    key, key_offset = _bytes(entries["key"])
    value, value_offset = _bytes(entries["value"])
    text, text_start, text_length = _texts(texts, count)
    key_size, value_size = np.diff(key_offset), np.diff(value_offset)
    if max(int(key_size.max()), int(value_size.max())) > _LARGEST_VALUE:
        raise DecodeError(f"a value of sequence number {int(seq[0])} to {int(seq[-1])} has more than 512 MiB")

    is_last = np.append(seq[1:] != seq[:-1], ends)
    begins = np.append(True, seq[1:] != seq[:-1])
    starts = np.flatnonzero(begins)
    ordinal = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
    if first_ordinal:
        ordinal[seq == seq[0]] += first_ordinal
    # One time for each batch: the latest of its entries.
    batch_time = np.maximum.reduceat(committed_at_us, starts)
    time = np.repeat(batch_time, np.diff(np.append(starts, count)))

    cells = np.where(text_length >= 0, text_length + 5, 1).sum(axis=0) if len(texts) else np.zeros(count, np.int64)
    is_put, is_delete, is_merge = (kind == k for k in (kernel.PUT, kernel.DELETE, kernel.MERGE))
    cells = np.where(is_delete, len(texts), cells)
    size = 8 + 7 + 2 * key_size + np.where(is_put, 7 + 2 * value_size, 1) + cells
    if has_operand:
        size += np.where(is_merge, 7 + 2 * value_size, 1)

    # A commit follows the last entry of each batch.
    commits_before = np.cumsum(is_last) - is_last
    entry_row = np.arange(count) + commits_before
    last = np.flatnonzero(is_last)
    commit_row = entry_row[last] + 1
    rows = count + len(last)
    sizes = np.empty(rows, np.int64)
    sizes[entry_row], sizes[commit_row] = size, _COMMIT_BYTES
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > _LARGEST_PAYLOAD:
        raise DecodeError(
            f"a value of sequence number {int(seq[0])} to {int(seq[-1])} and its columns have more than 2 GiB as text"
        )
    out = np.empty(int(offsets[-1]), np.uint8)
    kernel.write_messages(
        *(kind, key, key_offset, value, value_offset, text, text_start, text_length),
        *(oid, has_operand, offsets[entry_row], out),
    )
    kernel.write_commits(seq[last], time[last] - _POSTGRES_EPOCH_US, offsets[commit_row], out)

    def spread(of_entries: npt.NDArray[Any]) -> npt.NDArray[Any]:
        spread_out = np.empty(rows, of_entries.dtype)
        spread_out[entry_row], spread_out[commit_row] = of_entries, of_entries[last]
        return spread_out

    ordinals, kinds, oids = spread(ordinal), spread(_LETTERS[kind]), np.full(rows, oid, np.int64)
    ordinals[commit_row] += 1
    kinds[commit_row], oids[commit_row] = ord("C"), 0
    payload = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    )
    seqs = spread(seq)
    return LogRows(seqs, ordinals, seqs, seqs, spread(time), kinds, oids, payload)


def _bytes(column: pa.Array) -> tuple[npt.NDArray[np.uint8], I64]:
    """The bytes of a column and their offsets. A NULL is empty."""
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data if data is not None else b"", np.uint8), places.copy()


def _texts(columns: Sequence[pa.Array], count: int) -> tuple[npt.NDArray[np.uint8], I64, I64]:
    """The texts of all columns in one buffer, with start and length of each; -1 for NULL."""
    buffers, base = [np.empty(0, np.uint8)], 0
    start, length = np.zeros((len(columns), count), np.int64), np.full((len(columns), count), -1, np.int64)
    for index, column in enumerate(columns):
        _, offsets, data = column.cast(pa.large_string()).buffers()
        places = np.frombuffer(offsets, np.int64)[: count + 1]
        start[index] = base + places[:-1]
        length[index] = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(places), -1)
        if data is not None:
            buffers.append(np.frombuffer(data, np.uint8)[: places[-1]])
            base += int(places[-1])
    return np.concatenate(buffers), start, length
