"""The demo's reader of the log. It uses the public reader, as any program could."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from tailrace.change import Change, Lsn, Position
from tailrace.errors import TailraceError
from tailrace.log.ddl_message import OWN_PREFIXES
from tailrace.log.reader import LogReader
from tailrace.store import Store

_RECENT = 8


@dataclass
class DemoReader:
    """Follows the log until the context exits. Counts the changes and records the newest ones and their delays."""

    store: Store
    operations: Counter[str] = field(default_factory=Counter)
    recent: deque[Change] = field(default_factory=lambda: deque(maxlen=_RECENT))
    delays: list[float] = field(default_factory=list)
    commits: list[tuple[Lsn, float]] = field(default_factory=list)
    """The commit LSN and commit time of each change, in log order."""
    positions: list[Position] = field(default_factory=list)
    """The positions of all changes except Tailrace's own messages, which no sink receives."""
    stop: threading.Event = field(default_factory=threading.Event)
    error: TailraceError | None = None

    def __enter__(self) -> DemoReader:
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._follow()
        except TailraceError as error:
            self.error = error

    def _follow(self) -> None:
        for change in LogReader(self.store).follow(stop=self.stop, poll_seconds=0.01):
            at = change.committed_at.timestamp()
            self.operations[change.operation] += 1
            self.delays.append(time.time() - at)
            self.commits.append((change.position.commit_lsn, at))
            if change.prefix not in OWN_PREFIXES:
                self.positions.append(change.position)
            if change.relation is not None:
                self.recent.append(change)
