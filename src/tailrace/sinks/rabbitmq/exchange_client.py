"""A client of AMQP 0-9-1 with what a publisher needs: logging in, and pipelined publishing with confirmations.

Tailrace has its own for speed: it sends frames that are made in Arrow as they are (docs/decisions.md). `pamqp` encodes
and decodes everything else.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pamqp.frame
from pamqp import commands, encode, header
from pamqp.base import Frame
from pamqp.common import FieldTable
from pamqp.exceptions import PAMQPException
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from tailrace.errors import SinkError, SinkRefused, TailraceError
from tailrace.sinks.rabbitmq.broker_connection import HEARTBEAT_S, RECONNECTING, BrokerConnection
from tailrace.sinks.rabbitmq.exchange_message import CHANNEL, FRAME_BYTES
from tailrace.sinks.rabbitmq.options import RabbitMqOptions

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

WINDOW: Final = 4096
"""Messages in flight. After a crash at most this many are published again."""
_ANSWER_S: Final = 30.0
_CONFIRM_S: Final = 60.0
"""How long to wait for the next confirmation. A broker that is low on memory or disk confirms nothing."""
_SEND_BYTES: Final = 256 * 1024
_ACK, _NACK = (struct.pack(">HH", 60, method) for method in (80, 120))
_IS_METHOD: Final = 1
_MULTIPLE: Final = 1
_PROPERTIES: Final[FieldTable] = {
    "product": "tailrace",
    "platform": "Python",
    "capabilities": {
        "publisher_confirms": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "authentication_failure_close": True,
    },
}
_LOGIN_HINT: Final = "Check user and password, or the certificate, and that the user may log in from this host."


class ChannelClosed(Exception):
    """The broker closed the channel: its code, and its reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


