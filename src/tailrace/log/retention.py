"""Removes the log's oldest objects, as far as nobody needs them.

A sink needs what is after its cursor; a bootstrap needs what is after the newest snapshot of each table. The record of
what is removed is written first, then objects go oldest first, so that a crash leaves a log without holes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tailrace.change import Lsn, Position
from tailrace.errors import CorruptError, TailraceError
from tailrace.log import snapshot
from tailrace.log.consistency import Shape
from tailrace.log.listing import LogObject, covered, listed
from tailrace.log.reader import LogReader
from tailrace.log.segment import Header
from tailrace.log.trim import Trim
from tailrace.store import Store

CURSORS = "cursors"
POSITION = "position.json"


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept. None in both: everything."""

    max_age: timedelta | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An object of the log, with what decides over it."""

    object: LogObject
    last: Position | None
    """Of its rows; None when it has none."""
    newest_at: datetime
    ends_whole: bool
    """No transaction goes on from it into the next object."""


@dataclass(frozen=True, slots=True)
class Plan:
    remove: Sequence[LogObject]
    kept_for: str | None
    """What keeps objects that the limits would remove; None when nothing does."""


def retain(
    store: Store,
    limits: Limits,
    *,
    now: datetime | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Callable[[LogObject], None] = lambda _: None,
) -> Plan:
    """Trim the log. `force` goes past the cursors of sinks, which then have to start again from a snapshot."""
    reader = LogReader(store)
    trim = Trim.load(store)
    objects = listed(store)
    left_over = covered(objects)
    kept = [o for o in objects if o not in left_over and (trim is None or o.last >= trim.first_id)]
    made = plan(
        _candidates(reader, kept),
        sum(o.info.size for o in kept),
        limits,
        now or datetime.now(UTC),
        cursors={} if force else cursors(store),
        snapshots=snapshots(store),
    )
    if dry_run:
        return made
    if made.remove:
        trim = _record(reader, made.remove, trim)
        trim.save(store)
    # All before the record's first, also what an interrupted run or an interrupted merge left behind.
    for o in objects:
        if trim is not None and o.last < trim.first_id:
            store.delete(o.key)
            progress(o)
    return made


def plan(
    candidates: Iterable[Candidate],
    total_bytes: int,
    limits: Limits,
    now: datetime,
    cursors: Mapping[str, Position],
    snapshots: Mapping[str, Lsn],
) -> Plan:
    """Which objects to remove: as many of the oldest as the limits want and nobody needs, up to a transaction's end."""
    taken: list[LogObject] = []
    whole = 0
    for candidate in candidates:
        is_old = limits.max_age is not None and candidate.newest_at < now - limits.max_age
        is_too_much = limits.max_bytes is not None and total_bytes > limits.max_bytes
        if not (is_old or is_too_much):
            break
        if kept_for := _needed_by(candidate, cursors, snapshots):
            return Plan(taken[:whole], kept_for)
        total_bytes -= candidate.object.info.size
        taken.append(candidate.object)
        if candidate.ends_whole:
            whole = len(taken)
    return Plan(taken[:whole], None)


def _needed_by(candidate: Candidate, cursors: Mapping[str, Position], snapshots: Mapping[str, Lsn]) -> str | None:
    if candidate.last is None:
        return None
    # The row at `last` is a COMMIT, which stands one after its transaction's last change, or is a change itself. Where
    # that last change was left out, a cursor at the one before it holds the object until it moves on.
    commit_lsn, ordinal = candidate.last
    for sink, cursor in cursors.items():
        if cursor < Position(commit_lsn, max(ordinal - 1, 0)):
            return f"sink {sink}, whose cursor is at {cursor}"
    for table, lsn in snapshots.items():
        if commit_lsn >= lsn:
            return f"a bootstrap of {table}, whose newest snapshot is at {lsn}"
    return None


def _candidates(reader: LogReader, objects: Sequence[LogObject]) -> Iterator[Candidate]:
    """All objects but the newest, read only as far as they are asked for."""
    for o, follower in pairwise(objects):
        headers = [_header(reader, id) for id in range(o.first, o.last + 1)]
        times = [h.last_committed_at_us for h in headers if h.last_committed_at_us is not None]
        # Objects that overlap, as two merges at once may leave them, cannot be cut apart.
        is_apart = follower.first == o.last + 1
        yield Candidate(
            o,
            max((h.last for h in headers if h.last is not None), default=None),
            datetime.fromtimestamp(max(times) / 1e6, UTC) if times else o.info.modified_at,
            is_apart and (headers[-1].ends_at_commit or _header(reader, follower.first).voids_tail),
        )


def _header(reader: LogReader, id: int) -> Header:
    header = reader.get(id).metadata()
    if header is None:
        raise CorruptError(f"segment {id} of {reader.store.url} went away", "try again, or run `tailrace log verify`")
    return header


def _record(reader: LogReader, removed: Sequence[LogObject], earlier: Trim | None) -> Trim:
    kept = _header(reader, max(o.last for o in removed) + 1)
    for id in range(kept.id - 1, removed[0].first - 1, -1):
        content = reader.get(id).content() if _header(reader, id).committed_rows else None
        if content is not None:
            row = Shape(content.rows).row(content.header.committed_rows - 1)
            return Trim(kept.id, kept.previous, Position(row.position.commit_lsn, row.position.ordinal + row.weight))
    return Trim(kept.id, kept.previous, earlier.end if earlier else Position(Lsn(0), 0))


def cursors(store: Store) -> dict[str, Position]:
    """Of each sink that keeps its cursor in the store, the last position it has made durable."""
    found = {}
    for info in store.list(CURSORS):
        parts = info.key.split("/")
        if len(parts) == 3 and parts[2] == POSITION:
            found[parts[1]] = cursor_in(store, info.key)
    return found


def cursor_in(store: Store, key: str) -> Position:
    return Position.parse(_text(store, key, "position"))


def snapshots(store: Store) -> dict[str, Lsn]:
    """Of each table that has a snapshot, the newest one's LSN."""
    newest: dict[str, tuple[str, str]] = {}
    for info in store.list(snapshot.PREFIX):
        parts = info.key.split("/")
        if len(parts) == 4 and parts[3] == snapshot.META:
            # Ids sort by LSN. A table that was renamed has another key, but the same oid.
            oid = parts[1].partition("-")[0]
            newest[oid] = max((parts[2], parts[1]), newest.get(oid, ("", "")))
    return {
        table: Lsn.parse(_text(store, f"{snapshot.PREFIX}/{table}/{id}/{snapshot.META}", "lsn"))
        for id, table in newest.values()
    }


def _text(store: Store, key: str, field: str) -> str:
    try:
        return str(json.loads(store.get(key) or b"")[field])
    except (ValueError, KeyError, TypeError, TailraceError) as error:
        raise CorruptError(f"{key}: no {field} in it", "nothing is removed until this is mended") from error
