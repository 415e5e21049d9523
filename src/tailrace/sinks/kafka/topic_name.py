"""Names of tables and values of columns as parts of topic names."""

from __future__ import annotations

import hashlib
import re
from typing import Final

MAX_LENGTH: Final = 249
_MAX_PART: Final = 96
"""Two such parts and a prefix are a topic name. Names in PostgreSQL have 63 bytes: only escaped ones are longer."""
_MAX_PREFIX: Final = 64
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")


def is_topic_name(name: str) -> bool:
    """Whether Kafka accepts a topic name."""
    return 0 < len(name) <= MAX_LENGTH and is_topic_text(name) and name not in (".", "..")


def is_topic_text(text: str) -> bool:
    """Whether Kafka accepts a text within a topic name."""
    return not _ILLEGAL.search(text)


def topic_part(name: str) -> str:
    """Return a name or value as part of a topic name.

    Dots and characters that Kafka does not allow become `_xHH`, byte by byte. The rest of a name that would become too
    long is replaced by a hash. No two names become the same.
    """
    marked = re.sub(r"_x(?=[0-9A-F]{2})", "_x5Fx", name)
    escaped = re.sub(r"[^a-zA-Z0-9_-]", lambda found: "".join(f"_x{byte:02X}" for byte in found[0].encode()), marked)
    if len(escaped) <= _MAX_PART:
        return escaped
    return f"{escaped[:_MAX_PREFIX]}_x{hashlib.sha256(name.encode()).hexdigest()[: _MAX_PART - _MAX_PREFIX - 2]}"
