"""Merges small segments into larger objects that hold the same segments: readers never notice.

A merged object keeps each segment's header word for word, so ids, chain and digests stay as they were. It is created,
read back and compared before anything is deleted; a crash in between leaves segments twice, which readers do not mind
and the next run puts right. The newest segment is never touched: capture continues after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tailrace.errors import CorruptError
from tailrace.log import segment
from tailrace.log.listing import LogObject, covered, listed
from tailrace.log.reader import LogReader
from tailrace.log.segment import Content
from tailrace.log.trim import Trim
from tailrace.pgoutput.framing import Rows
from tailrace.store import Store

MIB = 1024 * 1024
# Old enough that followers have read it under its own name, and that no capture which lost the slot still tries to.
OLDER_THAN = timedelta(minutes=10)
# Twice a full segment: an executor still reads it whole, and the cost of a request vanishes.
TARGET_BYTES = 32 * MIB
# Headers are read together: this many are about a megabyte.
MOST_SEGMENTS = 1000


@dataclass(frozen=True, slots=True)
class Candidate:
    object: LogObject
    payload_bytes: int | None
    """None where it is not to be merged."""


@dataclass(slots=True)
class Result:
    merged: int = 0
    """Objects that were merged into others, and deleted."""
    written: int = 0
    left_over: int = 0
    """Objects that an earlier run had merged and not deleted."""


def compact(
    store: Store,
    *,
    now: datetime | None = None,
    older_than: timedelta = OLDER_THAN,
    target_bytes: int = TARGET_BYTES,
    progress: Callable[[Result], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    reader: LogReader | None = None,
) -> Result:
    """One pass over the log. `stop` is asked between objects: what is done is done, the rest is the next pass's.

    A `reader` that is kept from pass to pass remembers headers, so that objects which stay as they are cost nothing.
    """
    result = Result()
    trim = Trim.load(store)
    objects = [o for o in listed(store) if trim is None or o.first >= trim.first_id]
    left_over = covered(objects)
    for o, by in left_over.items():
        if stop():
            return result
        data = store.get(o.key)
        if data is not None:
            _delete_replaced(store, by.key, {o.key: _links(segment.unpack(data, o.key))})
            result.left_over += 1
        progress(result)
    remaining = [o for o in objects if o not in left_over]
    reader = reader or LogReader(store)
    reader.list()
    for run in plan(_candidates(reader, remaining, now or datetime.now(UTC), older_than), target_bytes):
        if stop():
            return result
        if merge(store, run):
            result.merged += len(run)
            result.written += 1
        progress(result)
    return result


def plan(candidates: Sequence[Candidate], target_bytes: int) -> list[list[LogObject]]:
    """Which neighbours to merge, each list into one object."""
    runs: list[list[Candidate]] = [[]]
    for candidate in candidates:
        if candidate.payload_bytes is None or candidate.payload_bytes >= target_bytes // 2:
            runs.append([])
            continue
        run = runs[-1]
        is_next = not run or candidate.object.first <= run[-1].object.last + 1
        if not is_next or not _fits([*run, candidate], target_bytes):
            run = []
            runs.append(run)
        run.append(candidate)
    worth = (_worthwhile(run) for run in runs)
    return [[candidate.object for candidate in run] for run in worth if len(run) > 1]


def _fits(run: Sequence[Candidate], target_bytes: int) -> bool:
    total = sum(candidate.payload_bytes or 0 for candidate in run)
    return total <= target_bytes and sum(candidate.object.segments for candidate in run) <= MOST_SEGMENTS


def _worthwhile(run: list[Candidate]) -> list[Candidate]:
    """Without the first ones that outweigh all after them.

    Rewriting those with each few that arrive would cost more than it saves; this way a byte is rewritten a number of
    times that grows with the logarithm of the target only.
    """
    weights = [candidate.object.info.size + (candidate.payload_bytes or 0) for candidate in run]
    while len(run) > 1 and weights[0] > sum(weights[1:]):
        run, weights = run[1:], weights[1:]
    return run


def _candidates(
    reader: LogReader, objects: Sequence[LogObject], now: datetime, older_than: timedelta
) -> list[Candidate]:
    """What may be merged: the old ones, but for the newest segment, that do not hold many already."""
    newest = max((o.last for o in objects), default=0)
    found = []
    for o in objects:
        may_merge = o.last < newest and now - o.info.modified_at >= older_than and o.segments < MOST_SEGMENTS // 2
        headers = [reader.get(id).metadata() for id in range(o.first, o.last + 1)] if may_merge else [None]
        total = None if None in headers else sum(h.payload_bytes for h in headers if h is not None)
        found.append(Candidate(o, total))
    return found


def merge(store: Store, run: Sequence[LogObject]) -> bool:
    """One object in place of these. False when some of them are no longer there: another run was faster."""
    contents: dict[int, Content] = {}
    originals: dict[str, dict[int, str]] = {}
    for o in run:
        data = store.get(o.key)
        if data is None:
            return False
        held = _sound(segment.unpack(data, o.key), o.key)
        originals[o.key] = _links(held)
        contents.update((c.header.id, c) for c in held)
    headers = [contents[id].header for id in sorted(contents)]
    for before, after in pairwise(headers):
        if after.previous != before.link:
            raise CorruptError(
                f"segments {before.id} and {after.id} of {store.url} are not linked: they are not merged",
                "`tailrace log verify` says more",
            )
    relations = {use.digest: contents[h.id].relations[use.digest] for h in headers for use in h.relations}
    rows = Rows.concat([contents[h.id].rows for h in headers])
    key = segment.key(headers[0].id, headers[-1].id)
    # What is there under this name already, from a run that crashed, will do as well if it holds the same.
    store.create(key, segment.pack([h.to_json() for h in headers], rows, relations))
    _delete_replaced(store, key, originals)
    return True


def _sound(contents: list[Content], key: str) -> list[Content]:
    for content in contents:
        if segment.content_digest(content.rows) != content.header.content:
            raise CorruptError(
                f"{key}: the rows of segment {content.header.id} do not match its digest",
                "`tailrace log verify` says more",
            )
    return contents


def _links(contents: Sequence[Content]) -> dict[int, str]:
    return {c.header.id: c.header.link for c in contents}


def _delete_replaced(store: Store, key: str, originals: Mapping[str, Mapping[int, str]]) -> None:
    """Delete objects, given by key and links, once the one that replaces them is read back with the same segments."""
    data = store.get(key)
    if data is None:
        return
    held = _links(_sound(segment.unpack(data, key), key))
    for original, links in originals.items():
        if any(held.get(id) != link for id, link in links.items()):
            raise CorruptError(
                f"{original} and {key} hold different segments under the same ids",
                "two captures may have written this log; `tailrace log verify` says more",
            )
        if original != key:
            store.delete(original)
