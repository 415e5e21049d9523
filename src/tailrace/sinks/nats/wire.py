"""NATS's protocol, as much as a publisher needs: a connection, requests, publishing with acknowledgements in a pipe.

Written here because of speed: nats-py publishes 15,000 acknowledged messages a second, one socket with frames that were
made in Arrow several times that (docs/decisions.md). A connection that fails is not mended: the sink opens another.
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
"""Messages on their way: what the server takes in some 50 ms, so it never waits for us, and never holds much."""
_PATIENCE_S: Final = 10.0
"""Without an answer: a server that is alive has answered long before."""
_SEND_BYTES: Final = 256 * 1024
_RECEIVE_BYTES: Final = 256 * 1024
_CREDENTIALS: Final = "a file as nsc writes it"
_BLOCKED: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Message(NamedTuple):
    subject: bytes
    reply: bytes
    """Where an answer is to go, if one is wanted."""
    status: int
    """Of a message that is only a status, such as 503: nobody takes this subject; else 0."""
    headers: bytes
    """As the protocol has them; empty where there are none."""
    payload: memoryview


class NotTaken(Exception):
    """Some message that the stream did not take: what the server says; and how many others it took."""

    def __init__(self, taken: int, code: int, words: str) -> None:
        super().__init__(taken, code, words)
        self.taken, self.code, self.words = taken, code, words


class Wire:
    """One connection. Not for several threads."""

    def __init__(self, options: NatsOptions, name: str, listen: str = "") -> None:
        """`listen`: a subject whose messages `next` gives."""
        self._heard: deque[Message] = deque()
        self._buffer = b""
        self._inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._requests = 0
        self._is_pinged = False
        self._socket, self.info = _connected(options, name)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._send(b"SUB %b.* 1\r\n" % self._inbox.encode())
        if listen:
            self._send(b"SUB %b 2\r\n" % listen.encode())

    @property
    def max_payload(self) -> int:
        return int(self.info.get("max_payload", 1 << 20))

    @property
    def acknowledgements(self) -> str:
        """The subject to which they go, of frames that `publish` is given."""
        return f"{self._inbox}.ack"

    def close(self) -> None:
        self._socket.close()

    def ask(self, subject: str, question: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One of JetStream's own questions, its answer; an error is in it."""
        (answer,) = self.ask_many([(subject, question)])
        return answer

    def keep(self) -> None:
        """Answer what the server asked meanwhile: it gives up on who does not."""
        self._poll.modify(self._socket, select.POLLIN)
        while self._poll.poll(0):
            self._receive(lambda _: None)
        self._answer_ping()

    def next(self, seconds: float) -> Message | None:
        """The next that was listened for, if one comes in time."""
        if not self._heard:
            self._answer_ping()
            self._poll.modify(self._socket, select.POLLIN)
            if self._poll.poll(seconds * 1000):
                self._receive(lambda _: None)
        return self._heard.popleft() if self._heard else None

    def say(self, subject: str, payload: bytes) -> None:
        """To whoever listens now."""
        self._send(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))

    def tell(self, subject: str, payload: bytes, id: str = "") -> dict[str, Any]:
        """One message, by itself: the stream's answer. With an id, of several that have it the stream takes one."""
        (answer,) = self._exchange([(subject, payload)], f"NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n" if id else "")
        return answer

    def ask_many(self, questions: list[tuple[str, Mapping[str, Any] | None]]) -> list[dict[str, Any]]:
        """All at once; answers in their order."""
        return self._exchange([(s, b"" if q is None else json.dumps(q).encode()) for s, q in questions])

    def _exchange(self, questions: Sequence[tuple[str, bytes]], headers: str = "") -> list[dict[str, Any]]:
        first = self._requests
        frames = bytearray()
        for subject, text in questions:
            reply = f"{self._inbox}.{self._requests}"
            sizes = f"{len(headers.encode())} {len(headers.encode()) + len(text)}" if headers else f"{len(text)}"
            frames += f"{'H' if headers else ''}PUB {subject} {reply} {sizes}\r\n{headers}".encode() + text + b"\r\n"
            self._requests += 1
        answers: dict[int, dict[str, Any]] = {}

        def heed(message: Message) -> None:
            if message.status == 503:
                raise SinkError("JetStream does not answer", "is it enabled? nats-server needs -js, or jetstream {}")
            token = message.subject.rpartition(b".")[2]
            if token.isdigit():
                answers[int(token)] = json.loads(bytes(message.payload))

        self._send(bytes(frames))
        while len(answers) < len(questions):
            self._receive(heed)
            self._answer_ping()
        return [answers[first + i] for i in range(len(questions))]

    def publish(self, data: memoryview, ends: I64, *, again: bool = False) -> int:
        """Frames end to end, and where each ends. Returns when the stream has them all, the number of the last there;
        else `NotTaken`, when all that was sent has its answer. `again`: some may be there already."""
        sent = acknowledged = refused = 0
        refusal = last = b""

        def heed(message: Message) -> None:
            nonlocal acknowledged, refused, refusal, last
            if not message.subject.endswith(b".ack"):
                return
            words = bytes(message.payload) or b'{"error": {"code": %d}}' % message.status
            acknowledged += 1
            if b'"error"' not in words and (again or b'"duplicate"' not in words):
                last = words
                return
            refused += 1
            refusal = refusal or words

        while acknowledged < len(ends):
            begun = self._whole(ends, sent)
            if refusal and sent == begun and acknowledged == int(np.searchsorted(ends, sent, "right")):
                break  # nothing is sent after it, except the rest of what was begun; what was sent has its answer
            if sent == begun:
                self._answer_ping()
            upto = begun if refusal else int(ends[min(acknowledged + WINDOW, len(ends)) - 1])
            if sent < upto:
                sent += self._write(data[sent : begun if self._is_pinged else min(upto, sent + _SEND_BYTES)])
            self._receive(heed, wait=sent >= upto, writing=sent < upto)
        if refusal:
            raise _not_taken(acknowledged - refused, refusal)
        return int(json.loads(last)["seq"])

    def _answer_ping(self) -> None:
        """Never inside a frame."""
        if self._is_pinged:
            self._send(b"PONG\r\n")
            self._is_pinged = False

    @staticmethod
    def _whole(ends: I64, sent: int) -> int:
        """Where the frame ends that is on its way."""
        return int(ends[int(np.searchsorted(ends, sent))]) if sent and sent < ends[-1] else sent

    def _write(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except _BLOCKED:
            return 0
        except OSError as error:
            raise _lost(error) from error

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not (done := self._write(view)):
                self._await(writing=True)
            view = view[done:]

    def _await(self, *, writing: bool) -> None:
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if writing else 0))
        if not self._poll.poll(_PATIENCE_S * 1000):
            raise SinkError("the NATS server has gone silent", "it is connected again")

    def _receive(self, heed: Callable[[Message], None], *, wait: bool = True, writing: bool = False) -> None:
        """What has arrived, message by message."""
        if (wait or writing) and not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            self._await(writing=writing)
        try:
            arrived = self._socket.recv(_RECEIVE_BYTES)
        except _BLOCKED:
            return
        except OSError as error:
            raise _lost(error) from error
        if not arrived:
            raise SinkError("the NATS server closed the connection", "it is connected again")
        self._buffer = self._parsed(self._buffer + arrived, heed)

    def _parsed(self, data: bytes, heed: Callable[[Message], None]) -> bytes:
        """What is left of it: the beginning of something."""
        at = 0
        view = memoryview(data)
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split(b" ")
                begins, stops = end + 2, end + 2 + int(words[-1])
                if len(data) < stops + 2:
                    break
                at = stops + 2
                status, raw = 0, b""
                if words[0] == b"HMSG":
                    raw = data[begins : begins + int(words[-2])]
                    begins += int(words[-2])
                    status = int(found[1]) if (found := re.match(rb"NATS/1\.0 (\d+)", raw)) else 0
                reply = words[3] if len(words) == (5 if words[0] == b"MSG" else 6) else b""
                message = Message(words[1], reply, status, raw, view[begins:stops])
                heed(message) if words[2] == b"1" else self._heard.append(message)
                continue
            at = end + 2
            if line == b"PING":
                self._is_pinged = True
            elif line.startswith(b"-ERR"):
                raise _refused(line[5:].decode(errors="replace").strip("'"))
        return data[at:]


