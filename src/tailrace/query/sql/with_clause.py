"""WITH: common table expressions, and those that refer to themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.query.query_error import QueryError
from tailrace.query.sql.comparison import is_plain
from tailrace.query.sql.query import Query
from tailrace.query.sql.scope import CommonTable, NamedColumn, Scope, renamed
from tailrace.query.sql.syntax import Node, names, refuse, unwrap
from tailrace.query.sql.typed import Typed, as_numeric_text

if TYPE_CHECKING:
    from tailrace.query.sql.select import QueryTranslator


class WithClause:
    def __init__(self, queries: QueryTranslator) -> None:
        self._queries = queries

    def sql(self, clause: Node, parent: Scope | None) -> str:
        is_recursive = bool(clause.get("recursive"))
        parts = []
        for item in clause["ctes"]:
            cte = item["CommonTableExpr"]
            name = cte["ctename"]
            alias = self._queries.alias("w")
            aliases = names(cte.get("aliascolnames", []))
            if "search_clause" in cte or "cycle_clause" in cte:
                raise refuse("SEARCH or CYCLE of a recursive query")
            query = self._recursive(cte, alias, aliases, parent) if is_recursive else None
            if query is None:
                query = self._queries.query(cte["ctequery"], parent)
            columns = renamed(query.resolved(), aliases)
            is_sorted = "sortClause" in unwrap(cte["ctequery"])[1]
            self._queries.common[-1][name] = CommonTable(alias, tuple(columns), is_sorted)
            hint = {"CTEMaterializeAlways": "MATERIALIZED ", "CTEMaterializeNever": "NOT MATERIALIZED "}.get(
                cte.get("ctematerialized", ""), ""
            )
            outputs = ", ".join(f"_c{n}" for n in range(1, len(columns) + 1))
            parts.append(f"{alias}({outputs}) AS {hint}({query.sql()})")
        return f"WITH {'RECURSIVE ' if is_recursive else ''}{', '.join(parts)} "

    def _recursive(self, cte: Node, alias: str, aliases: list[str], parent: Scope | None) -> Query | None:
        """A query that refers to itself; None if it does not."""
        select = cte["ctequery"].get("SelectStmt", {})
        if select.get("op") != "SETOP_UNION" or not _mentions(select["rarg"], cte["ctename"]):
            return None
        if any(key in select for key in ("sortClause", "limitCount", "withClause")):
            raise refuse("ORDER BY, LIMIT or WITH in a recursive query")
        start = self._queries.query(select["larg"], parent)
        # Values of the later steps have the representation of the first: numerics must be texts.
        first = [_general(c.value) for c in start.resolved()]
        columns = [
            NamedColumn(c.name, replace(v, sql=f"_c{n}"))
            for n, (c, v) in enumerate(zip(start.resolved(), first, strict=True), 1)
        ]
        self._queries.common[-1][cte["ctename"]] = CommonTable(alias, tuple(renamed(columns, aliases)))
        step = self._queries.query(select["rarg"], parent)
        if len(step.columns) != len(columns):
            raise QueryError("42601", "each UNION query must have the same number of columns")
        if not select.get("all") and not all(is_plain(c.value) for c in columns):
            raise refuse("a recursive UNION of these types", "Use UNION ALL.")
        left = start.converted([c.value for c in columns])
        right = step.converted([c.value for c in columns])
        sql = f"{left} UNION {'ALL ' if select.get('all') else ''}{right}"
        return Query(columns, lambda _: sql)


def _mentions(node: Any, name: str) -> bool:
    if isinstance(node, dict):
        if node.get("relname") == name and "schemaname" not in node:
            return True
        return any(_mentions(value, name) for value in node.values())
    return isinstance(node, list) and any(_mentions(value, name) for value in node)


def _general(value: Typed) -> Typed:
    """A value in the representation that all values of its type have."""
    return as_numeric_text(value) if value.name == "numeric" else value
