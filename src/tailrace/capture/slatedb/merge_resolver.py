"""Resolves merges: what a row becomes is computed once, before it is in the log.

A value after a merge is a function of everything written to its key before. The database has the rows up to a
checkpoint's boundary, and the resolver remembers what the WAL wrote since. So the log has the values, every consumer
gets the same ones however often it reads them, and no sink has to read its destination.

The resolver moves to newer checkpoints, so that it remembers little. The resume token names the checkpoint. A
checkpoint is deleted only once the log durably names its successor.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.capture.slatedb.database import (
    CheckpointReader,
    DatabaseCheckpoint,
    MergeOperator,
    SlateDatabase,
    shown_key,
)
from tailrace.capture.slatedb.expiry import expiry_ms
from tailrace.capture.slatedb.relation import EXPIRES_AT
from tailrace.change import OPERAND, Lsn, Relation
from tailrace.errors import SourceRefused, TailraceError
from tailrace.images import Images
from tailrace.log import decoding
from tailrace.log.decoding import DELETE, ChangeFilter, TableChanges
from tailrace.log.reader import LogReader
from tailrace.slatedb.row_entry import SCHEMA
from tailrace.state.table_state import slices_between

_log = logging.getLogger("tailrace.capture")

_PUT: Final = 0
_DELETE: Final = 1
_MERGE: Final = 2
_KINDS: Final = pa.array(["put", "delete", "merge"])

CHECKPOINT_LIFETIME_MS: Final = 24 * 3_600_000
"""Capture can be stopped this long. The database keeps the checkpoint's files meanwhile."""
_REFRESH_S: Final = 3600.0
_MOVE_S: Final = 60.0
_MOVE_BYTES: Final = 64 << 20
"""A newer checkpoint is used after this time, or once this much is remembered, if the database has written tables."""
_LEAST_MOVE_S: Final = 5.0
_COMPACT_BYTES: Final = 64 << 20
"""From this size on, overwritten rows are dropped whenever the remembered ones have doubled."""


@dataclass(frozen=True, slots=True)
class _Row:
    value: bytes | None
    """None if there is no row."""
    expire_ts: int | None


_NO_ROW: Final = _Row(None, None)


class _RecentRows:
    """What the WAL wrote since the checkpoint: the last entry of each key. Earlier ones are dropped now and then."""

    def __init__(self) -> None:
        self.size = 0
        self._compact_at = _COMPACT_BYTES
        self._row_of: dict[bytes, int] = {}
        self._batches: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        self._end = 0

    def add(self, entries: pa.RecordBatch, keys: Sequence[bytes]) -> None:
        """Add resolved entries. `keys` are theirs."""
        self._row_of.update(zip(keys, range(self._end, self._end + len(keys)), strict=True))
        self._batches.append(entries)
        self._starts.append(self._end)
        self._end += len(keys)
        self.size += entries.nbytes
        if self.size >= self._compact_at:
            self._compact()

    def find(self, key: bytes) -> _Row | None:
        """The row after the last entry of a key; None if nothing was written to it."""
        row = self._row_of.get(key)
        if row is None:
            return None
        batch = bisect.bisect_right(self._starts, row) - 1
        entries, index = self._batches[batch], row - self._starts[batch]
        return _Row(entries["value"][index].as_py(), entries["expire_ts"][index].as_py())

    def forget(self, seq: int) -> None:
        """Forget batches that have nothing after a sequence number."""
        count = 0
        while count < len(self._batches) and self._batches[count]["seq"][-1].as_py() <= seq:
            count += 1
        if count:
            self._batches, self._starts = self._batches[count:], self._starts[count:]
            first = self._starts[0] if self._starts else self._end
            self._row_of = {key: row for key, row in self._row_of.items() if row >= first}
            self.size = sum(batch.nbytes for batch in self._batches)

    def _compact(self) -> None:
        """Drop entries that a later one of the same key follows."""
        first = self._starts[0]
        is_last = np.zeros(self._end - first, np.bool_)
        is_last[np.fromiter(self._row_of.values(), np.int64) - first] = True
        bounds = [start - first for start in self._starts] + [len(is_last)]
        kept = []
        for batch, (start, stop) in zip(self._batches, pairwise(bounds), strict=True):
            part = is_last[start:stop]
            if part.any():
                kept.append(batch if part.all() else batch.filter(pa.array(part)))
        rows = np.cumsum(is_last) - 1
        for key, row in self._row_of.items():
            self._row_of[key] = int(rows[row - first])
        self._batches, self._end = kept, int(rows[-1]) + 1
        self._starts = [0, *accumulate(len(batch) for batch in kept)][:-1]
        self.size = sum(batch.nbytes for batch in kept)
        self._compact_at = max(2 * self.size, _COMPACT_BYTES)


