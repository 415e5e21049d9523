"""A NATS client with what a publisher needs: connecting, requests, and pipelined publishing with acknowledgements.

Tailrace has its own for speed: nats-py publishes 15,000 acknowledged messages a second, one socket with frames made in
Arrow several times that (docs/decisions.md). A failed connection is not repaired: the sink opens another.
"""

from __future__ import annotations

import base64
import json
import re
import select
import socket
import ssl
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.errors import ConfigError, SinkError, SinkRefused
from tailrace.sinks.nats.options import NatsOptions

I64 = npt.NDArray[np.int64]

WINDOW: Final = 4096
"""Messages in flight. The server needs about 50 ms for as many, so it never waits for us and never buffers much."""
_TIMEOUT_S: Final = 10.0
"""How long to wait for an answer. A live server answers much sooner."""
_SEND_BYTES: Final = 256 * 1024
_RECEIVE_BYTES: Final = 256 * 1024
_CREDENTIALS_HINT: Final = "credentials is a file written by nsc"
_RECONNECTING: Final = "Reconnecting automatically."
_BLOCKED: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class NatsMessage(NamedTuple):
    subject: bytes
    reply: bytes
    """The subject to answer to; empty if no answer is expected."""
    status: int
    """The code of a status message, such as 503 (no responders); 0 for other messages."""
    headers: bytes
    """Encoded, for `parse_headers`; empty if there are none."""
    payload: memoryview


class PublishRejected(Exception):
    """The stream rejected a message: the server's error, and how many other messages the stream accepted."""

    def __init__(self, accepted: int, code: int, reason: str) -> None:
        super().__init__(accepted, code, reason)
        self.accepted, self.code, self.reason = accepted, code, reason


