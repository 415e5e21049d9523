"""Removes the oldest objects of the log that nothing needs.

A sink needs the changes after its cursor; a bootstrap needs those after the newest snapshot of each table. Retention
writes the record of what it removes first and then deletes the oldest objects first, so that a crash leaves no holes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tailrace import stored_json
from tailrace.change import Lsn, Position
from tailrace.errors import CorruptError
from tailrace.log import snapshot
from tailrace.log.consistency import RowStructure
from tailrace.log.listing import LogObject, find_covered, list_objects
from tailrace.log.reader import LogReader
from tailrace.log.segment import Header
from tailrace.log.trim import Trim
from tailrace.store import Store

CURSORS = "cursors"
POSITION = "position.json"


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """How much of the log is retained; everything if both are None."""

    max_age: timedelta | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RemovalCandidate:
    """An object of the log, with the facts that decide whether it is removed."""

    object: LogObject
    last: Position | None
    """The position of its last row; None if it has no rows."""
    newest_at: datetime
    ends_at_commit: bool
    """No transaction continues from it into the next object."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    remove: Sequence[LogObject]
    retained_for: str | None
    """What needs the next object that the limits would remove; None if nothing does."""


def retain(
    store: Store,
    limits: RetentionLimits,
    *,
    now: datetime | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Callable[[LogObject], None] = lambda _: None,
) -> RetentionPlan:
    """Trim the log. With `force`, ignore the cursors of sinks, which then have to restart from a snapshot."""
    reader = LogReader(store)
    trim = Trim.load(store)
    objects = list_objects(store)
    leftovers = find_covered(objects)
    current = [o for o in objects if o not in leftovers and (trim is None or o.last >= trim.first_id)]
    result = plan(
        _candidates(reader, current),
        sum(o.info.size for o in current),
        limits,
        now or datetime.now(UTC),
        cursors={} if force else cursors(store),
        snapshots=newest_snapshots(store),
    )
    if dry_run:
        return result
    if result.remove:
        trim = _trim_record(reader, result.remove, trim)
        trim.save(store)
    # Delete all objects before the record's first segment, including leftovers of an interrupted run or merge.
    for o in objects:
        if trim is not None and o.last < trim.first_id:
            store.delete(o.key)
            progress(o)
    return result


def plan(
    candidates: Iterable[RemovalCandidate],
    total_bytes: int,
    limits: RetentionLimits,
    now: datetime,
    cursors: Mapping[str, Position],
    snapshots: Mapping[str, Lsn],
) -> RetentionPlan:
    """The objects to remove: the oldest ones beyond the limits that nothing needs, up to the end of a transaction."""
    removable: list[LogObject] = []
    count = 0
    for candidate in candidates:
        is_old = limits.max_age is not None and candidate.newest_at < now - limits.max_age
        is_too_much = limits.max_bytes is not None and total_bytes > limits.max_bytes
        if not (is_old or is_too_much):
            break
        if retained_for := _needed_by(candidate, cursors, snapshots):
            return RetentionPlan(removable[:count], retained_for)
        total_bytes -= candidate.object.info.size
        removable.append(candidate.object)
        if candidate.ends_at_commit:
            count = len(removable)
    return RetentionPlan(removable[:count], None)


def _needed_by(
    candidate: RemovalCandidate, cursors: Mapping[str, Position], snapshots: Mapping[str, Lsn]
) -> str | None:
    if candidate.last is None:
        return None
    # The row at `last` is a change, or a COMMIT, whose ordinal is one above its transaction's last change. If that
    # change was left out of the log, a cursor at the one before retains the object until the cursor advances.
    commit_lsn, ordinal = candidate.last
    for sink, cursor in cursors.items():
        if cursor < Position(commit_lsn, max(ordinal - 1, 0)):
            return f"sink {sink}, whose cursor is at {cursor}"
    for table, lsn in snapshots.items():
        if commit_lsn >= lsn:
            return f"a bootstrap of {table}, whose newest snapshot is at {lsn}"
    return None


def _candidates(reader: LogReader, objects: Sequence[LogObject]) -> Iterator[RemovalCandidate]:
    """All objects but the newest. Reads headers lazily."""
    for o, follower in pairwise(objects):
        headers = [_header(reader, id) for id in range(o.first, o.last + 1)]
        times = [h.last_committed_at_us for h in headers if h.last_committed_at_us is not None]
        # Concurrent merges may leave overlapping objects, which can only be removed together.
        is_adjacent = follower.first == o.last + 1
        yield RemovalCandidate(
            o,
            max((h.last for h in headers if h.last is not None), default=None),
            datetime.fromtimestamp(max(times) / 1e6, UTC) if times else o.info.modified_at,
            is_adjacent and (headers[-1].ends_at_commit or _header(reader, follower.first).voids_tail),
        )


def _header(reader: LogReader, id: int) -> Header:
    header = reader.get(id).metadata()
    if header is None:
        raise CorruptError(f"segment {id} of {reader.store.url} disappeared", "retry, or run `tailrace log verify`")
    return header


def _trim_record(reader: LogReader, removed: Sequence[LogObject], earlier: Trim | None) -> Trim:
    first = _header(reader, max(o.last for o in removed) + 1)
    for id in range(first.id - 1, removed[0].first - 1, -1):
        content = reader.get(id).content() if _header(reader, id).committed_rows else None
        if content is not None:
            row = RowStructure(content.rows).row(content.header.committed_rows - 1)
            return Trim(first.id, first.previous, Position(row.position.commit_lsn, row.position.ordinal + row.weight))
    return Trim(first.id, first.previous, earlier.end if earlier else Position(Lsn(0), 0))


def cursors(store: Store) -> dict[str, Position]:
    """The last durable position of each sink that stores its cursor in the store."""
    found = {}
    for info in store.list(CURSORS):
        parts = info.key.split("/")
        if len(parts) == 3 and parts[2] == POSITION:
            found[parts[1]] = read_cursor(store, info.key)
    return found


def read_cursor(store: Store, key: str) -> Position:
    return Position.parse(_text(store, key, "position"))


def newest_snapshots(store: Store) -> dict[str, Lsn]:
    """The LSN of each table's newest snapshot."""
    newest: dict[str, tuple[str, str]] = {}
    for info in store.list(snapshot.PREFIX):
        parts = info.key.split("/")
        if len(parts) == 4 and parts[3] == snapshot.META:
            # Ids sort by LSN. A renamed table has another key but the same oid.
            oid = parts[1].partition("-")[0]
            newest[oid] = max((parts[2], parts[1]), newest.get(oid, ("", "")))
    return {
        table: Lsn.parse(_text(store, f"{snapshot.PREFIX}/{table}/{id}/{snapshot.META}", "lsn"))
        for id, table in newest.values()
    }


def _text(store: Store, key: str, field: str) -> str:
    data = store.get(key)
    try:
        return str(stored_json.parse(data or b"")[field])
    except stored_json.ERRORS as error:
        raise CorruptError(f"{key} has no {field}", "retention removes nothing until this is repaired") from error
