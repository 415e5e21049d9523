"""A walsender that serves the archive: a standby streams from it as from a server, while the WAL is in the store.

It speaks the part of the replication protocol that a standby's walreceiver uses, on a Unix socket in a directory that
only the standby's user may enter. So it needs neither passwords nor TLS.
"""

from __future__ import annotations

import contextlib
import logging
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tailrace.capture.postgres.walsender_stream import EPOCH_SHIFT_S
from tailrace.change import Lsn
from tailrace.errors import TailraceError
from tailrace.postgres import protocol
from tailrace.postgres.protocol import ResultField
from tailrace.recovery.archive_feed import ArchiveFeed
from tailrace.recovery.wal_archive import WalArchive
from tailrace.retry import Backoff
from tailrace.store import Store

_log = logging.getLogger("tailrace.standby")

PORT: Final = 5432
# As a server's walsender: small enough that the receiver answers in between.
_PIECE_BYTES: Final = 128 << 10
_KEEPALIVE_SECONDS: Final = 10.0
# The store is asked for more WAL after a tenth of the time in which none arrived. So a busy source costs at most fifty
# requests a second, an idle one a few, and the delay is small beside the pace at which WAL arrives.
_SHORTEST_WAIT, _LONGEST_WAIT = 0.02, 1.0
_LOGIN_SECONDS: Final = 20.0

_INT8, _TEXT = 20, 25
_START = re.compile(
    r"START_REPLICATION(?:\s+SLOT\s+\S+)?(?:\s+PHYSICAL)?\s+([0-9A-F]+/[0-9A-F]+)\s+TIMELINE\s+(\d+)", re.IGNORECASE
)
_HISTORY = re.compile(r"TIMELINE_HISTORY\s+(\d+)", re.IGNORECASE)


