"""PostgreSQL's dialect into DuckDB's, token by token.

DuckDB's grammar descends from PostgreSQL's: most statements pass as they are. What is changed here is only what DuckDB
would not read, or would read as something else; names are found through the search path and functions through macros
(`functions`), which no translation has to know of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.query.arithmetic import arithmetic
from tailrace.query.casting import Oid, array_literal, casts
from tailrace.query.lexer import Kind, Token, joined
from tailrace.query.shape import literal
from tailrace.query.template import templates
from tailrace.query.walking import cast_operand, closing, following, preceding, raw, string_at, word_at

# With any number of arguments, or with FILTER: no macro has them.
_RENAMED: Final = {
    "every": "bool_and",
    "json_build_object": "json_object",
    "jsonb_build_object": "json_object",
    "json_build_array": "json_array",
    "jsonb_build_array": "json_array",
}


_SET_FUNCTIONS: Final = ("generate_series", "unnest", "string_to_array")


@dataclass(frozen=True)
class Context:
    """What a translation asks of its session."""

    constants: dict[str, Callable[[], str]]
    """Function or key word → its value, as SQL."""
    setting: Callable[[str], str | None]
    oid: Oid
    information_schema: Callable[[], str]
    database: str
    schemas: str
    """The search path, as a list of SQL."""
    set_config: Callable[[str, str, bool], None]
    parameter: Callable[[int], str] | None = None
    """Number → its value, as SQL; None leaves parameters as they are."""


def translate(tokens: Sequence[Token], context: Context) -> str:
    # First, while parameters are told from numbers: a result's types must not hang on their values.
    found = arithmetic(list(tokens))
    for rule in (
        _parameters, _names, _numbers, _literals, _system_names, _operators_and_collations, _constants, _paths, _arrows,
        _any, _vectors,
    ):  # fmt: skip
        found = rule(found, context)
    return joined(_set_functions(templates(casts(found, context.oid))))


def _parameters(tokens: list[Token], context: Context) -> list[Token]:
    if context.parameter is None:
        return tokens
    return [raw(context.parameter(int(t.text[1:]))) if t.kind is Kind.PARAMETER else t for t in tokens]


def _system_names(tokens: list[Token], context: Context) -> list[Token]:
    """`pg_catalog.` is dropped, as what it holds stands on the search path; `information_schema.` leads there."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        follows = following(tokens, at)
        is_prefix = word_at(tokens, follows) == "." and word_at(tokens, preceding(tokens, at)) != "."
        is_dropped = token.name == "pg_catalog" or (token.name == context.database and _is_catalog(tokens, at))
        if token.name == "information_schema" and word_at(tokens, following(tokens, following(tokens, follows))) == "(":
            is_dropped = True  # one of its functions
        if is_prefix and is_dropped:
            at = following(tokens, follows)
        elif is_prefix and token.name == "information_schema":
            out.append(raw(context.information_schema()))
            at += 1
        elif is_prefix and token.name == "tailrace" and word_at(tokens, following(tokens, follows)) == "freshness":
            out.append(raw("tailrace_freshness"))
            at = following(tokens, follows) + 1
        else:
            out.append(token)
            at += 1
    return out


def _is_catalog(tokens: Sequence[Token], at: int) -> bool:
    """Whether the name begins one of three parts where a table is named."""
    schema = following(tokens, following(tokens, at))
    dot = following(tokens, schema)
    return word_at(tokens, preceding(tokens, at)) in ("from", "join", ",", "table") and word_at(tokens, dot) == "."


