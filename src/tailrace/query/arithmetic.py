"""Translation of sums, quotients and rounding where DuckDB differs from PostgreSQL and a macro cannot help."""

from __future__ import annotations

from typing import Final

from tailrace.query.lexer import Token, join_tokens
from tailrace.query.token_position import (
    argument_ranges,
    closing_bracket,
    next_at,
    opening_bracket,
    previous_at,
    raw_token,
    word_at,
)

_MAX_DECIMALS: Final = 20


def translate_arithmetic(tokens: list[Token]) -> list[Token]:
    return _translate_percentiles(_translate_rounds(_guard_filters(_translate_sums(tokens))))


def _translate_sums(tokens: list[Token]) -> list[Token]:
    """Adapt `sum` to the macro that gives it PostgreSQL's types.

    A macro takes no FILTER, OVER or DISTINCT: a FILTER becomes a CASE, the other two use DuckDB's own function."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].word != "sum" or word_at(out, previous_at(out, at)) == ".":
            continue
        opens = next_at(out, at)
        if word_at(out, opens) != "(":
            continue
        closes = closing_bracket(out, opens)
        follows = next_at(out, closes)
        filtered = follows if word_at(out, follows) == "filter" else None
        if filtered is not None:
            follows = next_at(out, closing_bracket(out, next_at(out, filtered)))
        first = next_at(out, opens)
        if word_at(out, follows) == "over" or word_at(out, first) == "distinct":
            out[at] = raw_token("system.main.sum")
        elif filtered is not None:
            bracket = next_at(out, filtered)
            end = closing_bracket(out, bracket)
            condition = out[next_at(out, bracket) + 1 : end]
            out[first : end + 1] = [*_case_when(condition, out[first:closes]), raw_token(")")]
    return out


def _translate_rounds(tokens: list[Token]) -> list[Token]:
    """`round(x, 2)` returns a numeric with two decimals for any type of x."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].word != "round" or word_at(out, next_at(out, at)) != "(":
            continue
        opens = next_at(out, at)
        ranges = argument_ranges(out, opens)
        digits = join_tokens(out[slice(*ranges[1])]) if len(ranges) == 2 else ""
        if digits.isdecimal() and int(digits) <= _MAX_DECIMALS:
            out[closing_bracket(out, opens)] = raw_token(f") AS DECIMAL(38, {int(digits)}))")
            out[at] = raw_token("CAST(round")
    return out


def _guard_filters(tokens: list[Token]) -> list[Token]:
    """Guard divisions in `sum(a / b) FILTER (WHERE b <> 0)`: DuckDB divides before it filters."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].word != "filter" or word_at(out, previous_at(out, at)) != ")":
            continue
        opens = next_at(out, at)
        where = next_at(out, opens)
        if word_at(out, where) != "where":
            continue
        ranges = argument_ranges(out, opening_bracket(out, previous_at(out, at)))
        first, last = ranges[0] if ranges else (at, at)
        if word_at(out, first) in ("distinct", "all"):
            first = next_at(out, first)
        if any(token.word in ("/", "%", "mod", "div") for token in out[first:last]):
            condition = out[where + 1 : closing_bracket(out, opens)]
            out[first:last] = _case_when(condition, out[first:last])
    return out


def _case_when(condition: list[Token], value: list[Token]) -> list[Token]:
    """The value for rows that meet the condition, NULL for others."""
    return [raw_token("CASE WHEN "), *condition, raw_token(" THEN "), *value, raw_token(" END")]


def _translate_percentiles(tokens: list[Token]) -> list[Token]:
    """`percentile_cont(0.5) WITHIN GROUP (ORDER BY x)` is a double; DuckDB truncates a numeric to x's decimals."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].word != "percentile_cont" or word_at(out, next_at(out, at)) != "(":
            continue
        within = next_at(out, closing_bracket(out, next_at(out, at)))
        opens = next_at(out, next_at(out, within))
        by = next_at(out, next_at(out, opens))
        if [word_at(out, place) for place in (within, opens, by)] != ["within", "(", "by"]:
            continue
        first = next_at(out, by)
        ends = (place for place in range(first, len(out)) if out[place].word in ("asc", "desc", "nulls"))
        last = min(next(ends, len(out)), closing_bracket(out, opens))
        out[first:last] = [raw_token("CAST("), *out[first:last], raw_token(" AS DOUBLE) ")]
    return out
