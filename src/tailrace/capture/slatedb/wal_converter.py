"""Converts WAL files to rows of the log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.capture.slatedb.expiry import expiry_texts
from tailrace.capture.slatedb.merge_resolver import MergeResolver
from tailrace.capture.slatedb.relation import has_operand, relation_of
from tailrace.capture.slatedb.value_decoder import ValueDecoder, entry_place
from tailrace.change import Lsn, Relation
from tailrace.errors import SourceRefused
from tailrace.log_rows import LogRows, RowBatch
from tailrace.settings.slatedb import SlateDbSettings
from tailrace.slatedb.log_message import log_rows
from tailrace.slatedb.row_entry import SCHEMA

I64 = npt.NDArray[np.int64]

_PIECE_BYTES: Final = 64 << 20
"""A larger file is converted in pieces. As text, a piece takes twice the memory."""
_MERGE: Final = 2
"""The index of merges among the kinds of entries."""
_YEAR_10000_MS: Final = 253_402_300_800_000


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """Where the stream continues: after the last file that the log has completely."""

    wal_id: int
    sha256: str | None = None
    """Of the file. A database that was made anew under the same path has another one. None before the first file."""
    seen_seq: int = 0
    """The highest sequence number in files up to this one. Later files have higher ones."""
    checkpoint: str | None = None
    """The database's checkpoint that merges are resolved from."""

    def to_text(self) -> str:
        raw: dict[str, object] = {"wal_id": self.wal_id, "sha256": self.sha256, "seen_seq": self.seen_seq}
        if self.checkpoint is not None:
            raw["checkpoint"] = self.checkpoint
        return json.dumps(raw)

    @classmethod
    def parse(cls, text: str) -> ResumeToken:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class WalPortion:
    """Entries of one or more WAL files."""

    entries: pa.RecordBatch
    modified_at_us: I64
    """For each entry, when its file was written."""
    size: int
    resume: str | None
    """None if the last file continues in the next portion."""
    first_ordinal: int = 0
    """The ordinal of the first entry, if the portion before has the beginning of its batch."""
    ends: bool = True
    """Whether the last batch is complete."""


def portions_of(rows: pa.RecordBatch, modified_at: datetime, token: ResumeToken) -> list[WalPortion]:
    """A file's entries: one portion, or several if the file is very large. `token` is where the next file continues."""
    modified_at_us = int(modified_at.timestamp() * 1_000_000)

    def portion(start: int, stop: int) -> WalPortion:
        entries = rows.slice(start, stop - start)
        count = len(entries)
        first, last = (seq[start], seq[stop - 1]) if count else (0, 0)
        return WalPortion(
            entries,
            np.full(count, modified_at_us, np.int64),
            int(sizes[start:stop].sum()) + 64,
            token.to_text() if stop == len(rows) else None,
            start - int(np.searchsorted(seq, first)) if count else 0,
            stop == len(rows) or seq[stop] != last,
        )

    seq = rows["seq"].to_numpy()
    sizes = _lengths(rows["key"]) + _lengths(rows["value"]) + 32
    edges = [0]
    while (start := edges[-1]) < len(rows):
        before = int(sizes[:start].sum())
        edges.append(max(int(np.searchsorted(np.cumsum(sizes), before + _PIECE_BYTES)), start + 1))
    if len(edges) == 1:
        return [portion(0, 0)]
    return [portion(a, min(b, len(rows))) for a, b in pairwise(edges)]


def token_after(id: int, data: bytes, rows: pa.RecordBatch, before: ResumeToken) -> ResumeToken:
    seen = max(before.seen_seq, int(rows["seq"][-1].as_py())) if len(rows) else before.seen_seq
    return ResumeToken(id, hashlib.sha256(data).hexdigest(), seen)


