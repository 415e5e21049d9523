"""PostgreSQL's names for the columns of a result: `count` for count(*), `?column?` for 1 + 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.query.lexer import Token, TokenKind, without_space
from tailrace.query.token_position import closing_bracket

_END: Final = frozenset(
    ("from", "where", "group", "having", "window", "union", "except", "intersect", "order", "limit", "offset", "fetch",
     "for", "qualify")
)  # fmt: skip
_CONSTANTS: Final = frozenset(
    ("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "current_user",
     "session_user", "user", "current_schema", "current_catalog")
)  # fmt: skip
_TYPES: Final = {
    "integer": "int4", "int": "int4", "bigint": "int8", "smallint": "int2", "real": "float4", "boolean": "bool",
    "double": "float8", "decimal": "numeric", "character": "bpchar", "char": "bpchar", "varying": "varchar",
}  # fmt: skip


def column_names(tokens: Sequence[Token], names: Sequence[str]) -> list[str]:
    """DuckDB's column names, with PostgreSQL's for columns without an alias."""
    items = _items(without_space(tokens))
    stars = [n for n, item in enumerate(items) if item[-1].word == "*"]
    if not items or len(stars) > 1 or (not stars and len(items) != len(names)) or len(names) < len(items) - len(stars):
        return list(names)
    found = list(names)
    split = stars[0] if stars else len(items)
    for n, item in enumerate(items):
        if n != split and (name := _name(item)) is not None:
            found[n if n < split else len(names) - len(items) + n] = name
    return found


def find_plain_columns(tokens: Sequence[Token], names: Sequence[str]) -> list[bool]:
    """For each column of the result, whether it is an unchanged table column. All False with more than one SELECT."""
    found = without_space(tokens)
    items = _items(found)
    if sum(t.word == "select" for t in found) != 1 or any(t.word in ("union", "values", "with") for t in found):
        return [False] * len(names)
    if any(item[-1].word == "*" for item in items):
        return [len(items) == 1] * len(names)
    if len(items) != len(names):
        return [False] * len(names)
    return [all(t.name is not None or t.word == "." for t in item) and len(item) in (1, 3) for item in items]


def _items(found: Sequence[Token]) -> list[list[Token]]:
    """The items of the select list of the first SELECT outside brackets."""
    depth = 0
    begin = None
    items: list[list[Token]] = []
    for at, token in enumerate(found):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.word, 0)
        if depth:
            if begin is not None:
                items[-1].append(token)
        elif begin is None:
            if token.word == "select":
                begin = at
                items = [[]]
        elif token.word in _END and not _is_part_of_more(found, at):
            break
        elif token.word == "," and items[-1]:
            items.append([])
        elif not (token.word in ("distinct", "all") and not items[-1] and len(items) == 1):
            items[-1].append(token)
    if items and items[0] and items[0][0].word == "on":  # DISTINCT ON (…)
        close = next((n for n, t in enumerate(items[0]) if t.word == ")"), -1)
        items[0] = items[0][close + 1 :]
    return items if all(items) else []


def _is_part_of_more(found: Sequence[Token], at: int) -> bool:
    """Whether the keyword belongs to IS DISTINCT FROM or WITHIN GROUP."""
    before = found[at - 1].word
    return (found[at].word, before) == ("group", "within") or (
        (found[at].word, before) == ("from", "distinct") and found[at - 2].word in ("is", "not")
    )


def _name(item: list[Token]) -> str | None:
    """PostgreSQL's name for an item; None if DuckDB's is right."""
    if len(item) > 1 and item[-2].word == "as":
        return None
    if (cast := _last(item, "::")) is not None:
        inner = item[:cast]
        while (earlier := _last(inner, "::")) is not None:
            inner = inner[:earlier]
        return _cast_name(inner, item[cast + 1])
    if item[0].name is not None and all(t.name is not None or t.word == "." for t in item):
        if len(item) == 1 and item[0].word in _CONSTANTS:
            return item[0].word
        if len(item) == 1 and item[0].word in ("true", "false", "null"):
            return "?column?"
        is_path = all((t.word == ".") == bool(n % 2) for n, t in enumerate(item))
        return item[-1].name if is_path else None
    if (
        len(item) > 3
        and item[0].name is not None
        and item[1].word == "["
        and item[-1].word == "]"
        and item[0].word != "array"
    ):
        return item[0].name
    if item[0].word == "array" and item[-1].word == "]":
        return "array"
    if item[0].word == "case":
        return "case" if item[-1].word == "end" else None
    call = 0
    while call + 2 < len(item) and item[call + 1].word == ".":
        call += 2
    if item[call].name is not None and call + 1 < len(item) and item[call + 1].word == "(":
        closes = closing_bracket(item, call + 1)
        rest = [t.word for t in item[closes + 1 :]]
        if (rest[:1] in (["filter"], ["over"], ["within"]) and item[-1].word == ")") or not rest:
            word = item[call].name or ""
            if word == "cast":
                split = max(n for n, t in enumerate(item) if t.word == "as")
                return _cast_name(item[call + 2 : split], item[split + 1])
            return _trim_name(item[call + 2].word) if word == "trim" else word
        if rest[:1] == ["over"] and len(rest) == 2:
            return item[call].name
    if item[-1].kind in (TokenKind.WORD, TokenKind.QUOTED) and len(item) > 1:
        before = item[-2]
        if before.kind in (TokenKind.NUMBER, TokenKind.STRING) or before.word in (")", "]", "end"):
            return None  # an alias without AS
        if before.kind in (TokenKind.WORD, TokenKind.QUOTED) and before.word not in (
            "and",
            "or",
            "not",
            "is",
            "like",
            "ilike",
            "in",
        ):
            return None
    return "?column?"


def _cast_name(inner: list[Token], type_: Token) -> str:
    """The name of the value that is cast, or of the type if the value has none."""
    name = _name(inner) if inner[0].kind is not TokenKind.STRING else "?column?"
    word = type_.name or ""
    return _TYPES.get(word, word) if name is None or name == "?column?" else name


def _trim_name(where: str) -> str:
    return {"leading": "ltrim", "trailing": "rtrim"}.get(where, "btrim")


def _last(item: Sequence[Token], word: str) -> int | None:
    """The position of the last `word`, if only a type follows it."""
    depth = 0
    for at in range(len(item) - 1, -1, -1):
        depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(item[at].word, 0)
        if depth == 0 and item[at].word == word:
            return at
        if depth == 0 and not (item[at].name is not None or item[at].word in ("(", ")", "[", "]")):
            return None
    return None