class ExchangeClient:
    """One connection to a broker with one channel. Not thread-safe."""

    def __init__(self, options: RabbitMqOptions, name: str) -> None:
        """Connect and log in.

        Args:
            options: Nodes, credentials and vhost.
            name: Identifies the connection in the broker's monitoring.
        """
        self._buffer = b""
        self._frames: list[Frame] = []
        self._published = 0
        """The delivery tag of the last message."""
        self._unconfirmed: Mask = np.zeros(0, np.bool_)
        self._rejected: Mask = np.zeros(0, np.bool_)
        self._first_tag = 1
        self.returned: dict[str, str] = {}
        """The broker's reason for each message that it returned, by message id."""
        self._returning = ""
        self._blocked = ""
        self.max_frame_bytes = 0
        """0: the broker sets no limit."""
        self._is_logged_in = False
        self._connection = BrokerConnection(options, options.addresses(is_stream=False))
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

    def check_exchange(self, exchange: str) -> None:
        """Raise a SinkRefused if the exchange does not exist."""
        if not exchange:
            return  # the default exchange always exists, and may not be asked for
        try:
            self._request(commands.Exchange.Declare(exchange=exchange, passive=True), commands.Exchange.DeclareOk)
        except ChannelClosed as closed:
            if closed.code == 404:
                raise SinkRefused(
                    f"exchange {exchange} does not exist",
                    f"Create it, for example: rabbitmqadmin declare exchange name={exchange} type=topic durable=true",
                ) from None
            raise error_of(closed) from None

    def check_permission(self, exchange: str) -> None:
        """Raise a SinkRefused if the user may not publish to the exchange. Publishes nothing: the broker checks the
        permission first, and then rejects an invalid expiration."""
        properties = commands.Basic.Properties(expiration="never")
        publish = commands.Basic.Publish(exchange=exchange, routing_key="tailrace.check")
        content = header.ContentHeader(body_size=0, properties=properties)
        self._connection.write_all(b"".join(pamqp.frame.marshal(part, CHANNEL) for part in (publish, content)))
        try:
            self._next(commands.Channel.CloseOk)
        except ChannelClosed as closed:
            if closed.code != 406:
                raise error_of(closed) from None

    def publish(self, data: memoryview, ends: I64) -> Mask:
        """Publish messages and wait until the broker has answered for them all.

        Args:
            data: The frames of all messages.
            ends: The offset at which the frames of each message end.

        Returns which messages it rejected. `returned` has the ids of those that it could not route.
        """
        count = len(ends)
        self._first_tag = self._published + 1
        self._unconfirmed, self._rejected = np.ones(count, np.bool_), np.zeros(count, np.bool_)
        self._published += count
        self.returned = {}
        sent, left = 0, count
        deadline = time.monotonic() + _CONFIRM_S
        while left:
            oldest = int(np.argmax(self._unconfirmed))
            # A broker that blocks publishers gets the rest of the message that was begun.
            limit = self._message_end(ends, sent) if self._blocked else int(ends[min(oldest + WINDOW, count) - 1])
            if sent < limit:
                sent += self._connection.write(data[sent : min(limit, sent + _SEND_BYTES)])
            self._receive(1.0, is_writing=sent < self._message_end(ends, sent) or sent < limit)
            before, left = left, int(self._unconfirmed.sum())
            if left < before:
                deadline = time.monotonic() + _CONFIRM_S
            elif time.monotonic() > deadline:
                raise SinkError(
                    f"RabbitMQ blocks publishers: {self._blocked}"
                    if self._blocked
                    else f"RabbitMQ confirmed no message for {_CONFIRM_S:.0f} s",
                    "Is it low on memory or disk (`rabbitmq-diagnostics alarms`)? " + RECONNECTING,
                )
        return self._rejected

    @staticmethod
    def _message_end(ends: I64, sent: int) -> int:
        """Return the offset at which the partly sent message ends."""
        return int(ends[int(np.searchsorted(ends, sent))]) if sent else 0

    def _request(self, method: Frame, answer: type[Frame], channel: int = CHANNEL) -> Frame:
        self._connection.write_all(pamqp.frame.marshal(method, channel))
        return self._next(answer)

    def _next(self, kind: type[Frame]) -> Frame:
        """Return the next frame of a kind."""
        deadline = time.monotonic() + _ANSWER_S
        while not (found := [frame for frame in self._frames if isinstance(frame, kind)]):
            left = deadline - time.monotonic()
            if left < 0:
                raise SinkError(f"RabbitMQ did not answer within {_ANSWER_S:.0f} s", RECONNECTING)
            self._receive(left)
        self._frames.clear()
        return found[0]

    def _receive(self, timeout_s: float, *, is_writing: bool = False) -> bool:
        """Handle the frames that arrive. Returns whether anything arrived."""
        arrived = self._connection.receive(timeout_s, is_writing=is_writing)
        if not arrived:
            return False
        data = self._buffer + arrived
        offset = 0
        while len(data) - offset >= FRAME_BYTES:
            kind, _, size = struct.unpack_from(">BHI", data, offset)
            end = offset + FRAME_BYTES + size
            if len(data) < end:
                break
            method = data[offset + 7 : offset + 11] if kind == _IS_METHOD else b""
            if method in (_ACK, _NACK):
                self._settle(*struct.unpack_from(">QB", data, offset + 11), is_rejected=method == _NACK)
            else:
                self._handle(data[offset:end])
            offset = end
        self._buffer = data[offset:]
        return True

    def _settle(self, tag: int, bits: int, *, is_rejected: bool) -> None:
        """Record the broker's answer for a message, or for all messages up to it."""
        index = tag - self._first_tag
        rows = slice(0 if bits & _MULTIPLE else index, index + 1)
        if is_rejected:
            self._rejected[rows] |= self._unconfirmed[rows]
        self._unconfirmed[rows] = False

    def _handle(self, data: bytes) -> None:
        try:
            _, _, frame = pamqp.frame.unmarshal(data)
        except PAMQPException as error:
            raise SinkError("RabbitMQ sent something else than AMQP 0-9-1", "Is this its AMQP port?") from error
        match frame:
            case commands.Basic.Return():
                self._returning = f"{frame.reply_text} ({frame.reply_code})"
            case ContentHeader() if self._returning:
                self.returned[str(frame.properties.message_id)] = self._returning
                self._returning = ""
            case commands.Connection.Blocked():
                self._blocked = frame.reason or "resource alarm"
            case commands.Connection.Unblocked():
                self._blocked = ""
            case commands.Connection.Close():
                raise self._connection_error(frame.reply_code or 0, frame.reply_text)
            case commands.Channel.Close():
                raise ChannelClosed(frame.reply_code or 0, frame.reply_text)
            case header.ProtocolHeader():
                raise SinkRefused("the broker does not accept AMQP 0-9-1", "Is this its AMQP port?")
            case Frame():
                self._frames.append(frame)

    def _connection_error(self, code: int, reason: str) -> TailraceError:
        if code == 403 and not self._is_logged_in:
            return SinkRefused(f"RabbitMQ refused the login: {reason}", _LOGIN_HINT)
        if code == 530:
            return SinkRefused(
                f"RabbitMQ: {reason}",
                "Does the vhost exist, and does the user have permissions in it (`rabbitmqctl set_permissions`)?",
            )
        return SinkError(f"RabbitMQ closed the connection: {reason} ({code})", RECONNECTING)

    def _log_in(self, options: RabbitMqOptions, name: str) -> None:
        self._connection.write_all(b"AMQP\x00\x00\x09\x01")
        start = self._next(commands.Connection.Start)
        mechanism, response = _sasl(options, str(start.mechanisms).split())  # type: ignore[attr-defined]
        properties: FieldTable = {**_PROPERTIES, "connection_name": f"tailrace {name}"}
        self._connection.write_all(_start_ok(properties, mechanism, response))
        tune = self._next(commands.Connection.Tune)
        self.max_frame_bytes = int(tune.frame_max)  # type: ignore[attr-defined]
        answer = commands.Connection.TuneOk(tune.channel_max, self.max_frame_bytes, HEARTBEAT_S)  # type: ignore[attr-defined]
        self._connection.write_all(pamqp.frame.marshal(answer, 0))
        self._is_logged_in = True
        self._request(commands.Connection.Open(options.vhost), commands.Connection.OpenOk, 0)
        self._connection.start_heartbeats(Heartbeat().marshal())
        self._request(commands.Channel.Open(), commands.Channel.OpenOk)
        self._request(commands.Confirm.Select(), commands.Confirm.SelectOk)


