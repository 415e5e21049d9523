"""The stream of WAL files: polls for the next one, reads ahead under backlog, and notices what is lost.

Nobody tells SlateDB what was read, and its garbage collection waits for nobody. So the stream verifies what it can: ids
without gaps, rising sequence numbers, that the file before the next one is still the one that was read, and that the
database's sorted tables hold nothing that the WAL did not have.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from tailrace.capture.slatedb.database import Manifest
from tailrace.capture.slatedb.merge_resolver import MergeResolver
from tailrace.capture.slatedb.wal_converter import ResumeToken, portions_of, token_after
from tailrace.capture.source import Received
from tailrace.change import Lsn
from tailrace.errors import GapError, WrongSource
from tailrace.slatedb.wal_reader import WalFileContent, WalFileMetadata, WalReader

_log = logging.getLogger("tailrace.capture")

# SlateDB flushes its WAL every 100 ms by default, so a file is found a quarter of that after it appears.
_POLL_S: Final = 0.025
_SLOWEST_POLL_S: Final = 1.0
# A writer that paused this long is polled less and less often.
_BUSY_S: Final = 2.0
_BACKOFF: Final = 1.5
# In place of a poll, a listing shows whether garbage collection removed the next file.
_LISTING_S: Final = 30.0
_MANIFEST_S: Final = 60.0
_READ_AHEAD: Final = 8
NEW_STORE: Final = "if the database was made anew, give [store] a new url; else correct [source] url"


class Manifests(Protocol):
    """The manifests of a database."""

    def newest(self) -> Manifest: ...

    def newest_first(self) -> Iterator[Manifest]:
        """Those that garbage collection left."""


class WalStream:
    """Fulfils `SourceStream`.

    `captured_seq` is the last sequence number that the log has. `manifests` are those of the database.
    """

    def __init__(
        self,
        reader: WalReader,
        token: ResumeToken,
        captured_seq: int,
        manifests: Manifests,
        resolver: MergeResolver | None = None,
    ) -> None:
        self._reader = reader
        self._resolver = resolver
        self._known_seq = max(token.seen_seq, captured_seq)
        """The last sequence number that the WAL had so far, or that the log has."""
        self._token = token
        self._manifests = manifests
        self._may_follow_bypass = True
        """Each session of a writer begins with a file without entries, and may have bypassed the WAL. So a hole in the
        sequence numbers after such a file is looked into, and one before the first file that is read here."""
        self._last: WalFileMetadata | None = None
        """Of the file that was read last."""
        self._is_contiguous = True
        """Whether the next file was there as soon as the last one was read."""
        self._known_end = 0
        self._pool = ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="wal")
        self._ahead: deque[Future[WalFileContent | None]] = deque()
        self._interval = _POLL_S
        self._found_at = self._listed_at = self._checked_at = time.monotonic()
        self._check_gap()
        if token.sha256 is not None:
            self._last = reader.get(token.wal_id).metadata()
        self.check_end()

    def receive(self) -> Received:
        content = self._next_file()
        now = time.monotonic()
        if content is None:
            self._is_contiguous = False
            if now - self._found_at > _BUSY_S:
                self._interval = min(self._interval * _BACKOFF, _SLOWEST_POLL_S)
                if self._checked_at < self._found_at or now - self._checked_at > _MANIFEST_S:
                    self.check_end()
            return Received(())
        id = self._token.wal_id + 1
        is_next = self._is_contiguous and now - self._found_at < _BUSY_S
        before = None if is_next else self._pool.submit(self._reader.get(id - 1).metadata)
        rows = content.rows()
        if before is not None:
            self._check_database(before.result())
        if len(rows):
            self._check_seq(id, rows["seq"][0].as_py())
            self._known_seq = max(self._known_seq, rows["seq"][-1].as_py())
        self._may_follow_bypass = not len(rows)
        self._interval, self._found_at, self._is_contiguous = _POLL_S, now, True
        self._last = content.metadata
        self._token = token_after(id, content.data, rows, self._token)
        return Received(portions_of(rows, content.metadata.last_modified, self._token))

    def acknowledge(self, received_lsn: Lsn, durable_lsn: Lsn, *, is_urgent: bool) -> bool:  # noqa: ARG002
        """SlateDB retains nothing for readers, except for the checkpoint that merges are resolved from."""
        if self._resolver is not None:
            self._resolver.keep(durable_lsn)
        return is_urgent

    def wait(self, wake_fd: int, *, is_reading: bool) -> None:
        poll = select.poll()
        poll.register(wake_fd, select.POLLIN)
        poll.poll((self._interval if is_reading else _SLOWEST_POLL_S) * 1000)

    def close(self, durable_lsn: Lsn, received_lsn: Lsn) -> None:  # noqa: ARG002
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _next_file(self) -> WalFileContent | None:
        """The next file; None if it does not exist yet. One request, or none under backlog."""
        if not self._ahead and time.monotonic() - max(self._listed_at, self._found_at) > _LISTING_S:
            self._check_gap()
            if self._known_end <= self._token.wal_id:
                return None
        next_id = self._token.wal_id + 1
        while len(self._ahead) < _READ_AHEAD and next_id + len(self._ahead) <= self._known_end:
            self._ahead.append(self._pool.submit(self._reader.get(next_id + len(self._ahead)).content))
        if not self._ahead:
            return self._reader.get(next_id).content()
        content = self._ahead.popleft().result()
        if content is None:  # removed between the listing and the read
            self._ahead.clear()
            self._check_gap()
        return content

    def _check_gap(self) -> None:
        """Find out how far the WAL reaches. Raises GapError if the next file is gone."""
        next_id = self._token.wal_id + 1
        self._listed_at = time.monotonic()
        later = self._reader.list(next_id)
        self._known_end = later[-1].id if later else self._token.wal_id
        # A file may appear between the listing and now, and one may be removed.
        if later and later[0].id != next_id and self._reader.get(next_id).metadata() is None:
            raise gap_error(range(next_id, later[0].id))

    def _check_seq(self, id: int, seq: int) -> None:
        """Compare a file's first sequence number with what was read before."""
        if seq <= self._token.seen_seq:
            raise WrongSource(
                f"WAL file {id} has sequence number {seq}, but earlier files had {self._token.seen_seq}: this is "
                "another database",
                NEW_STORE,
            )
        # A transaction that was given up leaves a hole too, but no sorted table ever held it.
        if self._may_follow_bypass and seq > self._known_seq + 1:
            for manifest in self._manifests.newest_first():
                if manifest.last_l0_seq <= self._known_seq:
                    return
                if manifest.next_wal_id <= id:
                    raise _bypass_error(manifest.last_l0_seq, self._known_seq)
            raise GapError(
                f"WAL file {id} begins with sequence number {seq}, the files before it end with {self._known_seq}, and "
                "the database's manifests of that time are gone: nobody knows whether writes went past the WAL",
                _NEW_SNAPSHOT,
            )

    def check_end(self) -> None:
        """Compare the WAL, which was read to its end, with the manifest. Raises if something is missing in it."""
        self._checked_at = time.monotonic()
        manifest = self._manifests.newest()
        last = self._reader.get(self._token.wal_id).metadata() if self._last is not None else None
        if last is None and self._last is not None and manifest.next_wal_id <= self._token.wal_id:
            raise _another_database(self._token.wal_id)
        self._check_database(last)
        if manifest.next_wal_id <= self._token.wal_id + 1 and manifest.last_l0_seq <= self._known_seq:
            return
        if self._reader.get(self._token.wal_id + 1).metadata() is not None:
            return
        if manifest.next_wal_id > self._token.wal_id + 1:
            raise gap_error(range(self._token.wal_id + 1, manifest.next_wal_id))
        raise _bypass_error(manifest.last_l0_seq, self._known_seq)

    def _check_database(self, last: WalFileMetadata | None) -> None:
        """Raise if the file that was read last is another one now. `last` is None if garbage collection removed it."""
        if last is not None and self._last is not None and last != self._last:
            raise _another_database(self._token.wal_id)


_NEW_SNAPSHOT: Final = "to continue with a new snapshot: tailrace capture --accept-gap"


def _another_database(id: int) -> WrongSource:
    return WrongSource(f"WAL file {id} is not the one that was read: the database was made anew", NEW_STORE)


def _bypass_error(held: int, known: int) -> GapError:
    return GapError(
        f"the database holds writes up to sequence number {held}, but its WAL ended at {known}: some writes did not go "
        "through the WAL",
        f"switch the WAL on in the writer's settings (wal_enabled), then {_NEW_SNAPSHOT}",
    )


def gap_error(lost: range) -> GapError:
    is_one = len(lost) == 1
    which = f"WAL file {lost[0]} was" if is_one else f"WAL files {lost[0]} to {lost[-1]} were"
    return GapError(
        f"{which} removed by garbage collection before capture read {'it' if is_one else 'them'}",
        "to continue with a gap and a new snapshot: tailrace capture --accept-gap. To prevent this, raise "
        "garbage_collector_options.wal_options.min_age in the database's settings",
    )
