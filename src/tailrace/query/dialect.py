"""Translation of PostgreSQL's SQL dialect to DuckDB's, token by token.

DuckDB's grammar descends from PostgreSQL's, so most statements pass unchanged. This module changes only what DuckDB
would reject or understand differently. Names are resolved by the search path and functions by macros (`macro`), so the
translation need not know them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.query.arithmetic import translate_arithmetic
from tailrace.query.lexer import Token, TokenKind, join_tokens
from tailrace.query.sql_cast import Oid, array_literal, translate_casts
from tailrace.query.table_view import sql_literal
from tailrace.query.template import translate_templates
from tailrace.query.token_position import (
    cast_operand_start,
    closing_bracket,
    next_at,
    previous_at,
    raw_token,
    string_at,
    word_at,
)

# Functions with any number of arguments or with FILTER, which a macro cannot have.
_RENAMED: Final = {
    "every": "bool_and",
    "json_build_object": "json_object",
    "jsonb_build_object": "json_object",
    "json_build_array": "json_array",
    "jsonb_build_array": "json_array",
}


_SET_FUNCTIONS: Final = ("generate_series", "unnest", "string_to_array")


@dataclass(frozen=True)
class TranslationContext:
    """What the translation needs from its session."""

    constants: dict[str, Callable[[], str]]
    """Function or keyword → its value, as SQL."""
    setting: Callable[[str], str | None]
    oid: Oid
    information_schema: Callable[[], str]
    database: str
    schemas: str
    """The search path, as an SQL list."""
    set_config: Callable[[str, str, bool], None]
    parameter: Callable[[int], str] | None = None
    """Parameter number → its value, as SQL. None leaves parameters unchanged."""


def translate(tokens: Sequence[Token], context: TranslationContext) -> str:
    # First, while parameters are still distinct from numbers: result types must not depend on parameter values.
    found = translate_arithmetic(list(tokens))
    for rule in (
        _parameters, _names, _numbers, _literals, _system_names, _operators_and_collations, _constants, _paths, _arrows,
        _translate_any, _vectors,
    ):  # fmt: skip
        found = rule(found, context)
    return join_tokens(_set_functions(translate_templates(translate_casts(found, context.oid))))


def _parameters(tokens: list[Token], context: TranslationContext) -> list[Token]:
    if context.parameter is None:
        return tokens
    return [raw_token(context.parameter(int(t.text[1:]))) if t.kind is TokenKind.PARAMETER else t for t in tokens]


def _system_names(tokens: list[Token], context: TranslationContext) -> list[Token]:
    """Drop `pg_catalog.`, as its contents are on the search path; replace `information_schema.` by the catalog's."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        follows = next_at(tokens, at)
        is_prefix = word_at(tokens, follows) == "." and word_at(tokens, previous_at(tokens, at)) != "."
        is_dropped = token.name == "pg_catalog" or (token.name == context.database and _is_catalog(tokens, at))
        if token.name == "information_schema" and word_at(tokens, next_at(tokens, next_at(tokens, follows))) == "(":
            is_dropped = True  # one of its functions
        if is_prefix and is_dropped:
            at = next_at(tokens, follows)
        elif is_prefix and token.name == "information_schema":
            out.append(raw_token(context.information_schema()))
            at += 1
        elif is_prefix and token.name == "tailrace" and word_at(tokens, next_at(tokens, follows)) == "freshness":
            out.append(raw_token("tailrace_freshness"))
            at = next_at(tokens, follows) + 1
        else:
            out.append(token)
            at += 1
    return out


def _is_catalog(tokens: Sequence[Token], at: int) -> bool:
    """Whether the name is the first part of a table's three-part name."""
    schema = next_at(tokens, next_at(tokens, at))
    dot = next_at(tokens, schema)
    return word_at(tokens, previous_at(tokens, at)) in ("from", "join", ",", "table") and word_at(tokens, dot) == "."


