"""Positions in a list of tokens: neighbours other than white space, matching brackets, arguments and operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.query.lexer import Token, TokenKind

_NO_FUNCTION: Final = frozenset(
    ("and", "or", "not", "in", "on", "where", "select", "then", "else", "when", "as", "by", "any", "having", "between",
     "like", "ilike", "case", "distinct", "all", "some", "filter", "values", "limit", "offset", "is", "using")
)  # fmt: skip


def raw_token(text: str) -> Token:
    """A token of finished SQL: later rules do not look into it."""
    return Token(TokenKind.NUMBER, text)


def next_at(tokens: Sequence[Token], at: int) -> int:
    """The position of the next token that is not white space; the length if there is none."""
    at += 1
    while at < len(tokens) and tokens[at].kind is TokenKind.SPACE:
        at += 1
    return at


def previous_at(tokens: Sequence[Token], at: int) -> int:
    at -= 1
    while at >= 0 and tokens[at].kind is TokenKind.SPACE:
        at -= 1
    return at


def word_at(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].word if 0 <= at < len(tokens) else ""


def string_at(tokens: Sequence[Token], at: int) -> str | None:
    """The string at a position, including one substituted for a parameter; None if there is none."""
    if at >= len(tokens):
        return None
    token = tokens[at]
    return token.string or (Token(TokenKind.STRING, token.text).string if token.text.startswith("'") else None)


def closing_bracket(tokens: Sequence[Token], at: int) -> int:
    depth = 0
    for place in range(at, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[place].word, 0)
        if depth == 0:
            return place
    return len(tokens) - 1


def opening_bracket(tokens: Sequence[Token], at: int) -> int:
    """The position of the bracket that the one at `at` closes."""
    depth = 0
    for place in range(at, -1, -1):
        depth += {")": 1, "(": -1}.get(tokens[place].word, 0)
        if depth == 0:
            return place
    return 0


def argument_ranges(tokens: Sequence[Token], opens: int) -> list[tuple[int, int]]:
    """The ranges of the arguments in brackets: for each, its first token and the position after its last."""
    found: list[tuple[int, int]] = []
    end, depth, begin = closing_bracket(tokens, opens), 0, next_at(tokens, opens)
    for place in range(begin, end + 1):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(tokens[place].word, 0) if place < end else 0
        if depth == 0 and (place == end or tokens[place].word == ","):
            if begin < place:
                found.append((begin, previous_at(tokens, place) + 1))
            begin = next_at(tokens, place)
    return found


def operand_start(tokens: Sequence[Token], end: int) -> int:
    """Where the expression that ends at `end` begins: the one that a following `::` would cast."""
    at = end
    if tokens[at].word in (")", "]"):
        depth = 0
        while at >= 0:
            depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(tokens[at].word, 0)
            if depth == 0:
                break
            at -= 1
        before = previous_at(tokens, at)
        is_part = before >= 0 and (
            tokens[before].kind in (TokenKind.WORD, TokenKind.QUOTED) or tokens[before].word in (")", "]")
        )
        return operand_start(tokens, before) if is_part and tokens[before].word not in _NO_FUNCTION else at
    while word_at(tokens, previous_at(tokens, at)) == ".":
        at = previous_at(tokens, previous_at(tokens, at))
    return at


def cast_operand_start(tokens: Sequence[Token], end: int) -> int:
    """Like `operand_start`, for expressions that may include a cast, be a CASE, or have their type before them."""
    begin = operand_start(tokens, end)
    if tokens[begin].word == "end":
        depth = 0
        while begin >= 0:
            depth += {"end": 1, "case": -1}.get(tokens[begin].word, 0)
            if depth == 0:
                break
            begin -= 1
    before = previous_at(tokens, begin)
    if word_at(tokens, before) == "::":
        return cast_operand_start(tokens, previous_at(tokens, before))
    if tokens[begin].kind is TokenKind.STRING and word_at(tokens, before) in _TYPES:
        return before
    if word_at(tokens, begin) == "precision" and word_at(tokens, before) == "double":
        return cast_operand_start(tokens, previous_at(tokens, previous_at(tokens, before)))
    return begin


_TYPES: Final = frozenset(("date", "timestamp", "timestamptz", "time", "interval", "bytea", "uuid", "numeric"))
