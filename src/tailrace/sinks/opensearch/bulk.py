"""Bulk requests: writes of documents, cut into requests of a limited size, and what the cluster says of each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Lsn, Position
from tailrace.errors import PoisonError, SinkError
from tailrace.log.json_columns import quote
from tailrace.log.segment import payload_buffers
from tailrace.retry import Backoff
from tailrace.sinks.messages.piece import join
from tailrace.sinks.opensearch.cluster import NDJSON, Cluster, rejection

I64 = npt.NDArray[np.int64]

_ANSWER: Final = "errors,items.*.status,items.*.error.type,items.*.error.reason"
_MOST_ATTEMPTS: Final = 8
_BUSY: Final = (429, 502, 503, 504)
_CONFLICT, _TOO_LARGE = 409, 413
_FIELD: Final = re.compile(r"field \[([^\]]*)\]")
_EXTERNAL: Final = b',"version_type":"external_gte"}}\n'


@dataclass(frozen=True)
class Writes:
    """Writes of documents, each of another one, in the lines of a bulk request."""

    lines: pa.Array
    """For each write: the action, and the document if there is one, in bytes."""
    commit_lsn: I64
    ordinal: I64
    """The position of each write's change, for messages."""

    def __len__(self) -> int:
        return len(self.lines)

    def position(self, row: int) -> Position:
        return Position(Lsn(self.commit_lsn[row]), int(self.ordinal[row]))

    def slice(self, first: int, end: int) -> Writes:
        return Writes(self.lines.slice(first, end - first), self.commit_lsn[first:end], self.ordinal[first:end])

    def take(self, rows: I64) -> Writes:
        return Writes(self.lines.take(pa.array(rows)), self.commit_lsn[rows], self.ordinal[rows])


def index_writes(ids: pa.Array, versions: I64, documents: pa.Array, ordinals: I64) -> Writes:
    """Return writes of whole documents. A version is the commit LSN of the document's change."""
    lines = join(
        [
            b'{"index":{"_id":',
            quote(ids).cast(pa.binary()),
            b',"version":',
            pa.array(versions).cast(pa.string()).cast(pa.binary()),
            _EXTERNAL,
            documents,
            b"\n",
        ],
        len(ids),
    )
    return Writes(lines, versions, ordinals)


def delete_writes(ids: pa.Array, version: int, positions: tuple[I64, I64]) -> Writes:
    """Return removals of documents."""
    head = [b'{"delete":{"_id":', quote(ids).cast(pa.binary()), f',"version":{version}'.encode(), _EXTERNAL]
    return Writes(join(head, len(ids)), *positions)


@dataclass(frozen=True)
class BulkLimits:
    bytes: int
    documents: int


class BulkWriter:
    """Sends writes to one index."""

    def __init__(self, cluster: Cluster, alias: str, table: str, limits: BulkLimits, fence: Callable[[], None]) -> None:
        """Args:
        cluster: The cluster.
        alias: The index's own alias.
        table: The table, for messages.
        limits: How large a request may be.
        fence: Called before each request; raises if another process writes now.
        """
        self._cluster = cluster
        self._alias = alias
        self._table = table
        self._limits = limits
        self._fence = fence

    def send(self, batches: Iterable[Writes]) -> None:
        """Send writes. Small batches become one request.

        Raises a PoisonError that names the writes which the cluster can never accept.
        """
        for batch in self._merged(batches):
            for first, end in _cuts(batch.lines, self._limits):
                self._send(batch.slice(first, end))

    def _merged(self, batches: Iterable[Writes]) -> Iterator[Writes]:
        waiting: list[Writes] = []
        for batch in batches:
            waiting.append(batch)
            if sum(each.lines.nbytes for each in waiting) >= self._limits.bytes:
                yield concatenate(waiting)
                waiting = []
        if waiting:
            yield concatenate(waiting)

    def _send(self, writes: Writes) -> None:
        backoff = Backoff(longest=5.0)
        poison: list[tuple[str, str]] = []
        while len(writes):
            self._fence()
            busy = self._attempt(writes, poison)
            if not len(busy):
                break
            if backoff.failures >= _MOST_ATTEMPTS:
                raise SinkError(
                    f"{self._table}: the cluster is too busy for {len(busy):,} documents", "Retrying until it is not."
                )
            time.sleep(backoff.next())
            writes = writes.take(busy)
        if poison:
            position, reason = poison[0]
            raise PoisonError(
                f"{self._table}, {position}: the cluster rejects the document: {reason}",
                "Change the field's mapping with `fields` in the sink's settings or exclude the column with `columns`,"
                ' and load the table again; or set on_poison = "dead_letter".',
                tuple(position for position, _ in poison),
            )

    def _attempt(self, writes: Writes, poison: list[tuple[str, str]]) -> I64:
        """Send writes once. Return those to send again."""
        answer = self._cluster.ask(
            "POST",
            (self._alias, "_bulk"),
            {"filter_path": _ANSWER, "require_alias": True},
            bytes(payload_buffers(writes.lines)[1]),
            expected=(_TOO_LARGE,),
            content_type=NDJSON,
        )
        if answer.status == _TOO_LARGE:
            return self._halve(writes, poison)
        found = answer.json()
        if not found["errors"]:
            return np.empty(0, np.int64)
        busy = []
        for row, item in enumerate(found["items"]):
            ((_, outcome),) = item.items()
            status, error = outcome["status"], outcome.get("error", {})
            if status < 300 or status == _CONFLICT or (status == 404 and not error):
                continue  # a conflict: the document is newer, as a step was repeated
            if status in _BUSY:
                busy.append(row)
            elif status == 400:
                poison.append((str(writes.position(row)), _reason(error)))
            else:
                raise rejection(f"{self._table}, {writes.position(row)}", status, str(error.get("type", "")))
        return np.array(busy, np.int64)

    def _halve(self, writes: Writes, poison: list[tuple[str, str]]) -> I64:
        if len(writes) == 1:
            poison.append((str(writes.position(0)), "it is larger than the cluster's http.max_content_length"))
            return np.empty(0, np.int64)
        rows = np.arange(len(writes))
        halves = (rows[: len(rows) // 2], rows[len(rows) // 2 :])
        return np.concatenate([half[self._attempt(writes.take(half), poison)] for half in halves])


def _cuts(lines: pa.Array, limits: BulkLimits) -> Iterator[tuple[int, int]]:
    """Yield the first and the last write of each request."""
    ends = np.cumsum(pc.binary_length(lines).to_numpy(zero_copy_only=False).astype(np.int64))
    first, sent = 0, 0
    while first < len(lines):
        end = int(np.searchsorted(ends, sent + limits.bytes, side="right"))
        end = min(max(end, first + 1), first + limits.documents, len(lines))
        yield first, end
        first, sent = end, int(ends[end - 1])


def _reason(error: dict[str, Any]) -> str:
    """Return the type of an error and the field that it is about. The rest of its reason may quote values."""
    field = _FIELD.search(str(error.get("reason", "")))
    return str(error.get("type", "unknown")) + (f", field {field.group(1)}" if field else "")


def concatenate(writes: Sequence[Writes]) -> Writes:
    """Return all writes as one batch."""
    return Writes(
        pa.concat_arrays([each.lines for each in writes]),
        np.concatenate([each.commit_lsn for each in writes]),
        np.concatenate([each.ordinal for each in writes]),
    )
