"""PostgreSQL's regular expressions in RE2's syntax; those that mean something else there, or nothing, are refused."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from tailrace.query.query_error import QueryError
from tailrace.query.sql.syntax import refuse


def _letters() -> dict[str, str]:
    """The classes of PostgreSQL's builtin locale C.UTF-8 as ranges of code points, in RE2's syntax."""
    found = {}
    for line in files(__package__).joinpath("letter_classes.txt").read_text("utf-8").splitlines():
        name, *ranges = line.split(" ")
        found[name] = "".join(["-".join([f"\\x{{{end}}}" for end in one.split("-")]) for one in ranges])
    return found


_LETTERS: Final = _letters()
_SPACE: Final = r"\t\n\v\f\r \x{85}\p{Z}"
_CLASSES: Final = {"w": _LETTERS["alpha"] + "0-9_", "s": _SPACE, "d": "0-9"}
_POSIX: Final = {
    **_LETTERS, "digit": "0-9", "alnum": _LETTERS["alpha"] + "0-9", "space": _SPACE, "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_HINT: Final = "Use LIKE, position or a simpler expression."


def translate(pattern: str, needs_extent: bool = False, ignore_case: bool = False) -> str:
    """The expression for RE2.

    With `needs_extent`, the length of the match matters: PostgreSQL takes the longest, RE2 the first alternative.
    With `ignore_case`, a letter stands for its two cases. RE2's own option also equates the letters k and K (Kelvin).
    """
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
            found, at = _bracket(pattern, at, ignore_case)
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
        cases = _cases(letter) if ignore_case else letter
        out.append(cases if len(cases) == 1 else f"[{cases}]")
        at += 1
    return "".join(out)


def check_repeats(pattern: str) -> None:
    """Refuse an expression that matches an empty text, if all matches count.

    After a longer match, PostgreSQL also finds the empty one that follows, and RE2 does not."""
    if pattern.strip("^$") and _for_python(pattern).search("") is not None:
        raise refuse("a regular expression that matches an empty text in this function", _HINT)


def group_count(pattern: str) -> int:
    return _for_python(pattern).groups


def _for_python(pattern: str) -> re.Pattern[str]:
    """A translated expression as Python reads it: with the same groups, but other classes of letters."""
    try:
        return re.compile(
            re.sub(r"\\x\{\w+\}-\\x\{\w+\}|\\p\{\w+\}|\\x\{\w+\}|\\v", "a", pattern).replace("\\z", "\\Z")
        )
    except re.error as error:
        raise QueryError("2201B", f"invalid regular expression: {error}") from None


_NO_OTHER_CASE: Final = "ßŉǰΐΰևẖẗẘẙẚ"
"""Letters whose other case is several letters, so that PostgreSQL leaves them as they are."""


def _cases(letter: str) -> str:
    """A letter in both cases, as PostgreSQL's builtin locale C.UTF-8 has them."""
    if letter in _NO_OTHER_CASE or not letter.isalpha():
        return letter
    lower, upper = letter.lower(), letter.upper()
    if len(lower) != 1 or len(upper) != 1:
        raise refuse(f"the letter {letter} in a regular expression that ignores case", _HINT)
    return lower if lower == upper else lower + upper


def _range_cases(first: str, last: str) -> str:
    """A range of letters in both cases."""
    if not (first + last).isascii():
        raise refuse("a range of letters beyond ASCII in a regular expression that ignores case", _HINT)
    found = ""
    for low, high, shift in (("a", "z", -32), ("A", "Z", 32)):
        start, end = max(first, low), min(last, high)
        if start <= end:
            found += f"{chr(ord(start) + shift)}-{chr(ord(end) + shift)}"
    return found


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


def _bracket(pattern: str, at: int, ignore_case: bool) -> tuple[str, int]:
    end = at + 1
    out = "["
    if pattern[end : end + 1] == "^":
        out, end = "[^", end + 1
    is_first = True
    while end < len(pattern) and (pattern[end] != "]" or is_first):
        if found := re.match(r"\[:([a-z]+):\]", pattern[end:]):
            if found[1] not in _POSIX:
                raise refuse(f"[:{found[1]}:] in a regular expression", _HINT)
            out += _POSIX["alpha" if ignore_case and found[1] in ("upper", "lower") else found[1]]
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
        elif ignore_case and (found := re.match(r"([^\[\]\\])-([^\[\]\\])", pattern[end:])):
            out += found[0] + _range_cases(found[1], found[2])
            end += 3
        else:
            cases = _cases(pattern[end]) if ignore_case else pattern[end]
            out += f"\\{cases}" if cases in "[]" else cases
            end += 1
        is_first = False
    if end >= len(pattern):
        raise QueryError("2201B", "invalid regular expression: brackets [] not balanced")
    return out + "]", end + 1


def similar(pattern: str, ignore_case: bool = False) -> str:
    """A pattern of SIMILAR TO as an expression of RE2 for the whole text."""
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
            out += {"%": ".*", "_": ".", "(": "(?:", ".": "\\.", "^": "\\^", "$": "\\$"}.get(letter, letter)
        at += 1
    return translate(out, ignore_case=ignore_case)
