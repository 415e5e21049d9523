"""PostgreSQL's regular expressions in RE2's syntax; those that mean something else there, or nothing, are refused."""

from __future__ import annotations

import re
from typing import Final

from tailrace.query.query_error import QueryError
from tailrace.query.sql.syntax import refuse

_WORD: Final = r"\p{L}\p{Nl}0-9_"
_SPACE: Final = r"\t\n\v\f\r \x{85}\p{Z}"
_CLASSES: Final = {"w": _WORD, "s": _SPACE, "d": "0-9"}
_POSIX: Final = {
    "alpha": r"\p{L}\p{Nl}", "digit": "0-9", "alnum": r"\p{L}\p{Nl}0-9", "upper": r"\p{Lu}", "lower": r"\p{Ll}",
    "space": _SPACE, "xdigit": "0-9A-Fa-f", "punct": r"!-/:-@\[-`{-~",
}  # fmt: skip
_HINT: Final = "Use LIKE, position or a simpler expression."


def translate(pattern: str, needs_extent: bool = False) -> str:
    """The expression for RE2.

    With `needs_extent`, the length of the match matters: PostgreSQL takes the longest, RE2 the first alternative."""
    out: list[str] = []
    at = 0
    if pattern.startswith("***") or re.match(r"\(\?[a-z]+\)", pattern):
        raise refuse("a regular expression with embedded options", _HINT)
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            found, at = _escape(pattern, at)
            out.append(found)
            continue
        if letter == "[":
            found, at = _bracket(pattern, at)
            out.append(found)
            continue
        if letter == "(" and pattern.startswith("(?", at) and not pattern.startswith("(?:", at):
            raise refuse("a regular expression with lookaround or options", _HINT)
        if needs_extent and (letter == "|" or (letter == ")" and pattern[at + 1 : at + 2] in ("*", "+", "?", "{"))):
            raise refuse("a regular expression with alternatives or repeated groups in this function", _HINT)
        if letter in "*+?}" and pattern[at + 1 : at + 2] == "?" and needs_extent:
            raise refuse("a non-greedy regular expression in this function", _HINT)
        if letter in "*+?}" and pattern[at + 1 : at + 2] in ("*", "+"):
            raise refuse("a regular expression with a repeated quantifier", _HINT)
        if letter == "{" and not re.match(r"\{[0-9]+(,[0-9]*)?\}", pattern[at:]):
            raise refuse("a regular expression with a literal brace", _HINT)
        out.append(letter)
        at += 1
    return "".join(out)


def _escape(pattern: str, at: int) -> tuple[str, int]:
    letter = pattern[at + 1 : at + 2]
    if letter.lower() in _CLASSES and letter:
        negation = "^" if letter.isupper() else ""
        return f"[{negation}{_CLASSES[letter.lower()]}]", at + 2
    if letter in ("n", "t", "r", "f") or (letter and not letter.isalnum() and letter != "_"):
        return f"\\{letter}", at + 2
    if letter == "A":
        return "\\A", at + 2
    if letter == "Z":
        return "\\z", at + 2
    if letter in ("m", "M", "y"):
        raise refuse("a regular expression with word boundaries", _HINT)
    raise refuse(f"the escape \\{letter} in a regular expression", _HINT)


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    end = at + 1
    out = "["
    if pattern[end : end + 1] == "^":
        out, end = "[^", end + 1
    is_first = True
    while end < len(pattern) and (pattern[end] != "]" or is_first):
        if found := re.match(r"\[:([a-z]+):\]", pattern[end:]):
            if found[1] not in _POSIX:
                raise refuse(f"[:{found[1]}:] in a regular expression", _HINT)
            out += _POSIX[found[1]]
            end += len(found[0])
        elif pattern.startswith(("[.", "[="), end):
            raise refuse("a collating element in a regular expression", _HINT)
        elif pattern[end] == "\\":
            letter = pattern[end + 1 : end + 2]
            if letter.lower() in _CLASSES and letter.islower():
                out += _CLASSES[letter]
            elif letter in ("n", "t", "r", "f") or (letter and not letter.isalnum()):
                out += f"\\{letter}"
            else:
                raise refuse(f"the escape \\{letter} in a regular expression", _HINT)
            end += 2
        else:
            out += f"\\{pattern[end]}" if pattern[end] in "[]" else pattern[end]
            end += 1
        is_first = False
    if end >= len(pattern):
        raise QueryError("2201B", "invalid regular expression: brackets [] not balanced")
    return out + "]", end + 1


def similar(pattern: str) -> str:
    """A pattern of SIMILAR TO as an expression for the whole text."""
    out = ""
    at = 0
    in_bracket = False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\" and at + 1 < len(pattern):
            out += "\\" + pattern[at + 1]
            at += 2
            continue
        if in_bracket:
            in_bracket = letter != "]"
            out += letter
        elif letter == "[":
            in_bracket = True
            out += letter
        else:
            out += {"%": "(?s:.*)", "_": "(?s:.)", ".": "\\.", "^": "\\^", "$": "\\$"}.get(letter, letter)
        at += 1
    return out
