"""Single rows of a segment: raw entries, and the changes decoded from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tailrace.change import Change, Lsn, Operation, Position, Relation
from tailrace.errors import DecodeError
from tailrace.log.segment import SegmentContent
from tailrace.pgoutput import message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One row of a segment as it was written. `kind` is the pgoutput letter of `payload`."""

    position: Position
    lsn: Lsn
    xid: int
    committed_at: datetime
    kind: str
    relation: Relation | None
    payload: bytes

    @staticmethod
    def all(content: SegmentContent) -> Iterator[LogEntry]:
        return (_entry(content, row) for row in range(len(content.rows)))


def _entry(content: SegmentContent, row: int) -> LogEntry:
    rows = content.rows
    relation_id = int(rows.relation_id[row])
    return LogEntry(
        position=Position(Lsn(rows.commit_lsn[row]), int(rows.ordinal[row])),
        lsn=Lsn(rows.lsn[row]),
        xid=int(rows.xid[row]),
        committed_at=_EPOCH + timedelta(microseconds=int(rows.commit_ts[row])),
        kind=chr(rows.kind[row]),
        relation=content.relation_at(row, relation_id) if relation_id else None,
        payload=rows.payload[row].as_py(),
    )


def decode_changes(
    content: SegmentContent, start: int, stop: int, tables: Callable[[Relation], bool] | None = None
) -> Iterator[Change]:
    """The changes in these rows. With `tables`, only those of relations for which it returns True."""
    rows = content.rows
    for row in range(start, stop):
        kind = rows.kind[row]
        if kind in b"CO":
            continue
        relation_id = int(rows.relation_id[row])
        if tables is not None and relation_id and not tables(content.relation_at(row, relation_id)):
            continue
        if tables is not None and kind == ord("M"):
            continue
        entry = _entry(content, row)
        try:
            found = list(_changes(entry, content, row))
        except DecodeError as error:
            raise DecodeError(f"{entry.position}: {error}", error.hint) from error
        for change in found:
            if tables is None or (change.relation is not None and tables(change.relation)):
                yield change


def _changes(entry: LogEntry, content: SegmentContent, row: int) -> Iterator[Change]:
    common = (entry.lsn, entry.xid, entry.committed_at)
    match message.parse(entry.payload):
        case message.Insert(new=new):
            yield Change(entry.position, *common, Operation.INSERT, entry.relation, new=new)
        case message.Update(old=old, old_is_key=old_is_key, new=new):
            yield Change(entry.position, *common, Operation.UPDATE, entry.relation, old, old_is_key, new)
        case message.Delete(old=old, old_is_key=old_is_key):
            yield Change(entry.position, *common, Operation.DELETE, entry.relation, old, old_is_key)
        case message.Truncate(relation_oids=oids, options=options):
            for index, relation_id in enumerate(oids):
                position = Position(entry.position.commit_lsn, entry.position.ordinal + index)
                relation = content.relation_at(row, relation_id)
                yield Change(position, *common, Operation.TRUNCATE, relation, truncate_options=options)
        case message.LogicalMessage(transactional=transactional, prefix=prefix, content=body):
            yield Change(
                entry.position,
                *common,
                Operation.MESSAGE,
                prefix=prefix,
                content=body,
                transactional=transactional,
            )
        case other:
            raise DecodeError(f"a {type(other).__name__} message among the changes")