class MergeResolver:
    """Used by the converter, except for `keep`.

    Args:
        database: The database.
        merge: The merge operator.
        name: What errors call the operator.
        relation: The database's relation.
        checkpoint: One whose boundary the log's end has reached.
        end: The log's end.
    """

    def __init__(
        self,
        database: SlateDatabase,
        merge: MergeOperator,
        name: str,
        relation: Relation,
        checkpoint: DatabaseCheckpoint,
        end: Lsn,
    ) -> None:
        self._database = database
        self._merge = merge
        self._name = name
        self._relation = relation
        self._recent = _RecentRows()
        self._lock = threading.Lock()
        """Guards the checkpoints."""
        self._checkpoint = checkpoint
        self._next: DatabaseCheckpoint | None = None
        """A checkpoint whose boundary capture has not reached."""
        # Left by a process that was killed. Once the log goes on, no other process can use them.
        self._retired = [(id, int(end)) for id in database.related_checkpoints(checkpoint.id)]
        """Checkpoints that are not used, each with the sequence number that must be durable before it is deleted."""
        self._reader: CheckpointReader | None = None
        self._moved_at = time.monotonic()
        self._refreshed_at = 0.0

    @property
    def checkpoint_id(self) -> str:
        return self._checkpoint.id

    def load(self, reader: LogReader, end: Lsn) -> None:
        """Remember what the log has since the checkpoint. Operands that it has without a value are resolved too."""
        start = Lsn(self._checkpoint.manifest.last_l0_seq + 1)
        wanted = ChangeFilter(start, {self._relation.oid: start}, others=False, messages=False, end=end)
        for _, chunk in decoding.chunks(reader, slices_between(reader, start, end), wanted):
            for run in chunk:
                if isinstance(run, TableChanges):
                    self.resolve(_entries_of(run))

    def resolve(self, entries: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        """The entries with each merge as a put of its result; and the operands, as texts."""
        keys = entries["key"].to_pylist()
        kinds = entries["kind"].indices.to_numpy()
        merges = np.flatnonzero(kinds == _MERGE)
        if not len(merges):
            self._recent.add(entries, keys)
            return entries, pa.nulls(len(entries), pa.string())
        rows = self._rows_after(entries, keys, kinds, merges)
        is_merge = pa.array(kinds == _MERGE)
        operands = entries["value"].filter(is_merge).to_pylist()
        texts = pc.replace_with_mask(
            pa.nulls(len(entries), pa.string()), is_merge, pa.array([f"\\x{o.hex()}" for o in operands], pa.string())
        )
        columns = {name: entries[name] for name in SCHEMA.names}
        columns["kind"] = _kinds(np.where(kinds == _MERGE, _PUT, kinds))
        for name, resolved in (("value", [r.value for r in rows]), ("expire_ts", [r.expire_ts for r in rows])):
            columns[name] = pc.replace_with_mask(columns[name], is_merge, pa.array(resolved, SCHEMA.field(name).type))
        found = pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)
        self._recent.add(found, keys)
        return found, texts

    def move(self, seq: int) -> None:
        """Move to a newer checkpoint if that is due. Everything up to `seq` is resolved, and the token says so."""
        now = time.monotonic()
        if self._next is None:
            age = now - self._moved_at
            if age < _LEAST_MOVE_S or (age < _MOVE_S and self._recent.size < _MOVE_BYTES):
                return
            self._moved_at = now
            if self._database.newest().last_l0_seq <= self._checkpoint.manifest.last_l0_seq:
                return
            self._next = self._database.create_checkpoint(CHECKPOINT_LIFETIME_MS, follows=self._checkpoint.id)
        boundary = self._next.manifest.last_l0_seq
        if boundary > seq:
            return
        with self._lock:
            self._retired.append((self._checkpoint.id, seq))
            self._checkpoint, self._next = self._next, None
        _log.debug("merges are resolved from the database as of %s on", Lsn(boundary + 1))
        self._close_reader()
        self._recent.forget(boundary)

    def keep(self, durable_lsn: Lsn) -> None:
        """Keep the checkpoints that are needed, and delete others. Called by the capture loop."""
        now = time.monotonic()
        with self._lock:
            unneeded = [id for id, seq in self._retired if durable_lsn > seq]
            self._retired = [(id, seq) for id, seq in self._retired if durable_lsn <= seq]
            needed = [self._checkpoint, *([self._next] if self._next is not None else [])]
        if now - self._refreshed_at > _REFRESH_S or not self._refreshed_at:
            for checkpoint in needed:
                self._database.refresh_checkpoint(checkpoint, CHECKPOINT_LIFETIME_MS)
            self._refreshed_at = now
        for id in unneeded:
            with contextlib.suppress(TailraceError):  # it expires
                self._database.delete_checkpoint(id)

    def close(self) -> None:
        self._close_reader()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _rows_after(
        self, entries: pa.RecordBatch, keys: Sequence[bytes], kinds: np.ndarray, merges: np.ndarray
    ) -> list[_Row]:
        """The row after each merge."""
        merged_keys = {keys[row] for row in merges}
        current: dict[bytes, _Row] = {}
        unknown: dict[bytes, None] = {}
        own = [row for row, key in enumerate(keys) if key in merged_keys]
        seen: set[bytes] = set()
        for row in own:
            key = keys[row]
            if key in seen:
                continue
            seen.add(key)
            if kinds[row] == _MERGE:
                found = self._recent.find(key)
                if found is None:
                    unknown[key] = None
                else:
                    current[key] = found
        current |= self._read(list(unknown))
        places = pa.array(own)
        values, expiries = entries["value"].take(places).to_pylist(), entries["expire_ts"].take(places).to_pylist()
        rows = []
        for row, value, expire_ts in zip(own, values, expiries, strict=True):
            key = keys[row]
            if kinds[row] == _MERGE:
                base = current[key]
                # As in SlateDB: a result expires when the first of its parts does.
                times = [t for t in (base.expire_ts, expire_ts) if t is not None]
                merged = self._call(key, base.value, value, entries["seq"][row].as_py())
                current[key] = _Row(merged, min(times, default=None))
                rows.append(current[key])
            else:
                current[key] = _Row(value, expire_ts)
        return rows

    def _read(self, keys: list[bytes]) -> Mapping[bytes, _Row]:
        """The rows that the database had at the checkpoint."""
        if not keys:
            return {}
        if self._reader is None:
            self._reader = self._database.open_checkpoint(self._checkpoint)
        found = self._reader.get(keys)
        return {key: _NO_ROW if row is None else _Row(*row) for key, row in zip(keys, found, strict=True)}

    def _call(self, key: bytes, existing: bytes | None, operand: bytes, seq: int) -> bytes:
        place = f"{self._relation.qualified_name}, {Lsn(seq)}, key {shown_key(key)}"
        try:
            merged = self._merge(key, existing, operand)
        except Exception as error:  # whatever the operator raises; its text may have values
            raise SourceRefused(
                f"{place}: merge_operator {self._name} raised {type(error).__name__}",
                "correct the function, then run capture again",
            ) from error
        if not isinstance(merged, bytes):
            raise SourceRefused(
                f"{place}: merge_operator {self._name} returned {type(merged).__name__}, not bytes",
                "correct the function, then run capture again",
            )
        return merged