class NatsClient:
    """One connection to a NATS server. Not thread-safe."""

    def __init__(self, options: NatsOptions, name: str, subscribe: str = "") -> None:
        """Connect to the first server that answers.

        Args:
            options: Servers and credentials.
            name: Identifies the connection in the server's monitoring.
            subscribe: A subject whose messages `next_message` returns.
        """
        self._messages: deque[NatsMessage] = deque()
        self._buffer = b""
        self._inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._requests = 0
        self._is_ping_pending = False
        self._socket, self.info = _connect(options, name)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._write_all(b"SUB %b.* 1\r\n" % self._inbox.encode())
        if subscribe:
            self._write_all(b"SUB %b 2\r\n" % subscribe.encode())

    @property
    def max_payload(self) -> int:
        return int(self.info.get("max_payload", 1 << 20))

    @property
    def ack_subject(self) -> str:
        """The reply subject for the frames given to `publish_frames`."""
        return f"{self._inbox}.ack"

    def close(self) -> None:
        self._socket.close()

    def request(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a JetStream API request and return the answer, which may be an error."""
        (answer,) = self.request_many([(subject, body)])
        return answer

    def request_many(self, requests: list[tuple[str, Mapping[str, Any] | None]]) -> list[dict[str, Any]]:
        """Send several requests at once and return the answers in the same order."""
        return self._exchange([(s, b"" if body is None else json.dumps(body).encode()) for s, body in requests])

    def keep_alive(self) -> None:
        """Answer the server's pings: it disconnects clients that do not."""
        self._poll.modify(self._socket, select.POLLIN)
        while self._poll.poll(0):
            self._receive(lambda _: None)
        self._answer_ping()

    def next_message(self, timeout: float) -> NatsMessage | None:
        """Return the next message of the subscription, or None if none arrives within `timeout` seconds."""
        if not self._messages:
            self._answer_ping()
            self._poll.modify(self._socket, select.POLLIN)
            if self._poll.poll(timeout * 1000):
                self._receive(lambda _: None)
        return self._messages.popleft() if self._messages else None

    def send(self, subject: str, payload: bytes) -> None:
        """Publish a message without waiting for an acknowledgement."""
        self._write_all(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))

    def publish(
        self, subject: str, payload: bytes, id: str = "", headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Publish one message to a stream and return the stream's answer. Of several messages with the same `id` the
        stream stores one."""
        lines = [
            f"{name}: {value}" for name, value in {**({"Nats-Msg-Id": id} if id else {}), **(headers or {})}.items()
        ]
        text = "\r\n".join(["NATS/1.0", *lines, "", ""]) if lines else ""
        (answer,) = self._exchange([(subject, payload)], text)
        return answer

    def _exchange(self, requests: Sequence[tuple[str, bytes]], headers: str = "") -> list[dict[str, Any]]:
        first = self._requests
        frames = bytearray()
        for subject, payload in requests:
            reply = f"{self._inbox}.{self._requests}"
            sizes = f"{len(headers.encode())} {len(headers.encode()) + len(payload)}" if headers else f"{len(payload)}"
            frames += f"{'H' if headers else ''}PUB {subject} {reply} {sizes}\r\n{headers}".encode() + payload + b"\r\n"
            self._requests += 1
        answers: dict[int, dict[str, Any]] = {}

        def handle(message: NatsMessage) -> None:
            if message.status == 503:
                raise SinkError(
                    "JetStream does not answer", "Is it enabled? Start nats-server with -js or configure jetstream {}."
                )
            token = message.subject.rpartition(b".")[2]
            if token.isdigit():
                answers[int(token)] = json.loads(bytes(message.payload))

        self._write_all(bytes(frames))
        while len(answers) < len(requests):
            self._receive(handle)
            self._answer_ping()
        return [answers[first + i] for i in range(len(requests))]

    def publish_frames(self, data: memoryview, ends: I64, duplicates: list[int] | None = None) -> int:
        """Publish frames and wait until the stream has stored them all.

        Args:
            data: The frames, one after the other, with `ack_subject` as their reply subject.
            ends: The offset at which each frame ends.
            duplicates: A list to which the sequences of messages are added that the stream already held. None: such
                a message counts as rejected.

        Returns the sequence of the last message. Raises PublishRejected once all messages sent are answered.
        """
        sent = answered = rejected = 0
        rejection = last = b""

        def handle(message: NatsMessage) -> None:
            nonlocal answered, rejected, rejection, last
            if not message.subject.endswith(b".ack"):
                return
            answer = bytes(message.payload) or b'{"error": {"code": %d}}' % message.status
            answered += 1
            is_duplicate = b'"duplicate"' in answer
            if b'"error"' not in answer and (duplicates is not None or not is_duplicate):
                last = answer
                if duplicates is not None and is_duplicate:
                    duplicates.append(int(json.loads(answer)["seq"]))
                return
            rejected += 1
            rejection = rejection or answer

        while answered < len(ends):
            frame_end = self._frame_end(ends, sent)
            if rejection and sent == frame_end and answered == int(np.searchsorted(ends, sent, "right")):
                break  # after a rejection only the rest of the current frame is sent, and all frames are answered
            if sent == frame_end:
                self._answer_ping()
            limit = frame_end if rejection else int(ends[min(answered + WINDOW, len(ends)) - 1])
            if sent < limit:
                sent += self._write(data[sent : frame_end if self._is_ping_pending else min(limit, sent + _SEND_BYTES)])
            self._receive(handle, wait=sent >= limit, writing=sent < limit)
        if rejection:
            raise _rejection(answered - rejected, rejection)
        return int(json.loads(last)["seq"])

    def _answer_ping(self) -> None:
        """Answer a pending ping. Must not be called while a frame is partly written."""
        if self._is_ping_pending:
            self._write_all(b"PONG\r\n")
            self._is_ping_pending = False

    @staticmethod
    def _frame_end(ends: I64, sent: int) -> int:
        """Return the offset at which the partly sent frame ends."""
        return int(ends[int(np.searchsorted(ends, sent))]) if sent and sent < ends[-1] else sent

    def _write(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except _BLOCKED:
            return 0
        except OSError as error:
            raise _connection_error(error) from error

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not (written := self._write(view)):
                self._wait(writing=True)
            view = view[written:]

    def _wait(self, *, writing: bool) -> None:
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if writing else 0))
        if not self._poll.poll(_TIMEOUT_S * 1000):
            raise SinkError(f"the NATS server did not answer within {_TIMEOUT_S:.0f} s", _RECONNECTING)

    def _receive(self, handle: Callable[[NatsMessage], None], *, wait: bool = True, writing: bool = False) -> None:
        """Read from the socket and pass the answers that arrived to `handle`."""
        if (wait or writing) and not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            self._wait(writing=writing)
        try:
            arrived = self._socket.recv(_RECEIVE_BYTES)
        except _BLOCKED:
            return
        except OSError as error:
            raise _connection_error(error) from error
        if not arrived:
            raise SinkError("the NATS server closed the connection", _RECONNECTING)
        self._buffer = self._parse(self._buffer + arrived, handle)

    def _parse(self, data: bytes, handle: Callable[[NatsMessage], None]) -> bytes:
        """Parse complete messages and return the rest of the data, the start of an incomplete one."""
        offset = 0
        view = memoryview(data)
        while (end := data.find(b"\r\n", offset)) >= 0:
            line = data[offset:end]
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split(b" ")
                payload_start, payload_end = end + 2, end + 2 + int(words[-1])
                if len(data) < payload_end + 2:
                    break
                offset = payload_end + 2
                status, raw = 0, b""
                if words[0] == b"HMSG":
                    raw = data[payload_start : payload_start + int(words[-2])]
                    payload_start += int(words[-2])
                    status = int(match[1]) if (match := re.match(rb"NATS/1\.0 (\d+)", raw)) else 0
                reply = words[3] if len(words) == (5 if words[0] == b"MSG" else 6) else b""
                message = NatsMessage(words[1], reply, status, raw, view[payload_start:payload_end])
                handle(message) if words[2] == b"1" else self._messages.append(message)
                continue
            offset = end + 2
            if line == b"PING":
                self._is_ping_pending = True
            elif line.startswith(b"-ERR"):
                raise _server_error(line[5:].decode(errors="replace").strip("'"))
        return data[offset:]


def parse_headers(raw: bytes) -> dict[str, str]:
    return dict(re.findall(r"^([^:\r\n]+): ?([^\r\n]*)", raw.decode(errors="replace"), re.MULTILINE))


def _rejection(accepted: int, answer: bytes) -> PublishRejected:
    raw = json.loads(answer)
    if raw.get("duplicate"):
        return PublishRejected(accepted, 0, f"the stream already has this message, at sequence {raw['seq']}")
    error = raw["error"]
    if error["code"] == 503 and "err_code" not in error:
        return PublishRejected(accepted, 503, "no stream accepts its subject")
    return PublishRejected(accepted, int(error.get("err_code", error["code"])), str(error.get("description", "")))


def _connect(options: NatsOptions, name: str) -> tuple[socket.socket, dict[str, Any]]:
    """Connect to the first server that answers."""
    failures: list[SinkError] = []
    for host, port, is_tls in options.servers:
        try:
            connection = socket.create_connection((host, port), timeout=_TIMEOUT_S)
        except OSError as error:
            failures.append(SinkError(f"{host}:{port}: {error}", "Is the NATS server running?"))
            continue
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            info = _info(connection)
            if is_tls or info.get("tls_required"):
                context = ssl.create_default_context(cafile=options.tls_ca)
                connection = context.wrap_socket(connection, server_hostname=host)
            _introduce(connection, options, name, info)
            return connection, info
        except ssl.SSLError as error:
            connection.close()
            raise SinkRefused(
                f"{host}:{port}: {error}",
                "Set `tls_ca` to the authority that signed the server's certificate, and use the host name in the"
                " certificate in `url`.",
            ) from error
        except OSError as error:
            connection.close()
            failures.append(_connection_error(error))
        except BaseException:
            connection.close()
            raise
    raise failures[-1]


def _info(connection: socket.socket) -> dict[str, Any]:
    line = _line(connection)
    if not line.startswith(b"INFO "):
        raise SinkRefused("the server is not a NATS server", "Is this the client port? The default is 4222.")
    info: dict[str, Any] = json.loads(line[5:])
    if not info.get("headers"):
        raise SinkRefused(f"NATS {info.get('version')} does not support headers", "Upgrade to 2.2 or newer.")
    return info


def _introduce(connection: socket.socket, options: NatsOptions, name: str, info: Mapping[str, Any]) -> None:
    """Send CONNECT, and a PING whose answer confirms that the server accepted it."""
    parameters = {
        "verbose": False,
        "pedantic": False,
        "lang": "python",
        "version": "1",
        "name": f"tailrace {name}",
        "protocol": 1,
        "headers": True,
        "no_responders": True,
        **_credentials(options, str(info.get("nonce", ""))),
    }
    connection.sendall(b"CONNECT %b\r\nPING\r\n" % json.dumps(parameters).encode())
    while (line := _line(connection)) != b"PONG":
        if line.startswith(b"-ERR"):
            raise _server_error(line[5:].decode(errors="replace").strip("'"))


def _credentials(options: NatsOptions, nonce: str) -> dict[str, str]:
    if options.credentials is not None:
        try:
            text = options.credentials.read_text()
        except OSError as error:
            raise ConfigError(f"credentials {options.credentials}: {error.strerror}", _CREDENTIALS_HINT) from None
        sections = re.findall(r"-+BEGIN [^-]+-+\s*(\S+)\s*-+END", text)
        if len(sections) != 2:
            raise ConfigError(f"credentials {options.credentials}: it contains no JWT and seed", _CREDENTIALS_HINT)
        return {"jwt": sections[0], "sig": _sign(sections[1], nonce)[1]}
    if options.nkey is not None:
        public, signature = _sign(options.nkey.reveal(), nonce)
        return {"nkey": public, "sig": signature}
    if options.token is not None:
        return {"auth_token": options.token.reveal()}
    if options.user:
        return {"user": options.user, "pass": options.password.reveal() if options.password is not None else ""}
    return {}


def _sign(seed: str, nonce: str) -> tuple[str, str]:
    """Return the public key, and the signature of the server's nonce."""
    try:
        import nkeys
    except ImportError:
        raise ConfigError("nkeys is not installed", "run pip install 'tailrace[nats]'") from None
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        return pair.public_key.decode(), base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
    except (nkeys.NkeysError, ValueError):
        raise ConfigError("the seed is not a user's nkey", "a user's seed begins with SU") from None


def _line(connection: socket.socket) -> bytes:
    """Read a line, byte by byte: what follows may already be TLS."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise SinkError("the NATS server closed the connection", "Does it expect TLS? Then use tls://… in `url`.")
        line += byte
    return bytes(line[:-2])


def _server_error(reason: str) -> SinkError | SinkRefused:
    # Expired credentials and timeouts are worth a retry: if they are final, the server refuses the next connection.
    if re.search("authorization|permissions", reason, re.IGNORECASE):
        return SinkRefused(
            f"NATS: {reason}",
            "Check user and password, token, nkey or credentials (have they expired?), and their permissions.",
        )
    return SinkError(f"NATS: {reason}", _RECONNECTING)


def _connection_error(error: OSError) -> SinkError:
    return SinkError(f"the connection to NATS was lost: {error}", _RECONNECTING)
