"""Columns that DuckDB must not use to skip files in a statement, because it would skip too many.

To prune by an expression compared with a constant, DuckDB's Iceberg extension evaluates it for a file's minimum and
maximum of the column and takes the two results as the bounds of the expression (duckdb-iceberg#1052). With
`extract(dow FROM placed_at) = 0` or `coalesce(note, '') = ''` it loses rows. So the view hides from filters each column
that is compared as part of an expression, directly or through an alias. A column compared by itself is unaffected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

Node = Mapping[str, Any]

_OPERANDS: Final = {"COMPARISON": ("left", "right"), "BETWEEN": ("input", "lower", "upper")}
# A cast of a date or timestamp preserves order. A cast of a text may fail, so DuckDB does not push it down.
_ORDERED_TYPES: Final = ("DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")


def unprunable_columns(nodes: Iterable[Node]) -> frozenset[str]:
    """The columns' names in lower case, from the nodes of DuckDB's parse tree of a statement."""
    found: set[str] = set()
    compared: set[str] = set()
    named: defaultdict[str, set[str]] = defaultdict(set)
    computed: set[str] = set()
    has_renames = False
    for node in nodes:
        for side in _compared_operands(node):
            (compared if _is_plain(side) else found).update(referenced_columns(side))
        for item in node.get("select_list") or ():
            if item.get("class") not in ("COLUMN_REF", "STAR"):
                computed.update(referenced_columns(item))
            if item.get("alias"):
                named[item["alias"].lower()].update(referenced_columns(item))
        # Columns renamed outside the select list.
        is_union = node.get("type") == "SET_OPERATION_NODE"
        has_renames = has_renames or is_union or bool(node.get("column_name_alias") or node.get("aliases"))
    if has_renames:
        return frozenset(found | computed)
    pending, seen = [*compared, *found], set[str]()
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += named.get(name, ())
            found |= {column for column in named.get(name, ()) if column in computed}
    return frozenset(found)


def referenced_columns(tree: Any) -> Iterator[str]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if node.get("class") == "COLUMN_REF":
                yield str(node["column_names"][-1]).lower()
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)


def _compared_operands(node: Node) -> list[Node]:
    if node.get("type") == "COMPARE_IN":
        return list(node["children"])
    return [node[part] for part in _OPERANDS.get(str(node.get("class")), ())]


def _is_plain(side: Node) -> bool:
    if side.get("class") == "CAST" and side["cast_type"]["id"] in _ORDERED_TYPES:
        side = side["child"]
    return side.get("class") == "COLUMN_REF"
