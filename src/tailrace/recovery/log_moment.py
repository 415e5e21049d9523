"""Finds a moment in the change log: the LSN of a time or a transaction, or the transaction that did the damage."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt

from tailrace.change import Lsn
from tailrace.errors import ConfigError
from tailrace.log import ddl_message, planner
from tailrace.log.reader import LogReader
from tailrace.log.segment import SegmentContent
from tailrace.log.timestamp import format_timestamp
from tailrace.pgoutput import message
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.settings.pattern import split_name

_EVENT: Final = re.compile(r"\s*(drop|truncate|delete)\s+of\s+(\S.*?)\s*", re.IGNORECASE | re.DOTALL)
Mask = npt.NDArray[np.bool_]
_Select = Callable[[SegmentContent], Mask]

# Segments to look at together, from the end of the log backwards.
_WINDOW: Final = 64
_KINDS: Final = {"truncate": ord("T"), "delete": ord("D")}


@dataclass(frozen=True, slots=True)
class TableEvent:
    """What somebody did to a table: `drop of public.orders`."""

    kind: str
    table: tuple[str, str]

    @classmethod
    def parse(cls, text: str) -> TableEvent:
        match = _EVENT.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text!r} is not an event",
                "write 'drop of public.orders', 'truncate of public.orders' or 'delete of public.orders'",
            )
        return cls(match[1].lower(), split_name(match[2]))

    def __str__(self) -> str:
        return f"{self.kind} of {'.'.join(self.table)}"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One transaction in which an event happened."""

    lsn: Lsn
    """Its commit's LSN: everything before it is included if this is the target."""
    xid: int
    committed_at: datetime
    rows: int = 0
    """How many rows it deleted."""

    def __str__(self) -> str:
        rows = f", {self.rows:,} {'row' if self.rows == 1 else 'rows'}" if self.rows else ""
        return f"transaction {self.xid}, commit at {self.lsn}, {format_timestamp(self.committed_at)}{rows}"


def range_text(reader: LogReader) -> str:
    """What the log covers, for hints."""
    first, last = _commit_times(reader)
    times = f", which is {format_timestamp(first)} to {format_timestamp(last)}" if first and last else ""
    return f"the log covers {planner.earliest_lsn(reader)} to {reader.end_lsn()}{times}; `--to latest` is its end"


def resolve(reader: LogReader, target: RecoveryTarget) -> Lsn:
    """The LSN of a target in the log. All transactions whose commit begins before it are included."""
    match target.kind:
        case "latest":
            return reader.end_lsn()
        case "lsn":
            assert target.lsn is not None
            if not planner.earliest_lsn(reader) <= target.lsn <= reader.end_lsn():
                raise ConfigError(f"{target} cannot be restored", range_text(reader))
            return target.lsn
        case "time":
            assert target.time is not None
            return _at_time(reader, target, target.time)
        case "xid":
            found = _transactions(reader, lambda content: content.rows.xid == target.xid)
            if not found:
                raise ConfigError(
                    f"the log has no changes of transaction {target.xid}",
                    f"{range_text(reader)}; `tailrace log cat` shows the ids of transactions",
                )
            return found[-1].lsn
    raise ConfigError(
        f"{target} is not a moment of the log", "for a table, give a time, an LSN or `latest`; or restore the server"
    )


def _at_time(reader: LogReader, target: RecoveryTarget, time: datetime) -> Lsn:
    first, last = _commit_times(reader)
    if last is None or time >= last or first is None or time < first:
        # Without a later commit, nobody knows whether capture had received everything by then.
        raise ConfigError(f"{target} cannot be restored", range_text(reader))
    return planner.lsn_at(reader, time + timedelta(microseconds=1))


def _commit_times(reader: LogReader) -> tuple[datetime | None, datetime | None]:
    """The times of the first commit in the log and of the last."""
    segments = reader.list()
    firsts = (h.first_committed_at_us for s in segments if (h := s.metadata()) is not None)
    lasts = (h.last_committed_at_us for s in reversed(segments) if (h := s.metadata()) is not None)
    first, last = (next((us for us in times if us is not None), None) for times in (firsts, lasts))
    return None if first is None else _time(first), None if last is None else _time(last)


