"""All configured sinks on one Spark session, each for itself."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.errors import TailraceError
from tailrace.log import plan
from tailrace.log.plan import Offset
from tailrace.log.reader import LogReader
from tailrace.settings import Settings
from tailrace.sinks import Configured
from tailrace.spark.delivery.delivery import Delivery
from tailrace.spark.session import session
from tailrace.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("tailrace.deliver")

# What an operator looks at, written for each sink: often enough to see it move.
_LOOK_S: Final = 2.0
# A step under way at the end is worth waiting for: it would be done again from its start.
_GRACE_S: Final = 30.0


class Engine:
    """`start`, then `wait` or whatever else there is to do, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        configured: Sequence[Configured],
        *,
        master: str | None = None,
        checkpoints: Path | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """`spark`: a session of the caller's, which stays; else one is made, and ended with the engine."""
        self._settings = settings
        self._configured = configured
        self._master = master
        self._own_session = spark is None
        self._spark = spark
        self._temporary = checkpoints is None
        self._checkpoints = checkpoints or Path(tempfile.mkdtemp(prefix="tailrace-checkpoints-"))
        self._store = Store.open(settings.store.url, settings.store.options)
        self._reader = LogReader(self._store)
        self._stopping = threading.Event()
        self._looker = threading.Thread(target=self._look, name="sinks' status", daemon=True)
        self.sinks: Mapping[str, Delivery] = {}

    def prepare(self) -> None:
        """Start Spark, and make the deliveries: they can be rewound before they are started."""
        if self._spark is None:
            packages = dict.fromkeys(package for c in self._configured for package in c.sink.packages)
            self._spark = session("tailrace", self._master, packages=tuple(packages))
        self.sinks = {
            c.name: Delivery(self._spark, c, self._settings.store, self._checkpoints / c.name) for c in self._configured
        }

    def start(self) -> None:
        if not self.sinks:
            self.prepare()
        for delivery in self.sinks.values():
            delivery.start()
        self._looker.start()

    def stop(self) -> None:
        """A step under way is finished, or left for the next run when it takes too long."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        endings = [
            threading.Thread(target=delivery.stop, args=(_GRACE_S,), daemon=True) for delivery in self.sinks.values()
        ]
        for ending in endings:
            ending.start()
        for ending in endings:
            ending.join()
        if self._looker.is_alive():
            self._looker.join()
        if self._own_session and self._spark is not None:
            self._spark.stop()
        if self._temporary:
            shutil.rmtree(self._checkpoints, ignore_errors=True)

    @property
    def is_broken(self) -> bool:
        """The Java process of a session of our own is gone: this process cannot start another that works."""
        gateway = self._spark.sparkContext._gateway if self._own_session and self._spark is not None else None
        process = getattr(gateway, "proc", None)
        return process is not None and process.poll() is not None

    def end(self) -> Offset:
        """Where the log ends now."""
        return plan.latest(self._reader)

    def wait(self, until: Offset, timeout_s: float | None = None) -> bool:
        """Whether every sink has delivered everything before `until`. False: one failed, or time ran out."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._stopping.is_set():
            waiting = [d for d in self.sinks.values() if not d.has_failed and not d.has_delivered(until)]
            if not waiting:
                return not any(d.has_failed for d in self.sinks.values())
            if deadline is not None and time.monotonic() > deadline:
                return False
            self._stopping.wait(0.05)
        return False

    def _look(self) -> None:
        reader = LogReader(self._store)  # of this thread alone
        end: Offset | None = None
        while not self._stopping.wait(_LOOK_S):
            try:
                # The log is listed once; what comes later is asked for by its next id.
                end = plan.following(reader, end, plan.UNLIMITED, across_gaps=True).end if end else plan.latest(reader)
                for delivery in self.sinks.values():
                    delivery.look(end.lsn)
            except TailraceError as error:
                _log.debug("sinks' status: %s", error)