class WalConverter:
    """Fulfils `Converter`. Batches with a sequence number below `skip_below` are left out: the log holds them."""

    def __init__(self, settings: SlateDbSettings, skip_below: Lsn, resolver: MergeResolver | None = None) -> None:
        self._settings = settings
        self._skip_below = skip_below
        self._resolver = resolver
        self._relation: Relation = relation_of(settings)
        self._decoder = ValueDecoder(settings.value)
        self._has_operand = has_operand(settings)
        self._is_described = False

    def join(self, portions: Sequence[WalPortion]) -> WalPortion:
        if len(portions) == 1:
            return portions[0]
        resumes = [p.resume for p in portions if p.resume is not None]
        entries = pa.Table.from_batches([p.entries for p in portions], SCHEMA).combine_chunks().to_batches()
        return WalPortion(
            entries[0] if entries else portions[0].entries,
            np.concatenate([p.modified_at_us for p in portions]),
            sum(p.size for p in portions),
            resumes[-1] if resumes else None,
            portions[0].first_ordinal,
            portions[-1].ends,
        )

    def count(self, portion: WalPortion) -> int:
        return len(portion.entries)

    def convert(self, portion: WalPortion) -> RowBatch:
        entries, modified = portion.entries, portion.modified_at_us
        seq = entries["seq"].to_numpy()
        repeated = int(np.searchsorted(seq, self._skip_below))
        if repeated:
            entries, modified = entries.slice(repeated), modified[repeated:]
        if not len(entries):
            return RowBatch(
                LogRows.empty(), 0, 0, repeated=repeated, resume=self._resume(portion, int(seq.max(initial=0)))
            )
        self._check_merges(entries)
        first_ordinal = 0 if repeated else portion.first_ordinal
        operands = []
        if self._resolver is not None:
            entries, texts = self._resolver.resolve(entries)
            operands = [texts]
        rows = log_rows(
            entries,
            [*self.texts(entries, first_ordinal), *operands],
            self._relation.oid,
            _committed_at_us(entries, modified),
            first_ordinal=first_ordinal,
            ends=portion.ends,
            has_operand=self._has_operand and self._resolver is None,
        )
        commits = np.flatnonzero(rows.kind == ord("C"))
        committed = int(commits[-1]) + 1 if len(commits) else 0
        defined = [] if self._is_described else [(0, self._relation)]
        self._is_described = True
        end_lsn = int(rows.commit_lsn[committed - 1]) + 1 if committed else 0
        return RowBatch(rows, committed, end_lsn, defined, repeated, resume=self._resume(portion, int(seq[-1])))

    def _resume(self, portion: WalPortion, seq: int) -> str | None:
        """The token after a portion that ends at a sequence number."""
        if portion.resume is None or self._resolver is None:
            return portion.resume
        self._resolver.move(seq)
        return replace(ResumeToken.parse(portion.resume), checkpoint=self._resolver.checkpoint_id).to_text()

    def texts(self, entries: pa.RecordBatch, first_ordinal: int = 0) -> list[pa.Array]:
        """The texts of the columns after the value, except for the operand."""
        values = entries["value"]
        is_merge = pc.equal(entries["kind"].indices, _MERGE)
        if self._settings.value.columns and pc.any(is_merge).as_py():
            values = pc.if_else(is_merge, pa.nulls(len(values), values.type), values)
        seq = entries["seq"].to_numpy()
        ordinals = np.arange(len(seq)) - np.searchsorted(seq, seq)
        ordinals[seq == seq[0]] += first_ordinal
        decoded = self._decoder.texts(values, entries["key"], entry_place(entries["seq"], ordinals))
        return [expiry_texts(entries["expire_ts"]), *decoded]

    def _check_merges(self, entries: pa.RecordBatch) -> None:
        if self._has_operand:
            return
        found = pc.index(entries["kind"].indices, pa.scalar(_MERGE, pa.int8())).as_py()
        if found >= 0:
            raise SourceRefused(
                f"{self._relation.qualified_name}, {Lsn(entries['seq'][found].as_py())}: the database has merges, "
                "and an operand alone is not a value",
                'set [source] merge_operator = "module:function" to log the values too, or merges = "operands" to log '
                "operands alone, for sinks that deliver changes",
            )


def _committed_at_us(entries: pa.RecordBatch, modified: I64) -> I64:
    """When each entry was written: by the database's clock if that counts milliseconds since 1970, else when its file
    was."""
    created = entries["create_ts"]
    if created.null_count == len(created):
        return modified
    times: I64 = pc.fill_null(created, -1).to_numpy()
    is_time = (times >= 0) & (times < _YEAR_10000_MS)
    return np.where(is_time, np.where(is_time, times, 0) * 1000, modified)


def _lengths(column: pa.Array) -> I64:
    lengths: I64 = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return lengths
