"""Casts of PostgreSQL's dialect: types that DuckDB knows by another name, names of relations, texts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tailrace.query.failure import Failure
from tailrace.query.lexer import Kind, Token, joined
from tailrace.query.shape import NUMERIC, literal
from tailrace.query.walking import cast_operand, closing, following, operand, preceding, raw, string_at, word_at

Oid = Callable[[str, str], int | None]
"""(`regclass` or another, name as written) → oid."""

_REG: Final = ("regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole")


# PostgreSQL's name → DuckDB's, where DuckDB has the same name for another type.
_TYPES: Final = {
    "numeric": f"DECIMAL({NUMERIC[0]}, {NUMERIC[1]})",
    "decimal": f"DECIMAL({NUMERIC[0]}, {NUMERIC[1]})",
    "float": "DOUBLE",
    '"char"': "VARCHAR",
}


_WITHOUT_MODIFIER: Final = ("timetz", "float", "interval", "bit", "varbit")
# Types of several words, the modifier among them.
_MOMENTS: Final = {"timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ", "time": "TIME"}
_TEXTS: Final = ("text", "varchar", "char", "bpchar", "character")


def casts(tokens: list[Token], oid_of: Oid) -> list[Token]:
    """`::type` and `CAST(… AS type)`, for types that DuckDB knows otherwise."""
    out: list[Token] = []
    at = 0
    casts: list[bool] = []
    while at < len(tokens):
        token = tokens[at]
        if token.word == "(":
            casts.append(word_at(tokens, preceding(tokens, at)) in ("cast", "try_cast"))
        elif token.word == ")" and casts:
            casts.pop()
        is_double_colon = token.word == "::"
        if not is_double_colon and not (token.word == "as" and casts and casts[-1]):
            out.append(token)
            at += 1
            continue
        name = following(tokens, at)
        if is_double_colon and word_at(tokens, name) in _REG:
            _registered(out, tokens[name].word, oid_of)
            again = following(tokens, name)
            if word_at(tokens, again) == "::" and word_at(tokens, following(tokens, again)) in ("text", "varchar"):
                kind = tokens[name].word.removesuffix("edure")
                out[-1] = raw(f"{kind}_name({out[-1].text})" if out[-1].text.isdecimal() else out[-1].text)
            at = name + 1
            continue
        if not is_double_colon and word_at(tokens, name) in _REG:
            opens = _opening(out)
            text = string_at(out, _last(out)) if opens == preceding(out, _last(out)) else None
            if text is None:
                out[preceding(out, opens)] = raw(f"{tokens[name].word.removesuffix('edure')}_name")
            else:
                _registered(out, tokens[name].word, oid_of)
                out[preceding(out, opens)] = raw("")
            at = name + 1
            continue
        if is_double_colon and out and (items := _array(tokens, name, out)) is not None:
            out[_last(out)] = raw(items)
        if word_at(tokens, name) == "oid":
            _by_name(out, is_double_colon)
        if (made := _made(tokens, name)) is not None:
            expression, at = made
            if is_double_colon:
                begin = cast_operand(out, _last(out))
                out[begin:] = [raw(expression.format(joined(out[begin : _last(out) + 1])))]
            else:
                opens = _opening(out)
                begin = preceding(out, opens)
                out[begin:] = [raw(expression.format(f"({joined(out[opens + 1 :])})"))]
                at = following(tokens, at - 1) + 1  # behind the bracket that closes the CAST
                casts.pop()
            continue
        out.append(token)
        out.extend(tokens[at + 1 : name])
        at = _type(tokens, name, out)
    return out


def _by_name(out: list[Token], is_double_colon: bool) -> None:
    """A relation's oid by a name that is not known yet, rather than the name again."""
    at = _last(out) if is_double_colon else following(out, _opening(out))
    if at < len(out) and out[at].text.startswith("regclass_name"):
        out[at] = raw(out[at].text.replace("regclass_name", "regclass_oid", 1))


