"""Names of tables and values of columns as parts of stream names and routing keys."""

from __future__ import annotations

import hashlib
import re
import shlex
from typing import Final

import numpy as np

from tailrace.errors import PoisonError
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.rabbitmq.binary_column import lengths

MAX_BYTES: Final = 255
"""The longest name of a stream or queue, and the longest routing key, in bytes."""
_MAX_TOKEN_BYTES: Final = 100
_SHORT_TOKEN_BYTES: Final = 66


def queue_token(name: str) -> str:
    """Return a name as a part of the name of a stream or queue.

    Every byte but letters, digits, - and _ is written as a colon and two hexadecimal digits. Client libraries refuse
    other characters: pamqp all but some, rstream what is not ASCII.
    """
    return _shorten_token(re.sub(r"[^A-Za-z0-9_-]", _encode, name))


def key_token(name: str) -> str:
    """Return a name as one word of a routing key.

    Dots separate the words of a topic exchange's routing keys: a table `a.b` and the table `b` in a schema `a` would be
    the same. Dots, wildcards, colons, whitespace and control characters are encoded as in `queue_token`.
    """
    return _shorten_token(re.sub(r"[\s.*#:\x00-\x20\x7f]", _encode, name))


def _encode(match: re.Match[str]) -> str:
    return "".join(f":{byte:02X}" for byte in match[0].encode())


def _shorten_token(token: str) -> str:
    """Names of 63 bytes can be three times as long. The end is replaced by a digest, after two colons."""
    if len(token.encode()) <= _MAX_TOKEN_BYTES:
        return token
    start = token.encode()[:_SHORT_TOKEN_BYTES].decode(errors="ignore")
    return f"{start}::{hashlib.sha256(token.encode()).hexdigest()[:32]}"


def shorten(name: str, most: int) -> str:
    """Return a name of at most `most` bytes; a long one ends in a digest of all of it."""
    data = name.encode()
    if len(data) <= most:
        return name
    digest = hashlib.sha256(data).hexdigest()[:32]
    return f"{data[: most - len(digest) - 1].decode(errors='ignore')}~{digest}"


def creation(stream: str) -> str:
    """Return the command that creates a stream."""
    arguments = '{"x-queue-type": "stream", "x-max-age": "7D"}'
    return f"rabbitmqadmin declare queue name={shlex.quote(stream)} durable=true arguments={shlex.quote(arguments)}"


def check(messages: OutgoingMessages) -> None:
    """Raise a PoisonError for changes whose stream or routing key is too long."""
    sizes = lengths(messages.destinations)
    long = np.flatnonzero(sizes > MAX_BYTES)
    if not len(long):
        return
    positions = tuple(dict.fromkeys(str(messages.at.position(int(row))) for row in long))
    raise PoisonError(
        f"{positions[0]}: its stream or routing key has {int(sizes[long[0]])} bytes, and {MAX_BYTES} are allowed",
        "Use a shorter template, or one without columns.",
        positions,
    )
