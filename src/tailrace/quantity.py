"""Numbers of things, for people."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """The number with its noun, such as `1 row` and `2,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