def error_of(closed: ChannelClosed) -> TailraceError:
    """Return the error for a channel that the broker closed."""
    match closed.code:
        case 403:
            hint = "The user needs write permission for the exchange (`rabbitmqctl set_permissions`)."
            return SinkRefused(f"RabbitMQ: {closed.reason}", hint)
        case 404:
            return SinkRefused(f"RabbitMQ: {closed.reason}", "Create the exchange.")
    return SinkError(f"RabbitMQ closed the channel: {closed.reason} ({closed.code})", RECONNECTING)


def _sasl(options: RabbitMqOptions, offered: Sequence[str]) -> tuple[str, bytes]:
    """Return the mechanism and the response."""
    usable = ("EXTERNAL",) if options.is_external else ("PLAIN", "AMQPLAIN")
    mechanism = next((name for name in usable if name in offered), "")
    user, password = options.login
    match mechanism:
        case "EXTERNAL":
            return mechanism, b""
        case "PLAIN":
            return mechanism, f"\0{user}\0{password}".encode()
        case "AMQPLAIN":
            return mechanism, encode.field_table({"LOGIN": user, "PASSWORD": password})[4:]
    raise SinkRefused(
        f"RabbitMQ does not accept {' or '.join(usable)} here, only {', '.join(offered) or 'nothing'}",
        "Enable the plugin rabbitmq_auth_mechanism_ssl, or set `user` and `password`."
        if options.is_external
        else "Add PLAIN to auth_mechanisms of the broker, or log in with a certificate.",
    )


def _start_ok(properties: FieldTable, mechanism: str, response: bytes) -> bytes:
    """Return the frame that logs in. pamqp encodes responses as text, and AMQPLAIN's is not."""
    content = struct.pack(">I", commands.Connection.StartOk.index) + encode.field_table(properties)
    content += encode.short_string(mechanism) + struct.pack(">I", len(response)) + response
    content += encode.short_string("en_US")
    return struct.pack(">BHI", _IS_METHOD, 0, len(content)) + content + b"\xce"
