"""What HTTP tells, put together: what this process knows at once, and what has to be asked of source and store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tailrace.log.reader import LogReader
from tailrace.ops.observing import Fresh, log_status, source_status
from tailrace.ops.status import Overview
from tailrace.settings import Settings
from tailrace.store import Store

# A page that refreshes itself and a scrape or two must not become load: one connection, one listing of the log.
_SOURCE_SECONDS: Final = 5.0
_LOG_SECONDS: Final = 10.0


def overview(settings: Settings, store: Store, condition: Callable[[], Overview]) -> Callable[[], Overview]:
    """`condition` is what this process knows."""
    reader = LogReader(store)
    source = Fresh(lambda: source_status(settings), _SOURCE_SECONDS) if settings.source.url else None
    log = Fresh(lambda: log_status(store, reader), _LOG_SECONDS)

    def all_of_it() -> Overview:
        return replace(condition(), source=source.get() if source else None, log=log.get())

    return all_of_it
