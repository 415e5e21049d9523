"""The sink `rabbitmq`: publishes each change as a message, to streams exactly once, or to an exchange at least once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from tailrace.delivery.contract import State
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import SinkRefused
from tailrace.finding import Finding, Severity
from tailrace.log import published_table
from tailrace.sinks.messages.encoder import MessageEncoder
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.message_sink import MessageSink
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.transport import Transport
from tailrace.sinks.rabbitmq import destination_name
from tailrace.sinks.rabbitmq.exchange_client import ExchangeClient
from tailrace.sinks.rabbitmq.exchange_transport import ExchangeTransport
from tailrace.sinks.rabbitmq.options import RabbitMqOptions
from tailrace.sinks.rabbitmq.stream_client import StreamClient
from tailrace.sinks.rabbitmq.stream_transport import StreamTransport, missing_stream

_CLOUD_EVENTS: Final = "cloudEvents_"
"""Before attributes of binary CloudEvents, by the AMQP binding."""


class RabbitMqSink(MessageSink[RabbitMqOptions]):
    Options: ClassVar[type] = RabbitMqOptions
    start: ClassVar[str] = "snapshot"
    collision_hint: ClassVar[str] = (
        "Put {schema} into `stream` or `routing_key`, give them different names with `route`, or exclude one of them."
    )

    def __init__(self, name: str, options: RabbitMqOptions, context: SinkContext) -> None:
        super().__init__(name, options.validate(), context)

    def template(self) -> DestinationTemplate:
        return self._options.template(self._database)

    def encoder(self) -> MessageEncoder:
        options = self._options
        envelope = options.make_envelope(self.name, self._database, self.name, _CLOUD_EVENTS)
        messages = options.logical_messages
        return MessageEncoder(envelope, self.template(), (lambda _: messages) if messages else None)

    def connect(self) -> Transport[OutgoingMessages]:
        options = self._options
        if options.stream:
            return StreamTransport(self.name, options, options.message_format)
        return ExchangeTransport(self.name, options, options.message_format, lambda: self._store)

    def open(self) -> State:
        """Connect, and refuse to start without the exchange or the streams of published tables."""
        state = super().open()
        options = self._options
        if options.stream:
            client = StreamClient(options, self.name)
            try:
                if not options.create:
                    for stream in self._missing_streams(client):
                        raise missing_stream(stream)
            finally:
                client.close()
        else:
            ExchangeTransport(self.name, options, options.message_format, lambda: self._store).close()
        return state

    def _missing_streams(self, client: StreamClient) -> Sequence[str]:
        """Return the streams that published tables need and that do not exist."""
        streams = self._known_streams()
        existing = client.existing(streams) if streams else {}
        return [stream for stream in streams if not existing.get(stream)]

    def _known_streams(self) -> list[str]:
        """Return the streams of published tables, as far as the template does not depend on the change."""
        shaping, template = self._shaping(), self.template()
        if template.columns or any(name == "operation" for _, name in template.parts):
            return []
        shaped = [shaping.load(relation) for relation in published_table.load(self._store)]
        streams = dict.fromkeys(template.of_table(found[1]) for found in shaped if found is not None)
        return [*streams, *([self._options.logical_messages] if self._options.logical_messages else [])]

    def check(self) -> Iterator[Finding]:
        self._load_state()
        yield from (self._check_streams() if self._options.stream else self._check_exchange())
        yield from self._options.registry_findings()

    def _check_streams(self) -> Iterator[Finding]:
        client = StreamClient(self._options, self.name)
        try:
            missing = self._missing_streams(client)
            for stream in missing:
                severity = Severity.NOTE if self._options.create else Severity.ERROR
                message = "does not exist" + (": the sink will create it" if self._options.create else "")
                fix = "" if self._options.create else destination_name.creation(stream)
                yield Finding(severity, f"stream {stream}", message, fix)
            for stream in self._known_streams():
                if stream not in missing:
                    yield from self._check_access(client, stream)
        finally:
            client.close()

    def _check_access(self, client: StreamClient, stream: str) -> Iterator[Finding]:
        """Test the permissions to write and to read."""
        try:
            client.delete_publisher(client.declare_publisher("", stream))
            client.read(stream, None, lambda _: False)
        except SinkRefused as refused:
            user = self._options.login[0]
            fix = f"rabbitmqctl set_permissions -p {self._options.vhost} {user} '' '.*' '.*'"
            yield Finding(Severity.ERROR, f"stream {stream}", refused.with_hint, fix)

    def _check_exchange(self) -> Iterator[Finding]:
        client = ExchangeClient(self._options, self.name)
        try:
            assert self._options.exchange is not None
            client.check_exchange(self._options.exchange)
            client.check_permission(self._options.exchange)
        except SinkRefused as refused:
            yield Finding(Severity.ERROR, f"exchange {self._options.exchange}", str(refused), refused.hint)
        finally:
            client.close()
