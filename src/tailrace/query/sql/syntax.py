"""PostgreSQL's own parser: a statement's text to its syntax tree, as nested dictionaries."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from typing import Any, Final

import pgparse

from tailrace.query.query_error import EXACT, UNSUPPORTED, QueryError

Node = dict[str, Any]
"""A node without its tag, such as the fields of a `SelectStmt`."""


_SHORT: Final = 10_000
"""The parser recurses in C, where an overflow of the stack ends the process: it takes up to 400 bytes a level, and each
level at least two characters. Any thread's stack is large enough for a statement of so many characters."""
_STACK_BYTES: Final = 256 << 20
"""Large enough for the longest statement, of which each second token opens a level. Unused pages take no memory."""
_stack_size: Final = threading.Lock()
"""The size for new threads is the process's."""


def parse_statement(sql: str) -> tuple[str, Node]:
    """The tag and the fields of the only statement in `sql`."""
    try:
        found = _parse(sql)
    except pgparse.PGQueryError as error:
        raise QueryError("42601", str(error.message if hasattr(error, "message") else error)) from None
    if len(found) != 1:
        raise QueryError("42601", "cannot insert multiple commands into a prepared statement")
    return unwrap(found[0]["stmt"])


def _parse(sql: str) -> Any:
    if len(sql) < _SHORT:
        return pgparse.parse(sql)
    found: Future[Any] = Future()

    def parse() -> None:
        try:
            found.set_result(pgparse.parse(sql))
        except Exception as error:
            found.set_exception(error)

    with _stack_size:
        before = threading.stack_size(_STACK_BYTES)
        try:
            threading.Thread(target=parse, name="parser").start()
        finally:
            threading.stack_size(before)
    return found.result()


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
