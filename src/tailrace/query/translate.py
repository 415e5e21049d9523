"""PostgreSQL's dialect into DuckDB's, token by token.

DuckDB's grammar descends from PostgreSQL's: most statements pass as they are. What is changed here is only what DuckDB
would not read, or would read as something else; names are found through the search path and functions through macros
(`functions`), which no translation has to know of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.query.failure import Failure
from tailrace.query.functions import strftime
from tailrace.query.lexer import Kind, Token, joined
from tailrace.query.shape import NUMERIC, literal

# With any number of arguments, which no macro has.
_RENAMED: Final = {
    "json_build_object": "json_object",
    "jsonb_build_object": "json_object",
    "json_build_array": "json_array",
    "jsonb_build_array": "json_array",
}
_REG: Final = ("regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole")
# PostgreSQL's name → DuckDB's, where DuckDB has the same name for another type.
_TYPES: Final = {
    "numeric": f"DECIMAL({NUMERIC[0]}, {NUMERIC[1]})",
    "decimal": f"DECIMAL({NUMERIC[0]}, {NUMERIC[1]})",
    "float": "DOUBLE",
    '"char"': "VARCHAR",
}
_WITHOUT_MODIFIER: Final = ("timestamp", "timestamptz", "time", "timetz", "float", "interval", "bit", "varbit")
_SET_FUNCTIONS: Final = ("generate_series", "unnest")


@dataclass(frozen=True)
class Context:
    """What a translation asks of its session."""

    constants: dict[str, Callable[[], str]]
    """Function or key word → its value, as SQL."""
    setting: Callable[[str], str | None]
    oid: Callable[[str, str], int | None]
    """(`regclass` or another, name as written) → oid."""
    information_schema: Callable[[], str]
    database: str
    schemas: str
    """The search path, as a list of SQL."""
    set_config: Callable[[str, str, bool], None]
    parameter: Callable[[int], str] | None = None
    """Number → its value, as SQL; None leaves parameters as they are."""


def translate(tokens: Sequence[Token], context: Context) -> str:
    found = list(tokens)
    for rule in (_parameters, _system_names, _operators_and_collations, _constants, _paths, _formats, _any, _casts, _set_functions):
        found = rule(found, context)
    return joined(found)


def _raw(text: str) -> Token:
    """Finished text: no later rule looks into it."""
    return Token(Kind.NUMBER, text)


def _next(tokens: Sequence[Token], at: int) -> int:
    """The place of the next token that is no space; the end if there is none."""
    at += 1
    while at < len(tokens) and tokens[at].kind is Kind.SPACE:
        at += 1
    return at


def _before(tokens: Sequence[Token], at: int) -> int:
    at -= 1
    while at >= 0 and tokens[at].kind is Kind.SPACE:
        at -= 1
    return at


def _word(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].word if 0 <= at < len(tokens) else ""


def _parameters(tokens: list[Token], context: Context) -> list[Token]:
    if context.parameter is None:
        return tokens
    return [_raw(context.parameter(int(t.text[1:]))) if t.kind is Kind.PARAMETER else t for t in tokens]


def _system_names(tokens: list[Token], context: Context) -> list[Token]:
    """`pg_catalog.` is dropped, as what it holds stands on the search path; `information_schema.` leads there."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        follows = _next(tokens, at)
        is_prefix = _word(tokens, follows) == "." and _word(tokens, _before(tokens, at)) != "."
        is_dropped = token.name == "pg_catalog" or (token.name == context.database and _is_catalog(tokens, at))
        if token.name == "information_schema" and _word(tokens, _next(tokens, _next(tokens, follows))) == "(":
            is_dropped = True  # one of its functions
        if is_prefix and is_dropped:
            at = _next(tokens, follows)
        elif is_prefix and token.name == "information_schema":
            out.append(_raw(context.information_schema()))
            at += 1
        elif is_prefix and token.name == "tailrace" and _word(tokens, _next(tokens, follows)) == "freshness":
            out.append(_raw("tailrace_freshness"))
            at = _next(tokens, follows) + 1
        else:
            out.append(token)
            at += 1
    return out


def _is_catalog(tokens: Sequence[Token], at: int) -> bool:
    """Whether the name begins one of three parts where a table is named."""
    schema = _next(tokens, _next(tokens, at))
    dot = _next(tokens, schema)
    return _word(tokens, _before(tokens, at)) in ("from", "join", ",", "table") and _word(tokens, dot) == "."


