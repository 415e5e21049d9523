"""Plans batches: which rows of which segments are visible between two offsets, from headers alone.

An `Offset` is always between transactions. A batch from one offset to another holds whole transactions, each once,
however they are divided into segments. Results are deterministic, even after compaction, because headers do not change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import numpy as np

from tailrace.change import Lsn, Position
from tailrace.errors import ConfigError, CorruptError, GapError
from tailrace.log import source_record
from tailrace.log.reader import LogReader, gap_error
from tailrace.log.segment import Header
from tailrace.log.timestamp import parse_timestamp
from tailrace.log.trim import Trim

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Offset:
    """All transactions with a commit LSN below `lsn` precede this offset, and are in segments up to `segment`."""

    segment: int
    lsn: Lsn

    def to_json(self) -> dict[str, str | int]:
        return {"segment": self.segment, "lsn": str(self.lsn)}

    @classmethod
    def from_json(cls, raw: object) -> Self:
        match raw:
            case {"segment": int(segment), "lsn": str(lsn)}:
                return cls(segment, Lsn.parse(lsn))
        raise CorruptError("not a Tailrace offset", "if this is the checkpoint of another query, remove it")


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one segment, all of complete transactions."""

    segment: int
    start: int
    stop: int
    bytes: int
    """Approximate size of the payloads."""
    continues: bool = False
    """The slice's last transaction continues in the next slice."""


@dataclass(frozen=True, slots=True)
class LogBatch:
    """The slices between two offsets."""

    slices: tuple[Slice, ...]
    start: Offset
    end: Offset

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.slices)

    def split(self, count: int, *, whole_transactions: bool = False) -> list[tuple[Slice, ...]]:
        """The slices in order, divided into at most `count` parts of about equal size."""
        parts: list[list[Slice]] = [[]]
        share, filled = max(self.bytes / max(count, 1), 1), 0.0
        for s in self.slices:
            can_cut = parts[-1] and not (whole_transactions and parts[-1][-1].continues)
            if can_cut and filled >= share * len(parts) and len(parts) < count:
                parts.append([])
            parts[-1].append(s)
            filled += s.bytes
        return [tuple(part) for part in parts if part]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """A batch ends when it reaches one of these and has a transaction. A transaction is never split between batches."""

    segments: int = 1000
    """The segments of 50 s, if sealed every 50 ms. Planning a batch reads one footer for each."""
    bytes: int = 256 * MIB
    """Size of payloads: a few seconds' work for two cores, so that progress is visible and a retry repeats little."""


UNLIMITED = BatchLimits(1 << 62, 1 << 62)


def start_offset(reader: LogReader, lsn: Lsn | None, *, across_gaps: bool = False) -> Offset:
    """The offset before the first transaction that commits at or after `lsn`; None is the beginning of the log."""
    first = reader.find(None if lsn is None else Position(lsn, 0))
    header = reader.get(first).metadata()
    if header is not None and header.gap_from is not None and not header.rows:
        # An empty segment that records a gap: the gap ends at its end LSN, and nothing after that is missing.
        if lsn is not None and lsn < header.end_lsn:
            if across_gaps:
                return Offset(first - 1, lsn)
            raise gap_error(header)
        return Offset(first, max(lsn or Lsn(0), header.end_lsn))
    if header is not None and lsn is not None and header.end_lsn <= lsn and header.ends_at_commit:
        return Offset(first, lsn)  # the end of the log: all rows of this segment precede the offset
    return Offset(first - 1, lsn or Lsn(0))


def earliest_lsn(reader: LogReader) -> Lsn:
    """Transactions that commit below this LSN are not in the log: not captured, or removed by retention."""
    if trim := Trim.load(reader.store):
        return Lsn(trim.end.commit_lsn + (trim.end.ordinal > 0))
    begins_at, first = source_record.begins_at(reader.store), reader.first()
    header = first.metadata() if first is not None else None
    # If the log was restarted after a gap, `begins_at` is the end of the gap, and older segments exist.
    return Lsn(0) if header is not None and header.end_lsn < begins_at else begins_at


def latest_offset(reader: LogReader) -> Offset:
    """The offset at the current end of the log."""
    last = reader.last()
    header = last.metadata() if last else None
    return Offset(header.id, header.end_lsn) if header else Offset(0, Lsn(0))


def lsn_at(reader: LogReader, time: datetime) -> Lsn:
    """The commit LSN of the first transaction at or after a time; the end of the log if there is none."""
    wanted = int(time.timestamp() * 1_000_000)
    for span in reader.spans(reader.find(time), across_gaps=True):
        rows = span.content.rows
        found = np.flatnonzero(rows.commit_ts[span.start : span.stop] >= wanted)
        if len(found):
            return Lsn(rows.commit_lsn[span.start + int(found[0])])
    return reader.end_lsn()


