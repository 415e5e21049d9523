"""Merges the objects of small segments into larger objects with the same segments. Readers are not affected.

A merged object contains each segment's header unchanged, so ids, chain and digests stay the same. The new object is
created, read back and compared before the old ones are deleted. A crash in between leaves segments in two objects:
readers tolerate that, and the next run deletes the old ones. The newest segment is never merged, because capture
appends after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tailrace.errors import CorruptError
from tailrace.log import segment
from tailrace.log.listing import LogObject, find_covered, list_objects
from tailrace.log.reader import LogReader
from tailrace.log.segment import SegmentContent
from tailrace.log.trim import Trim
from tailrace.log_rows import LogRows
from tailrace.store import Store

MIB = 1024 * 1024
# By then followers have read the segment under its own name, and a capture that lost the slot has stopped writing.
OLDER_THAN = timedelta(minutes=10)
# Twice a full segment: small enough that an executor reads it whole, large enough that the cost per request vanishes.
TARGET_BYTES = 32 * MIB
# The headers of an object are read together, and this many are about a megabyte.
MAX_SEGMENTS = 1000


@dataclass(frozen=True, slots=True)
class MergeCandidate:
    object: LogObject
    payload_bytes: int | None
    """None if the object must not be merged."""


@dataclass(slots=True)
class CompactionResult:
    merged: int = 0
    """Objects that were merged into others and deleted."""
    written: int = 0
    leftovers: int = 0
    """Objects that an earlier, interrupted run merged but did not delete."""


def compact(
    store: Store,
    *,
    now: datetime | None = None,
    older_than: timedelta = OLDER_THAN,
    target_bytes: int = TARGET_BYTES,
    progress: Callable[[CompactionResult], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    reader: LogReader | None = None,
) -> CompactionResult:
    """Make one pass over the log.

    `stop` is called between objects; if it returns True, the next pass does the rest. Pass the same `reader` each time:
    it caches headers, so that unchanged objects cost nothing.
    """
    result = CompactionResult()
    trim = Trim.load(store)
    objects = [o for o in list_objects(store) if trim is None or o.first >= trim.first_id]
    leftovers = find_covered(objects)
    for o, by in leftovers.items():
        if stop():
            return result
        data = store.get(o.key)
        if data is not None:
            _delete_replaced(store, by.key, {o.key: _links(segment.unpack(data, o.key))})
            result.leftovers += 1
        progress(result)
    remaining = [o for o in objects if o not in leftovers]
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


def plan(candidates: Sequence[MergeCandidate], target_bytes: int) -> list[list[LogObject]]:
    """The lists of adjacent objects to merge, each list into one object."""
    runs: list[list[MergeCandidate]] = [[]]
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
    worthwhile = (_without_large_head(run) for run in runs)
    return [[candidate.object for candidate in run] for run in worthwhile if len(run) > 1]


def _fits(run: Sequence[MergeCandidate], target_bytes: int) -> bool:
    total = sum(candidate.payload_bytes or 0 for candidate in run)
    return total <= target_bytes and sum(candidate.object.segments for candidate in run) <= MAX_SEGMENTS


def _without_large_head(run: list[MergeCandidate]) -> list[MergeCandidate]:
    """The run without leading objects that are larger than all after them together.

    To rewrite those whenever a few small ones arrive would cost more than it saves. With this rule, the number of times
    that a byte is rewritten grows only with the logarithm of the target size.
    """
    weights = [candidate.object.info.size + (candidate.payload_bytes or 0) for candidate in run]
    while len(run) > 1 and weights[0] > sum(weights[1:]):
        run, weights = run[1:], weights[1:]
    return run


def _candidates(
    reader: LogReader, objects: Sequence[LogObject], now: datetime, older_than: timedelta
) -> list[MergeCandidate]:
    """All objects. To be merged, one must be old, not have the newest segment, and not have many segments already."""
    newest = max((o.last for o in objects), default=0)
    found = []
    for o in objects:
        may_merge = o.last < newest and now - o.info.modified_at >= older_than and o.segments < MAX_SEGMENTS // 2
        headers = [reader.get(id).metadata() for id in range(o.first, o.last + 1)] if may_merge else [None]
        total = None if None in headers else sum(h.payload_bytes for h in headers if h is not None)
        found.append(MergeCandidate(o, total))
    return found


def merge(store: Store, run: Sequence[LogObject]) -> bool:
    """Replace these objects by one. Returns False if some no longer exist because another run merged them first."""
    contents: dict[int, SegmentContent] = {}
    originals: dict[str, dict[int, str]] = {}
    for o in run:
        data = store.get(o.key)
        if data is None:
            return False
        segments = _check_digests(segment.unpack(data, o.key), o.key)
        originals[o.key] = _links(segments)
        contents.update((c.header.id, c) for c in segments)
    headers = [contents[id].header for id in sorted(contents)]
    for before, after in pairwise(headers):
        if after.previous != before.link:
            raise CorruptError(
                f"cannot merge segments {before.id} and {after.id} of {store.url}: their headers are not linked",
                "run `tailrace log verify` for details",
            )
    relations = {use.digest: contents[h.id].relations[use.digest] for h in headers for use in h.relations}
    rows = LogRows.concat([contents[h.id].rows for h in headers])
    key = segment.key(headers[0].id, headers[-1].id)
    # A crashed run may have created the object already. `_delete_replaced` checks that it holds the same segments.
    store.create(key, segment.pack([h.to_json() for h in headers], rows, relations))
    _delete_replaced(store, key, originals)
    return True


def _check_digests(contents: list[SegmentContent], key: str) -> list[SegmentContent]:
    for content in contents:
        if segment.content_digest(content.rows) != content.header.content:
            raise CorruptError(
                f"{key}: the rows of segment {content.header.id} do not match its digest",
                "run `tailrace log verify` for details",
            )
    return contents


def _links(contents: Sequence[SegmentContent]) -> dict[int, str]:
    return {c.header.id: c.header.link for c in contents}


def _delete_replaced(store: Store, key: str, originals: Mapping[str, Mapping[int, str]]) -> None:
    """Delete objects, given by key and links, after reading back the object that replaces them and comparing links."""
    data = store.get(key)
    if data is None:
        return
    merged = _links(_check_digests(segment.unpack(data, key), key))
    for original, links in originals.items():
        if any(merged.get(id) != link for id, link in links.items()):
            raise CorruptError(
                f"{original} and {key} hold different segments under the same ids",
                "two captures may have written this log; run `tailrace log verify` for details",
            )
        if original != key:
            store.delete(original)
