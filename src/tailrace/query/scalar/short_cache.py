"""A cache of what short texts stand for."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, TypeVar

_Value = TypeVar("_Value")

_SHORT: Final = 1_000
"""In characters. Thousands of long values would take the server's memory, beside what DuckDB may take."""


def cache_short(entries: int) -> Callable[[Callable[[str], _Value]], Callable[[str], _Value]]:
    """Cache what a function returns for the last short texts. Callers must not change it."""

    def decorate(function: Callable[[str], _Value]) -> Callable[[str], _Value]:
        cached = lru_cache(entries)(function)

        @wraps(function)
        def call(text: str) -> _Value:
            return cached(text) if len(text) <= _SHORT else function(text)

        return call

    return decorate
