"""Which rows of which segments a reader may see between two places of the log, worked out from headers alone.

An `Offset` stands between transactions: a batch from one to another holds whole transactions, each once, however the
log is cut into segments. Everything here is the same at every reading, also after compaction, because headers are.
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
from tailrace.log import origin
from tailrace.log.reader import LogReader, gap_error
from tailrace.log.rendering import moment
from tailrace.log.segment import Header
from tailrace.log.trim import Trim

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Offset:
    """Before it stands every transaction that commits below `lsn`, all of them in segments up to `segment`."""

    segment: int
    lsn: Lsn

    def to_json(self) -> dict[str, str | int]:
        return {"segment": self.segment, "lsn": str(self.lsn)}

    @classmethod
    def from_json(cls, raw: object) -> Self:
        match raw:
            case {"segment": int(segment), "lsn": str(lsn)}:
                return cls(segment, Lsn.parse(lsn))
        raise CorruptError("not an offset of Tailrace's", "is this the checkpoint of another query? remove it")


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one segment, all of complete transactions."""

    segment: int
    start: int
    stop: int
    bytes: int
    """About as many as their payloads have."""
    goes_on: bool = False
    """The last transaction in it ends in a later slice."""


@dataclass(frozen=True, slots=True)
class Batch:
    slices: tuple[Slice, ...]
    start: Offset
    end: Offset

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.slices)

    def parts(self, count: int, *, whole_transactions: bool = False) -> list[tuple[Slice, ...]]:
        """The slices in at most `count` runs of about equal size, in order."""
        parts: list[list[Slice]] = [[]]
        share, filled = max(self.bytes / max(count, 1), 1), 0.0
        for s in self.slices:
            can_cut = parts[-1] and not (whole_transactions and parts[-1][-1].goes_on)
            if can_cut and filled >= share * len(parts) and len(parts) < count:
                parts.append([])
            parts[-1].append(s)
            filled += s.bytes
        return [tuple(part) for part in parts if part]


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a batch stops, once it has a transaction. One transaction is never cut, however large it is."""

    segments: int = 1000
    """What a log sealed every 50 ms writes in 50 s: planning one batch reads as many footers."""
    bytes: int = 256 * MIB
    """Of payloads: some seconds' work for two cores, so that progress shows and a retry repeats little."""


UNLIMITED = Limits(1 << 62, 1 << 62)


def begin(reader: LogReader, where: Lsn | None, *, across_gaps: bool = False) -> Offset:
    """The place before the first transaction that commits at or after `where`; None is the log's beginning."""
    first = reader.find(None if where is None else Position(where, 0))
    header = reader.get(first).metadata()
    if header is not None and header.gap_from is not None and not header.rows:
        # It only tells of a gap that ends where it reaches to: nothing of what is after that is missing.
        if where is not None and where < header.end_lsn:
            if across_gaps:
                return Offset(first - 1, where)
            raise gap_error(header)
        return Offset(first, max(where or Lsn(0), header.end_lsn))
    if header is not None and where is not None and header.end_lsn <= where and header.ends_at_commit:
        return Offset(first, where)  # the log's end: nothing of that segment is still to come
    return Offset(first - 1, where or Lsn(0))


def beginning(reader: LogReader) -> Lsn:
    """What commits before this is not in the log: it was never captured into it, or retention removed it."""
    if trim := Trim.load(reader.store):
        return Lsn(trim.end.commit_lsn + (trim.end.ordinal > 0))
    begins_at, first = origin.begins_at(reader.store), reader.first()
    header = first.metadata() if first is not None else None
    # Where it was begun again, after a gap, it is older.
    return Lsn(0) if header is not None and header.end_lsn < begins_at else begins_at


def latest(reader: LogReader) -> Offset:
    """The place after everything that is in the log now."""
    last = reader.last()
    header = last.metadata() if last else None
    return Offset(header.id, header.end_lsn) if header else Offset(0, Lsn(0))


def lsn_at(reader: LogReader, moment: datetime) -> Lsn:
    """Where the first transaction commits that did so at or after a moment; the log's end when there is none."""
    wanted = int(moment.timestamp() * 1_000_000)
    for span in reader.spans(reader.find(moment), across_gaps=True):
        rows = span.content.rows
        found = np.flatnonzero(rows.commit_ts[span.start : span.stop] >= wanted)
        if len(found):
            return Lsn(rows.commit_lsn[span.start + int(found[0])])
    return reader.end_lsn()


def reaching(reader: LogReader, lsn: Lsn) -> int:
    """A segment with which all that commits below an LSN is in the log, and little more; the last when none has it."""
    trim = Trim.load(reader.store)
    ids = [s.id for s in reader.list(trim.first_id if trim else None)]
    at = bisect_left(ids, True, key=lambda id: _end_lsn(reader, id) >= lsn)
    at = min(at, len(ids) - 1)
    while at > 0 and (header := reader.awaited_header(ids[at])) and header.first and header.first.commit_lsn >= lsn:
        at -= 1  # nothing in it is below
    return ids[at] if ids else 0


