"""OVER: partitions, order and frames; and the ORDER BY of aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailrace.query.query_error import QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.cast import convert
from tailrace.query.sql.comparison import equality_key, is_plain, order_key
from tailrace.query.sql.pg_type import INT8
from tailrace.query.sql.scope import Scope
from tailrace.query.sql.syntax import Node, refuse

if TYPE_CHECKING:
    from tailrace.query.sql.expression import Expressions


class Windows:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions

    def order_items(self, clause: Sequence[Node], scope: Scope) -> str:
        """The ORDER BY of an aggregate or a window."""
        items = []
        for item in clause:
            sort = item["SortBy"]
            value = self._expressions.value(sort["node"], scope)
            items.append(sort_item(f"({value.sql})" if value.is_constant else order_key(value), sort))
        return ", ".join(items)

    def sql(self, definition: Node, scope: Scope) -> str:
        """An OVER clause."""
        name = definition.get("name") or definition.get("refname")
        base: Node = {}
        if name:
            found: Any = scope.windows.get(name)
            if found is None:
                raise QueryError("42704", f'window "{name}" does not exist')
            base = found
            if definition.get("name"):
                return self.sql({k: v for k, v in base.items() if k != "name"}, scope)
        partition = definition.get("partitionClause") or base.get("partitionClause") or []
        order = definition.get("orderClause") or base.get("orderClause") or []
        parts = []
        if partition:
            keys = [equality_key(self._expressions.value(node, scope)) for node in partition]
            parts.append(f"PARTITION BY {', '.join(keys)}")
        if order:
            parts.append(f"ORDER BY {self.order_items(order, scope)}")
        if frame := self._frame(definition, order, scope):
            parts.append(frame)
        return f"({' '.join(parts)})"

    def _frame(self, definition: Node, order: Sequence[Node], scope: Scope) -> str:
        options = definition.get("frameOptions", 0)
        if not options & 1:
            return ""
        mode = "ROWS" if options & 4 else "GROUPS" if options & 8 else "RANGE"
        offset_type = INT8
        if mode == "RANGE" and options & 0x7800:
            value = self._expressions.value(order[0]["SortBy"]["node"], scope) if len(order) == 1 else None
            if value is None or not is_plain(value) or value.name == "numeric":
                raise refuse("RANGE with an offset for this ORDER BY")
            is_time = value.name in ("date", "timestamp", "timestamptz", "time", "interval")
            offset_type = pg_type.INTERVAL if is_time else value.base

        def bound(is_start: bool) -> str:
            shift = 0 if is_start else 1
            if options & (0x20 << shift):
                return "UNBOUNDED PRECEDING"
            if options & (0x80 << shift):
                return "UNBOUNDED FOLLOWING"
            if options & (0x200 << shift):
                return "CURRENT ROW"
            node = definition["startOffset" if is_start else "endOffset"]
            value = convert(self._expressions.translate(node, scope), offset_type).sql
            return f"{value} {'PRECEDING' if options & (0x800 << shift) else 'FOLLOWING'}"

        exclusion = {0x8000: " EXCLUDE CURRENT ROW", 0x10000: " EXCLUDE GROUP", 0x20000: " EXCLUDE TIES"}
        ending = next((text for bit, text in exclusion.items() if options & bit), "")
        if options & 0x10:
            return f"{mode} BETWEEN {bound(True)} AND {bound(False)}{ending}"
        return f"{mode} BETWEEN {bound(True)} AND CURRENT ROW{ending}"


def sort_item(key: str, sort: Node) -> str:
    is_descending = sort.get("sortby_dir") == "SORTBY_DESC"
    nulls = {"SORTBY_NULLS_FIRST": "FIRST", "SORTBY_NULLS_LAST": "LAST"}.get(
        sort.get("sortby_nulls", ""), "FIRST" if is_descending else "LAST"
    )
    return f"{key} {'DESC' if is_descending else 'ASC'} NULLS {nulls}"
