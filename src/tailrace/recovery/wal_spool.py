"""Hands archived WAL to a recovering server, through a directory that is filled ahead.

The server's `restore_command` is a small shell script that only moves a file: starting Python for each segment would
limit replay to about 40 MB/s. The script waits while a file is being fetched. It reports a file as absent only when
the store has said so. If the store does not answer, it waits; if the archive is damaged or this process dies, it ends
with a code that makes PostgreSQL abort recovery instead of taking the situation for the end of the WAL.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.background import BackgroundThread
from tailrace.capture.postgres.timeline import TimelineHistory
from tailrace.change import Lsn
from tailrace.errors import ConfigError, CorruptError, TailraceError
from tailrace.recovery.store_retry import run_with_retries
from tailrace.recovery.wal_archive import WalArchive
from tailrace.recovery.wal_segment import WalSegment

_log = logging.getLogger("tailrace.restore")

_AHEAD_BYTES = 256 << 20
_WORKERS = 2
_POLL_SECONDS = 0.02
# PostgreSQL aborts recovery if restore_command ends with a code above 125.
_ABORT = 200

_SCRIPT = """\
#!/bin/sh
# restore_command, written by `tailrace restore`: $1 is the file's name, $2 is where PostgreSQL wants it.
spool={spool}
while :; do
    mv "$spool/$1" "$2" 2>/dev/null && exit 0
    [ -e "$spool/$1.absent" ] && exit 1
    [ -e "$spool/failed" ] && exit {abort}
    if [ -d /proc/self ]; then [ -d /proc/{pid} ]; else ps -p {pid} >/dev/null; fi || exit {abort}
    : > "$spool/$1.wanted"
    sleep 0.02
done
"""


class WalSpool(BackgroundThread):
    """Runs while its context lasts. `own` gives a file to the user that the server runs as."""

    def __init__(
        self,
        archive: WalArchive,
        history: TimelineHistory,
        start: Lsn,
        end: Lsn,
        directory: Path,
        own: Callable[[Path], None],
    ) -> None:
        super().__init__("spool")
        self._archive = archive
        self._history = history
        self._end = end
        self._directory = directory
        self._own = own
        self._size = archive.system.segment_bytes
        self._next = start // self._size
        self._ahead = max(_AHEAD_BYTES // self._size, 2)
        self._pool = ThreadPoolExecutor(_WORKERS, "spool")
        self._pending: dict[str, Future[None]] = {}
        self.error: TailraceError | None = None
        """Why recovery was aborted."""

    @property
    def script(self) -> Path:
        return self._directory / "restore-wal"

    @property
    def restore_command(self) -> str:
        return f"/bin/sh {shlex.quote(str(self.script)).replace('%', '%%')} %f %p"

    def __enter__(self) -> Self:
        self._directory.mkdir(mode=0o700)
        self._own(self._directory)
        text = _SCRIPT.format(spool=shlex.quote(str(self._directory)), pid=os.getpid(), abort=_ABORT)
        self.script.write_text(text)
        self._own(self.script)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._pool.shutdown(cancel_futures=True)

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            present = {entry.name for entry in os.scandir(self._directory)}
            for name in present:
                if name.endswith(".wanted"):
                    (self._directory / name).unlink()
                    wanted = name.removesuffix(".wanted")
                    if wanted not in present and f"{wanted}.absent" not in present:
                        self._fetch(wanted)
            for name in [name for name, future in self._pending.items() if future.done()]:
                del self._pending[name]
            self._fill(present)

    def _fill(self, present: set[str]) -> None:
        """Fetch the segments that the server will want next."""
        ready = sum(WalSegment.parse(name, self._size) is not None for name in present) + len(self._pending)
        while ready < self._ahead and self._next * self._size < self._end:
            segment = WalSegment(self._timeline_of(self._next), self._next, self._size)
            self._next += 1
            ready += 1
            self._fetch(segment.name)

    def _timeline_of(self, number: int) -> int:
        """The timeline from which the server takes a segment: the newest one that has a part of it."""
        return self._history.timeline_at(Lsn(min((number + 1) * self._size, self._end) - 1))

    def _fetch(self, name: str) -> None:
        if name not in self._pending:
            self._pending[name] = self._pool.submit(self._fetch_with_retries, name)

    def _fetch_with_retries(self, name: str) -> None:
        """While the store does not answer, recovery waits."""
        try:
            run_with_retries(lambda: self._place(name), self._stopping, _log)
        except TailraceError as error:
            self._fail(error)
        except OSError as error:
            self._fail(ConfigError(f"{self._directory}: {error.strerror}", "free some space, then restore again"))

    def _place(self, name: str) -> None:
        draft = self._directory / f"{name}.draft"
        if not self._read_to(name, draft):
            draft.unlink(missing_ok=True)
            (self._directory / f"{name}.absent").touch()
            return
        draft.chmod(0o600)
        self._own(draft)
        draft.rename(self._directory / name)

    def _fail(self, error: TailraceError) -> None:
        self.error = self.error or error
        (self._directory / "failed").touch()

    def _read_to(self, name: str, draft: Path) -> bool:
        """Write a file of the archive; False only if the store says that there is none."""
        segment = WalSegment.parse(name, self._size)
        if segment is not None:
            is_found = self._archive.read_to(segment, draft)
            is_needed = segment.timeline == self._timeline_of(segment.number) and segment.start < self._end
            if not is_found and is_needed:
                raise CorruptError(
                    f"segment {segment} is missing from the archive, which has later ones",
                    "restore the object from a copy of the store, or restore to an earlier moment",
                )
            return is_found
        stem, dot, kind = name.partition(".")
        if dot and kind == "history" and len(stem) == 8:
            content = self._archive.read_history(int(stem, 16))
            if content is not None:
                draft.write_bytes(content)
            return content is not None
        return False