def _end_lsn(reader: LogReader, id: int) -> Lsn:
    header = reader.awaited_header(id)
    return header.end_lsn if header is not None else Lsn(0)


def parse_place(reader: LogReader, text: str, option: str) -> Lsn | None:
    """`earliest` (None), `latest`, an LSN, or an ISO time (UTC unless it says otherwise), as an LSN."""
    match text.strip():
        case "earliest":
            return None
        case "latest":
            return latest(reader).lsn
        case place if "/" in place and ":" not in place:
            return Lsn.parse(place)
        case place:
            try:
                when = moment(place)
            except ValueError:
                raise ConfigError(
                    f"{option} is {text!r}", "write earliest, latest, an LSN such as 0/1A2B3C4, or an ISO time"
                ) from None
            return lsn_at(reader, when)


def following(
    reader: LogReader,
    start: Offset,
    limits: Limits | None = None,
    end: int | None = None,
    *,
    across_gaps: bool = False,
    up_to_gap: bool = False,
) -> Batch:
    """What is in the log after an offset, up to the limits, or up to a segment. Empty (start is end) at the end.

    A gap is an error; with `up_to_gap` only where nothing is before it.
    """
    limits = limits or Limits()
    slices: list[Slice] = []
    reached = start
    begun = list(_open_at(reader, start.segment))
    size = 0
    id = start.segment + 1
    while (end is None or id <= end) and (header := reader.awaited_header(id)) is not None:
        if header.gap_from is not None and not across_gaps:
            if slices and up_to_gap:
                break
            raise gap_error(header)
        if header.voids_tail:
            begun = []
        if header.committed_rows:
            begun.append(_slice(header, 0, header.committed_rows))
            slices += begun
            size += sum(s.bytes for s in begun)
            begun = []
        if header.rows > header.committed_rows:
            begun.append(_slice(header, header.committed_rows, header.rows, goes_on=True))
        if header.committed_rows or not begun:
            reached = Offset(header.id, max(header.end_lsn, start.lsn))
        if slices and (size >= limits.bytes or id - start.segment >= limits.segments):
            break
        id += 1
    return Batch(tuple(slices), start, reached)


def between(reader: LogReader, start: Offset, end: Offset, *, across_gaps: bool = False) -> Batch:
    """The batch from one offset to another, as often as it is asked for."""
    if (end.segment, end.lsn) < (start.segment, start.lsn):
        raise CorruptError(
            f"the log of {reader.store.url} went back from {start.lsn} to {end.lsn}",
            "is it another log than the one read so far? remove the checkpoint to start from where the sink stands",
        )
    batch = following(reader, start, UNLIMITED, end.segment, across_gaps=across_gaps)
    if batch.end.segment < end.segment:
        raise CorruptError(
            f"the log of {reader.store.url} ends at segment {batch.end.segment}, before {end.segment}, which was read",
            "segments are gone: restore them, or remove the checkpoint to start from where the sink stands",
        )
    return Batch(batch.slices, start, end)


def gap_at(reader: LogReader, start: Offset) -> Header | None:
    """The segment that tells of a gap, if no transaction is between an offset and it."""
    id = start.segment + 1
    while (header := reader.awaited_header(id)) is not None and not header.committed_rows:
        if header.gap_from is not None:
            return header
        id += 1
    return None


def after(reader: LogReader, start: Offset, lsn: Lsn) -> Offset:
    """The first place from `start` on before which everything stands that commits below `lsn`; or the log's end."""
    batch = Batch((), start, start)
    while batch.end.lsn < lsn:
        found = following(reader, batch.end, Limits(1, 1))
        if found.end == batch.end:
            break
        batch = found
    return batch.end


def _open_at(reader: LogReader, segment: int) -> Iterator[Slice]:
    """The beginnings, in segments up to this one, of the transaction that goes on after it.

    Retention never cuts inside a transaction, so where the log begins nothing is open.
    """
    if not segment:
        return
    first = segment
    try:
        reader.awaited_header(segment)
    except GapError:
        return
    while first > 0 and (header := reader.awaited_header(first)) is not None and not header.ends_at_commit:
        if header.committed_rows or header.voids_tail:
            break
        first -= 1
    for id in range(max(first, 1), segment + 1):
        header = reader.awaited_header(id)
        if header is not None and header.rows > header.committed_rows:
            yield _slice(header, header.committed_rows, header.rows, goes_on=True)


def _slice(header: Header, start: int, stop: int, goes_on: bool = False) -> Slice:
    share = header.payload_bytes * (stop - start) // max(header.rows, 1)
    return Slice(header.id, start, stop, share, goes_on)
