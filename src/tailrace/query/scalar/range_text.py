"""PostgreSQL's text of ranges."""

from __future__ import annotations

import re
from typing import Final

from tailrace.query.scalar.scalar_error import invalid_text
from tailrace.query.scalar.short_cache import cache_short

_BOUND: Final = r'(?:"(?:[^"\\]|\\.|"")*"|[^,()\[\]"]*)'
_RANGE: Final = re.compile(rf"\s*([\[(])({_BOUND}),({_BOUND})([\])])\s*", re.DOTALL)


@cache_short(4096)
def _parts(text: str) -> tuple[str, str | None, str | None, str] | None:
    """Opening bracket, lower bound, upper bound, closing bracket; None if the range is empty."""
    if text.strip().lower() == "empty":
        return None
    found = _RANGE.fullmatch(text)
    if found is None:
        raise invalid_text("range", text)
    return found[1], _plain(found[2]), _plain(found[3]), found[4]


def _plain(bound: str) -> str | None:
    if not bound:
        return None
    return re.sub(r'\\(.)|"(")', r"\1\2", bound[1:-1]) if bound.startswith('"') else bound


def lower(text: str) -> str | None:
    parts = _parts(text)
    return parts[1] if parts else None


def upper(text: str) -> str | None:
    parts = _parts(text)
    return parts[2] if parts else None


def is_empty(text: str) -> bool:
    return _parts(text) is None


def lower_is_inclusive(text: str) -> bool:
    parts = _parts(text)
    return parts is not None and parts[0] == "["


def upper_is_inclusive(text: str) -> bool:
    parts = _parts(text)
    return parts is not None and parts[3] == "]"


def lower_is_infinite(text: str) -> bool:
    parts = _parts(text)
    return parts is not None and parts[1] is None


def upper_is_infinite(text: str) -> bool:
    parts = _parts(text)
    return parts is not None and parts[2] is None