def headers(raw: bytes) -> dict[str, str]:
    return dict(re.findall(r"^([^:\r\n]+): ?([^\r\n]*)", raw.decode(errors="replace"), re.MULTILINE))


def _not_taken(taken: int, words: bytes) -> NotTaken:
    raw = json.loads(words)
    if raw.get("duplicate"):
        return NotTaken(taken, 0, f"the stream has it already, at {raw['seq']}")
    error = raw["error"]
    if error["code"] == 503 and "err_code" not in error:
        return NotTaken(taken, 503, "no stream takes its subject")
    return NotTaken(taken, int(error.get("err_code", error["code"])), str(error.get("description", "")))


def _connected(options: NatsOptions, name: str) -> tuple[socket.socket, dict[str, Any]]:
    """To the first server that answers."""
    failures: list[SinkError] = []
    for host, port, is_tls in options.servers:
        try:
            connection = socket.create_connection((host, port), timeout=_PATIENCE_S)
        except OSError as error:
            failures.append(SinkError(f"{host}:{port}: {error}", "is the NATS server running?"))
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
                f"{host}:{port}: {error}", "`tls_ca` names who signed its certificate, and `url` the name that is in it"
            ) from error
        except OSError as error:
            connection.close()
            failures.append(_lost(error))
        except BaseException:
            connection.close()
            raise
    raise failures[-1]


