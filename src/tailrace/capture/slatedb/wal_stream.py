"""The stream of WAL files: polls for the next one, reads ahead under backlog, and notices what is lost.

Nobody tells SlateDB what was read, and its garbage collection waits for nobody. So the stream verifies what it can: ids
without gaps, rising sequence numbers, and that the database's sorted tables hold nothing that the WAL did not have.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from tailrace.capture.slatedb.database import Manifest
from tailrace.capture.slatedb.merge_resolver import MergeResolver
from tailrace.capture.slatedb.wal_converter import ResumeToken, portions_of, token_after
from tailrace.capture.source import Received
from tailrace.change import Lsn
from tailrace.errors import GapError, SourceRefused, WrongSource
from tailrace.slatedb.wal_reader import WalFileContent, WalReader

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


class WalStream:
    """Fulfils `SourceStream`.

    `captured_seq` is the last sequence number that the log has. `read_manifest` reads the database's newest manifest.
    """

    def __init__(
        self,
        reader: WalReader,
        token: ResumeToken,
        captured_seq: int,
        read_manifest: Callable[[], Manifest],
        resolver: MergeResolver | None = None,
    ) -> None:
        self._reader = reader
        self._resolver = resolver
        self._captured_seq = captured_seq
        self._token = token
        self._read_manifest = read_manifest
        self._known_end = 0
        self._pool = ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="wal")
        self._ahead: deque[Future[WalFileContent | None]] = deque()
        self._interval = _POLL_S
        self._found_at = self._listed_at = self._checked_at = time.monotonic()
        self._check_gap()
        self._check_bypass()

    def receive(self) -> Received:
        content = self._next_file()
        now = time.monotonic()
        if content is None:
            if now - self._found_at > _BUSY_S:
                self._interval = min(self._interval * _BACKOFF, _SLOWEST_POLL_S)
                if self._checked_at < self._found_at or now - self._checked_at > _MANIFEST_S:
                    self._check_bypass()
            return Received(())
        self._interval, self._found_at = _POLL_S, now
        id = self._token.wal_id + 1
        rows = content.rows()
        if len(rows) and rows["seq"][0].as_py() <= self._token.seen_seq:
            raise WrongSource(
                f"WAL file {id} has sequence number {rows['seq'][0].as_py()}, but earlier files had "
                f"{self._token.seen_seq}: this is another database",
                NEW_STORE,
            )
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

    def _check_bypass(self) -> None:
        """Raise if the sorted tables hold writes that the WAL, which was read to its end, did not have."""
        self._checked_at = time.monotonic()
        manifest = self._read_manifest()
        known_seq = max(self._token.seen_seq, self._captured_seq)
        if self._token.wal_id < manifest.next_wal_id - 1 or manifest.last_l0_seq <= known_seq:
            return
        if self._reader.get(self._token.wal_id + 1).metadata() is not None:
            return
        raise SourceRefused(
            f"the database holds writes up to sequence number {manifest.last_l0_seq}, but its WAL ends at "
            f"{known_seq}: some writes did not go through the WAL",
            "switch the WAL on in the writer's settings (wal_enabled), then run `tailrace capture --accept-gap`, which "
            "takes a new snapshot",
        )


def gap_error(lost: range) -> GapError:
    which = f"WAL file {lost[0]} was" if len(lost) == 1 else f"WAL files {lost[0]} to {lost[-1]} were"
    return GapError(
        f"{which} removed by garbage collection before capture read them",
        "to continue with a gap and a new snapshot: tailrace capture --accept-gap. To prevent this, raise "
        "garbage_collector_options.wal_options.min_age in the database's settings",
    )