def _operators_and_collations(tokens: list[Token], context: TranslationContext) -> list[Token]:  # noqa: ARG001
    """Replace `OPERATOR(~)` by `~`, and `~` by the name of our macro, as DuckDB would use its own function.

    Collations are dropped: text is always compared by bytes."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        follows = next_at(tokens, at)
        if tokens[at].word == "operator" and word_at(tokens, follows) == "(":
            operator = next_at(tokens, follows)
            out.append(Token(TokenKind.OPERATOR, _MATCHES.get(tokens[operator].word, tokens[operator].text)))
            at = next_at(tokens, operator) + 1
        elif tokens[at].word in _MATCHES and _is_value(tokens, previous_at(tokens, at)):
            out.append(Token(TokenKind.OPERATOR, _MATCHES[tokens[at].word]))
            at += 1
        elif tokens[at].word == "collate" and follows < len(tokens) and tokens[follows].name is not None:
            at = follows + 1
        else:
            out.append(tokens[at])
            at += 1
    return out


_MATCHES: Final = {"~": "@~", "!~": "!@~"}


def _is_value(tokens: Sequence[Token], at: int) -> bool:
    """Whether a value ends at this position, so that a following operator is binary, not a sign."""
    if at < 0 or tokens[at].kind is TokenKind.OPERATOR:
        return False
    return tokens[at].word not in ("(", "[", ",", "select", "where", "and", "or", "not", "on", "when", "then", "else")


def _constants(tokens: list[Token], context: TranslationContext) -> list[Token]:
    """Replace functions and keywords whose value the session knows: its user, database and settings."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        word = tokens[at].word
        opens = next_at(tokens, at)
        is_call = word_at(tokens, opens) == "("
        is_part = "." in (word_at(tokens, previous_at(tokens, at)), word_at(tokens, opens))
        closes = next_at(tokens, opens) if is_call else at
        if word in context.constants and not is_part and not _is_alias(tokens, at):
            if is_call and word_at(tokens, closes) == ")":
                out.append(raw_token(context.constants[word]()))
                at = closes + 1
                continue
            if (not is_call and word.startswith(("current_", "session_"))) or (word == "user" and not is_call):
                out.append(raw_token(context.constants[word]()))
                at += 1
                continue
        if word in _RENAMED and is_call:
            out.append(Token(TokenKind.WORD, _RENAMED[word]))
            at += 1
        elif word == "current_setting" and is_call and (name := string_at(tokens, closes)) is not None:
            value = context.setting(name)
            out.append(raw_token("NULL" if value is None else sql_literal(value)))
            at = closing_bracket(tokens, opens) + 1
        elif word == "current_schemas" and is_call:
            out.append(raw_token(context.schemas))
            at = closing_bracket(tokens, opens) + 1
        elif word == "set_config" and is_call:
            at = _set_config(tokens, opens, out, context)
        elif word in ("to_regclass", "to_regtype") and is_call and (name := string_at(tokens, closes)) is not None:
            oid = context.oid(word.removeprefix("to_"), name)
            out.append(raw_token("NULL" if oid is None else str(oid)))
            at = closing_bracket(tokens, opens) + 1
        else:
            out.append(tokens[at])
            at += 1
    return out


def _set_config(tokens: Sequence[Token], opens: int, out: list[Token], context: TranslationContext) -> int:
    """Execute set_config during translation. With non-literal arguments it stays, and DuckDB reports it as unknown."""
    closes = closing_bracket(tokens, opens)
    arguments = [t for t in tokens[opens + 1 : closes] if t.kind is not TokenKind.SPACE and t.word != ","]
    texts = [t.string for t in arguments[:2]]
    if len(arguments) != 3 or texts[0] is None or texts[1] is None:
        out.append(tokens[opens - 1])
        return opens
    context.set_config(texts[0], texts[1], arguments[2].word == "true")
    out.append(raw_token(sql_literal(texts[1])))
    return closes + 1


