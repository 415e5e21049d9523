"""Text from a database, made short and safe to print on one line of a terminal."""

from __future__ import annotations

_MAX_CHARACTERS = 60


def shorten(value: str) -> str:
    """The value, cut to 60 characters so that others fit beside it."""
    return value if len(value) <= _MAX_CHARACTERS else value[: _MAX_CHARACTERS - 1] + "…"


def printable(line: str) -> str:
    """The line with control characters escaped, because users of the database choose names and values."""
    if line.isprintable():
        return line
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in line])
