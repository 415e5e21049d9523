"""Capture: writes a source's stream to the log until it is stopped.

One loop owns the stream and never waits for the log's store; the sealer's thread owns the log. The source is told only
what is durable. Capture recovers from temporary failures: the stream restarts after the log's last commit, and changes
that the source sends twice are dropped by position.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime

from tailrace.capture.reconnection import WakePipe, run_until_stopped
from tailrace.capture.sealer import CaptureProgress, Sealer
from tailrace.capture.source import Converter, Snapshots, SourceStream, open_source
from tailrace.change import Lsn
from tailrace.errors import TailraceError
from tailrace.log.writer import LogWriter
from tailrace.settings import Settings
from tailrace.store import Store

_log = logging.getLogger("tailrace.capture")


class Capture:
    """Captures one source into one log.

    `until` ends the capture once that LSN is durable; "current" means the source's position at the start. `accept_gap`
    continues a log after a gap. `snapshots` takes snapshots while capture streams.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        until: Lsn | str | None = None,
        accept_gap: bool = False,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.started_at = datetime.now(UTC)
        self.progress = CaptureProgress()
        self.reconnections = 0
        self.received_lsn = Lsn(0)
        self.durable_lsn = Lsn(0)
        self.is_streaming = False
        self.last_error: TailraceError | None = None
        """Why capture does not stream, while it waits to reconnect."""
        self.sealer: Sealer | None = None
        self._settings = settings
        self._store = store
        self._until = until if isinstance(until, Lsn) else None
        self._until_current = until == "current"
        self._accept_gap = accept_gap
        self.has_wal_lsns = settings.slatedb is None
        """Whether the source's LSNs count bytes of WAL."""
        self.source = open_source(settings, store, snapshots)
        self._stopping = threading.Event()
        self._pipe = WakePipe()

    def stop(self) -> None:
        """Seal, acknowledge, end. From any thread, but not inside a signal handler: see `cli.stop_signal`."""
        self._stopping.set()
        self._pipe.wake()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def run(self) -> None:
        """Run until stopped, or until `until` is durable. Raises errors that a retry cannot resolve."""
        try:
            run_until_stopped(self._connect_and_stream, self._stopping, self._record_failure)
        finally:
            self.source.close()

    def _record_failure(self, error: TailraceError) -> None:
        self.is_streaming = False
        self.last_error = error
        if error.retry and not self._stopping.is_set():
            self.reconnections += 1

    def _connect_and_stream(self) -> None:
        with self.source.connect(self._stopping) as session:
            writer = LogWriter.open(self._store, session.identify())
            if self._until_current:
                self._until, self._until_current = session.current_lsn(), False
            session.begin(writer, accept_gap=self._accept_gap)
            self._accept_gap = False
            self._stream(session.stream(writer), session.converter(writer), writer)

    def _stream(self, stream: SourceStream, converter: Converter, writer: LogWriter) -> None:
        sealer = self.sealer = Sealer(writer, converter, self._settings.capture, self.progress, self._pipe.wake)
        self.durable_lsn = self.received_lsn = writer.end_lsn
        self.is_streaming = True
        self.last_error = None
        _log.info("streaming from %s", writer.end_lsn)
        try:
            self._loop(stream, sealer)
            sealer.close()
            stream.close(sealer.durable_lsn, self.received_lsn)
        finally:
            sealer.abort()
            self.durable_lsn = sealer.durable_lsn
            self.is_streaming = False
        if sealer.error:
            raise sealer.error

    def _loop(self, stream: SourceStream, sealer: Sealer) -> None:
        while not self._stopping.is_set():
            received = None
            if not sealer.is_full:
                received = stream.receive()
                self.progress.keepalives += received.keepalives
                for portion in received.portions:
                    sealer.offer(portion)
                if received.sent_lsn is not None:
                    self.received_lsn = received.sent_lsn
                    self._idle(sealer, received.is_urgent)
            if sealer.error:
                raise sealer.error

            durable = sealer.durable_lsn
            is_urgent = durable != self.durable_lsn or (received is not None and received.is_urgent)
            if stream.acknowledge(self.received_lsn, durable, is_urgent=is_urgent):
                self.durable_lsn = durable
            if self._until is not None and durable >= self._until:
                return
            if received is None or not received.portions:
                stream.wait(self._pipe.fd, is_reading=received is not None)
                self._pipe.drain()

    def _idle(self, sealer: Sealer, wants_reply: bool) -> None:
        is_reached = self._until is not None and self.received_lsn >= self._until
        sealer.idle(self.received_lsn, urgent=wants_reply or is_reached)
