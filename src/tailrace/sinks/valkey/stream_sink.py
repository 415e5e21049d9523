"""The mode `stream`: every change as an entry of its table's stream, once and in order."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.delivery.contract import Part
from tailrace.sinks.messages.destination_registry import PartRegistry
from tailrace.sinks.messages.encoder import MessageEncoder
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.valkey.server_sink import ServerSink
from tailrace.sinks.valkey.stream_transport import EntryCommands, EntryTransport, entry_commands


class StreamSink(ServerSink):
    def encoder(self) -> MessageEncoder:
        options, messages = self._options, self._options.message_stream
        envelope = options.make_envelope(self.name, self._database, options.debezium_prefix, "ce_")
        return MessageEncoder(envelope, self.template(), (lambda _: messages) if messages else None)

    def connect(self) -> EntryTransport:
        return EntryTransport(self.name, self._options)

    def _batches(
        self, part: Part, progress: Progress, tables: PartRegistry
    ) -> Iterator[tuple[EntryCommands, Progress]]:
        """Make the commands, too, while the server runs those before them."""
        for messages, after in super()._batches(part, progress, tables):
            yield entry_commands(messages, self._options.stream_max_entries), after
