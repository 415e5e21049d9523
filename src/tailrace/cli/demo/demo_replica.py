"""The demo's delivery engine, with its sinks: a replica (a second PostgreSQL), audit trail, lake and stream.

Spark takes seconds to start, so the engine runs in a thread. Meanwhile the shop's changes collect in the log, as they
do for any sink that starts late.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace import settings, sinks
from tailrace.cli.demo.audit_trail import NAME as AUDIT
from tailrace.cli.demo.demo_lake import NAME as LAKE
from tailrace.cli.demo.demo_reader import DemoReader
from tailrace.embedded.postgres import Postgres
from tailrace.errors import SparkError, TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.delivery.pipeline import Pipeline
    from tailrace.spark.engine import Engine

_NAME: Final = "replica"
_POLL_S: Final = 0.01
_CAUGHT_UP_S: Final = 3.0
"""A replica has caught up when it is this close to the newest commit. Four sinks that warm up at the same time on two
processors get no closer for a while."""


def is_installed() -> bool:
    """Whether Spark is installed."""
    return importlib.util.find_spec("pyspark") is not None


class DemoReplica:
    """Runs the engine until the context exits. `state` and `changes` show how far the replica is."""

    def __init__(
        self,
        configured: settings.Settings,
        reader: DemoReader,
        warehouse: Path | None,
        others: Sequence[settings.SinkTable],
    ) -> None:
        """`warehouse` is the location of the lake, and may be None. `others` are the settings of other sinks."""
        self._configured = configured
        self._warehouse = warehouse
        self._others = others
        self._reader = reader
        self._server: Postgres | None = None
        self._engine: Engine | None = None
        self._error: TailraceError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replica", daemon=True)
        self.delays: list[float] = []
        """Delays from commit to replica, of changes committed after the replica had caught up."""
        self.is_live = False
        """Whether the replica has caught up with the log once."""
        self.changes = 0

    def __enter__(self) -> DemoReplica:
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
    def address(self) -> settings.SourceSettings:
        assert self._server is not None
        return settings.SourceSettings(url=self._server.url)

    @property
    def error(self) -> TailraceError | None:
        """Why the engine or one of its sinks has failed."""
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
        self._error = TailraceError("the replica makes no progress", "the machine may be overloaded; try again")

    @property
    def _delivery(self) -> Pipeline | None:
        return self._engine.sinks.get(_NAME) if self._engine is not None else None

    def _run(self) -> None:
        try:
            self._start()
            while not self._stopping.wait(_POLL_S):
                self._measure()
        except TailraceError as error:
            self._error = error
        except Exception as error:
            self._error = SparkError(
                f"the replica: {type(error).__name__}: {error}", "this is a bug in Tailrace: please report it"
            )

    def _start(self) -> None:
        from tailrace.spark.engine import Engine

        self._server = server = Postgres()
        server.start()
        configured_sinks: list[settings.SinkTable] = [
            {"type": "postgres", "name": _NAME, "url": server.url},
            {"type": "audit", "name": AUDIT, "url": server.url},
        ]
        if self._warehouse is not None:
            configured_sinks.append({"type": "iceberg", "name": LAKE, "warehouse": self._warehouse.as_uri()})
        configured_sinks += self._others
        configured = settings.Settings(store=self._configured.store, sinks=tuple(configured_sinks))
        if self._stopping.is_set():
            return
        self._engine = engine = Engine(configured, sinks.from_settings(configured, {}))
        engine.prepare()
        if not self._stopping.is_set():
            engine.start()

    def _measure(self) -> None:
        """Record the changes that have reached the replica since the last call."""
        delivery, commits = self._delivery, self._reader.commits
        if delivery is None or delivery.cursor is None:
            return
        now, cursor = time.time(), delivery.cursor
        while self.changes < len(commits) and commits[self.changes][0] < cursor:
            if self.is_live:
                self.delays.append(now - commits[self.changes][1])
            self.changes += 1
        if not self.is_live and self.changes and now - commits[self.changes - 1][1] < _CAUGHT_UP_S:
            self.is_live = True
