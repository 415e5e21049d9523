"""SQL cut into tokens, as PostgreSQL's own scanner cuts it. Joined, they give the text again, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from tailrace.query.failure import Failure


class Kind(Enum):
    SPACE = "space"
    """White space and comments."""
    WORD = "word"
    """A key word or a name without quotes."""
    QUOTED = "quoted"
    STRING = "string"
    NUMBER = "number"
    PARAMETER = "parameter"
    OPERATOR = "operator"
    MARK = "mark"
    """One of ( ) [ ] , ; . and ::"""


class Token(NamedTuple):
    kind: Kind
    text: str

    @property
    def word(self) -> str:
        """A word in lower case; a mark or an operator as it is; empty for everything else, also for quoted names."""
        if self.kind is Kind.WORD:
            return self.text.lower()
        return self.text if self.kind in (Kind.MARK, Kind.OPERATOR) else ""

    @property
    def name(self) -> str | None:
        """A name as PostgreSQL reads it: folded unless it is quoted."""
        if self.kind is Kind.WORD:
            return self.text.lower()
        return self.text[1:-1].replace('""', '"') if self.kind is Kind.QUOTED else None

    @property
    def string(self) -> str | None:
        """The value of a plain string; None for one with escapes, and for everything that is no string."""
        if self.kind is not Kind.STRING or not self.text.startswith("'"):
            return None
        return self.text[1:-1].replace("''", "'")


_TOKEN: Final = re.compile(
    r"""
      (?P<space>   \s+ | --[^\r\n]* )
    | (?P<string>  [eE]'(?:[^'\\]|\\.|'')*' | (?:[bBxX]|[uU]&)?'(?:[^']|'')*' )
    | (?P<parameter> \$[0-9]+ )
    | (?P<quoted>  (?:[uU]&)?"(?:[^"]|"")+" )
    | (?P<number>  0[xX][0-9a-fA-F_]+ | 0[oO][0-7_]+ | 0[bB][01_]+
                 | (?:[0-9][0-9_]*(?:\.(?!\.)[0-9_]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)? )
    | (?P<word>    [^\W\d]\w*(?:\$\w*)* )
    | (?P<mark>    :: | [()\[\],;.{}] )
    | (?P<operator> (?:(?!--|/\*)[-+*/<>=~!@\#%^&|`?:])+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_DOLLAR: Final = re.compile(r"\$([^\W\d]\w*)?\$")


_MOST_TOKENS: Final = 200_000
_DEEPEST: Final = 500
"""What is read here takes memory and time that no limit of DuckDB's bounds; its own depth is 1,000."""


def tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at = depth = 0
    while at < len(text):
        if len(found) == _MOST_TOKENS:
            raise Failure(
                "54001", f"a statement of more than {_MOST_TOKENS} words", "give a list as an array: = ANY($1)"
            )
        if text.startswith("/*", at):
            end = _comment_end(text, at)
            found.append(Token(Kind.SPACE, text[at:end]))
        elif dollar := _DOLLAR.match(text, at):
            end = text.find(dollar[0], dollar.end())
            if end < 0:
                raise Failure("42601", "unterminated dollar-quoted string")
            end += len(dollar[0])
            found.append(Token(Kind.STRING, text[at:end]))
        elif match := _TOKEN.match(text, at):
            end = match.end()
            found.append(Token(Kind(match.lastgroup), match[0]))
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(match[0], 0)
            if depth > _DEEPEST:
                raise Failure("54001", f"more than {_DEEPEST} brackets are open")
        else:
            what = {"'": "unterminated quoted string", '"': "unterminated quoted identifier"}.get(text[at])
            raise Failure("42601", what or f'syntax error at or near "{text[at]}"')
        at = end
    return found


def _comment_end(text: str, at: int) -> int:
    depth = 0
    for mark in re.finditer(r"/\*|\*/", text[at:]):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return at + mark.end()
    raise Failure("42601", "unterminated /* comment")


def statements(found: Sequence[Token]) -> Iterator[list[Token]]:
    """Cut at every semicolon; those without a word in them are left out."""
    current: list[Token] = []
    for token in [*found, Token(Kind.MARK, ";")]:
        if token != (Kind.MARK, ";"):
            current.append(token)
            continue
        if any(t.kind is not Kind.SPACE for t in current):
            yield current
        current = []


def words(found: Sequence[Token]) -> list[Token]:
    """Without white space and comments."""
    return [token for token in found if token.kind is not Kind.SPACE]


def joined(found: Sequence[Token]) -> str:
    return "".join([token.text for token in found])
