"""The demo's replica, a second PostgreSQL, its audit trail, its lake and its stream, kept by the delivery engine.

Spark takes seconds to start. So all of it happens in a thread, while the shop is open already and its changes gather in
the log, as they do for any sink that starts late.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace import settings, sinks
from tailrace.cli.demo.asking import NAME as LAKE
from tailrace.cli.demo.auditing import NAME as AUDIT
from tailrace.cli.demo.watching import Watching
from tailrace.embedded.postgres import Postgres
from tailrace.errors import SparkError, TailraceError

if TYPE_CHECKING:
    from tailrace.cli.demo.consuming import Consuming
    from tailrace.spark.delivery import Delivery, Engine

_NAME: Final = "replica"
_POLL_S: Final = 0.01
_CLOSE_S: Final = 3.0
"""Behind the newest commit: four sinks that warm up at once, on two processors, are no closer for a while."""


def is_possible() -> bool:
    """Whether Spark is installed."""
    return importlib.util.find_spec("pyspark") is not None


class Replicating:
    """From the context's beginning to its end; `delivered` then says how far it is."""

    def __init__(
        self, configured: settings.Settings, watching: Watching, warehouse: Path | None, consuming: Consuming | None
    ) -> None:
        """`warehouse`: where the lake is to be; None: there is none. `consuming`: who wants the stream."""
        self._configured = configured
        self._warehouse = warehouse
        self._consuming = consuming
        self._watching = watching
        self._server: Postgres | None = None
        self._engine: Engine | None = None
        self._error: TailraceError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replica", daemon=True)
        self.delays: list[float] = []
        """Commit to replica, of what was committed after the replica had caught up."""
        self.is_live = False
        """It has caught up with the log once."""
        self.changes = 0

    def __enter__(self) -> Replicating:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._engine is not None:
            self._engine.stop()
        if self._server is not None:
            self._server.close()

    @property
    def address(self) -> settings.Source:
        assert self._server is not None
        return settings.Source(url=self._server.url)

    @property
    def error(self) -> TailraceError | None:
        """Why there will be no replica."""
        deliveries = self._engine.sinks.values() if self._engine is not None else ()
        return self._error or next((d.error for d in deliveries if d.has_failed), None)

    @property
    def state(self) -> str:
        if self.error is not None:
            return "failed"
        if self._delivery is None:
            return "Spark is starting"
        return "live" if self.is_live else "catching up"

    def has_all(self) -> bool:
        """Whether every change that is in the log now is in the replica, the audit trail, the lake and the stream."""
        return self._engine is not None and self._delivery is not None and self._engine.wait(self._engine.end(), 0)

    def give_up(self) -> None:
        self._error = TailraceError("the replica does not get on", "is the machine overloaded? try again")

    @property
    def _delivery(self) -> Delivery | None:
        return self._engine.sinks.get(_NAME) if self._engine is not None else None

    def _run(self) -> None:
        try:
            self._start()
            while not self._stopping.wait(_POLL_S):
                self._look()
        except TailraceError as error:
            self._error = error
        except Exception as error:
            self._error = SparkError(
                f"the replica: {type(error).__name__}: {error}", "this is a bug in Tailrace: please report it"
            )

    def _start(self) -> None:
        from tailrace.spark.delivery import Engine

        self._server = server = Postgres()
        server.start()
        wanted: list[settings.Sink] = [
            {"type": "postgres", "name": _NAME, "url": server.url},
            {"type": "audit", "name": AUDIT, "url": server.url},
        ]
        if self._warehouse is not None:
            wanted.append({"type": "iceberg", "name": LAKE, "warehouse": self._warehouse.as_uri()})
        if self._consuming is not None:
            wanted.append(self._consuming.sink)
        configured = settings.Settings(store=self._configured.store, sinks=tuple(wanted))
        if self._stopping.is_set():
            return
        self._engine = engine = Engine(configured, sinks.configured(configured, {}))
        engine.prepare()
        if not self._stopping.is_set():
            engine.start()

    def _look(self) -> None:
        """Which changes have got there since the last look."""
        delivery, committed = self._delivery, self._watching.committed
        if delivery is None or delivery.cursor is None:
            return
        now, cursor = time.time(), delivery.cursor
        while self.changes < len(committed) and committed[self.changes][0] < cursor:
            if self.is_live:
                self.delays.append(now - committed[self.changes][1])
            self.changes += 1
        if not self.is_live and self.changes and now - committed[self.changes - 1][1] < _CLOSE_S:
            self.is_live = True