def _info(connection: socket.socket) -> dict[str, Any]:
    line = _line(connection)
    if not line.startswith(b"INFO "):
        raise SinkRefused("who answers is no NATS server", "is it the port for clients? 4222 as a rule")
    found: dict[str, Any] = json.loads(line[5:])
    if not found.get("headers"):
        raise SinkRefused(f"NATS {found.get('version')} knows no headers", "2.2 or newer does")
    return found


def _introduce(connection: socket.socket, options: NatsOptions, name: str, info: Mapping[str, Any]) -> None:
    """CONNECT, and a PING whose answer says that it was accepted."""
    about = {
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
    connection.sendall(b"CONNECT %b\r\nPING\r\n" % json.dumps(about).encode())
    while (line := _line(connection)) != b"PONG":
        if line.startswith(b"-ERR"):
            raise _refused(line[5:].decode(errors="replace").strip("'"))


def _credentials(options: NatsOptions, nonce: str) -> dict[str, str]:
    if options.credentials is not None:
        try:
            text = options.credentials.read_text()
        except OSError as error:
            raise ConfigError(
                f"credentials {options.credentials}: {error.strerror}", "a file as nsc writes it"
            ) from None
        found = re.findall(r"-+BEGIN [^-]+-+\s*(\S+)\s*-+END", text)
        if len(found) != 2:
            raise ConfigError(f"credentials {options.credentials}: no JWT and seed in it", _CREDENTIALS)
        return {"jwt": found[0], "sig": _signed(found[1], nonce)[1]}
    if options.nkey is not None:
        public, signature = _signed(options.nkey.reveal(), nonce)
        return {"nkey": public, "sig": signature}
    if options.token is not None:
        return {"auth_token": options.token.reveal()}
    if options.user:
        return {"user": options.user, "pass": options.password.reveal() if options.password is not None else ""}
    return {}


def _signed(seed: str, nonce: str) -> tuple[str, str]:
    """The public key, and the signature under what the server asked to sign."""
    try:
        import nkeys
    except ImportError:
        raise ConfigError("nkeys is not installed", "pip install 'tailrace[nats]'") from None
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        return pair.public_key.decode(), base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
    except (nkeys.NkeysError, ValueError):
        raise ConfigError("the seed is no nkey of a user's", "it begins with SU") from None


def _line(connection: socket.socket) -> bytes:
    """Byte for byte: what follows may have to go through TLS."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise SinkError("the NATS server closed the connection", "is it TLS that it expects? then url is tls://…")
        line += byte
    return bytes(line[:-2])


def _refused(words: str) -> SinkError | SinkRefused:
    # What has expired or took too long is not refused yet: it is when it is connected again.
    if re.search("authorization|permissions", words, re.IGNORECASE):
        return SinkRefused(
            f"NATS: {words}",
            "check user and password, token, nkey or credentials (have they expired?), and their permissions",
        )
    return SinkError(f"NATS: {words}", "it is connected again")


def _lost(error: OSError) -> SinkError:
    return SinkError(f"the connection to NATS broke off: {error}", "it is connected again")
