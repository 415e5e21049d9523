"""Columns by which DuckDB must not skip files in a statement, because it would skip too many.

Its Iceberg extension takes what is compared with a constant, puts a file's least and greatest value in place of the
column, and takes the two results for the least and greatest of the whole expression (duckdb-iceberg#1052): of
`extract(dow FROM placed_at) = 0` or `coalesce(note, '') = ''` it loses rows. So a column that is compared as a part of
something else, in the statement or by a name that it gives there, is shown in a form that no filter gets through. One
that is compared as it is stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

Node = Mapping[str, Any]

_PARTS: Final = {"COMPARISON": ("left", "right"), "BETWEEN": ("input", "lower", "upper")}
# Of a moment it is the order that a cast keeps; of a text it may fail, and then DuckDB pushes nothing down.
_IN_ORDER: Final = ("DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")


def unpruned(nodes: Iterable[Node]) -> frozenset[str]:
    """Their names in lower case, from the nodes of a statement as DuckDB's parser tells it."""
    found: set[str] = set()
    compared: set[str] = set()
    named: defaultdict[str, set[str]] = defaultdict(set)
    computed: set[str] = set()
    by_place = False
    for node in nodes:
        for side in _compared(node):
            (compared if _is_plain(side) else found).update(columns(side))
        for item in node.get("select_list") or ():
            if item.get("class") not in ("COLUMN_REF", "STAR"):
                computed.update(columns(item))
            if item.get("alias"):
                named[item["alias"].lower()].update(columns(item))
        # Names that are given elsewhere than in the select list.
        is_union = node.get("type") == "SET_OPERATION_NODE"
        by_place = by_place or is_union or bool(node.get("column_name_alias") or node.get("aliases"))
    if by_place:
        return frozenset(found | computed)
    waiting, seen = [*compared, *found], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += named.get(name, ())
            found |= {column for column in named.get(name, ()) if column in computed}
    return frozenset(found)


def columns(tree: Any) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get("class") == "COLUMN_REF":
                yield str(node["column_names"][-1]).lower()
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _compared(node: Node) -> list[Node]:
    if node.get("type") == "COMPARE_IN":
        return list(node["children"])
    return [node[part] for part in _PARTS.get(str(node.get("class")), ())]


def _is_plain(side: Node) -> bool:
    if side.get("class") == "CAST" and side["cast_type"]["id"] in _IN_ORDER:
        side = side["child"]
    return side.get("class") == "COLUMN_REF"