def _operators_and_collations(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`OPERATOR(~)` is `~`, and that another name, by which DuckDB finds our macro and not its own function. A collation
    is dropped: texts are compared by their bytes, whatever it says."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        follows = _next(tokens, at)
        if tokens[at].word == "operator" and _word(tokens, follows) == "(":
            operator = _next(tokens, follows)
            out.append(Token(Kind.OPERATOR, _MATCHES.get(tokens[operator].word, tokens[operator].text)))
            at = _next(tokens, operator) + 1
        elif tokens[at].word in _MATCHES and _is_value(tokens, _before(tokens, at)):
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
        opens = _next(tokens, at)
        is_call = _word(tokens, opens) == "("
        is_part = "." in (_word(tokens, _before(tokens, at)), _word(tokens, opens))
        closes = _next(tokens, opens) if is_call else at
        if word in context.constants and not is_part and not _is_alias(tokens, at):
            if is_call and _word(tokens, closes) == ")":
                out.append(_raw(context.constants[word]()))
                at = closes + 1
                continue
            if (not is_call and word.startswith(("current_", "session_"))) or (word == "user" and not is_call):
                out.append(_raw(context.constants[word]()))
                at += 1
                continue
        if word in _RENAMED and is_call:
            out.append(Token(Kind.WORD, _RENAMED[word]))
            at += 1
        elif word == "current_setting" and is_call and (name := _string(tokens, closes)) is not None:
            value = context.setting(name)
            out.append(_raw("NULL" if value is None else literal(value)))
            at = _closing(tokens, opens) + 1
        elif word == "current_schemas" and is_call:
            out.append(_raw(context.schemas))
            at = _closing(tokens, opens) + 1
        elif word == "set_config" and is_call:
            at = _set_config(tokens, opens, out, context)
        elif word in ("to_regclass", "to_regtype") and is_call and (name := _string(tokens, closes)) is not None:
            oid = context.oid(word.removeprefix("to_"), name)
            out.append(_raw("NULL" if oid is None else str(oid)))
            at = _closing(tokens, opens) + 1
        else:
            out.append(tokens[at])
            at += 1
    return out


def _set_config(tokens: Sequence[Token], opens: int, out: list[Token], context: Context) -> int:
    """It is carried out as it is read; where its arguments are no plain texts, nobody else knows the function."""
    closes = _closing(tokens, opens)
    given = [t for t in tokens[opens + 1 : closes] if t.kind is not Kind.SPACE and t.word != ","]
    texts = [t.string for t in given[:2]]
    if len(given) != 3 or texts[0] is None or texts[1] is None:
        out.append(tokens[opens - 1])
        return opens
    context.set_config(texts[0], texts[1], given[2].word == "true")
    out.append(_raw(literal(texts[1])))
    return closes + 1


def _paths(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`x #>> '{a,0}'` as `x -> 'a' ->> 0`."""
    out = list(tokens)
    for at, token in enumerate(tokens):
        path = _next(tokens, at)
        text = _string(tokens, path) if token.word in ("#>", "#>>") else None
        if text is None or not text.startswith("{"):
            continue
        parts = [p if p.lstrip("-").isdecimal() else literal(p) for p in text.strip("{}").split(",")]
        arrows = ["->"] * (len(parts) - 1) + ["->" if token.word == "#>" else "->>"]
        out[at] = _raw(" ".join(f"{arrow} {part}" for arrow, part in zip(arrows, parts, strict=True)))
        out[path] = _raw("")
    return out


def _formats(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`to_date(x, 'YYYY')`: DuckDB wants to know the format before it runs."""
    out = list(tokens)
    for at, token in enumerate(tokens):
        opens = _next(tokens, at)
        if token.word not in ("to_date", "to_timestamp") or _word(tokens, opens) != "(":
            continue
        closes = _closing(tokens, opens)
        pattern = _before(tokens, closes)
        text = _string(tokens, pattern)
        if text is None or _word(tokens, _before(tokens, pattern)) != ",":
            continue
        out[at] = _raw("(strptime")
        out[pattern] = _raw(literal(strftime(text)))
        out[closes] = _raw(")::DATE)" if token.word == "to_date" else ")::TIMESTAMPTZ)")
    return out


def _string(tokens: Sequence[Token], at: int) -> str | None:
    """A string, also one that was a parameter."""
    if at >= len(tokens):
        return None
    token = tokens[at]
    return token.string or (Token(Kind.STRING, token.text).string if token.text.startswith("'") else None)


def _is_alias(tokens: Sequence[Token], at: int) -> bool:
    return _word(tokens, _before(tokens, at)) == "as"


def _closing(tokens: Sequence[Token], at: int) -> int:
    depth = 0
    for place in range(at, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[place].word, 0)
        if depth == 0:
            return place
    return len(tokens) - 1


def _any(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`= ANY('{1,2}')` with a list in place of the text."""
    out = list(tokens)
    for at, token in enumerate(tokens):
        if token.word not in ("any", "all", "some") or _word(tokens, _next(tokens, at)) != "(":
            continue
        place = _next(tokens, _next(tokens, at))
        while _word(tokens, place) == "(":
            place = _next(tokens, place)
        text = _string(tokens, place)
        if text is not None and text.startswith("{") and _word(tokens, _next(tokens, place)) == ")":
            items = array_literal(text)
            is_number = all(item.strip(" '").lstrip("-").isdecimal() for item in items[1:-1].split(","))
            out[place] = _raw(items.replace("'", "") if is_number else items)
    return out


def _operand(tokens: Sequence[Token], end: int) -> int:
    """Where the expression begins that ends at this place, and that a `::` after it would cast."""
    at = end
    if tokens[at].word in (")", "]"):
        depth = 0
        while at >= 0:
            depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(tokens[at].word, 0)
            if depth == 0:
                break
            at -= 1
        before = _before(tokens, at)
        is_part = before >= 0 and (tokens[before].kind in (Kind.WORD, Kind.QUOTED) or tokens[before].word in (")", "]"))
        return _operand(tokens, before) if is_part and tokens[before].word not in _NO_FUNCTION else at
    while _word(tokens, _before(tokens, at)) == ".":
        at = _before(tokens, _before(tokens, at))
    return at


_NO_FUNCTION: Final = frozenset(
    ("and", "or", "not", "in", "on", "where", "select", "then", "else", "when", "as", "by", "any")
)


def _casts(tokens: list[Token], context: Context) -> list[Token]:
    """`::type` and `CAST(… AS type)`, for types that DuckDB knows otherwise."""
    out: list[Token] = []
    at = 0
    casts: list[bool] = []
    while at < len(tokens):
        token = tokens[at]
        if token.word == "(":
            casts.append(_word(tokens, _before(tokens, at)) in ("cast", "try_cast"))
        elif token.word == ")" and casts:
            casts.pop()
        is_double_colon = token.word == "::"
        if not is_double_colon and not (token.word == "as" and casts and casts[-1]):
            out.append(token)
            at += 1
            continue
        name = _next(tokens, at)
        if is_double_colon and _word(tokens, name) in _REG:
            _registered(out, tokens[name].word, context)
            again = _next(tokens, name)
            if _word(tokens, again) == "::" and _word(tokens, _next(tokens, again)) in ("text", "varchar"):
                kind = tokens[name].word.removesuffix("edure")
                out[-1] = _raw(f"{kind}_name({out[-1].text})" if out[-1].text.isdecimal() else out[-1].text)
            at = name + 1
            continue
        if not is_double_colon and _word(tokens, name) in _REG:
            opens = _opening(out)
            text = _string(out, _last(out)) if opens == _before(out, _last(out)) else None
            if text is None:
                out[_before(out, opens)] = _raw(f"{tokens[name].word.removesuffix('edure')}_name")
            else:
                _registered(out, tokens[name].word, context)
                out[_before(out, opens)] = _raw("")
            at = name + 1
            continue
        if is_double_colon and out and (items := _array(tokens, name, out)) is not None:
            out[_last(out)] = _raw(items)
        out.append(token)
        out.extend(tokens[at + 1 : name])
        at = _type(tokens, name, out)
    return out


def _opening(out: Sequence[Token]) -> int:
    """The bracket that is open where this ends."""
    depth = 1
    at = len(out)
    while depth and at > 0:
        at -= 1
        depth += {")": 1, "(": -1}.get(out[at].word, 0)
    return at


def _last(out: Sequence[Token]) -> int:
    return _before(out, len(out))


def _type(tokens: Sequence[Token], name: int, out: list[Token]) -> int:
    """Write a type's name; gives the place after it."""
    if name >= len(tokens):
        return name
    word = tokens[name].word or tokens[name].text
    follows = _next(tokens, name)
    has_modifier = _word(tokens, follows) == "("
    if word in _WITHOUT_MODIFIER and has_modifier:
        out.append(Token(Kind.WORD, _TYPES.get(word, tokens[name].text)))
        return _closing(tokens, follows) + 1
    if word in _TYPES and not has_modifier:
        out.append(_raw(_TYPES[word]))
    else:
        out.append(tokens[name])
    return name + 1


def _registered(out: list[Token], kind: str, context: Context) -> None:
    """A name becomes its oid; an oid, shown as such a type, its name."""
    end = _last(out)
    kind = kind.removesuffix("edure")
    text = _string(out, end)
    if text is not None and kind == "regproc":
        out[end:] = [_raw(literal(text.rpartition(".")[2]))]  # the catalogues name functions, which have no oid here
        return
    if text is not None:
        oid = int(text) if text.isdecimal() else context.oid(kind, text)
        if oid is None:
            what = {"regclass": "relation", "regtype": "type"}.get(kind, "name")
            raise Failure("42P01" if kind == "regclass" else "42704", f'{what} "{text}" does not exist')
        out[end:] = [_raw(str(oid))]
        return
    begin = _operand(out, end)
    out[begin:] = [_raw(f"{kind}_name({joined(out[begin : end + 1])})")]


def _array(tokens: Sequence[Token], name: int, out: Sequence[Token]) -> str | None:
    """`'{a,b}'::text[]` as a list."""
    brackets = _next(tokens, name)
    if _word(tokens, brackets) != "[":
        return None
    text = _string(out, _last(out))
    return array_literal(text) if text is not None and text.startswith("{") else None


def array_literal(text: str) -> str:
    """PostgreSQL's text of an array of one dimension as a list of texts."""
    items: list[str] = []
    at, item, quoted, any_quote = 1, "", False, False
    while at < len(text):
        letter = text[at]
        if letter == "\\" and at + 1 < len(text):
            at += 1
            item += text[at]
        elif letter == '"':
            quoted, any_quote = not quoted, True
        elif letter in ",}" and not quoted:
            if item or any_quote or letter == ",":
                items.append("NULL" if item.upper() == "NULL" and not any_quote else literal(item))
            item, any_quote = "", False
            if letter == "}":
                break
        else:
            item += letter
        at += 1
    return f"[{', '.join(items)}]"


def _set_functions(tokens: list[Token], context: Context) -> list[Token]:  # noqa: ARG001
    """`generate_series(1, 3) g`: in PostgreSQL `g` also names the column."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if tokens[at].word not in _SET_FUNCTIONS or _word(tokens, _next(tokens, at)) != "(":
            continue
        if _word(tokens, _before(tokens, at)) not in ("from", ",", "join", "lateral"):
            continue
        alias = _next(tokens, _closing(tokens, _next(tokens, at)))
        if _word(tokens, alias) == "as":
            alias = _next(tokens, alias)
        if alias >= len(tokens) or tokens[alias].kind not in (Kind.WORD, Kind.QUOTED):
            continue
        if tokens[alias].word in _AFTER_TABLE or _word(tokens, _next(tokens, alias)) == "(":
            continue
        if _is_in_from(tokens, at):
            out[alias] = _raw(f"{tokens[alias].text}({tokens[alias].text})")
    return out


_AFTER_TABLE: Final = frozenset(
    ("where", "group", "order", "limit", "join", "left", "right", "inner", "full", "cross", "on", "union", "having", "with",
     "offset", "fetch", "window", "except", "intersect", "for", "natural", "from", "then", "else", "end", "and", "or")
)  # fmt: skip


def _is_in_from(tokens: Sequence[Token], at: int) -> bool:
    """Whether the nearest of SELECT and FROM before it, at its own depth, is FROM."""
    depth = 0
    for place in range(at - 1, -1, -1):
        word = tokens[place].word
        depth += {")": 1, "(": -1}.get(word, 0)
        if depth < 0:
            return False
        if depth == 0 and word in ("select", "from"):
            return word == "from"
    return False
