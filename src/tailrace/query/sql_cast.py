"""Translation of PostgreSQL casts: type names that differ in DuckDB, `regclass` and its kind, array literals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tailrace.query.lexer import Token, TokenKind, join_tokens
from tailrace.query.query_error import QueryError
from tailrace.query.table_view import NUMERIC, sql_literal
from tailrace.query.token_position import (
    cast_operand_start,
    closing_bracket,
    next_at,
    operand_start,
    previous_at,
    raw_token,
    string_at,
    word_at,
)

Oid = Callable[[str, str], int | None]
"""(type such as `regclass`, name as written) → OID, or None."""

_REG: Final = ("regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole")


# PostgreSQL name → DuckDB name, where DuckDB uses the same name for a different type.
_TYPES: Final = {
    "numeric": f"DECIMAL({NUMERIC[0]}, {NUMERIC[1]})",
    "decimal": f"DECIMAL({NUMERIC[0]}, {NUMERIC[1]})",
    "float": "DOUBLE",
    '"char"': "VARCHAR",
}


_WITHOUT_MODIFIER: Final = ("timetz", "float", "interval", "bit", "varbit")
# Types whose names have several words, with a modifier in between.
_TIME_TYPES: Final = {"timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ", "time": "TIME"}
_TEXTS: Final = ("text", "varchar", "char", "bpchar", "character")


def translate_casts(tokens: list[Token], oid_of: Oid) -> list[Token]:
    """Translate `::type` and `CAST(… AS type)` for types that DuckDB treats differently."""
    out: list[Token] = []
    at = 0
    casts: list[bool] = []
    while at < len(tokens):
        token = tokens[at]
        if token.word == "(":
            casts.append(word_at(tokens, previous_at(tokens, at)) in ("cast", "try_cast"))
        elif token.word == ")" and casts:
            casts.pop()
        is_double_colon = token.word == "::"
        if not is_double_colon and not (token.word == "as" and casts and casts[-1]):
            out.append(token)
            at += 1
            continue
        name = next_at(tokens, at)
        if is_double_colon and word_at(tokens, name) in _REG:
            _translate_reg_cast(out, tokens[name].word, oid_of)
            again = next_at(tokens, name)
            if word_at(tokens, again) == "::" and word_at(tokens, next_at(tokens, again)) in ("text", "varchar"):
                kind = tokens[name].word.removesuffix("edure")
                out[-1] = raw_token(f"{kind}_name({out[-1].text})" if out[-1].text.isdecimal() else out[-1].text)
            at = name + 1
            continue
        if not is_double_colon and word_at(tokens, name) in _REG:
            opens = _open_bracket(out)
            text = string_at(out, _last_position(out)) if opens == previous_at(out, _last_position(out)) else None
            if text is None:
                out[previous_at(out, opens)] = raw_token(f"{tokens[name].word.removesuffix('edure')}_name")
            else:
                _translate_reg_cast(out, tokens[name].word, oid_of)
                out[previous_at(out, opens)] = raw_token("")
            at = name + 1
            continue
        if is_double_colon and out and (items := _array(tokens, name, out)) is not None:
            out[_last_position(out)] = raw_token(items)
        if word_at(tokens, name) == "oid":
            _name_to_oid(out, is_double_colon)
        if (found := _cast_expression(tokens, name)) is not None:
            expression, at = found
            if is_double_colon:
                begin = cast_operand_start(out, _last_position(out))
                out[begin:] = [raw_token(expression.format(join_tokens(out[begin : _last_position(out) + 1])))]
            else:
                opens = _open_bracket(out)
                begin = previous_at(out, opens)
                out[begin:] = [raw_token(expression.format(f"({join_tokens(out[opens + 1 :])})"))]
                at = next_at(tokens, at - 1) + 1  # after the bracket that closes the CAST
                casts.pop()
            continue
        out.append(token)
        out.extend(tokens[at + 1 : name])
        at = _append_type(tokens, name, out)
    return out


def _name_to_oid(out: list[Token], is_double_colon: bool) -> None:
    """Look up a relation's OID by a name only known at run time, instead of returning the name."""
    at = _last_position(out) if is_double_colon else next_at(out, _open_bracket(out))
    if at < len(out) and out[at].text.startswith("regclass_name"):
        out[at] = raw_token(out[at].text.replace("regclass_name", "regclass_oid", 1))