def segment_reaching(reader: LogReader, lsn: Lsn) -> int:
    """The segment up to which the log holds all transactions that commit below an LSN; the last one if none does."""
    trim = Trim.load(reader.store)
    ids = [s.id for s in reader.list(trim.first_id if trim else None)]
    at = bisect_left(ids, True, key=lambda id: _end_lsn(reader, id) >= lsn)
    at = min(at, len(ids) - 1)
    while at > 0 and (header := reader.header(ids[at])) and header.first and header.first.commit_lsn >= lsn:
        at -= 1  # all of the segment is at or above the LSN
    return ids[at] if ids else 0


def _end_lsn(reader: LogReader, id: int) -> Lsn:
    header = reader.header(id)
    return header.end_lsn if header is not None else Lsn(0)


def resolve_lsn(reader: LogReader, text: str, option: str) -> Lsn | None:
    """The LSN for an option's text: an LSN, `latest`, or an ISO time (UTC by default). None for `earliest`."""
    match text.strip():
        case "earliest":
            return None
        case "latest":
            return latest_offset(reader).lsn
        case lsn if "/" in lsn and ":" not in lsn:
            return Lsn.parse(lsn)
        case timestamp:
            try:
                time = parse_timestamp(timestamp)
            except ValueError:
                raise ConfigError(
                    f"{option} is {text!r}", "use earliest, latest, an LSN such as 0/1A2B3C4, or an ISO time"
                ) from None
            return lsn_at(reader, time)


def next_batch(
    reader: LogReader,
    start: Offset,
    limits: BatchLimits | None = None,
    end: int | None = None,
    *,
    across_gaps: bool = False,
    up_to_gap: bool = False,
) -> LogBatch:
    """The batch that follows an offset, up to the limits or to segment `end`. At the end of the log it is empty.

    Raises GapError at a gap, unless `across_gaps`. With `up_to_gap`, a batch with transactions ends before the gap, and
    only an empty one raises.
    """
    limits = limits or BatchLimits()
    slices: list[Slice] = []
    reached = start
    open_slices = list(_open_slices(reader, start.segment))
    size = 0
    id = start.segment + 1
    while (end is None or id <= end) and (header := reader.header(id)) is not None:
        if header.gap_from is not None and not across_gaps:
            if slices and up_to_gap:
                break
            raise gap_error(header)
        if header.voids_tail:
            open_slices = []
        if header.committed_rows:
            open_slices.append(_slice(header, 0, header.committed_rows))
            slices += open_slices
            size += sum(s.bytes for s in open_slices)
            open_slices = []
        if header.rows > header.committed_rows:
            open_slices.append(_slice(header, header.committed_rows, header.rows, continues=True))
        if header.committed_rows or not open_slices:
            reached = Offset(header.id, max(header.end_lsn, start.lsn))
        if slices and (size >= limits.bytes or id - start.segment >= limits.segments):
            break
        id += 1
    return LogBatch(tuple(slices), start, reached)


def batch_between(reader: LogReader, start: Offset, end: Offset, *, across_gaps: bool = False) -> LogBatch:
    """The batch from one offset to another: the same at every call."""
    if (end.segment, end.lsn) < (start.segment, start.lsn):
        raise CorruptError(
            f"the log of {reader.store.url} went back from {start.lsn} to {end.lsn}",
            "this may be another log than the one read so far; remove the checkpoint to resume from the sink's cursor",
        )
    batch = next_batch(reader, start, UNLIMITED, end.segment, across_gaps=across_gaps)
    if batch.end.segment < end.segment:
        raise CorruptError(
            f"the log of {reader.store.url} ends at segment {batch.end.segment}, but {end.segment} was already read",
            "segments are missing: restore them, or remove the checkpoint to resume from the sink's cursor",
        )
    return LogBatch(batch.slices, start, end)


def gap_after(reader: LogReader, start: Offset) -> Header | None:
    """The header of the segment that records a gap, if no transaction is between an offset and the gap."""
    id = start.segment + 1
    while (header := reader.header(id)) is not None and not header.committed_rows:
        if header.gap_from is not None:
            return header
        id += 1
    return None


def advance_to(reader: LogReader, start: Offset, lsn: Lsn) -> Offset:
    """The first offset from `start` on that all transactions below `lsn` precede; at most the end of the log."""
    batch = LogBatch((), start, start)
    while batch.end.lsn < lsn:
        found = next_batch(reader, batch.end, BatchLimits(1, 1))
        if found.end == batch.end:
            break
        batch = found
    return batch.end


def _open_slices(reader: LogReader, segment: int) -> Iterator[Slice]:
    """Slices of the transaction that is open at the end of a segment, in segments up to this one.

    Retention never cuts inside a transaction, so none is open where the log begins.
    """
    if not segment:
        return
    first = segment
    try:
        reader.header(segment)
    except GapError:
        return
    while first > 0 and (header := reader.header(first)) is not None and not header.ends_at_commit:
        if header.committed_rows or header.voids_tail:
            break
        first -= 1
    for id in range(max(first, 1), segment + 1):
        header = reader.header(id)
        if header is not None and header.rows > header.committed_rows:
            yield _slice(header, header.committed_rows, header.rows, continues=True)


def _slice(header: Header, start: int, stop: int, continues: bool = False) -> Slice:
    share = header.payload_bytes * (stop - start) // max(header.rows, 1)
    return Slice(header.id, start, stop, share, continues)
