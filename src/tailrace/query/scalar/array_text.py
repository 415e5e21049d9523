"""PostgreSQL's text of arrays: any number of dimensions, any lower bounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.query import value_format
from tailrace.query.scalar.scalar_error import ScalarError, invalid_text
from tailrace.query.scalar.short_cache import cache_short

_BOUNDS: Final = re.compile(r"((?:\[[+-]?[0-9]+(?::[+-]?[0-9]+)?\])+)\s*=\s*")
_MAX_DIMENSIONS: Final = 6
_BOUND: Final = re.compile(r"\[([+-]?[0-9]+)(?::([+-]?[0-9]+))?\]")


@dataclass(frozen=True)
class ArrayText:
    sizes: tuple[int, ...]
    lowers: tuple[int, ...]
    items: tuple[str | None, ...]
    """All elements, in storage order."""


@cache_short(4096)
def parse(text: str) -> ArrayText:
    body = text.strip()
    lowers: tuple[int, ...] = ()
    if bounds := _BOUNDS.match(body):
        lowers = tuple(int(low) if high else 1 for low, high in _BOUND.findall(bounds[1]))
        body = body[bounds.end() :]
    items: list[str | None] = []
    sizes: list[int] = []
    counts: list[int] = []
    at = 0
    item, is_quoted, is_open, has_item = "", False, False, False
    is_closed = False  # after the closing quote, only blanks may follow

    def end_item() -> None:
        nonlocal item, is_quoted, has_item, is_closed
        if has_item:
            if len(counts) != len(sizes) and sizes:
                raise invalid_text("array", text)
            word = item if is_quoted else item.rstrip()
            items.append(None if not is_quoted and word.upper() == "NULL" else word)
            counts[-1] += 1
        item, is_quoted, has_item, is_closed = "", False, False, False

    while at < len(body):
        letter = body[at]
        if is_open:
            if letter == "\\" and at + 1 < len(body):
                at += 1
                item += body[at]
            elif letter == '"':
                is_open, is_closed = False, True
            else:
                item += letter
        elif letter == "{":
            if len(counts) == _MAX_DIMENSIONS:
                raise ScalarError(
                    "54000", f"number of array dimensions exceeds the maximum allowed ({_MAX_DIMENSIONS})"
                )
            counts.append(0)
        elif letter in "},":
            end_item()
            if letter == "}":
                if not counts:
                    raise invalid_text("array", text)
                depth, count = len(counts), counts.pop()
                while len(sizes) < depth:
                    sizes.append(-1)
                if sizes[depth - 1] not in (-1, count):
                    raise ScalarError("22P02", f'malformed array literal: "{text}"')
                sizes[depth - 1] = count
                if counts:
                    counts[-1] += 1
        elif (is_closed and not letter.isspace()) or (letter == '"' and has_item):
            raise ScalarError("22P02", f'malformed array literal: "{text}"')
        elif letter == '"':
            is_open = is_quoted = has_item = True
        elif letter == "\\" and at + 1 < len(body):
            at += 1
            item, has_item, is_quoted = item + body[at], True, True
        elif has_item or not letter.isspace():
            item, has_item = item + letter, True
        at += 1
    if counts or not sizes or is_open or not body.startswith("{"):
        raise ScalarError("22P02", f'malformed array literal: "{text}"')
    if not items:
        return ArrayText((), (), ())
    return ArrayText(tuple(sizes), lowers or (1,) * len(sizes), tuple(items))


def elements(text: str) -> list[str | None]:
    """All elements, as unnest and ANY see them."""
    return list(parse(text).items)


def plain_elements(text: str) -> list[str | None]:
    """The elements of an array with one dimension and lower bound 1."""
    found = parse(text)
    if len(found.sizes) > 1 or found.lowers not in ((), (1,)):
        raise ScalarError("0A000", "this operation supports arrays with one dimension and lower bound 1 only")
    return list(found.items)


def element(text: str, places: Sequence[int | None]) -> str | None:
    found = parse(text)
    if len(places) != len(found.sizes):
        return None
    at = 0
    for place, size, lower in zip(places, found.sizes, found.lowers, strict=True):
        if place is None or not lower <= place < lower + size:
            return None
        at = at * size + place - lower
    return found.items[at]


def slice_(text: str, first: int | None, last: int | None) -> str:
    """`x[first:last]`; None is the array's own bound."""
    found = parse(text)
    if len(found.sizes) > 1:
        raise ScalarError("0A000", "slices of arrays with several dimensions are not supported")
    if not found.sizes:
        return "{}"
    lower = found.lowers[0]
    begin = max(lower, lower if first is None else first)
    end = min(lower + found.sizes[0] - 1, lower + found.sizes[0] - 1 if last is None else last)
    return write(found.items[begin - lower : end - lower + 1]) if begin <= end else "{}"


def write(items: Sequence[str | None]) -> str:
    return value_format.array([None if item is None else item.encode() for item in items]).decode()


def length(text: str, dimension: int) -> int | None:
    sizes = parse(text).sizes
    return sizes[dimension - 1] if 1 <= dimension <= len(sizes) else None


def lower(text: str, dimension: int) -> int | None:
    lowers = parse(text).lowers
    return lowers[dimension - 1] if 1 <= dimension <= len(lowers) else None


def upper(text: str, dimension: int) -> int | None:
    found = parse(text)
    is_known = 1 <= dimension <= len(found.sizes)
    return found.lowers[dimension - 1] + found.sizes[dimension - 1] - 1 if is_known else None


def cardinality(text: str) -> int:
    return len(parse(text).items)


def dimensions(text: str) -> int | None:
    return len(parse(text).sizes) or None


def dimension_text(text: str) -> str | None:
    found = parse(text)
    pairs = zip(found.lowers, found.sizes, strict=True)
    return "".join(f"[{low}:{low + size - 1}]" for low, size in pairs) or None


def join(items: Sequence[str | None], separator: str, null: str | None) -> str:
    return separator.join([null if item is None else item for item in items if item is not None or null is not None])  # type: ignore[misc]
