"""Statements that are no query: SET, SHOW, COPY, DECLARE and the words of transactions, read from their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from tailrace.query.failure import FORBIDDEN, READ_ONLY, UNSUPPORTED, Failure
from tailrace.query.lexer import Kind, Token, words


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
    is_held: bool = False


@dataclass(frozen=True)
class Fetch:
    name: str
    count: int | None
    """None for all."""
    is_move: bool = False


@dataclass(frozen=True)
class Done:
    """Nothing more to do than to say so."""

    tag: str


@dataclass(frozen=True)
class Transaction:
    word: Literal["begin", "commit", "rollback", "restore"]
    """`restore` for a savepoint's: nothing was written, so all that comes back is that statements are taken again."""
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


Command = Set | Show | Copy | Declare | Fetch | Done | Transaction | Deallocate | Discard | Explain | Select

_TRANSACTIONS: Final = {
    "begin": ("begin", "BEGIN"),
    "start": ("begin", "START TRANSACTION"),
    "commit": ("commit", "COMMIT"),
    "end": ("commit", "COMMIT"),
    "rollback": ("rollback", "ROLLBACK"),
    "abort": ("rollback", "ROLLBACK"),
}
_DONE: Final = {
    "savepoint": "SAVEPOINT",
    "release": "RELEASE",
    "listen": "LISTEN",
    "unlisten": "UNLISTEN",
    "analyze": "ANALYZE",
}


def parse(tokens: Sequence[Token]) -> Command:
    found = words(tokens)
    first = found[0].word
    rest = [token.word for token in found[1:]]
    if first == "rollback" and "to" in rest:
        return Transaction("restore", "ROLLBACK")
    if first in _TRANSACTIONS and not (first == "end" and rest):
        word, tag = _TRANSACTIONS[first]
        return Transaction(word, tag)  # type: ignore[arg-type]
    if first in _DONE:
        return Done(_DONE[first])
    if first == "notify":
        raise Failure(READ_ONLY, "cannot execute NOTIFY in a read-only transaction")
    match first:
        case "set":
            return _set(found[1:])
        case "reset":
            if rest == ["session", "authorization"]:
                return Done("RESET")
            return Set(_dotted(found[1:]), None)
        case "show":
            words_for = {"time zone": "timezone", "transaction isolation level": "transaction_isolation"}
            return Show(words_for.get(" ".join(rest)) or _dotted(found[1:]))
        case "copy":
            return _copy(tokens)
        case "declare":
            return _declare(tokens)
        case "fetch" | "move":
            return _fetch(found)
        case "close" | "deallocate":
            name = next((t.name for t in found[1:] if t.word != "prepare"), None)
            return Deallocate(None if name == "all" else name, is_cursor=first == "close")
        case "discard":
            return Discard(rest[0] if rest else "all")
        case "explain":
            return _explain(tokens)
        case "lock" | "grant" | "revoke" | "truncate" | "comment" | "reindex" | "cluster" | "refresh" | "import":
            raise Failure(READ_ONLY, f"cannot execute {first.upper()} in a read-only transaction")
        case "do" | "execute" | "prepare":
            raise Failure(UNSUPPORTED, f"{first.upper()} is not possible here", "prepare statements with the protocol")
    return Select(tokens)


def _dotted(found: Sequence[Token]) -> str:
    if found and found[0].word == "all":
        return "all"
    name = "".join([token.name or token.text for token in found])
    if not name:
        raise Failure("42601", "syntax error at end of input")
    return name


def _set(found: Sequence[Token]) -> Command:
    is_local = bool(found) and found[0].word == "local"
    if found and found[0].word in ("session", "local"):
        if [t.word for t in found[1:3]] in (["characteristics", "as"], ["authorization", ""]):
            return Done("SET")
        found = found[1:]
    if not found:
        raise Failure("42601", "syntax error at end of input")
    if found[0].word in ("transaction", "constraints", "role"):
        return Done("SET")
    if found[0].word == "time" and len(found) > 2 and found[1].word == "zone":
        return Set("timezone", _value(found[2:]), is_local)
    if found[0].word == "names":
        return Set("client_encoding", _value(found[1:]), is_local)
    end = next((n for n, t in enumerate(found) if t.word in ("=", "to")), None)
    if end is None or end + 1 >= len(found):
        raise Failure("42601", "syntax error in SET", "SET name = value")
    return Set(_dotted(found[:end]), _value(found[end + 1 :]), is_local)


def _value(found: Sequence[Token]) -> str | None:
    if len(found) == 1 and found[0].word == "default":
        return None
    parts = []
    for token in found:
        if token.kind is Kind.STRING:
            parts.append(token.string if token.string is not None else token.text)
        else:
            parts.append(
                token.text if token.kind is Kind.QUOTED else token.text.lower() if len(found) > 1 else token.text
            )
    return "".join(", " if part == "," else part for part in parts)


