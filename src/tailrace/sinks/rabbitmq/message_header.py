"""The headers of a message, which both protocols carry: as application properties, or as the table of headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks.messages.cloudevents_envelope import CONTENT_TYPE
from tailrace.sinks.messages.message import OutgoingMessages, position_headers

KEY: Final = "Tailrace-Key"
TOMBSTONE: Final = "Tailrace-Tombstone"
"""Present only on messages without a value, whose body is empty."""


@dataclass(frozen=True)
class MessageHeader:
    name: str
    values: pa.Array
    """Bytes; NULL where a message lacks the header."""
    is_text: bool = True


@dataclass(frozen=True)
class MessageFormat:
    """What is the same for all messages of a sink."""

    content_type: str
    """Unless the envelope says otherwise; empty: unknown."""
    has_text_keys: bool

    def headers(self, messages: OutgoingMessages) -> list[MessageHeader]:
        texts = {**position_headers(messages.at), **messages.headers}
        found = [
            MessageHeader(name, values.cast(pa.binary())) for name, values in texts.items() if name != CONTENT_TYPE
        ]
        if messages.keys is not None:
            found.append(MessageHeader(KEY, messages.keys, self.has_text_keys))
        if messages.values.null_count:
            is_tombstone = pc.if_else(pc.is_null(messages.values), pa.scalar(b"true"), pa.scalar(None, pa.binary()))
            found.append(MessageHeader(TOMBSTONE, is_tombstone))
        return found

    def content_types(self, messages: OutgoingMessages) -> pa.Array | bytes:
        """Return the content type of each message, or the one of all messages; empty: unknown."""
        if CONTENT_TYPE not in messages.headers:
            return self.content_type.encode()
        return messages.headers[CONTENT_TYPE].fill_null(self.content_type).cast(pa.binary())


def bodies(messages: OutgoingMessages) -> pa.Array:
    """Return the values; empty for a tombstone."""
    return messages.values.fill_null(b"") if messages.values.null_count else messages.values


def names(headers: Sequence[MessageHeader]) -> list[str]:
    return [header.name for header in headers]