def _entries_of(run: TableChanges) -> pa.RecordBatch:
    """Changes of the log as the entries that they were made of. Merges that the log has resolved are puts."""
    is_delete = run.operation == DELETE
    names = [column.name for column in run.relation.columns]

    def column(images: Images, name: str, type: pa.DataType) -> pa.Array:
        return images.batch.column(names.index(name)).cast(type)

    mask = pa.array(is_delete)
    key = pc.if_else(mask, column(run.old, "key", pa.large_binary()), column(run.new, "key", pa.large_binary()))
    value = column(run.new, "value", pa.large_binary())
    kinds = np.where(is_delete, _DELETE, _PUT)
    if OPERAND in names:
        operand = column(run.new, OPERAND, pa.large_binary())
        is_merge = pc.and_(operand.is_valid(), value.is_null())
        kinds = np.where(is_merge.to_numpy(zero_copy_only=False), _MERGE, kinds)
        value = pc.if_else(is_merge, operand, value)
    expires = expiry_ms(column(run.new, EXPIRES_AT.name, pa.timestamp("us", "UTC")))
    count = len(run)
    arrays = [_kinds(kinds), key, value, pa.array(run.at.commit_lsn.astype(np.uint64)), pa.nulls(count, pa.int64())]
    return pa.RecordBatch.from_arrays([*arrays, expires], schema=SCHEMA)


def _kinds(indexes: np.ndarray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indexes.astype(np.int8)), _KINDS)
