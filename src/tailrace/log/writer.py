"""Appends segments to a log: consecutive ids, chained headers, one writer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tailrace.change import Lsn, Relation
from tailrace.errors import FencedError
from tailrace.log import segment
from tailrace.log.reader import LogReader
from tailrace.log.segment import Header, SourceIdentity
from tailrace.log_rows import LogRows
from tailrace.store import Store

# Half the age at which segments are merged. After a longer pause, segments of another writer may have been merged.
# Their names are then free again, so that creating such a name does not prove that there is no other writer.
_SOLE_WRITER_S = 300.0


class LogWriter:
    """Appends to the end of a log, as its only writer."""

    def __init__(self, store: Store, source: SourceIdentity, last: Header | None) -> None:
        self.store = store
        self.source = source
        self.last_source = last.source if last else None
        self.next_id = last.id + 1 if last else 1
        self.end_lsn = last.end_lsn if last else Lsn(0)
        self._previous = last.link if last else segment.NO_PREVIOUS
        self.tail_is_open = last is not None and not last.ends_at_commit
        self._void_next = False
        self._gap_from: Lsn | None = None
        self._appended_at = 0.0
        self.resume = last.resume if last else None
        """Where the source's stream continues, as the last segment says; None for sources that do not need it."""

    @classmethod
    def open(cls, store: Store, source: SourceIdentity) -> LogWriter:
        last = LogReader(store).last()
        writer = cls(store, source, last.metadata() if last else None)
        writer.restart()
        return writer

    @property
    def is_empty(self) -> bool:
        return self.next_id == 1

    def restart(self) -> None:
        """Continue after a restart of the stream, which sends the open transaction again at the same positions."""
        self._void_next = self.tail_is_open

    def begin_at(self, lsn: Lsn, resume: str | None = None) -> None:
        """Start the log at an LSN, or restart it after a gap. Writes an empty segment that records this."""
        if not self.is_empty and lsn > self.end_lsn:
            self._gap_from = self.end_lsn
        if self.is_empty or self._gap_from is not None:
            self.append(LogRows.empty(), 0, lsn, resume=resume)

    def append_idle(self, resume: str) -> None:
        """Record where the source's stream continues, without rows."""
        self.append(LogRows.empty(), 0, self.end_lsn, resume=resume)

    def append(
        self,
        rows: LogRows,
        committed_rows: int,
        end_lsn: Lsn,
        defined: Sequence[tuple[int, Relation]] = (),
        resume: str | None = None,
    ) -> Header:
        """Write rows as the next segment, durably.

        `defined` has (first row, relation) in the order received. `resume` says where the source's stream continues
        after these rows; None if that did not change.
        """
        resume = resume or self.resume
        used = segment.relation_uses(rows, defined)
        header = Header(
            id=self.next_id,
            source=self.source,
            rows=len(rows),
            committed_rows=committed_rows,
            first=None,
            last=None,
            end_lsn=max(end_lsn, self.end_lsn),
            first_committed_at_us=None,
            last_committed_at_us=None,
            payload_bytes=0,
            voids_tail=self._void_next,
            gap_from=self._gap_from,
            relations=used,
            content="",
            previous=self._previous,
            version=segment.VERSION if resume is None else segment.RESUME_VERSION,
            resume=resume,
        )
        header, data = segment.seal(header, rows, {relation.digest: relation for _, relation in defined})
        if self._was_overtaken() or not self.store.create(segment.key(header.id), data):
            raise FencedError(
                f"another writer has written segment {header.id} of {self.store.url}",
                "another capture writes this log: stop one of them, or give each its own [store] url",
            )
        self._appended_at = time.time()
        self.next_id += 1
        self.end_lsn = header.end_lsn
        self._previous = header.link
        self.resume = header.resume
        self.tail_is_open = not header.ends_at_commit
        self._void_next = False
        self._gap_from = None
        return header

    def _was_overtaken(self) -> bool:
        if abs(time.time() - self._appended_at) < _SOLE_WRITER_S:
            return False
        later = self.store.list(segment.PREFIX, after=segment.key(self.next_id))
        return any(segment.ids(info.key) for info in later)
