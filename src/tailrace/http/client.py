"""A keep-alive HTTP/1.1 connection to a server that is not trusted.

One deadline covers a whole exchange: connecting, sending, and reading the answer, however slowly it comes. The answer's
body is read up to a limit. Redirects are not followed, and proxies in the environment are not used: the
addresses that were checked are those that get the request.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, cast

from tailrace.errors import SinkError, SinkRefused
from tailrace.http import address
from tailrace.http.origin import Origin, TlsFiles

_MOST_BODY_BYTES: Final = 64 * 1024
"""How much of an answer's body is read where the status says what has to be known."""
_INTERIM: Final = (102, 103)
"""Answers that another one follows. `HTTPResponse` itself skips 100."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t -~]*")
_TARGET: Final = re.compile(r"[!-~]+")
_CERTIFICATE_ALERT: Final = re.compile(r"ALERT.*(CERT|UNKNOWN_CA|ACCESS_DENIED)")
"""OpenSSL's reason when the server rejects the client's certificate, or requires one."""


class NoConnection(SinkError):
    """Nothing was sent."""


class NoAnswer(SinkError):
    """The request was sent, at least in part, and there is no answer: what the receiver did with it is unknown."""


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    """With names in lower case."""
    body: bytes
    is_whole: bool = True
    """Whether `body` is all of it, and not only the beginning."""


class HttpClient:
    """One connection, made when it is needed. One thread uses it at a time."""

    def __init__(
        self, origin: Origin, tls: TlsFiles, *, allow_private: bool, most_body_bytes: int = _MOST_BODY_BYTES
    ) -> None:
        self._origin = origin
        self._most_body_bytes = most_body_bytes
        self._context = tls.context() if origin.is_encrypted else None
        self._allow_private = allow_private
        self._socket: socket.socket | None = None

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> HttpAnswer:
        """Send a request and return the answer.

        Args:
            method: Such as POST.
            target: Path and query.
            headers: Without `host` and `content-length`.
            body: The whole body.
            timeout_s: The time for all of it.

        Raises NoConnection, NoAnswer, or a SinkRefused if TLS or the address is refused.
        """
        request = self._encode(method, target, headers, len(body)) + body
        deadline = time.monotonic() + timeout_s
        if self._is_usable():
            # The server may close an idle connection at this moment. It has not seen the request then.
            with suppress(_Stale):
                return self._exchange(method, request, deadline, is_reused=True)
        self._socket = self._connect(deadline)
        return self._exchange(method, request, deadline, is_reused=False)

    def connect(self, timeout_s: float) -> None:
        """Connect, and verify the server's certificate."""
        self.close()
        self._socket = self._connect(time.monotonic() + timeout_s)

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
        self._socket = None

    def _is_usable(self) -> bool:
        """Whether there is a connection that the server has neither closed nor sent anything on. Bytes that nobody
        asked for would pass for the next answer."""
        if self._socket is None:
            return False
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        self.close()
        return False

    def _encode(self, method: str, target: str, headers: Mapping[str, str], length: int) -> bytes:
        """Return the request's head. No value can end its line, whatever a row holds."""
        lines = [f"{method} {target} HTTP/1.1", f"host: {self._origin.host_header}", f"content-length: {length}"]
        assert _NAME.fullmatch(method), "the method is checked with the settings"
        assert _TARGET.fullmatch(target), "the target is percent-encoded"
        for name, value in headers.items():
            assert _NAME.fullmatch(name), f"{name!r} is not a header"
            assert _VALUE.fullmatch(value), f"the value of {name} is percent-encoded"
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _connect(self, deadline: float) -> socket.socket:
        origin = self._origin
        error: OSError | None = None
        candidates = address.resolve(origin.host, origin.port, allow_private=self._allow_private)
        for number, candidate in enumerate(candidates):
            made = socket.socket(candidate.family, socket.SOCK_STREAM)
            try:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # An address that does not answer leaves time for the others.
                made.settimeout(_remaining(deadline) / (len(candidates) - number))
                made.connect(candidate.target)
                made.settimeout(_remaining(deadline))
                return self._wrap(made)
            except ssl.SSLError as failure:
                made.close()
                raise _tls_error(origin, failure) from None
            except OSError as failure:
                made.close()
                error = failure
        reason = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or error
        raise NoConnection(f"{origin}: cannot connect: {reason}", "Retrying until the receiver is back.") from None

    def _wrap(self, made: socket.socket) -> socket.socket:
        if self._context is None:
            return made
        # The name that the certificate must have is the URL's, whatever address was connected to.
        return self._context.wrap_socket(made, server_hostname=self._origin.host)

    def _exchange(self, method: str, request: bytes, deadline: float, *, is_reused: bool) -> HttpAnswer:
        assert self._socket is not None
        reader = _DeadlineReader(self._socket, deadline)
        try:
            self._socket.settimeout(_remaining(deadline))
            with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                # A receiver may answer and close before it has read everything, for example 413. If it rejects the
                # client's certificate, the alert that says so is still to be read.
                self._socket.sendall(request)
            return self._read(method, reader)
        except (OSError, HTTPException) as error:
            self.close()
            is_timeout = isinstance(error, TimeoutError)
            if is_reused and not reader.has_read and not is_timeout:
                raise _Stale from None
            if isinstance(error, ssl.SSLError) and not is_timeout:
                raise _tls_error(self._origin, error) from None
            reason = "there was no complete answer in time" if is_timeout else "the connection was closed"
            if isinstance(error, HTTPException) and reader.has_read:
                reason = "the answer is not HTTP"
            raise NoAnswer(f"{self._origin}: {reason}", "Retrying.") from None
        except BaseException:
            self.close()
            raise

    def _read(self, method: str, reader: _DeadlineReader) -> HttpAnswer:
        source = cast(Any, _ResponseSource(reader))
        response = HTTPResponse(source, method=method)
        try:
            response.begin()
            while response.status in _INTERIM:
                response.fp = None  # type: ignore[assignment]  # or it would be closed with this answer
                response = HTTPResponse(source, method=method)
                response.begin()
            headers = {name.lower(): value for name, value in response.getheaders()}
            body = b""
            try:
                body = response.read(self._most_body_bytes)
                is_whole = response.isclosed() or not response.read(1)
            except (OSError, HTTPException):
                is_whole = False  # the status has been read, and it counts
            if response.will_close or not is_whole:
                self.close()
            return HttpAnswer(response.status, headers, body, is_whole)
        finally:
            response.close()


