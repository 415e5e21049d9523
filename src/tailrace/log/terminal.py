"""Text from a database, made short and safe to print on one line of a terminal."""

from __future__ import annotations

_MAX_CHARACTERS = 60


def shorten(value: str) -> str:
    """The value, cut to 60 characters so that others fit beside it."""
    return value if len(value) <= _MAX_CHARACTERS else value[: _MAX_CHARACTERS - 1] + "…"


def printable(line: str, *, but: str = "") -> str:
    """The line with control characters escaped, because users of the database choose names and values.

    Args:
        line: The text.
        but: Characters that stay as they are.
    """
    if line.isprintable():
        return line
    return "".join([c if c.isprintable() or c in but else c.encode("unicode_escape").decode() for c in line])


def printable_lines(text: str) -> str:
    """The same for text of several lines, such as an error."""
    return printable(text, but="\n")
