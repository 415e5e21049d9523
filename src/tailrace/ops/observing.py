"""Finds out how source, log and sinks are: from the source's catalogue and from the store, in any process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from tailrace.change import Lsn, Position
from tailrace.errors import TailraceError
from tailrace.log.listing import covered, listed
from tailrace.log.reader import LogReader
from tailrace.ops.status import LogStatus, SourceStatus
from tailrace.settings import Settings
from tailrace.source.connection import connect
from tailrace.source.failure import classified
from tailrace.store import Store

if TYPE_CHECKING:
    from tailrace.sinks.status import SinkStatus

T = TypeVar("T")

# Segments without a change, as idle ones are, that are passed over in search of the last change.
_LOOK_BACK = 20

_SLOT = """
SELECT s.active, s.wal_status, s.confirmed_flush_lsn::text,
       (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_lsn() END - s.restart_lsn)::bigint
FROM pg_catalog.pg_replication_slots s
WHERE s.slot_name = %s
"""


def source_status(settings: Settings) -> SourceStatus:
    slot = settings.source.slot
    try:
        with connect(settings.source) as connection, classified():
            row = connection.execute(_SLOT, [slot]).fetchone()
    except TailraceError as error:
        return SourceStatus(slot, error=str(error))
    if row is None:
        return SourceStatus(slot, error=f"there is no slot {slot}: capture makes it")
    is_active, wal_status, confirmed, held = row
    return SourceStatus(slot, is_active, wal_status, None if confirmed is None else Lsn.parse(confirmed), held)


def log_status(store: Store, reader: LogReader | None = None) -> LogStatus:
    """Costs a listing of the log and a few footers."""
    reader = reader or LogReader(store)
    try:
        objects = listed(store)
        if not objects:
            return LogStatus(store.url)
        left_over = covered(objects)
        kept = [o for o in objects if o not in left_over]
        first_id, last_id = kept[0].first, max(o.last for o in kept)
        newest = reader.get(last_id).metadata()
        first = _position_near(reader, range(first_id, min(first_id + _LOOK_BACK, last_id + 1)), "first")
        last = _position_near(reader, range(last_id, max(last_id - _LOOK_BACK, first_id - 1), -1), "last")
    except TailraceError as error:
        return LogStatus(store.url, error=str(error))
    return LogStatus(
        store.url,
        segments=last_id - first_id + 1,
        objects=len(kept),
        bytes=sum(o.info.size for o in kept),
        first=None if first is None else first[0],
        last=None if last is None else last[0],
        end_lsn=Lsn(0) if newest is None else newest.end_lsn,
        last_committed_at=None if last is None else last[1],
    )


def _position_near(reader: LogReader, ids: range, which: str) -> tuple[Position, datetime] | None:
    for id in ids:
        header = reader.get(id).metadata()
        position = getattr(header, which) if header is not None else None
        if position is not None:
            at_us = getattr(header, f"{which}_committed_at_us")
            return position, datetime.fromtimestamp(at_us / 1e6, UTC)
    return None


def sink_statuses(store: Store, names: Sequence[str]) -> list[SinkStatus]:
    """What sinks last said of themselves, wherever they run: those that are named first, in that order."""
    from tailrace.sinks import status  # here, because capture asks for all but this, and stays light

    said = {found.name: found for found in status.load_all(store)}
    return [said[name] for name in names if name in said] + [s for name, s in said.items() if name not in names]


class Fresh(Generic[T]):
    """A value that is costly to find out: at most every so often, and nobody waits long for it.

    Finding out goes on in a thread when whoever asked has stopped waiting; until then they get the value before.
    """

    def __init__(self, find_out: Callable[[], T], every_s: float, patience_s: float = 2.0) -> None:
        self._find_out = find_out
        self._every_s = every_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked_at = float("-inf")
        self._value: T | None = None

    def get(self) -> T | None:
        """None while nothing is known yet."""
        with self._lock:
            thread = self._thread
            if (thread is None or not thread.is_alive()) and time.monotonic() - self._asked_at > self._every_s:
                thread = self._thread = threading.Thread(target=self._renew, name="finding out", daemon=True)
                self._asked_at = time.monotonic()
                thread.start()
        if thread is not None:
            thread.join(self._patience_s)
        return self._value

    def _renew(self) -> None:
        self._value = self._find_out()
