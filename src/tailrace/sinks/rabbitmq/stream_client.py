"""A client of RabbitMQ's stream protocol with what a publisher needs: requests, pipelined publishing, reading chunks.

Tailrace has its own for speed: it sends entries that are made in Arrow as they are (docs/decisions.md).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.rabbitmq import stream_frame
from tailrace.sinks.rabbitmq.broker_connection import HEARTBEAT_S, RECONNECTING, BrokerConnection
from tailrace.sinks.rabbitmq.options import RabbitMqOptions
from tailrace.sinks.rabbitmq.stream_frame import Code, FrameReader, Key, StreamChunk

MAX_PUBLISHERS: Final = 200
"""The protocol numbers the publishers of a connection with one byte. Other clients stop at 200 too."""
_ANSWER_S: Final = 30.0
"""How long to wait for an answer. Creating a stream in a cluster takes seconds."""
_CONFIRM_S: Final = 60.0
"""How long to wait for the next confirmation. A broker that is low on memory or disk confirms nothing."""
_CHUNK_S: Final = 5.0
"""How long to wait for a chunk once the broker answered a later request: it sends the chunk first."""
_SUBSCRIPTION: Final = 1
_LAST, _OFFSET = 2, 4
_ALARM_HINT: Final = f"Is it low on memory or disk (`rabbitmq-diagnostics alarms`)? {RECONNECTING}"
_LOGIN_HINT: Final = "Check user and password, or the certificate, and that the user may log in from this host."


class EntryFrame(NamedTuple):
    """Messages of one publisher that are sent together."""

    publisher: int
    entries: memoryview
    messages: int


class StreamClient:
    """One connection to a broker's stream port. Not thread-safe."""

    def __init__(self, options: RabbitMqOptions, name: str) -> None:
        """Connect and log in.

        Args:
            options: Nodes, credentials and vhost.
            name: Identifies the connection in the broker's monitoring.
        """
        self._buffer = b""
        self._correlation = 0
        self._answers: dict[int, FrameReader] = {}
        self._chunks: list[StreamChunk] = []
        self._confirmed = 0
        self._is_tuned = False
        self._publishers: dict[int, str] = {}
        self.max_frame_bytes = 0
        """0: the broker sets no limit."""
        self._connection = BrokerConnection(options, options.addresses(is_stream=True))
        try:
            self._log_in(options, name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def keep_alive(self) -> None:
        """Read what arrived since. Raises a SinkError if the broker closed the connection."""
        while self._receive(0):
            pass

    def existing(self, streams: Sequence[str]) -> dict[str, bool]:
        """Return which of these streams exist. One that exists may have no leader at the moment."""
        answer = self._request(Key.METADATA, stream_frame.texts(streams))
        for _ in range(answer.u32()):
            answer.u16(), answer.text(), answer.u32()
        found = {}
        for _ in range(answer.u32()):
            stream, code, _ = answer.text(), answer.u16(), answer.u16()
            found[stream] = code != Code.STREAM_DOES_NOT_EXIST
            for _ in range(answer.u32()):
                answer.u16()
        return found

    def create(self, stream: str, arguments: Mapping[str, str]) -> None:
        """Create a stream, unless it exists."""
        answer = self._request(Key.CREATE, stream_frame.text(stream) + stream_frame.properties(arguments))
        code = answer.u16()
        if code == Code.PRECONDITION_FAILED:
            raise SinkRefused(f"RabbitMQ does not create the stream {stream}", "See its log. Is the name allowed?")
        if code != Code.STREAM_ALREADY_EXISTS:
            _check(code, f"stream {stream}")

    def sequence(self, reference: str, stream: str) -> int:
        """Return the last publishing id of a publisher in a stream; 0 if it has none."""
        content = stream_frame.text(reference) + stream_frame.text(stream)
        answer = self._request(Key.QUERY_PUBLISHER_SEQUENCE, content)
        _check(answer.u16(), f"stream {stream}")
        return answer.u64()

    def declare_publisher(self, reference: str, stream: str) -> int:
        """Return the number of a new publisher. The broker drops its messages whose publishing id is not above its last
        one, over all connections."""
        number = next(n for n in range(256) if n not in self._publishers)
        content = bytes([number]) + stream_frame.text(reference) + stream_frame.text(stream)
        _check(self._request(Key.DECLARE_PUBLISHER, content).u16(), f"stream {stream}")
        self._publishers[number] = stream
        return number

    def delete_publisher(self, number: int) -> None:
        stream = self._publishers.pop(number)
        _check(self._request(Key.DELETE_PUBLISHER, bytes([number])).u16(), f"stream {stream}")

    def read(self, stream: str, first: int | None, visit: Callable[[StreamChunk], bool]) -> None:
        """Read a stream chunk by chunk, from the one that contains an offset, or from the last one.

        Args:
            stream: Its name.
            first: The offset; None: the last chunk.
            visit: Gets each chunk, and returns whether to go on. Not called if there is nothing to read.
        """
        self._chunks.clear()
        specification = struct.pack(">H", _LAST) if first is None else struct.pack(">HQ", _OFFSET, first)
        content = bytes([_SUBSCRIPTION]) + stream_frame.text(stream) + specification
        content += struct.pack(">H", 1) + stream_frame.properties({})
        _check(self._request(Key.SUBSCRIBE, content).u16(), f"stream {stream}")
        self.existing([stream])
        credit = stream_frame.command(Key.CREDIT, bytes([_SUBSCRIPTION]) + struct.pack(">H", 1))
        while self._receive_until(lambda: bool(self._chunks), _CHUNK_S) and visit(self._chunks.pop()):
            self._connection.write_all(credit)
        _check(self._request(Key.UNSUBSCRIBE, bytes([_SUBSCRIPTION])).u16(), f"stream {stream}")

    def publish(self, frames: Sequence[EntryFrame]) -> None:
        """Publish messages, and wait until the broker confirmed them all."""
        waiting = [
            memoryview(part)
            for frame in frames
            for part in (
                stream_frame.publish_head(frame.publisher, frame.messages, len(frame.entries)),
                frame.entries,
            )
        ]
        waiting.reverse()
        due = sum(frame.messages for frame in frames)
        self._confirmed = 0
        deadline = time.monotonic() + _CONFIRM_S
        while self._confirmed < due:
            while waiting:
                written = self._connection.write(waiting[-1])
                if written < len(waiting[-1]):
                    waiting[-1] = waiting[-1][written:]
                    break
                waiting.pop()
            before = self._confirmed
            self._receive(1.0, is_writing=bool(waiting))
            if self._confirmed > before:
                deadline = time.monotonic() + _CONFIRM_S
            elif time.monotonic() > deadline:
                raise SinkError(
                    f"RabbitMQ confirmed no message for {_CONFIRM_S:.0f} s",
                    _ALARM_HINT,
                )

    def _request(self, key: Key, content: bytes = b"") -> FrameReader:
        self._correlation += 1
        number = self._correlation
        self._connection.write_all(stream_frame.request(key, number, content))
        if not self._receive_until(lambda: number in self._answers, _ANSWER_S):
            raise SinkError(f"RabbitMQ did not answer within {_ANSWER_S:.0f} s", RECONNECTING)
        return self._answers.pop(number)

    def _receive_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left < 0:
                return False
            self._receive(left)
        return True

    def _receive(self, timeout_s: float, *, is_writing: bool = False) -> bool:
        """Handle the frames that arrive. Returns whether anything arrived."""
        arrived = self._connection.receive(timeout_s, is_writing=is_writing)
        if not arrived:
            return False
        data = self._buffer + arrived
        view, offset = memoryview(data), 0
        while len(data) - offset >= 4:
            end = offset + 4 + int.from_bytes(view[offset : offset + 4], "big")
            if len(data) < end:
                break
            self._handle(FrameReader(view[offset + 4 : end]))
            offset = end
        self._buffer = data[offset:]
        return True

    def _handle(self, frame: FrameReader) -> None:
        key, _ = frame.u16(), frame.u16()
        match key:
            case Key.PUBLISH_CONFIRM:
                frame.u8()
                self._confirmed += frame.u32()
            case Key.PUBLISH_ERROR:
                stream = self._publishers.get(frame.u8(), "?")
                frame.u32(), frame.u64()
                _check(frame.u16(), f"stream {stream}")
            case Key.DELIVER:
                frame.u8()
                self._chunks.append(StreamChunk.parse(frame.rest()))
            case Key.METADATA_UPDATE:
                frame.u16()
                raise SinkError(f"stream {frame.text()} was deleted, or moves to another node", RECONNECTING)
            case Key.TUNE:
                self.max_frame_bytes, _ = frame.u32(), frame.u32()
                self._is_tuned = True
            case Key.CLOSE:
                frame.u32()
                code, reason = frame.u16(), frame.text()
                raise SinkError(f"RabbitMQ closed the connection: {reason} ({code})", RECONNECTING)
            case _ if key & stream_frame.RESPONSE and key != Key.CREDIT | stream_frame.RESPONSE:
                self._answers[frame.u32()] = frame

    def _log_in(self, options: RabbitMqOptions, name: str) -> None:
        properties = {"connection_name": f"tailrace {name}", "product": "tailrace", "platform": "Python"}
        _check(self._request(Key.PEER_PROPERTIES, stream_frame.properties(properties)).u16(), "peer properties")
        answer = self._request(Key.SASL_HANDSHAKE)
        _check(answer.u16(), "login")
        mechanism, response = _sasl(options, answer.texts())
        content = stream_frame.text(mechanism) + stream_frame.data(response)
        try:
            code = self._request(Key.SASL_AUTHENTICATE, content).u16()
        except SinkError as error:
            if options.is_external:
                hint = "Is this the login by certificate? RabbitMQ 3.10 cannot do this on its stream port."
                raise SinkError(error.message, hint) from error
            raise
        if code != Code.OK:
            raise SinkRefused(f"RabbitMQ refused the login by {mechanism}{_text(code)}", _LOGIN_HINT)
        if not self._receive_until(lambda: self._is_tuned, _ANSWER_S):
            raise SinkError("RabbitMQ did not answer the login", RECONNECTING)
        limits = struct.pack(">II", self.max_frame_bytes, HEARTBEAT_S)
        self._connection.write_all(stream_frame.command(Key.TUNE, limits))
        code = self._request(Key.OPEN, stream_frame.text(options.vhost)).u16()
        if code != Code.OK:
            raise SinkRefused(
                f"RabbitMQ refused the vhost {options.vhost}{_text(code)}",
                f"Does it exist, and does the user have permissions in it (`rabbitmqctl set_permissions -p"
                f" {options.vhost} …`)?",
            )
        self._connection.start_heartbeats(stream_frame.command(Key.HEARTBEAT))


def _sasl(options: RabbitMqOptions, offered: Sequence[str]) -> tuple[str, bytes]:
    """Return the mechanism and the response."""
    mechanism = "EXTERNAL" if options.is_external else "PLAIN"
    if mechanism not in offered:
        raise SinkRefused(
            f"RabbitMQ does not accept {mechanism} here, only {', '.join(offered) or 'nothing'}",
            "Enable the plugin rabbitmq_auth_mechanism_ssl, or set `user` and `password`."
            if options.is_external
            else "Add PLAIN to auth_mechanisms of the broker, or log in with a certificate.",
        )
    user, password = options.login
    return mechanism, b"" if options.is_external else f"\0{user}\0{password}".encode()


def _check(code: int, subject: str) -> None:
    match code:
        case Code.OK:
            return
        case Code.STREAM_DOES_NOT_EXIST:
            raise SinkRefused(f"{subject} does not exist", "Create it, or set create = true.")
        case Code.ACCESS_REFUSED:
            raise SinkRefused(
                f"{subject}: access refused",
                "The user needs write and read permission for it (`rabbitmqctl set_permissions`), and configure"
                " permission to create it.",
            )
        case Code.PRECONDITION_FAILED:
            raise SinkError(f"{subject}: precondition failed", _ALARM_HINT)
    raise SinkError(f"{subject}{_text(code)}", "Retrying. See the log of the broker.")


def _text(code: int) -> str:
    names = {member.value: member.name.lower().replace("_", " ") for member in Code}
    return f": {names.get(code, f'error {code}')}"
