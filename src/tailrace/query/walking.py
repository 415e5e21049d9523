"""Walking over tokens: neighbours that are no white space, brackets and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.query.lexer import Kind, Token

_NO_FUNCTION: Final = frozenset(
    ("and", "or", "not", "in", "on", "where", "select", "then", "else", "when", "as", "by", "any", "having", "between",
     "like", "ilike", "case", "distinct", "all", "some", "filter", "values", "limit", "offset", "is", "using")
)  # fmt: skip


def raw(text: str) -> Token:
    """Finished text: no later rule looks into it."""
    return Token(Kind.NUMBER, text)


def following(tokens: Sequence[Token], at: int) -> int:
    """The place of the next token that is no space; the end if there is none."""
    at += 1
    while at < len(tokens) and tokens[at].kind is Kind.SPACE:
        at += 1
    return at


def preceding(tokens: Sequence[Token], at: int) -> int:
    at -= 1
    while at >= 0 and tokens[at].kind is Kind.SPACE:
        at -= 1
    return at


def word_at(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].word if 0 <= at < len(tokens) else ""


def string_at(tokens: Sequence[Token], at: int) -> str | None:
    """A string, also one that was a parameter."""
    if at >= len(tokens):
        return None
    token = tokens[at]
    return token.string or (Token(Kind.STRING, token.text).string if token.text.startswith("'") else None)


def closing(tokens: Sequence[Token], at: int) -> int:
    depth = 0
    for place in range(at, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[place].word, 0)
        if depth == 0:
            return place
    return len(tokens) - 1


def opening(tokens: Sequence[Token], at: int) -> int:
    """The bracket that the one at this place closes."""
    depth = 0
    for place in range(at, -1, -1):
        depth += {")": 1, "(": -1}.get(tokens[place].word, 0)
        if depth == 0:
            return place
    return 0


def arguments(tokens: Sequence[Token], opens: int) -> list[tuple[int, int]]:
    """What stands between the commas of a bracket: the first token of each that is no space, and the place after it."""
    found: list[tuple[int, int]] = []
    end, depth, begin = closing(tokens, opens), 0, following(tokens, opens)
    for place in range(begin, end + 1):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(tokens[place].word, 0) if place < end else 0
        if depth == 0 and (place == end or tokens[place].word == ","):
            if begin < place:
                found.append((begin, preceding(tokens, place) + 1))
            begin = following(tokens, place)
    return found


def operand(tokens: Sequence[Token], end: int) -> int:
    """Where the expression begins that ends at this place, and that a `::` after it would cast."""
    at = end
    if tokens[at].word in (")", "]"):
        depth = 0
        while at >= 0:
            depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(tokens[at].word, 0)
            if depth == 0:
                break
            at -= 1
        before = preceding(tokens, at)
        is_part = before >= 0 and (tokens[before].kind in (Kind.WORD, Kind.QUOTED) or tokens[before].word in (")", "]"))
        return operand(tokens, before) if is_part and tokens[before].word not in _NO_FUNCTION else at
    while word_at(tokens, preceding(tokens, at)) == ".":
        at = preceding(tokens, preceding(tokens, at))
    return at


def cast_operand(tokens: Sequence[Token], end: int) -> int:
    """The same, where what ends there may have been cast already, be a CASE, or have its type before it."""
    begin = operand(tokens, end)
    if tokens[begin].word == "end":
        depth = 0
        while begin >= 0:
            depth += {"end": 1, "case": -1}.get(tokens[begin].word, 0)
            if depth == 0:
                break
            begin -= 1
    before = preceding(tokens, begin)
    if word_at(tokens, before) == "::":
        return cast_operand(tokens, preceding(tokens, before))
    if tokens[begin].kind is Kind.STRING and word_at(tokens, before) in _TYPES:
        return before
    if word_at(tokens, begin) == "precision" and word_at(tokens, before) == "double":
        return cast_operand(tokens, preceding(tokens, preceding(tokens, before)))
    return begin


_TYPES: Final = frozenset(("date", "timestamp", "timestamptz", "time", "interval", "bytea", "uuid", "numeric"))