def _operators_and_collations(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`OPERATOR(~)` is `~`, and that another name, by which DuckDB finds our macro and not its own function. A
    collation is dropped: texts are compared by their bytes, whatever it says."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        follows = following(tokens, at)
        if tokens[at].word == "operator" and word_at(tokens, follows) == "(":
            operator = following(tokens, follows)
            out.append(Token(Kind.OPERATOR, _MATCHES.get(tokens[operator].word, tokens[operator].text)))
            at = following(tokens, operator) + 1
        elif tokens[at].word in _MATCHES and _is_value(tokens, preceding(tokens, at)):
            out.append(Token(Kind.OPERATOR, _MATCHES[tokens[at].word]))
            at += 1
        elif tokens[at].word == "collate" and follows < len(tokens) and tokens[follows].name is not None:
            at = follows + 1
        else:
            out.append(tokens[at])
            at += 1
    return out


_MATCHES: Final = {"~": "@~", "!~": "!@~"}


def _is_value(tokens: Sequence[Token], at: int) -> bool:
    """Whether a value ends there, so that what follows is no sign."""
    if at < 0 or tokens[at].kind is Kind.OPERATOR:
        return False
    return tokens[at].word not in ("(", "[", ",", "select", "where", "and", "or", "not", "on", "when", "then", "else")


def _constants(tokens: list[Token], context: Context) -> list[Token]:
    """What the session knows: who and where it is, its settings."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        word = tokens[at].word
        opens = following(tokens, at)
        is_call = word_at(tokens, opens) == "("
        is_part = "." in (word_at(tokens, preceding(tokens, at)), word_at(tokens, opens))
        closes = following(tokens, opens) if is_call else at
        if word in context.constants and not is_part and not _is_alias(tokens, at):
            if is_call and word_at(tokens, closes) == ")":
                out.append(raw(context.constants[word]()))
                at = closes + 1
                continue
            if (not is_call and word.startswith(("current_", "session_"))) or (word == "user" and not is_call):
                out.append(raw(context.constants[word]()))
                at += 1
                continue
        if word in _RENAMED and is_call:
            out.append(Token(Kind.WORD, _RENAMED[word]))
            at += 1
        elif word == "current_setting" and is_call and (name := string_at(tokens, closes)) is not None:
            value = context.setting(name)
            out.append(raw("NULL" if value is None else literal(value)))
            at = closing(tokens, opens) + 1
        elif word == "current_schemas" and is_call:
            out.append(raw(context.schemas))
            at = closing(tokens, opens) + 1
        elif word == "set_config" and is_call:
            at = _set_config(tokens, opens, out, context)
        elif word in ("to_regclass", "to_regtype") and is_call and (name := string_at(tokens, closes)) is not None:
            oid = context.oid(word.removeprefix("to_"), name)
            out.append(raw("NULL" if oid is None else str(oid)))
            at = closing(tokens, opens) + 1
        else:
            out.append(tokens[at])
            at += 1
    return out


def _set_config(tokens: Sequence[Token], opens: int, out: list[Token], context: Context) -> int:
    """It is carried out as it is read; where its arguments are no plain texts, nobody else knows the function."""
    closes = closing(tokens, opens)
    given = [t for t in tokens[opens + 1 : closes] if t.kind is not Kind.SPACE and t.word != ","]
    texts = [t.string for t in given[:2]]
    if len(given) != 3 or texts[0] is None or texts[1] is None:
        out.append(tokens[opens - 1])
        return opens
    context.set_config(texts[0], texts[1], given[2].word == "true")
    out.append(raw(literal(texts[1])))
    return closes + 1


def _paths(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`x #>> '{a,0}'` as `x -> 'a' ->> 0`."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        path = following(tokens, at)
        text = string_at(tokens, path) if tokens[at].word in ("#>", "#>>") else None
        if text is None or not text.startswith("{"):
            out.append(tokens[at])
            at += 1
            continue
        parts = [p if p.lstrip("-").isdecimal() else literal(p) for p in text.strip("{}").split(",")]
        arrows = ["->"] * (len(parts) - 1) + ["->" if tokens[at].word == "#>" else "->>"]
        for arrow, part in zip(arrows, parts, strict=True):
            out += [Token(Kind.OPERATOR, arrow), Token(Kind.SPACE, " "), raw(part), Token(Kind.SPACE, " ")]
        at = path + 1
    return out


def _arrows(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`a AND x -> 'b' ->> 'c' = 'd'` with brackets: to DuckDB an arrow binds less than anything else. One to a name is
    a lambda's."""
    out = list(tokens)
    at = 0
    while at < len(out):
        if out[at].word not in ("->", "->>") or (end := _key_end(out, at)) is None:
            at += 1
            continue
        begin = cast_operand(out, preceding(out, at))
        while word_at(out, following(out, end)) in ("->", "->>"):
            further = _key_end(out, following(out, end))
            if further is None:
                break
            end = further
        out.insert(end + 1, Token(Kind.MARK, ")"))
        out.insert(begin, Token(Kind.MARK, "("))
        at = end + 3
    return out


def _key_end(tokens: Sequence[Token], arrow: int) -> int | None:
    """Where the key after an arrow ends, cast or not."""
    at = following(tokens, arrow)
    if word_at(tokens, at) == "(":
        at = closing(tokens, at)
    elif at >= len(tokens) or tokens[at].kind not in (Kind.STRING, Kind.NUMBER, Kind.PARAMETER):
        return None
    if word_at(tokens, following(tokens, at)) == "::":
        at = following(tokens, following(tokens, at))
    return at


def _names(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """Words that are names to PostgreSQL, and to DuckDB only in quotes: where an expression begins, and goes on."""
    out = list(tokens)
    for at, token in enumerate(tokens):
        if token.word not in _RESERVED:
            continue
        before, after = preceding(tokens, at), following(tokens, at)
        begins = before >= 0 and (tokens[before].kind is Kind.OPERATOR or tokens[before].word in _BEFORE_NAME)
        goes_on = after >= len(tokens) or tokens[after].kind is Kind.OPERATOR or tokens[after].word in _AFTER_NAME
        if begins and goes_on:
            out[at] = Token(Kind.QUOTED, f'"{token.word}"')
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


def _numbers(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`0x1F`: DuckDB reads 0, named x1F."""
    return [raw(str(int(t.text, 0))) if t.kind is Kind.NUMBER and _WITH_BASE.match(t.text) else t for t in tokens]


_WITH_BASE: Final = re.compile("0[xXoObB]")


def _literals(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """Texts that stand for a value of another type, where DuckDB reads that type otherwise: bytes in hexadecimal, and
    moments without seconds. Told by what they are compared with or cast to."""
    out = list(tokens)
    for at, token in enumerate(tokens):
        text = string_at(tokens, at)
        if text is None or not _is_typed(tokens, at):
            continue
        if token.kind is Kind.STRING and _HEXADECIMAL.fullmatch(text):
            out[at] = raw(literal("".join([f"\\x{text[n : n + 2]}" for n in range(2, len(text), 2)])))
        elif moment := _WITHOUT_SECONDS.fullmatch(text):
            out[at] = raw(literal(f"{moment[1]}:00{moment[2]}"))
    return out


def _is_typed(tokens: Sequence[Token], at: int) -> bool:
    after = following(tokens, at)
    if word_at(tokens, after) in ("::", "as"):
        return word_at(tokens, following(tokens, after)) in _TYPES
    before = preceding(tokens, at)
    while word_at(tokens, before) == ",":  # IN (…)
        before = preceding(tokens, preceding(tokens, before))
    if word_at(tokens, before) == "(":
        before = preceding(tokens, before)
    return word_at(tokens, before) in _COMPARED or word_at(tokens, after) in _COMPARISONS


_TYPES: Final = frozenset(("bytea", "timestamp", "timestamptz"))
_COMPARISONS: Final = frozenset(("=", "<>", "!=", "<", ">", "<=", ">="))
_COMPARED: Final = _COMPARISONS | _TYPES | {"in", "between", "and", "zone"}
_HEXADECIMAL: Final = re.compile(r"\\x(?:[0-9a-fA-F]{2})*")
_WITHOUT_SECONDS: Final = re.compile(
    r"([0-9]{4,}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2})(Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
)


def _is_alias(tokens: Sequence[Token], at: int) -> bool:
    return word_at(tokens, preceding(tokens, at)) == "as"


def _any(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`= ANY('{1,2}')` with a list in place of the text."""
    out = list(tokens)
    for at, token in enumerate(tokens):
        if token.word not in ("any", "all", "some") or word_at(tokens, following(tokens, at)) != "(":
            continue
        place = following(tokens, following(tokens, at))
        while word_at(tokens, place) == "(":
            place = following(tokens, place)
        text = string_at(tokens, place)
        if text is not None and text.startswith("{") and word_at(tokens, following(tokens, place)) == ")":
            items = array_literal(text)
            is_number = all(item.strip(" '").lstrip("-").isdecimal() for item in items[1:-1].split(","))
            out[place] = raw(items.replace("'", "") if is_number else items)
    return out


def _vectors(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`indkey[0]`: these begin at 0 in PostgreSQL, and no list of DuckDB does."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if out[at].name in _FROM_ZERO and word_at(out, following(out, at)) == "[":
            out.insert(following(out, at) + 1, raw("1 + "))
    return out


_FROM_ZERO: Final = frozenset(("indkey", "indoption", "indclass", "indcollation", "proargtypes"))


def _set_functions(tokens: list[Token]) -> list[Token]:
    """`generate_series(1, 3) g`: in PostgreSQL `g` also names the column. In a select list DuckDB gives a list."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if tokens[at].word not in _SET_FUNCTIONS or word_at(tokens, following(tokens, at)) != "(":
            continue
        clause = _clause(tokens, at)
        closes = closing(tokens, following(tokens, at))
        before = word_at(tokens, preceding(tokens, at))
        if clause == "select" and tokens[at].word == "generate_series" and before in ("select", ",", "all"):
            out[at] = raw(f"unnest({tokens[at].text}")
            out[closes] = raw(f"{out[closes].text})")
        if before not in ("from", ",", "join", "lateral"):
            continue
        alias = following(tokens, closes)
        if word_at(tokens, alias) == "as":
            alias = following(tokens, alias)
        if alias >= len(tokens) or tokens[alias].kind not in (Kind.WORD, Kind.QUOTED):
            continue
        if tokens[alias].word in _AFTER_TABLE or word_at(tokens, following(tokens, alias)) == "(":
            continue
        if clause == "from":
            out[alias] = raw(f"{tokens[alias].text}({tokens[alias].text})")
    return out


_AFTER_TABLE: Final = frozenset(
    ("where", "group", "order", "limit", "join", "left", "right", "inner", "full", "cross", "on", "union", "having",
     "with", "offset", "fetch", "window", "except", "intersect", "for", "natural", "from", "then", "else", "end", "and",
     "or")
)  # fmt: skip


def _clause(tokens: Sequence[Token], at: int) -> str:
    """The nearest of SELECT and FROM before it, at its own depth; empty where there is none."""
    depth = 0
    for place in range(at - 1, -1, -1):
        word = tokens[place].word
        depth += {")": 1, "(": -1}.get(word, 0)
        if depth < 0:
            return ""
        if depth == 0 and word in ("select", "from"):
            return word
    return ""
