"""Sums, quotients and rounding, where DuckDB computes otherwise than PostgreSQL: what no macro can see to."""

from __future__ import annotations

from typing import Final

from tailrace.query.lexer import Token, joined
from tailrace.query.walking import arguments, closing, following, opening, preceding, raw, word_at

_MOST_DECIMALS: Final = 20


def arithmetic(tokens: list[Token]) -> list[Token]:
    return _percentiles(_rounds(_filtered(_sums(tokens))))


def _sums(tokens: list[Token]) -> list[Token]:
    """`sum` is a macro, which gives it PostgreSQL's types: without a FILTER, then, and not as a window's, nor DISTINCT,
    which are DuckDB's own."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].word != "sum" or word_at(out, preceding(out, at)) == ".":
            continue
        opens = following(out, at)
        if word_at(out, opens) != "(":
            continue
        closes = closing(out, opens)
        follows = following(out, closes)
        filtered = follows if word_at(out, follows) == "filter" else None
        if filtered is not None:
            follows = following(out, closing(out, following(out, filtered)))
        first = following(out, opens)
        if word_at(out, follows) == "over" or word_at(out, first) == "distinct":
            out[at] = raw("system.main.sum")
        elif filtered is not None:
            bracket = following(out, filtered)
            end = closing(out, bracket)
            condition = out[following(out, bracket) + 1 : end]
            out[first : end + 1] = [*_where(condition, out[first:closes]), raw(")")]
    return out


def _rounds(tokens: list[Token]) -> list[Token]:
    """`round(x, 2)` is a numeric with two decimals, whatever x is."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].word != "round" or word_at(out, following(out, at)) != "(":
            continue
        opens = following(out, at)
        given = arguments(out, opens)
        digits = joined(out[slice(*given[1])]) if len(given) == 2 else ""
        if digits.isdecimal() and int(digits) <= _MOST_DECIMALS:
            out[closing(out, opens)] = raw(f") AS DECIMAL(38, {int(digits)}))")
            out[at] = raw("CAST(round")
    return out


def _filtered(tokens: list[Token]) -> list[Token]:
    """`sum(a / b) FILTER (WHERE b <> 0)`: DuckDB divides first, and chooses then."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].word != "filter" or word_at(out, preceding(out, at)) != ")":
            continue
        opens = following(out, at)
        where = following(out, opens)
        if word_at(out, where) != "where":
            continue
        given = arguments(out, opening(out, preceding(out, at)))
        first, last = given[0] if given else (at, at)
        if word_at(out, first) in ("distinct", "all"):
            first = following(out, first)
        if any(token.word in ("/", "%", "mod", "div") for token in out[first:last]):
            condition = out[where + 1 : closing(out, opens)]
            out[first:last] = _where(condition, out[first:last])
    return out


def _where(condition: list[Token], value: list[Token]) -> list[Token]:
    """The value of rows that fulfil a condition, NULL of others."""
    return [raw("CASE WHEN "), *condition, raw(" THEN "), *value, raw(" END")]


def _percentiles(tokens: list[Token]) -> list[Token]:
    """`percentile_cont(0.5) WITHIN GROUP (ORDER BY x)` is a double; DuckDB's of a numeric is cut to x's decimals."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].word != "percentile_cont" or word_at(out, following(out, at)) != "(":
            continue
        within = following(out, closing(out, following(out, at)))
        opens = following(out, following(out, within))
        by = following(out, following(out, opens))
        if [word_at(out, place) for place in (within, opens, by)] != ["within", "(", "by"]:
            continue
        first = following(out, by)
        ends = (place for place in range(first, len(out)) if out[place].word in ("asc", "desc", "nulls"))
        last = min(next(ends, len(out)), closing(out, opens))
        out[first:last] = [raw("CAST("), *out[first:last], raw(" AS DOUBLE) ")]
    return out
