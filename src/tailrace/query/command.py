"""Statements other than queries (SET, SHOW, COPY, DECLARE, transaction control), parsed from their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from tailrace.query.lexer import Token, TokenKind, without_space
from tailrace.query.query_error import FORBIDDEN, READ_ONLY, UNSUPPORTED, QueryError


@dataclass(frozen=True)
class Set:
    name: str
    value: str | None
    """None for the default."""
    is_local: bool = False


@dataclass(frozen=True)
class Show:
    name: str


@dataclass(frozen=True)
class Copy:
    query: Sequence[Token]
    format: Literal["text", "csv", "binary"] = "text"
    delimiter: str = "\t"
    null: str = "\\N"
    header: bool = False
    quote: str = '"'


@dataclass(frozen=True)
class Declare:
    name: str
    query: Sequence[Token]
    is_holdable: bool = False


@dataclass(frozen=True)
class Fetch:
    name: str
    count: int | None
    """None for all."""
    is_move: bool = False


@dataclass(frozen=True)
class NoOp:
    """A statement that is accepted and has no effect."""

    tag: str


@dataclass(frozen=True)
class TransactionControl:
    action: Literal["begin", "commit", "rollback", "restore"]
    """`restore` is ROLLBACK TO SAVEPOINT: as nothing was written, it only makes the session accept statements again."""
    tag: str


@dataclass(frozen=True)
class Deallocate:
    name: str | None
    is_cursor: bool = False


@dataclass(frozen=True)
class Discard:
    what: str


@dataclass(frozen=True)
class Explain:
    query: Sequence[Token]
    is_analyze: bool = False


@dataclass(frozen=True)
class Select:
    query: Sequence[Token] = field(repr=False)


Command = Set | Show | Copy | Declare | Fetch | NoOp | TransactionControl | Deallocate | Discard | Explain | Select

_TRANSACTIONS: Final = {
    "begin": ("begin", "BEGIN"),
    "start": ("begin", "START TRANSACTION"),
    "commit": ("commit", "COMMIT"),
    "end": ("commit", "COMMIT"),
    "rollback": ("rollback", "ROLLBACK"),
    "abort": ("rollback", "ROLLBACK"),
}
_NO_OPS: Final = {
    "savepoint": "SAVEPOINT",
    "release": "RELEASE",
    "listen": "LISTEN",
    "unlisten": "UNLISTEN",
    "analyze": "ANALYZE",
}


def parse(tokens: Sequence[Token]) -> Command:
    words = without_space(tokens)
    first = words[0].word
    rest = [token.word for token in words[1:]]
    if first == "rollback" and "to" in rest:
        return TransactionControl("restore", "ROLLBACK")
    if first in _TRANSACTIONS and not (first == "end" and rest):
        word, tag = _TRANSACTIONS[first]
        return TransactionControl(word, tag)  # type: ignore[arg-type]
    if first in _NO_OPS:
        return NoOp(_NO_OPS[first])
    if first == "notify":
        raise QueryError(READ_ONLY, "cannot execute NOTIFY in a read-only transaction")
    match first:
        case "set":
            return _set(words[1:])
        case "reset":
            if rest == ["session", "authorization"]:
                return NoOp("RESET")
            return Set(_setting_name(words[1:]), None)
        case "show":
            aliases = {"time zone": "timezone", "transaction isolation level": "transaction_isolation"}
            return Show(aliases.get(" ".join(rest)) or _setting_name(words[1:]))
        case "copy":
            return _copy(tokens)
        case "declare":
            return _declare(tokens)
        case "fetch" | "move":
            return _fetch(words)
        case "close" | "deallocate":
            name = next((t.name for t in words[1:] if t.word != "prepare"), None)
            return Deallocate(None if name == "all" else name, is_cursor=first == "close")
        case "discard":
            return Discard(rest[0] if rest else "all")
        case "explain":
            return _explain(tokens)
        case "lock" | "grant" | "revoke" | "truncate" | "comment" | "reindex" | "cluster" | "refresh" | "import":
            raise QueryError(READ_ONLY, f"cannot execute {first.upper()} in a read-only transaction")
        case "do" | "execute" | "prepare":
            raise QueryError(
                UNSUPPORTED, f"{first.upper()} is not supported", "Prepare statements through the protocol."
            )
    return Select(tokens)


def _setting_name(words: Sequence[Token]) -> str:
    if words and words[0].word == "all":
        return "all"
    name = "".join([token.name or token.text for token in words])
    if not name:
        raise QueryError("42601", "syntax error at end of input")
    return name


def _set(words: Sequence[Token]) -> Command:
    is_local = bool(words) and words[0].word == "local"
    if words and words[0].word in ("session", "local"):
        if [t.word for t in words[1:3]] in (["characteristics", "as"], ["authorization", ""]):
            return NoOp("SET")
        words = words[1:]
    if not words:
        raise QueryError("42601", "syntax error at end of input")
    if words[0].word in ("transaction", "constraints", "role"):
        return NoOp("SET")
    if words[0].word == "time" and len(words) > 2 and words[1].word == "zone":
        return Set("timezone", _value(words[2:]), is_local)
    if words[0].word == "names":
        return Set("client_encoding", _value(words[1:]), is_local)
    end = next((n for n, t in enumerate(words) if t.word in ("=", "to")), None)
    if end is None or end + 1 >= len(words):
        raise QueryError("42601", "syntax error in SET", "SET name = value")
    return Set(_setting_name(words[:end]), _value(words[end + 1 :]), is_local)


def _value(words: Sequence[Token]) -> str | None:
    if len(words) == 1 and words[0].word == "default":
        return None
    parts = []
    for token in words:
        if token.kind is TokenKind.STRING:
            parts.append(token.string if token.string is not None else token.text)
        else:
            parts.append(
                token.text if token.kind is TokenKind.QUOTED else token.text.lower() if len(words) > 1 else token.text
            )
    return "".join(", " if part == "," else part for part in parts)


def _copy(tokens: Sequence[Token]) -> Copy:
    """Parse `COPY (query) TO STDOUT …` or `COPY table (columns) …`, with old-style or new-style options."""
    words = [n for n, t in enumerate(tokens) if t.kind is not TokenKind.SPACE]
    depth = 0
    to = None
    for place, n in enumerate(words):
        depth += {"(": 1, ")": -1}.get(tokens[n].word, 0)
        if depth == 0 and tokens[n].word in ("to", "from"):
            to = place
            break
    if to is None:
        raise QueryError("42601", "syntax error in COPY", "COPY (query) TO STDOUT")
    if tokens[words[to]].word == "from":
        raise QueryError(READ_ONLY, "cannot execute COPY FROM in a read-only transaction")
    target = tokens[words[to + 1]].word if to + 1 < len(words) else ""
    if target != "stdout":
        raise QueryError(FORBIDDEN, "permission denied to COPY to a file or a program", "Use COPY … TO STDOUT.")
    source = tokens[words[1] : words[to]]
    if without_space(source)[0].word == "(":
        inner = list(source)
        opens = next(n for n, t in enumerate(inner) if t.word == "(")
        closes = max(n for n, t in enumerate(inner) if t.word == ")")
        query: list[Token] = inner[opens + 1 : closes]
    else:
        query = _table_query(source)
    return Copy(query, **_copy_options(without_space(tokens[words[to + 1] + 1 :])))  # type: ignore[arg-type]


def _table_query(source: Sequence[Token]) -> list[Token]:
    opens = next((n for n, t in enumerate(source) if t.word == "("), None)
    columns = [Token(TokenKind.OPERATOR, "*")]
    if opens is not None:
        columns = [t for t in source[opens:] if t.word not in ("(", ")")]
        source = source[:opens]
    space = Token(TokenKind.SPACE, " ")
    return [Token(TokenKind.WORD, "select"), space, *columns, space, Token(TokenKind.WORD, "from"), space, *source]


def _copy_options(words: Sequence[Token]) -> dict[str, object]:
    options: dict[str, object] = {}
    plain = [t for t in words if t.word not in ("(", ")", ",", "with", "as", "=")]
    names = ("format", "delimiter", "null", "header", "quote", "escape", "encoding", "force_quote", "csv", "binary")
    at = 0
    while at < len(plain):
        name = plain[at].word
        follows = plain[at + 1] if at + 1 < len(plain) else None
        value = follows if follows is not None and (name == "format" or follows.word not in names) else None
        if name not in names:
            raise QueryError("42601", f'option "{plain[at].text}" not recognized')
        if name in ("csv", "binary"):
            options["format"] = name
            value = None
        elif name == "header":
            options["header"] = value is None or value.word not in ("false", "off", "0")
        elif value is None:
            raise QueryError("42601", f"{name} requires a value")
        elif name == "format":
            options["format"] = (value.name or value.string or "").lower()
        elif name in ("delimiter", "null", "quote"):
            text = value.string if value.string is not None else value.text
            options[name] = {"E'\\t'": "\t", "e'\\t'": "\t"}.get(text, text)
        elif name in ("escape", "force_quote"):
            raise QueryError(UNSUPPORTED, f"COPY option {name} is not supported")
        at += 1 if value is None else 2
    if options.get("format", "text") not in ("text", "csv", "binary"):
        raise QueryError("22023", f'COPY format "{options["format"]}" not recognized')
    if options.get("format") == "csv":
        options = {"delimiter": ",", "null": "", **options}
    if len(str(options.get("delimiter", ","))) != 1 or not str(options.get("delimiter", ",")).isascii():
        raise QueryError(UNSUPPORTED, "COPY delimiter must be a single one-byte character")
    return options


def _declare(tokens: Sequence[Token]) -> Declare:
    words = without_space(tokens)
    at = next((n for n, t in enumerate(tokens) if t.word == "for"), None)
    if at is None or "cursor" not in [t.word for t in words]:
        raise QueryError("42601", "syntax error in DECLARE", "DECLARE name CURSOR FOR query")
    head = [t.word for t in without_space(tokens[:at])]
    is_holdable = "hold" in head and "without" not in head
    return Declare(words[1].name or "", tokens[at + 1 :], is_holdable)


def _fetch(words: Sequence[Token]) -> Fetch:
    middle = [t.word or t.text for t in words[1:-1] if t.word not in ("from", "in", "forward")]
    if any(word in ("backward", "prior", "first", "last", "absolute", "relative") for word in middle):
        raise QueryError("55000", "cursor can only scan forward")
    count = None if middle == ["all"] else int("".join(middle)) if _is_count(middle) else 1
    if count is not None and count < 1:
        raise QueryError("55000", "cursor can only scan forward")
    return Fetch(words[-1].name or "", count, is_move=words[0].word == "move")


def _is_count(middle: Sequence[str]) -> bool:
    return "".join(middle).removeprefix("-").removeprefix("+").isdecimal()


def _explain(tokens: Sequence[Token]) -> Explain:
    """Parse the options, old-style or in brackets, and the statement to explain."""
    words = [n for n, t in enumerate(tokens) if t.kind is not TokenKind.SPACE][1:]
    is_analyze = False
    depth = 0
    for n in words:
        word = tokens[n].word
        is_option = depth > 0 or word in ("analyze", "verbose") or (word == "(" and n == words[0])
        if not is_option or (n != words[0] and word == "(" and depth == 0):
            return Explain(tokens[n:], is_analyze)
        depth += {"(": 1, ")": -1}.get(word, 0)
        is_analyze = is_analyze or word == "analyze"
    raise QueryError("42601", "syntax error at end of input")