class StoreWalsender:
    """Serves while its context lasts.

    Args:
        store: The store with the archive.
        server_version: The version to name, as PostgreSQL's number, such as 180001.
        directory: Where the socket is created. Nobody but the standby's user may enter it.
        own: Gives a file to the standby's user.
    """

    def __init__(self, store: Store, server_version: int, directory: Path, own: Callable[[Path], None]) -> None:
        self._store = store
        self._version = f"{server_version // 10000}.{server_version % 10000}"
        self._path = directory / f".s.PGSQL.{PORT}"
        self._own = own
        self._stopping = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._threads: list[threading.Thread] = []
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.error: TailraceError | None = None
        """Why no more WAL can be served, whatever is retried."""
        self.sent_lsn: Lsn | None = None
        """How far the standby was sent WAL."""
        self.fork: Lsn | None = None
        """Where the archive's newest timeline left the one that is being sent."""

    def __enter__(self) -> Self:
        self._listener.bind(str(self._path))
        self._own(self._path)
        self._listener.listen(8)
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets, threads = list(self._sockets), list(self._threads)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        self._path.unlink(missing_ok=True)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="walsender", daemon=True)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._sockets.add(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            _Connection(self, sock, self._store, self._version, self._stopping).serve()
        except (protocol.ClientDisconnectedError, OSError):
            pass  # the standby ended, or reconnects
        except (protocol.ProtocolError, UnicodeDecodeError) as error:
            with contextlib.suppress(OSError):
                sock.sendall(protocol.error("08P01", f"protocol violation: {error}", "", "FATAL"))
        except TailraceError as error:
            if not error.retry:
                self.error = self.error or error
            _log.warning("%s", error)
            with contextlib.suppress(OSError):
                sock.sendall(protocol.error("XX000", str(error), error.hint, "FATAL"))
        finally:
            with self._lock:
                self._sockets.discard(sock)
            sock.close()


class _Connection:
    def __init__(
        self,
        walsender: StoreWalsender,
        sock: socket.socket,
        store: Store,
        version: str,
        stopping: threading.Event,
    ) -> None:
        self._walsender = walsender
        self._socket = sock
        self._store = store
        self._version = version
        self._stopping = stopping

    def serve(self) -> None:
        self._socket.settimeout(_LOGIN_SECONDS)
        if not self._log_in():
            return
        self._socket.settimeout(None)
        while True:
            kind, body = protocol.read_message(self._socket)
            if kind == b"X":
                return
            if kind == b"Q":
                self._run(protocol.BodyReader(body).text().strip())
                self._socket.sendall(protocol.ready(b"I"))
            elif kind not in (b"d", b"c", b"f"):  # the rest of a stream that has ended
                raise protocol.ProtocolError(f"unexpected message type {kind!r}")

    def _log_in(self) -> bool:
        code, body = protocol.read_startup(self._socket)
        while code in (protocol.TLS, protocol.GSS):
            self._socket.sendall(b"N")
            code, body = protocol.read_startup(self._socket)
        if code >> 16 != 3:
            return False
        parameters = protocol.parameters(body)
        if parameters.get("replication", "").lower() not in ("true", "on", "yes", "1"):
            self._socket.sendall(
                protocol.error("0A000", "this is not a server: it only sends WAL to a standby", "", "FATAL")
            )
            return False
        unknown = [name for name in parameters if name.startswith("_pq_.")]
        negotiation = protocol.negotiation(unknown) if code != protocol.VERSION_3 or unknown else b""
        statuses = {
            "server_version": self._version,
            "server_encoding": "UTF8",
            "client_encoding": "UTF8",
            "integer_datetimes": "on",
            "standard_conforming_strings": "on",
        }
        self._socket.sendall(
            negotiation
            + protocol.authentication(0)
            + b"".join(protocol.parameter_status(name, value) for name, value in statuses.items())
            + protocol.ready(b"I")
        )
        return True

    def _run(self, command: str) -> None:
        if command.upper().rstrip(";") == "IDENTIFY_SYSTEM":
            self._identify()
        elif match := _HISTORY.match(command):
            self._send_history(int(match[1]))
        elif match := _START.match(command):
            self._stream(Lsn.parse(match[1]), int(match[2]))
        else:
            self._socket.sendall(protocol.error("0A000", f"{command.split()[0]} is not supported here"))

    def _identify(self) -> None:
        archive = WalArchive.require(self._store)
        assert archive.last is not None
        values = archive.system.system_id, str(archive.last.segment.timeline), str(archive.last.end), None
        fields = [
            ResultField("systemid", _TEXT),
            ResultField("timeline", _INT8, 8),
            ResultField("xlogpos", _TEXT),
            ResultField("dbname", _TEXT),
        ]
        self._send_row(fields, values, "IDENTIFY_SYSTEM")

    def _send_history(self, timeline: int) -> None:
        archive = WalArchive.require(self._store)
        content = archive.read_history(timeline)
        if content is None:
            self._socket.sendall(protocol.error("58P01", f"the archive has no history of timeline {timeline}"))
            return
        fields = [ResultField("filename", _TEXT), ResultField("content", _TEXT)]
        self._send_row(fields, (f"{timeline:08X}.history", content.decode()), "TIMELINE_HISTORY")

    def _send_row(self, fields: list[ResultField], values: tuple[str | None, ...], tag: str) -> None:
        self._socket.sendall(protocol.row_description(fields) + protocol.data_row(values) + protocol.complete(tag))

    def _stream(self, start: Lsn, timeline: int) -> None:
        archive = WalArchive.require(self._store)
        assert archive.last is not None
        feed = ArchiveFeed(self._store, archive.system, timeline, start)
        newest = archive.last.segment.timeline
        if timeline != newest:
            feed.follow(archive.history(newest))
        self._walsender.fork = feed.end
        if not feed.has_ended:
            self._socket.sendall(protocol.copy_both())
            _log.info("sending timeline %d from %s on", timeline, start)
            if not _Stream(self._walsender, self._socket, feed, self._stopping).run():
                return
        if feed.has_ended:
            _log.info("timeline %d ends at %s; timeline %s follows", timeline, feed.end, feed.next_timeline)
            fields = [ResultField("next_tli", _INT8, 8), ResultField("next_tli_startpos", _TEXT)]
            values = str(feed.next_timeline), str(feed.end)
            self._socket.sendall(protocol.row_description(fields) + protocol.data_row(values))
        self._socket.sendall(protocol.complete("START_STREAMING"))


class _Stream:
    """WAL out, status in, until the timeline or the connection ends."""

    def __init__(
        self, walsender: StoreWalsender, sock: socket.socket, feed: ArchiveFeed, stopping: threading.Event
    ) -> None:
        self._walsender = walsender
        self._socket = sock
        self._feed = feed
        self._stopping = stopping
        self._sent_at = time.monotonic()
        self._arrived_at = time.monotonic()
        self._backoff = Backoff()

    def run(self) -> bool:
        """Stream. Return whether the end was agreed on; if not, this process is stopping."""
        while not self._stopping.is_set():
            data, wait_s = self._read()
            for start in range(0, len(data), _PIECE_BYTES):
                self._send_wal(Lsn(self._feed.position - len(data) + start), data[start : start + _PIECE_BYTES])
            if self._feed.has_ended:
                return self._finish()
            if time.monotonic() - self._sent_at >= _KEEPALIVE_SECONDS:
                self._send_keepalive()
            if self._has_client_ended(0.0 if data else wait_s):
                self._socket.sendall(protocol.COPY_DONE)
                return True
        return False

    def _read(self) -> tuple[bytes, float]:
        """WAL, and how long to wait if there is none. While the store does not answer, the standby waits."""
        try:
            data = self._feed.read()
        except TailraceError as error:
            if not error.retry:
                raise
            wait_s = self._backoff.next()
            _log.warning("%s; retrying in %.1f s", error, wait_s)
            return b"", wait_s
        self._backoff = Backoff()
        self._walsender.fork = self._feed.end
        now = time.monotonic()
        if data:
            self._arrived_at = now
        return data, min(max((now - self._arrived_at) / 10, _SHORTEST_WAIT), _LONGEST_WAIT)

    def _send_wal(self, start: Lsn, data: bytes) -> None:
        header = struct.pack("!cQQQ", b"w", start, self._feed.position, _now())
        self._send(header + data)
        self._walsender.sent_lsn = Lsn(start + len(data))

    def _send_keepalive(self) -> None:
        self._send(struct.pack("!cQQB", b"k", self._feed.position, _now(), 0))

    def _send(self, body: bytes) -> None:
        self._socket.sendall(protocol.copy_data(body))
        self._sent_at = time.monotonic()

    def _has_client_ended(self, wait_s: float) -> bool:
        """Read what the standby sends within a time. Return whether it has ended the stream."""
        while select.select([self._socket], [], [], wait_s)[0]:
            kind, body = protocol.read_message(self._socket)
            if kind == b"c":
                return True
            if kind != b"d":
                raise protocol.ProtocolError(f"unexpected message type {kind!r} in a stream")
            if body[:1] == b"r" and body[-1]:  # a status that requests a reply
                self._send_keepalive()
            wait_s = 0.0
        return False

    def _finish(self) -> bool:
        """End the stream, and wait for the standby to agree."""
        self._socket.sendall(protocol.COPY_DONE)
        while not self._stopping.is_set():
            if self._has_client_ended(_LONGEST_WAIT):
                return True
        return False


def _now() -> int:
    return int((time.time() - EPOCH_SHIFT_S) * 1_000_000)
