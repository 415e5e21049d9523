"""A source, its capture and a NATS sink, running together until a test ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.capturing import CaptureThread, current_lsn
from tests.fixtures.postgres import Database
from tests.stepping import DrivenStepper

from tailrace import settings, sinks
from tailrace.capture.postgres.bootstrap import Bootstrap
from tailrace.change import Lsn
from tailrace.delivery.task import Executor, run_in_process
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.process import wait_until
from tailrace.sinks.nats import NatsSink
from tailrace.store import Store


class Bus:
    """Captures a source and delivers it to a sink until the context ends."""

    def __init__(
        self,
        database: Database,
        server: NatsServer,
        directory: Path,
        source: str = "",
        chunk_bytes: int = settings.SnapshotSettings.chunk_bytes,
        **more: Any,
    ) -> None:
        self.database = database
        self._settings = settings.Settings(
            source=settings.SourceSettings(url=source or database.url),
            store=settings.StoreSettings((directory / "store").as_uri()),
            snapshot=settings.SnapshotSettings(chunk_bytes=chunk_bytes),
            sinks=({"type": "nats", "name": "bus", "url": server.url, **more},),
        )
        self.store = Store.open(self._settings.store.url)
        self.waits_for_snapshots = True
        self.executor: Executor = run_in_process
        self.parallelism = 1
        self._stopping = threading.Event()
        self.must_maintain = threading.Event()
        """Set it to have the sink maintained once, as its pipeline does every few seconds."""
        self.failed: list[BaseException] = []
        self.expects_failure = False
        self.cursor = Lsn(0)

    @contextmanager
    def running(self) -> Iterator[None]:
        self.bootstrap = bootstrap = Bootstrap(self._settings, self.store, poll_seconds=0.1)
        with CaptureThread(self._settings, self.store, snapshots=bootstrap) as self.capture:
            thread = threading.Thread(target=self._deliver)
            thread.start()
            try:
                assert not self.waits_for_snapshots or bootstrap.wait(60)
                yield
            finally:
                self._stopping.set()
                thread.join()
                bootstrap.stop()
        assert self.expects_failure or not self.failed

    def _deliver(self) -> None:
        (configured,) = sinks.from_settings(self._settings, {})
        assert isinstance(configured.sink, NatsSink)
        configured.sink.attach(self.executor, lambda: self.parallelism)
        stepper = DrivenStepper(configured, self._settings.store)
        try:
            stepper.open()
            while not self._stopping.wait(0.01):
                if self.must_maintain.is_set():
                    self.must_maintain.clear()
                    stepper.sink.maintain()
                ahead = stepper.ahead()
                if ahead.slices:
                    stepper.deliver(ahead.end)
                self.cursor = stepper.state.cursor or Lsn(0)
        except BaseException as error:
            self.failed.append(error)
        finally:
            stepper.close()

    def reach(self) -> None:
        """Wait until the stream has everything committed so far."""
        with self.database.connect() as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'reached', '')")
            lsn = current_lsn(connection)
        assert wait_until(lambda: self.cursor >= lsn or bool(self.failed), 60)
        assert not self.failed
