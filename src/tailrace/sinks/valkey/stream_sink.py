"""The mode `stream`: every change as an entry of its table's stream, once and in order."""

from __future__ import annotations

from tailrace.sinks.messages.encoder import MessageEncoder
from tailrace.sinks.valkey.server_sink import ServerSink
from tailrace.sinks.valkey.stream_transport import EntryTransport


class StreamSink(ServerSink):
    def encoder(self) -> MessageEncoder:
        options, messages = self._options, self._options.message_stream
        envelope = options.make_envelope(self.name, self._database, options.debezium_prefix, "ce_")
        return MessageEncoder(envelope, self.template(), (lambda _: messages) if messages else None)

    def connect(self) -> EntryTransport:
        return EntryTransport(self.name, self._options)
