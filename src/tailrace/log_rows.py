"""Rows of the log, as arrays: what every source writes and every reader of segments gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.change import Relation

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogRows:
    """Rows of the log, with one array per column."""

    commit_lsn: I64
    ordinal: I64
    lsn: I64
    xid: I64
    commit_ts: I64
    """Microseconds from 1970."""
    kind: U8
    relation_id: I64
    payload: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.kind)

    def columns(self) -> Iterator[npt.NDArray[np.generic]]:
        yield from (
            self.commit_lsn,
            self.ordinal,
            self.lsn,
            self.xid,
            self.commit_ts,
            self.kind,
            self.relation_id,
        )

    def slice(self, start: int, stop: int) -> LogRows:
        columns = [c[start:stop] for c in self.columns()]
        return LogRows._of(columns, self.payload.slice(start, stop - start))

    @staticmethod
    def concat(parts: Sequence[LogRows]) -> LogRows:
        if len(parts) == 1:
            return parts[0]
        columns = [np.concatenate(c) for c in zip(*(p.columns() for p in parts), strict=True)]
        return LogRows._of(columns, pa.concat_arrays([p.payload for p in parts]))

    @staticmethod
    def _of(columns: Sequence[npt.NDArray[Any]], payload: pa.BinaryArray) -> LogRows:
        commit_lsn, ordinal, lsn, xid, commit_ts, kind, relation_id = columns
        return LogRows(commit_lsn, ordinal, lsn, xid, commit_ts, kind, relation_id, payload)

    @staticmethod
    def empty() -> LogRows:
        none = np.zeros(0, dtype=np.int64)
        return LogRows(none, none, none, none, none, none.astype(np.uint8), none, pa.array([], pa.binary()))


@dataclass(frozen=True, slots=True)
class RowBatch:
    """What a portion of a source's stream adds to the log."""

    rows: LogRows
    committed_rows: int
    """How many of the first rows belong to complete transactions; 0 if no transaction ended here."""
    end_lsn: int
    """All transactions that commit below this LSN are complete; 0 if no transaction ended here."""
    defined: list[tuple[int, Relation]] = field(default_factory=list)
    """Relations that are described here, each with the number of the row that follows it."""
    repeated: int = 0
    """Changes of transactions that the log already holds."""
    left_out: int = 0
    """Changes of Tailrace's own relations."""
    resume: str | None = None
    """Where the stream continues after this portion, for sources whose positions do not say it."""