def _made(tokens: Sequence[Token], name: int) -> tuple[str, int] | None:
    """An expression in place of a cast that DuckDB would carry out otherwise, and the place after the type: to a text,
    perhaps of so many letters, or to a moment of so many digits."""
    word = word_at(tokens, name)
    at = following(tokens, name)
    if word == "character" and word_at(tokens, at) == "varying":
        word, at = "varchar", following(tokens, at)
    modifier: int | None = None
    if word_at(tokens, at) == "(":
        given = tokens[following(tokens, at)].text
        modifier = int(given) if given.isdecimal() else None
        at = following(tokens, closing(tokens, at))
    if word in ("timestamp", "time") and word_at(tokens, at) in ("with", "without"):
        word += "tz" if tokens[at].word == "with" else ""
        at = following(tokens, following(tokens, following(tokens, at)))
    if word_at(tokens, at) == "[":
        return None
    if word in _TEXTS:
        if word in ("char", "bpchar", "character") and modifier is None:
            modifier = 1 if word != "bpchar" else None
        return "as_text({})" if modifier is None else f"left(as_text({{}}), {modifier})", _after(tokens, at)
    if word in _MOMENTS and modifier is not None and modifier < 6:
        return f"rounded({{}}::{_MOMENTS[word]}, {modifier})", _after(tokens, at)
    if word == "time":
        return "as_time({})", _after(tokens, at)
    if word in _MOMENTS:
        return f"({{}}::{_MOMENTS[word]})", _after(tokens, at)
    return None


def _after(tokens: Sequence[Token], at: int) -> int:
    """With the white space before this place, which stands for itself."""
    return preceding(tokens, at) + 1


def _opening(out: Sequence[Token]) -> int:
    """The bracket that is open where this ends."""
    depth = 1
    at = len(out)
    while depth and at > 0:
        at -= 1
        depth += {")": 1, "(": -1}.get(out[at].word, 0)
    return at


def _last(out: Sequence[Token]) -> int:
    return preceding(out, len(out))


def _type(tokens: Sequence[Token], name: int, out: list[Token]) -> int:
    """Write a type's name; gives the place after it."""
    if name >= len(tokens):
        return name
    word = tokens[name].word or tokens[name].text
    follows = following(tokens, name)
    has_modifier = word_at(tokens, follows) == "("
    if word in _WITHOUT_MODIFIER and has_modifier:
        out.append(Token(Kind.WORD, _TYPES.get(word, tokens[name].text)))
        return closing(tokens, follows) + 1
    if word in _TYPES and not has_modifier:
        out.append(raw(_TYPES[word]))
    else:
        out.append(tokens[name])
    return name + 1


def _registered(out: list[Token], kind: str, oid_of: Oid) -> None:
    """A name becomes its oid; an oid, shown as such a type, its name."""
    end = _last(out)
    kind = kind.removesuffix("edure")
    text = string_at(out, end)
    if text is not None and kind == "regproc":
        out[end:] = [raw(literal(text.rpartition(".")[2]))]  # the catalogues name functions, which have no oid here
        return
    if text is not None:
        oid = int(text) if text.isdecimal() else oid_of(kind, text)
        if oid is None:
            what = {"regclass": "relation", "regtype": "type"}.get(kind, "name")
            raise Failure("42P01" if kind == "regclass" else "42704", f'{what} "{text}" does not exist')
        out[end:] = [raw(str(oid))]
        return
    begin = operand(out, end)
    out[begin:] = [raw(f"{kind}_name({joined(out[begin : end + 1])})")]


def _array(tokens: Sequence[Token], name: int, out: Sequence[Token]) -> str | None:
    """`'{a,b}'::text[]` as a list."""
    brackets = following(tokens, name)
    if word_at(tokens, brackets) != "[":
        return None
    text = string_at(out, _last(out))
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