def _paths(tokens: list[Token], context: TranslationContext) -> list[Token]:  # noqa: ARG001
    """Translate `x #>> '{a,0}'` to `x -> 'a' ->> 0`."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        path = next_at(tokens, at)
        text = string_at(tokens, path) if tokens[at].word in ("#>", "#>>") else None
        if text is None or not text.startswith("{"):
            out.append(tokens[at])
            at += 1
            continue
        parts = [p if p.lstrip("-").isdecimal() else sql_literal(p) for p in text.strip("{}").split(",")]
        arrows = ["->"] * (len(parts) - 1) + ["->" if tokens[at].word == "#>" else "->>"]
        for arrow, part in zip(arrows, parts, strict=True):
            out += [
                Token(TokenKind.OPERATOR, arrow),
                Token(TokenKind.SPACE, " "),
                raw_token(part),
                Token(TokenKind.SPACE, " "),
            ]
        at = path + 1
    return out


def _arrows(tokens: list[Token], context: TranslationContext) -> list[Token]:  # noqa: ARG001
    """Add brackets to `a AND x -> 'b' ->> 'c' = 'd'`: in DuckDB an arrow has the lowest precedence.

    An arrow followed by a name is a lambda."""
    out = list(tokens)
    at = 0
    while at < len(out):
        if out[at].word not in ("->", "->>") or (end := _key_end(out, at)) is None:
            at += 1
            continue
        begin = cast_operand_start(out, previous_at(out, at))
        while word_at(out, next_at(out, end)) in ("->", "->>"):
            further = _key_end(out, next_at(out, end))
            if further is None:
                break
            end = further
        out.insert(end + 1, Token(TokenKind.MARK, ")"))
        out.insert(begin, Token(TokenKind.MARK, "("))
        at = end + 3
    return out


def _key_end(tokens: Sequence[Token], arrow: int) -> int | None:
    """Where the key after an arrow ends, including a cast; None if no key follows."""
    at = next_at(tokens, arrow)
    if word_at(tokens, at) == "(":
        at = closing_bracket(tokens, at)
    elif at >= len(tokens) or tokens[at].kind not in (TokenKind.STRING, TokenKind.NUMBER, TokenKind.PARAMETER):
        return None
    if word_at(tokens, next_at(tokens, at)) == "::":
        at = next_at(tokens, next_at(tokens, at))
    return at


def _names(tokens: list[Token], context: TranslationContext) -> list[Token]:  # noqa: ARG001
    """Quote names that are reserved in DuckDB but not in PostgreSQL, where the context shows that they are names."""
    out = list(tokens)
    for at, token in enumerate(tokens):
        if token.word not in _RESERVED:
            continue
        before, after = previous_at(tokens, at), next_at(tokens, at)
        begins = before >= 0 and (tokens[before].kind is TokenKind.OPERATOR or tokens[before].word in _BEFORE_NAME)
        goes_on = after >= len(tokens) or tokens[after].kind is TokenKind.OPERATOR or tokens[after].word in _AFTER_NAME
        if begins and goes_on:
            out[at] = Token(TokenKind.QUOTED, f'"{token.word}"')
    return out


_RESERVED: Final = frozenset(("at", "show", "describe", "summarize", "pivot", "unpivot", "qualify", "lambda"))
_BEFORE_NAME: Final = frozenset(
    ("select", ",", "(", ".", "where", "and", "or", "not", "by", "on", "distinct", "when", "then", "else", "between",
     "having", "as", "from")
)  # fmt: skip
_AFTER_NAME: Final = frozenset(
    (",", ")", ".", "::", "[", ";", "from", "is", "in", "as", "not", "and", "or", "between", "like", "ilike", "asc",
     "desc", "nulls", "then", "else", "end", "limit", "order", "group", "having", "union", "at")
)  # fmt: skip


def _numbers(tokens: list[Token], context: TranslationContext) -> list[Token]:  # noqa: ARG001
    """Translate numbers such as `0x1F`, which DuckDB reads as 0 with the alias x1F."""
    return [
        raw_token(str(int(t.text, 0))) if t.kind is TokenKind.NUMBER and _WITH_BASE.match(t.text) else t for t in tokens
    ]


_WITH_BASE: Final = re.compile("0[xXoObB]")


def _literals(tokens: list[Token], context: TranslationContext) -> list[Token]:  # noqa: ARG001
    """Translate strings that DuckDB would parse differently: hexadecimal bytes and timestamps without seconds.

    They are recognized by what they are compared with or cast to."""
    out = list(tokens)
    for at, token in enumerate(tokens):
        text = string_at(tokens, at)
        if text is None or not _is_typed(tokens, at):
            continue
        if token.kind is TokenKind.STRING and _HEXADECIMAL.fullmatch(text):
            out[at] = raw_token(sql_literal("".join([f"\\x{text[n : n + 2]}" for n in range(2, len(text), 2)])))
        elif match := _WITHOUT_SECONDS.fullmatch(text):
            out[at] = raw_token(sql_literal(f"{match[1]}:00{match[2]}"))
    return out


def _is_typed(tokens: Sequence[Token], at: int) -> bool:
    after = next_at(tokens, at)
    if word_at(tokens, after) in ("::", "as"):
        return word_at(tokens, next_at(tokens, after)) in _TYPES
    before = previous_at(tokens, at)
    while word_at(tokens, before) == ",":  # IN (…)
        before = previous_at(tokens, previous_at(tokens, before))
    if word_at(tokens, before) == "(":
        before = previous_at(tokens, before)
    return word_at(tokens, before) in _COMPARED or word_at(tokens, after) in _COMPARISONS


_TYPES: Final = frozenset(("bytea", "timestamp", "timestamptz"))
_COMPARISONS: Final = frozenset(("=", "<>", "!=", "<", ">", "<=", ">="))
_COMPARED: Final = _COMPARISONS | _TYPES | {"in", "between", "and", "zone"}
_HEXADECIMAL: Final = re.compile(r"\\x(?:[0-9a-fA-F]{2})*")
_WITHOUT_SECONDS: Final = re.compile(
    r"([0-9]{4,}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2})(Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
)


def _is_alias(tokens: Sequence[Token], at: int) -> bool:
    return word_at(tokens, previous_at(tokens, at)) == "as"


def _translate_any(tokens: list[Token], context: TranslationContext) -> list[Token]:  # noqa: ARG001
    """Translate `= ANY('{1,2}')` to use a list."""
    out = list(tokens)
    for at, token in enumerate(tokens):
        if token.word not in ("any", "all", "some") or word_at(tokens, next_at(tokens, at)) != "(":
            continue
        place = next_at(tokens, next_at(tokens, at))
        while word_at(tokens, place) == "(":
            place = next_at(tokens, place)
        text = string_at(tokens, place)
        if text is not None and text.startswith("{") and word_at(tokens, next_at(tokens, place)) == ")":
            items = array_literal(text)
            is_number = all(item.strip(" '").lstrip("-").isdecimal() for item in items[1:-1].split(","))
            out[place] = raw_token(items.replace("'", "") if is_number else items)
    return out


def _vectors(tokens: list[Token], context: TranslationContext) -> list[Token]:  # noqa: ARG001
    """Shift subscripts such as `indkey[0]`: these vectors start at 0 in PostgreSQL, and no DuckDB list does."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].name in _FROM_ZERO and word_at(out, next_at(out, at)) == "[":
            out.insert(next_at(out, at) + 1, raw_token("1 + "))
    return out


_FROM_ZERO: Final = frozenset(("indkey", "indoption", "indclass", "indcollation", "proargtypes"))


def _set_functions(tokens: list[Token]) -> list[Token]:
    """Translate `generate_series(1, 3) g`, where `g` also names the column in PostgreSQL.

    In a select list DuckDB returns a list instead of rows.
    """
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if tokens[at].word not in _SET_FUNCTIONS or word_at(tokens, next_at(tokens, at)) != "(":
            continue
        clause = _clause(tokens, at)
        closes = closing_bracket(tokens, next_at(tokens, at))
        before = word_at(tokens, previous_at(tokens, at))
        if clause == "select" and tokens[at].word == "generate_series" and before in ("select", ",", "all"):
            out[at] = raw_token(f"unnest({tokens[at].text}")
            out[closes] = raw_token(f"{out[closes].text})")
        if before not in ("from", ",", "join", "lateral"):
            continue
        alias = next_at(tokens, closes)
        if word_at(tokens, alias) == "as":
            alias = next_at(tokens, alias)
        if alias >= len(tokens) or tokens[alias].kind not in (TokenKind.WORD, TokenKind.QUOTED):
            continue
        if tokens[alias].word in _AFTER_TABLE or word_at(tokens, next_at(tokens, alias)) == "(":
            continue
        if clause == "from":
            out[alias] = raw_token(f"{tokens[alias].text}({tokens[alias].text})")
    return out


_AFTER_TABLE: Final = frozenset(
    ("where", "group", "order", "limit", "join", "left", "right", "inner", "full", "cross", "on", "union", "having",
     "with", "offset", "fetch", "window", "except", "intersect", "for", "natural", "from", "then", "else", "end", "and",
     "or")
)  # fmt: skip


def _clause(tokens: Sequence[Token], at: int) -> str:
    """The nearest SELECT or FROM before the position, at the same bracket depth; empty if there is none."""
    depth = 0
    for place in range(at - 1, -1, -1):
        word = tokens[place].word
        depth += {")": 1, "(": -1}.get(word, 0)
        if depth < 0:
            return ""
        if depth == 0 and word in ("select", "from"):
            return word
    return ""