def _cast_expression(tokens: Sequence[Token], name: int) -> tuple[str, int] | None:
    """An expression that replaces a cast DuckDB performs differently, and the position after the type.

    These are casts to text, with or without a length, and to timestamps with a precision."""
    word = word_at(tokens, name)
    at = next_at(tokens, name)
    if word == "character" and word_at(tokens, at) == "varying":
        word, at = "varchar", next_at(tokens, at)
    modifier: int | None = None
    if word_at(tokens, at) == "(":
        argument = tokens[next_at(tokens, at)].text
        modifier = int(argument) if argument.isdecimal() else None
        at = next_at(tokens, closing_bracket(tokens, at))
    if word in ("timestamp", "time") and word_at(tokens, at) in ("with", "without"):
        word += "tz" if tokens[at].word == "with" else ""
        at = next_at(tokens, next_at(tokens, next_at(tokens, at)))
    if word_at(tokens, at) == "[":
        return None
    if word in _TEXTS:
        if word in ("char", "bpchar", "character") and modifier is None:
            modifier = 1 if word != "bpchar" else None
        return "as_text({})" if modifier is None else f"left(as_text({{}}), {modifier})", _before_space(tokens, at)
    if word in _TIME_TYPES and modifier is not None and modifier < 6:
        return f"rounded({{}}::{_TIME_TYPES[word]}, {modifier})", _before_space(tokens, at)
    if word == "time":
        return "as_time({})", _before_space(tokens, at)
    if word in _TIME_TYPES:
        return f"({{}}::{_TIME_TYPES[word]})", _before_space(tokens, at)
    return None


def _before_space(tokens: Sequence[Token], at: int) -> int:
    """The position before any white space that precedes `at`: the white space is copied separately."""
    return previous_at(tokens, at) + 1


def _open_bracket(out: Sequence[Token]) -> int:
    """The position of the bracket still open at the end of `out`."""
    depth = 1
    at = len(out)
    while depth and at > 0:
        at -= 1
        depth += {")": 1, "(": -1}.get(out[at].word, 0)
    return at


def _last_position(out: Sequence[Token]) -> int:
    return previous_at(out, len(out))


def _append_type(tokens: Sequence[Token], name: int, out: list[Token]) -> int:
    """Append a type's name to `out`; returns the position after it."""
    if name >= len(tokens):
        return name
    word = tokens[name].word or tokens[name].text
    follows = next_at(tokens, name)
    has_modifier = word_at(tokens, follows) == "("
    if word in _WITHOUT_MODIFIER and has_modifier:
        out.append(Token(TokenKind.WORD, _TYPES.get(word, tokens[name].text)))
        return closing_bracket(tokens, follows) + 1
    if word in _TYPES and not has_modifier:
        out.append(raw_token(_TYPES[word]))
    else:
        out.append(tokens[name])
    return name + 1


def _translate_reg_cast(out: list[Token], kind: str, oid_of: Oid) -> None:
    """Replace a name by its OID, and an OID cast to a reg* type by its name."""
    end = _last_position(out)
    kind = kind.removesuffix("edure")
    text = string_at(out, end)
    if text is not None and kind == "regproc":
        out[end:] = [
            raw_token(sql_literal(text.rpartition(".")[2]))
        ]  # system catalogs hold function names here, not OIDs
        return
    if text is not None:
        oid = int(text) if text.isdecimal() else oid_of(kind, text)
        if oid is None:
            what = {"regclass": "relation", "regtype": "type"}.get(kind, "name")
            raise QueryError("42P01" if kind == "regclass" else "42704", f'{what} "{text}" does not exist')
        out[end:] = [raw_token(str(oid))]
        return
    begin = operand_start(out, end)
    out[begin:] = [raw_token(f"{kind}_name({join_tokens(out[begin : end + 1])})")]


def _array(tokens: Sequence[Token], name: int, out: Sequence[Token]) -> str | None:
    """The list for `'{a,b}'::text[]`, or None."""
    brackets = next_at(tokens, name)
    if word_at(tokens, brackets) != "[":
        return None
    text = string_at(out, _last_position(out))
    return array_literal(text) if text is not None and text.startswith("{") else None


def array_literal(text: str) -> str:
    """A one-dimensional array in PostgreSQL's text form as a DuckDB list of strings."""
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
                items.append("NULL" if item.upper() == "NULL" and not any_quote else sql_literal(item))
            item, any_quote = "", False
            if letter == "}":
                break
        else:
            item += letter
        at += 1
    return f"[{', '.join(items)}]"
