"""SQL split into tokens as PostgreSQL's scanner does. Joined, the tokens give the same text, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from tailrace.query.query_error import QueryError


class TokenKind(Enum):
    SPACE = "space"
    """White space and comments."""
    WORD = "word"
    """A keyword or an unquoted name."""
    QUOTED = "quoted"
    STRING = "string"
    NUMBER = "number"
    PARAMETER = "parameter"
    OPERATOR = "operator"
    MARK = "mark"
    """One of ( ) [ ] , ; . and ::"""


class Token(NamedTuple):
    kind: TokenKind
    text: str

    @property
    def word(self) -> str:
        """A word in lower case; a mark or an operator unchanged; empty for all others, including quoted names."""
        if self.kind is TokenKind.WORD:
            return self.text.lower()
        return self.text if self.kind in (TokenKind.MARK, TokenKind.OPERATOR) else ""

    @property
    def name(self) -> str | None:
        """A name as PostgreSQL reads it: folded to lower case unless quoted."""
        if self.kind is TokenKind.WORD:
            return self.text.lower()
        return self.text[1:-1].replace('""', '"') if self.kind is TokenKind.QUOTED else None

    @property
    def string(self) -> str | None:
        """The value of a plain string; None for strings with escapes and all other tokens."""
        if self.kind is not TokenKind.STRING or not self.text.startswith("'"):
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
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")
_DOLLAR: Final = re.compile(r"\$([^\W\d]\w*)?\$")


_MAX_TOKENS: Final = 200_000
_MAX_DEPTH: Final = 500
"""DuckDB's limits do not bound the memory and time used here. DuckDB's own depth limit is 1,000."""


def tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    at = depth = 0
    while at < len(text):
        if len(tokens) == _MAX_TOKENS:
            raise QueryError(
                "54001", f"statement has more than {_MAX_TOKENS} tokens", "Pass a long list as an array: = ANY($1)."
            )
        if text.startswith("/*", at):
            end = _comment_end(text, at)
            tokens.append(Token(TokenKind.SPACE, text[at:end]))
        elif dollar := _DOLLAR.match(text, at):
            end = text.find(dollar[0], dollar.end())
            if end < 0:
                raise QueryError("42601", "unterminated dollar-quoted string")
            end += len(dollar[0])
            tokens.append(Token(TokenKind.STRING, text[at:end]))
        elif match := _TOKEN.match(text, at):
            end = match.end()
            tokens.append(Token(TokenKind(match.lastgroup), match[0]))
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(match[0], 0)
            if depth > _MAX_DEPTH:
                raise QueryError("54001", f"brackets are nested more than {_MAX_DEPTH} deep")
        else:
            what = {"'": "unterminated quoted string", '"': "unterminated quoted identifier"}.get(text[at])
            raise QueryError("42601", what or f'syntax error at or near "{text[at]}"')
        at = end
    return tokens


def _comment_end(text: str, at: int) -> int:
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise QueryError("42601", "unterminated /* comment")


def split_statements(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Split at semicolons, leaving out empty statements."""
    current: list[Token] = []
    for token in [*tokens, Token(TokenKind.MARK, ";")]:
        if token != (TokenKind.MARK, ";"):
            current.append(token)
            continue
        if any(t.kind is not TokenKind.SPACE for t in current):
            yield current
        current = []


def without_space(tokens: Sequence[Token]) -> list[Token]:
    """The tokens without white space and comments."""
    return [token for token in tokens if token.kind is not TokenKind.SPACE]


def join_tokens(tokens: Sequence[Token]) -> str:
    return "".join([token.text for token in tokens])