def _copy(tokens: Sequence[Token]) -> Copy:
    """`COPY (query) TO STDOUT …`, or of a table, perhaps with columns; options old and new."""
    found = [n for n, t in enumerate(tokens) if t.kind is not Kind.SPACE]
    depth = 0
    to = None
    for place, n in enumerate(found):
        depth += {"(": 1, ")": -1}.get(tokens[n].word, 0)
        if depth == 0 and tokens[n].word in ("to", "from"):
            to = place
            break
    if to is None:
        raise Failure("42601", "syntax error in COPY", "COPY (query) TO STDOUT")
    if tokens[found[to]].word == "from":
        raise Failure(READ_ONLY, "cannot execute COPY FROM in a read-only transaction")
    target = tokens[found[to + 1]].word if to + 1 < len(found) else ""
    if target != "stdout":
        raise Failure(FORBIDDEN, "permission denied to COPY to a file or a program", "COPY … TO STDOUT works")
    source = tokens[found[1] : found[to]]
    if words(source)[0].word == "(":
        inner = list(source)
        opens = next(n for n, t in enumerate(inner) if t.word == "(")
        closes = max(n for n, t in enumerate(inner) if t.word == ")")
        query: list[Token] = inner[opens + 1 : closes]
    else:
        query = _table_query(source)
    return Copy(query, **_copy_options(words(tokens[found[to + 1] + 1 :])))  # type: ignore[arg-type]


def _table_query(source: Sequence[Token]) -> list[Token]:
    opens = next((n for n, t in enumerate(source) if t.word == "("), None)
    columns = [Token(Kind.OPERATOR, "*")]
    if opens is not None:
        columns = [t for t in source[opens:] if t.word not in ("(", ")")]
        source = source[:opens]
    space = Token(Kind.SPACE, " ")
    return [Token(Kind.WORD, "select"), space, *columns, space, Token(Kind.WORD, "from"), space, *source]


def _copy_options(found: Sequence[Token]) -> dict[str, object]:
    options: dict[str, object] = {}
    plain = [t for t in found if t.word not in ("(", ")", ",", "with", "as", "=")]
    names = ("format", "delimiter", "null", "header", "quote", "escape", "encoding", "force_quote", "csv", "binary")
    at = 0
    while at < len(plain):
        name = plain[at].word
        follows = plain[at + 1] if at + 1 < len(plain) else None
        value = follows if follows is not None and (name == "format" or follows.word not in names) else None
        if name not in names:
            raise Failure("42601", f'option "{plain[at].text}" not recognized')
        if name in ("csv", "binary"):
            options["format"] = name
            value = None
        elif name == "header":
            options["header"] = value is None or value.word not in ("false", "off", "0")
        elif value is None:
            raise Failure("42601", f"{name} requires a value")
        elif name == "format":
            options["format"] = (value.name or value.string or "").lower()
        elif name in ("delimiter", "null", "quote"):
            text = value.string if value.string is not None else value.text
            options[name] = {"E'\\t'": "\t", "e'\\t'": "\t"}.get(text, text)
        elif name in ("escape", "force_quote"):
            raise Failure(UNSUPPORTED, f"COPY with {name} is not possible here")
        at += 1 if value is None else 2
    if options.get("format", "text") not in ("text", "csv", "binary"):
        raise Failure("22023", f'COPY format "{options["format"]}" not recognized')
    if options.get("format") == "csv":
        options = {"delimiter": ",", "null": "", **options}
    if len(str(options.get("delimiter", ","))) != 1 or not str(options.get("delimiter", ",")).isascii():
        raise Failure(UNSUPPORTED, "COPY delimiter must be a single one-byte character")
    return options


def _declare(tokens: Sequence[Token]) -> Declare:
    found = words(tokens)
    at = next((n for n, t in enumerate(tokens) if t.word == "for"), None)
    if at is None or "cursor" not in [t.word for t in found]:
        raise Failure("42601", "syntax error in DECLARE", "DECLARE name CURSOR FOR query")
    head = [t.word for t in words(tokens[:at])]
    is_held = "hold" in head and "without" not in head
    return Declare(found[1].name or "", tokens[at + 1 :], is_held)


def _fetch(found: Sequence[Token]) -> Fetch:
    middle = [t.word or t.text for t in found[1:-1] if t.word not in ("from", "in", "forward")]
    if any(word in ("backward", "prior", "first", "last", "absolute", "relative") for word in middle):
        raise Failure("55000", "cursor can only scan forward")
    count = None if middle == ["all"] else int("".join(middle)) if _is_count(middle) else 1
    if count is not None and count < 1:
        raise Failure("55000", "cursor can only scan forward")
    return Fetch(found[-1].name or "", count, is_move=found[0].word == "move")


def _is_count(middle: Sequence[str]) -> bool:
    return "".join(middle).removeprefix("-").removeprefix("+").isdecimal()


def _explain(tokens: Sequence[Token]) -> Explain:
    """The options, old or in brackets; then whatever is to be explained."""
    found = [n for n, t in enumerate(tokens) if t.kind is not Kind.SPACE][1:]
    is_analyze = False
    depth = 0
    for n in found:
        word = tokens[n].word
        is_option = depth > 0 or word in ("analyze", "verbose") or (word == "(" and n == found[0])
        if not is_option or (n != found[0] and word == "(" and depth == 0):
            return Explain(tokens[n:], is_analyze)
        depth += {"(": 1, ")": -1}.get(word, 0)
        is_analyze = is_analyze or word == "analyze"
    raise Failure("42601", "syntax error at end of input")
