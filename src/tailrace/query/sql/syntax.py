"""PostgreSQL's own parser: a statement's text to its syntax tree, as nested dictionaries."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final

import pgparse

from tailrace.query.query_error import EXACT, UNSUPPORTED, QueryError

Node = dict[str, Any]
"""A node without its tag, such as the fields of a `SelectStmt`."""


_STACK_BYTES: Final = 256 << 20
"""The parser recurses in C, where an overflow of the stack ends the process. It takes up to 400 bytes a level, and the
longest statement has 100,000. Unused pages take no memory."""


@cache
def _parser() -> ThreadPoolExecutor:
    """The only thread that parses. The parser takes one of the process's 1,024 keys of thread-specific values in each
    thread that calls it, and never returns it; without any left, TLS fails."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        made = ThreadPoolExecutor(1, "parser")
        made.submit(pgparse.parse, "SELECT 1").result()
        return made
    finally:
        threading.stack_size(before)


def parse_statement(sql: str) -> tuple[str, Node]:
    """The tag and the fields of the only statement in `sql`."""
    try:
        found = _parser().submit(pgparse.parse, sql).result()
    except pgparse.PGQueryError as error:
        raise QueryError("42601", str(error.message if hasattr(error, "message") else error)) from None
    if len(found) != 1:
        raise QueryError("42601", "cannot insert multiple commands into a prepared statement")
    return unwrap(found[0]["stmt"])


def unwrap(node: Node) -> tuple[str, Node]:
    """The tag of a node and its fields."""
    [(tag, fields)] = node.items()
    return tag, fields


def names(nodes: list[Node]) -> list[str]:
    """The texts of a list of strings, such as a qualified name."""
    return [node["String"].get("sval", "") for node in nodes]


def fingerprint(node: Any) -> str:
    """A text that is equal for expressions that are written equally, wherever they stand."""
    return json.dumps(_without_location(node), sort_keys=True)


def _without_location(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_location(value) for key, value in node.items() if key != "location"}
    return [_without_location(value) for value in node] if isinstance(node, list) else node


def refuse(what: str, hint: str = "") -> QueryError:
    """The error for what has no exact rendering."""
    return QueryError(UNSUPPORTED, f"{what} is not supported", hint or EXACT)
