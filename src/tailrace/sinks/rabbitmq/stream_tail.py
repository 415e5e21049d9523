"""Finds out how far a sink is in a stream: by the last message that one of its publishers has there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.sinks.rabbitmq import stream_message
from tailrace.sinks.rabbitmq.stream_client import StreamClient
from tailrace.sinks.rabbitmq.stream_frame import StreamChunk
from tailrace.sinks.rabbitmq.stream_message import MessageOrder

_WINDOW: Final = 4096
"""How many messages the search goes back at a time, if the last chunk is not the sink's. The records that the broker
writes for itself, and does not deliver, are fewer."""


@dataclass(frozen=True)
class PublisherTail:
    sequence: int = 0
    """The last publishing id. The broker drops messages with this one or a lower one."""
    last: MessageOrder | None = None
    """The last message. None: there is none any more, or there never was."""


def find(client: StreamClient, stream: str, publisher: str) -> PublisherTail:
    """Return the tail of a publisher whose last message says how far it is."""
    while sequence := client.sequence(publisher, stream):
        last = _last_message(client, stream, publisher)
        # The broker may still be writing what a former connection sent.
        if client.sequence(publisher, stream) == sequence:
            return PublisherTail(sequence, last)
    return PublisherTail()


def _last_message(client: StreamClient, stream: str, publisher: str) -> MessageOrder | None:
    """Search back from the end. Other clients may have written to the stream since."""
    window = _Window(publisher)
    client.read(stream, None, window.visit)
    while window.last is None and window.first:
        window = _Window(publisher, window.first)
        client.read(stream, max(window.end - _WINDOW, 0), window.visit)
    return window.last


class _Window:
    """Finds the last message of a publisher before an offset."""

    def __init__(self, publisher: str, end: int = 1 << 63) -> None:
        self._publisher = publisher
        self.end = end
        self.first = 0
        """The offset of the first chunk; 0 if there is none: nothing older exists."""
        self.last: MessageOrder | None = None
        self._is_begun = False

    def visit(self, chunk: StreamChunk) -> bool:
        """Look at a chunk. Returns whether others follow before the end."""
        if chunk.first_offset >= self.end:
            return False
        if not self._is_begun:
            self._is_begun, self.first = True, chunk.first_offset
        for entry in reversed(chunk.entries):
            properties = stream_message.application_properties(entry)
            if properties.get(stream_message.PUBLISHER) == self._publisher:
                self.last = stream_message.message_order(properties) or self.last
                break
        return chunk.next_offset < self.end and self.end < 1 << 63
