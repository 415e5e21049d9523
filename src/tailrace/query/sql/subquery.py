"""Subqueries in expressions: EXISTS, IN, ANY, ALL, ARRAY, and those of one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.query.query_error import QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.cast import convert
from tailrace.query.sql.comparison import OPERATORS, equality_key, order_key
from tailrace.query.sql.operation import operand_types
from tailrace.query.sql.pg_type import BOOL, array_of
from tailrace.query.sql.scope import Scope
from tailrace.query.sql.signature import resolve_operator
from tailrace.query.sql.syntax import Node, names, refuse
from tailrace.query.sql.typed import Typed, representation
from tailrace.query.sql.unification import align

if TYPE_CHECKING:
    from tailrace.query.sql.expression import Expressions, Rule


class Subqueries:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._queries = expressions.queries

    def rules(self) -> dict[str, Rule]:
        return {
            "SubLink": self._subquery,
        }

    def _subquery(self, node: Node, scope: Scope) -> Typed:
        kind = node["subLinkType"]
        query = self._queries.query(node["subselect"], scope)
        if kind == "EXISTS_SUBLINK":
            return Typed(f"EXISTS ({query.sql()})", BOOL)
        if kind == "EXPR_SUBLINK":
            if len(query.columns) != 1:
                raise refuse("a subquery of several columns in this place")
            value = query.resolved()[0].value
            return replace(value, sql=f"({query.sql()})", is_constant=False)
        if kind == "ARRAY_SUBLINK":
            value = query.resolved()[0].value
            if value.base.element is not None:
                raise refuse("ARRAY of arrays")
            text, order = query.sorted_sql(as_elements=True)
            items = f"list(_c1 ORDER BY {', '.join(order)})" if order else "list(_c1)"
            sql = f"(SELECT coalesce({items}, []) FROM ({text}) AS _array)"
            return Typed(
                f"CAST({sql} AS {representation(array_of(value.base), is_list=True)})",
                array_of(value.base),
                is_list=True,
            )
        if kind in ("ANY_SUBLINK", "ALL_SUBLINK"):
            return self.membership(node, query, scope)
        raise refuse("this subquery")

    def membership(self, node: Node, query: Any, scope: Scope, is_filter: bool = False) -> Typed:
        left = self._expressions.translate(node["testexpr"], scope)
        is_any = node["subLinkType"] == "ANY_SUBLINK"
        symbol = names(node["operName"])[-1] if "operName" in node else "="
        symbol = {"!=": "<>"}.get(symbol, symbol)
        columns = query.resolved()
        if left.fields:
            if symbol != "=" or not is_any or len(left.fields) != len(columns):
                raise refuse("this comparison of a row with a subquery")
            pairs = [self._operands("=", x, c.value) for x, c in zip(left.fields, columns, strict=True)]
            keys = [(equality_key(x), equality_key(y)) for x, y in pairs]
            return Typed(_row_in(keys, query.sql(), is_filter), BOOL)
        if len(columns) != 1:
            raise QueryError("42601", "subquery has too many columns")
        if symbol not in OPERATORS:
            raise refuse(f"operator {symbol} with a subquery")
        x, y = self._operands(symbol, left, columns[0].value)
        if x.base.element is not None and not (symbol == "=" and is_any):
            raise refuse(f"operator {symbol} {'ANY' if is_any else 'ALL'} with a subquery of arrays")
        key = equality_key if symbol in ("=", "<>") else order_key
        sql = query.sql() if key(y) == "_c1" else f"SELECT {key(y)} FROM ({query.sql()}) AS _rows"
        if symbol == "=" and is_any:
            return Typed(f"({key(x)} IN ({sql}))", BOOL)
        return Typed(f"({key(x)} {symbol} {'ANY' if is_any else 'ALL'} ({sql}))", BOOL)

    def _operands(self, symbol: str, a: Typed, b: Typed) -> tuple[Typed, Typed]:
        if pg_type.is_citext(a.base) and pg_type.is_citext(b.base):
            return a, b
        resolved = resolve_operator(symbol, [a.type, b.type])
        types = operand_types(resolved.arguments, symbol)
        x, y = convert(a, types[0]), convert(b, types[1])
        if x.name == "numeric":
            x, y = align([x, y])
        return x, y


def _row_in(keys: Sequence[tuple[str, str]], query: str, is_filter: bool) -> str:
    """Whether a row is among those of a query: unknown if only NULLs keep it from being equal to one of them.

    For DuckDB, a NULL in a row is equal to another, so that the rows with NULLs are left out first. For a filter,
    unknown is as good as false, and the costly search for such rows is left out."""
    own, others = (f"({', '.join(parts)})" for parts in zip(*keys, strict=True))
    complete = " AND ".join(f"{other} IS NOT NULL" for _, other in keys)
    found = f"{own} IN (SELECT {others} FROM ({query}) AS _rows WHERE {complete})"
    if is_filter:
        return f"({found})"
    has_null = " OR ".join(f"{key} IS NULL" for pair in keys for key in pair)
    possible = " AND ".join(f"({key} = {other}) IS NOT false" for key, other in keys)
    unknown = f"EXISTS (SELECT 1 FROM ({query}) AS _rows WHERE ({has_null}) AND {possible})"
    return f"CASE WHEN {found} THEN true WHEN {unknown} THEN NULL ELSE false END"