class _Stale(Exception):
    """An idle connection was closed by the server."""


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until a deadline, however few bytes come at a time."""

    def __init__(self, source: socket.socket, deadline: float) -> None:
        self._source = source
        self._deadline = deadline
        self.has_read = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._source.settimeout(_remaining(self._deadline))
        count = self._source.recv_into(buffer)
        self.has_read |= count > 0
        return count


class _ResponseSource:
    """What `HTTPResponse` takes for a socket."""

    def __init__(self, reader: _DeadlineReader) -> None:
        self._buffered = io.BufferedReader(reader)

    def makefile(self, _mode: str) -> io.BufferedIOBase:
        return self._buffered


def _remaining(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _tls_error(origin: Origin, error: ssl.SSLError) -> SinkError | SinkRefused:
    reason = getattr(error, "verify_message", None) or error.reason or "the connection was closed"
    if isinstance(error, ssl.SSLCertVerificationError):
        return SinkRefused(
            f"{origin}: certificate verify failed: {reason}",
            "The certificate must be valid for the URL's host. tls_ca names the authority, if the machine does not"
            " know it.",
        )
    if _CERTIFICATE_ALERT.search(error.reason or ""):
        return SinkRefused(
            f"{origin}: the receiver rejects the client's certificate: {reason}",
            "Set tls_certificate and tls_key to a certificate that it accepts.",
        )
    return NoConnection(f"{origin}: TLS failed: {reason}", "Retrying. Does the port speak TLS?")
