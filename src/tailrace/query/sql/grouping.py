"""GROUP BY: its items, grouping sets, and what the select list sees after grouping."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.query.query_error import QueryError
from tailrace.query.sql.cast import convert
from tailrace.query.sql.comparison import equality_key
from tailrace.query.sql.pg_type import TEXT
from tailrace.query.sql.scope import Scope
from tailrace.query.sql.syntax import Node, fingerprint, names, refuse, unwrap
from tailrace.query.sql.typed import Typed

if TYPE_CHECKING:
    from tailrace.query.sql.expression import Expressions


class Grouping:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions

    def sql(self, select: Node, scope: Scope, targets: list[tuple[str, Any]]) -> str:
        if "groupClause" not in select:
            return ""
        groups: dict[str, Typed] = {}
        is_simple = not any("GroupingSet" in item for item in select["groupClause"])
        parts = [self._group_item(item, scope, targets, groups, is_simple) for item in select["groupClause"]]
        scope.groups.update(groups)
        if is_simple:
            for table in scope.tables():
                if table.key and table.key <= set(parts):
                    scope.dependent |= {c.value.sql for c in table.columns} - set(parts)
        if select.get("groupDistinct"):
            raise refuse("GROUP BY DISTINCT")
        return f" GROUP BY {', '.join(parts)}"

    def _group_item(
        self, item: Node, scope: Scope, targets: list[tuple[str, Any]], groups: dict[str, Typed], is_simple: bool
    ) -> str:
        if "GroupingSet" in item:
            kind = item["GroupingSet"]["kind"]
            inner = [self._group_item(n, scope, targets, groups, False) for n in item["GroupingSet"].get("content", [])]
            words = {"GROUPING_SET_ROLLUP": "ROLLUP", "GROUPING_SET_CUBE": "CUBE", "GROUPING_SET_SETS": "GROUPING SETS"}
            if kind == "GROUPING_SET_EMPTY":
                return "()"
            return f"{words[kind]} ({', '.join(inner)})"
        if "RowExpr" in item:
            args = item["RowExpr"].get("args", [])
            return f"({', '.join(self._group_item(n, scope, targets, groups, is_simple) for n in args)})"
        node = self._group_node(item, scope, targets)
        value = node if isinstance(node, Typed) else self._expressions.translate(node, scope)
        if value.is_unknown:
            value = convert(value, TEXT)
        if value.fields:
            raise refuse("GROUP BY of a row")
        key = equality_key(value)
        if value.is_constant:
            return f"CAST({key} AS VARCHAR)"
        if key != value.sql:
            shown = f"any_value({value.sql})"
            if not is_simple:
                shown = f"CASE WHEN grouping({key}) = 0 THEN {shown} END"
            if isinstance(node, Typed):
                groups[f"typed {value.sql}"] = value
            else:
                groups[fingerprint(node)] = replace(value, sql=shown)
                # The same column may be written with and without its table.
                others = [other for _, other in targets if isinstance(other, dict) and "ColumnRef" in other]
                for other in others if "ColumnRef" in node else ():
                    if self._expressions.translate(other, scope).sql == value.sql:
                        groups[fingerprint(other)] = groups[fingerprint(node)]
        return key

    def _group_node(self, item: Node, scope: Scope, targets: list[tuple[str, Any]]) -> Any:
        """The expression that a GROUP BY item means: a number or an output name stands for an item of the list."""
        tag, fields = unwrap(item)
        if tag == "A_Const" and "ival" in fields:
            place = int(fields["ival"].get("ival", 0)) - 1
            if not 0 <= place < len(targets):
                raise QueryError("42P10", f"GROUP BY position {place + 1} is not in select list")
            return targets[place][1]
        if tag == "ColumnRef" and len(fields["fields"]) == 1 and "String" in fields["fields"][0]:
            name = names(fields["fields"])[0]
            if not any(c.name == name for source in scope.items for c in source.columns):
                found = [node for target, node in targets if target == name]
                if found:
                    return found[0]
        return item