def find_event(reader: LogReader, event: TableEvent, most: int = 5) -> list[Occurrence]:
    """The last transactions of the log in which the event happened, at least `most` if there are, the oldest first."""
    if event.kind == "drop":
        return _transactions(reader, lambda content: _drops(content, event.table), most=most)

    def is_needed(segment: int) -> bool:
        return any((relation.schema, relation.name) == event.table for _, relation in reader.relations(segment))

    return _transactions(reader, lambda content: _changes(content, event), is_needed, most)


def _transactions(
    reader: LogReader, select: _Select, is_needed: Callable[[int], bool] = lambda _: True, most: int = 1
) -> list[Occurrence]:
    """The last transactions with selected rows, the oldest first: all of the newest part of the log that has `most`.

    `is_needed` says whether a segment has to be read.
    """
    found: dict[Lsn, Occurrence] = {}
    ids = [s.id for s in reader.list()]
    last = ids[-1] if ids else 0
    while ids and last >= ids[0] and len(found) < most:
        first = max(ids[0], last - _WINDOW + 1)
        while first > ids[0] and (header := reader.header(first - 1)) is not None and not header.ends_at_commit:
            first -= 1  # a transaction is counted as a whole
        begin = planner.Offset(first - 1, Lsn(0))
        for s in planner.next_batch(reader, begin, planner.UNLIMITED, last, across_gaps=True).slices:
            content = reader.content(s.segment) if is_needed(s.segment) else None
            if content is not None:
                _count(found, content, np.flatnonzero(select(content)[s.start : s.stop]) + s.start)
        last = first - 1
    return [found[lsn] for lsn in sorted(found)]


def _count(found: dict[Lsn, Occurrence], content: SegmentContent, selected: npt.NDArray[np.int64]) -> None:
    rows = content.rows
    lsns, firsts, counts = np.unique(rows.commit_lsn[selected], return_index=True, return_counts=True)
    for commit_lsn, first, count in zip(lsns.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        row = int(selected[first])
        lsn = Lsn(commit_lsn)
        deleted = count if rows.kind[row] == _KINDS["delete"] else 0
        earlier = found[lsn].rows if lsn in found else 0
        found[lsn] = Occurrence(lsn, int(rows.xid[row]), _time(int(rows.commit_ts[row])), earlier + deleted)


def _drops(content: SegmentContent, table: tuple[str, str]) -> Mask:
    rows = content.rows
    selected = np.zeros(len(rows), np.bool_)
    for row in np.flatnonzero(rows.kind == ord("M")).tolist():
        sent = message.parse(rows.payload[row].as_py())
        if isinstance(sent, message.LogicalMessage) and sent.prefix == ddl_message.PREFIX:
            found = ddl_message.parse(sent.content)
            if found is not None and found.is_drop:
                names = [split_name(each.identity) for each in found.objects if each.type == "table"]
                selected[row] = table in names
    return selected


def _changes(content: SegmentContent, event: TableEvent) -> Mask:
    rows = content.rows
    is_kind: Mask = rows.kind == _KINDS[event.kind]
    if event.kind == "delete":
        selected = np.zeros(len(rows), np.bool_)
        for use in content.header.relations:  # in order: a later one replaces an earlier one from its first row on
            relation = content.relation_at(use.first_row, use.relation_id)
            of_table = (rows.relation_id == use.relation_id) & (np.arange(len(rows)) >= use.first_row)
            selected[of_table] = (relation.schema, relation.name) == event.table
        return selected & is_kind
    for row in np.flatnonzero(is_kind).tolist():
        sent = message.parse(rows.payload[row].as_py())
        oids = sent.relation_oids if isinstance(sent, message.Truncate) else ()
        relations = [content.relation_at(row, oid) for oid in oids]
        is_kind[row] = any((relation.schema, relation.name) == event.table for relation in relations)
    return is_kind


def _time(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
