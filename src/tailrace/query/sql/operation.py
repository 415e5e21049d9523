"""Operators: arithmetic, comparison, IN, LIKE, BETWEEN, and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.change import Type
from tailrace.query.query_error import QueryError
from tailrace.query.sql import operator, pg_type, regular_expression
from tailrace.query.sql.cast import convert
from tailrace.query.sql.comparison import OPERATORS, equality_key, is_distinct, order_key
from tailrace.query.sql.literal import integer
from tailrace.query.sql.pg_type import BOOL, INT4, INT8, TEXT, array_of, base_type
from tailrace.query.sql.scope import Scope
from tailrace.query.sql.signature import resolve_operator
from tailrace.query.sql.syntax import Node, names, refuse, unwrap
from tailrace.query.sql.text_form import elements
from tailrace.query.sql.typed import STRINGS, Typed, constant_text, numeric_text
from tailrace.query.sql.unification import align, unify
from tailrace.query.table_view import sql_literal

if TYPE_CHECKING:
    from tailrace.query.sql.expression import Expressions, Rule


class Operations:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions

    def rules(self) -> dict[str, Rule]:
        return {
            "A_Expr": self._operation,
            "BoolExpr": self._boolean,
            "NullTest": self._null_test,
            "BooleanTest": self._boolean_test,
        }

    def _operation(self, node: Node, scope: Scope) -> Typed:
        kind = node["kind"]
        symbol = names(node["name"])[-1]
        match kind:
            case "AEXPR_OP":
                if "lexpr" not in node:
                    return self._prefix(symbol, self._expressions.translate(node["rexpr"], scope))
                return self._binary_node(symbol, node["lexpr"], node["rexpr"], scope)
            case "AEXPR_OP_ANY" | "AEXPR_OP_ALL":
                return self._quantified(symbol, kind == "AEXPR_OP_ANY", node, scope)
            case "AEXPR_DISTINCT" | "AEXPR_NOT_DISTINCT":
                return self._distinct(node, scope, negated=kind == "AEXPR_NOT_DISTINCT")
            case "AEXPR_IN":
                return self._in(symbol, node, scope)
            case "AEXPR_LIKE" | "AEXPR_ILIKE":
                return self._like(symbol, node, scope)
            case "AEXPR_SIMILAR":
                return self._similar(symbol, node, scope)
            case "AEXPR_NULLIF":
                return self._nullif(node, scope)
            case "AEXPR_BETWEEN" | "AEXPR_NOT_BETWEEN" | "AEXPR_BETWEEN_SYM" | "AEXPR_NOT_BETWEEN_SYM":
                return self._between(kind, node, scope)
        raise refuse(f"the operator {symbol}")

    def _binary_node(self, symbol: str, left: Node, right: Node, scope: Scope) -> Typed:
        a, b = self._expressions.translate(left, scope), self._expressions.translate(right, scope)
        if a.fields or b.fields:
            return self._row_comparison(symbol, a, b)
        return self.binary(symbol, a, b)

    def binary(self, symbol: str, a: Typed, b: Typed) -> Typed:
        symbol = {"!=": "<>"}.get(symbol, symbol)
        if (found := operator.citext_operation(symbol, a, b)) is not None:
            return found
        if symbol in OPERATORS and (found_own := self._own_type_comparison(a, b)) is not None:
            return found_own
        resolved = resolve_operator(symbol, [a.type, b.type])
        x, y = (convert(v, t) for v, t in zip((a, b), operand_types(resolved.arguments, symbol), strict=True))
        return operator.render_binary(symbol, resolved, x, y)

    def _own_type_comparison(self, a: Typed, b: Typed) -> Typed | None:
        """A comparison of values of a type of the source, for which PostgreSQL's own operators are not known."""
        own = next((v.base for v in (a, b) if not v.is_unknown and not pg_type.is_own(v.base)), None)
        if own is None or own.kind == "e" or own.element is not None or pg_type.is_citext(own):
            return None
        raise refuse(f"the comparison of values of type {own.name}", "Compare their texts: x::text = y::text.")

    def _prefix(self, symbol: str, value: Typed) -> Typed:
        if value.is_unknown and symbol in "+-" and not value.is_null:
            value = convert(value, pg_type.FLOAT8)
        if symbol == "-" and value.is_constant and value.type in (INT4, INT8) and value.sql.isdecimal():
            return integer(-int(value.sql), value.type)
        resolved = resolve_operator(symbol, [value.type])
        return operator.render_prefix(symbol, resolved, convert(value, resolved.arguments[0]))

    def _row_comparison(self, symbol: str, a: Typed, b: Typed) -> Typed:
        if len(a.fields) != len(b.fields) or not a.fields:
            raise QueryError("42601", "unequal number of entries in row expressions")
        if symbol in ("=", "<>"):
            parts = [self.binary(symbol, x, y).sql for x, y in zip(a.fields, b.fields, strict=True)]
            return Typed(f"({(' AND ' if symbol == '=' else ' OR ').join(parts)})", BOOL)
        if symbol not in OPERATORS:
            raise refuse(f"operator {symbol} for rows")
        strict = symbol[0]
        sql = self.binary(symbol, a.fields[-1], b.fields[-1]).sql
        for x, y in reversed(list(zip(a.fields[:-1], b.fields[:-1], strict=True))):
            sql = f"({self.binary(strict, x, y).sql} OR ({self.binary('=', x, y).sql} AND {sql}))"
        return Typed(sql, BOOL)

    def _quantified(self, symbol: str, is_any: bool, node: Node, scope: Scope) -> Typed:
        left = self._expressions.translate(node["lexpr"], scope)
        right = self._expressions.translate(node["rexpr"], scope)
        if right.is_unknown:
            element = TEXT if left.is_unknown else left.base
            right = convert(right, array_of(element))
        if right.base.element is None:
            raise QueryError("42809", "op ANY/ALL (array) requires array on right side")
        element = base_type(right.base.element)
        if left.is_unknown:
            left = convert(left, element)
        symbol = {"!=": "<>"}.get(symbol, symbol)
        common = left.base
        if element != common:
            resolved = resolve_operator(symbol, [left.type, element])
            left = convert(left, resolved.arguments[0])
            right = convert(right, array_of(resolved.arguments[1]))
            element = base_type(right.base.element or TEXT)
        if symbol not in OPERATORS:
            return self._quantified_pattern(symbol, is_any, left, right)
        key = equality_key if symbol in ("=", "<>") else order_key
        items = elements(right, "pg_array_elements")
        inner = key(Typed("e", element))
        items = items if inner == "e" else f"list_transform({items}, lambda e: {inner})"
        value = key(replace(left, sql=numeric_text(left), scale=None) if left.name == "numeric" else left)
        if symbol == "=" and is_any and not right.is_constant:
            # DuckDB's own ANY is a subquery, which it refuses in outer joins.
            found = f"WHEN list_contains({items}, {value}) THEN true"
            unknown = f"list_count({items}) < len({items}) OR ({value} IS NULL AND len({items}) > 0)"
            return Typed(f"CASE {found} WHEN {unknown} THEN NULL WHEN {right.sql} IS NOT NULL THEN false END", BOOL)
        # DuckDB takes an array that is NULL for an empty one.
        test = f"{value} {symbol} {'ANY' if is_any else 'ALL'}({items})"
        return Typed(f"CASE WHEN {right.sql} IS NOT NULL THEN ({test}) END", BOOL)

    def _quantified_pattern(self, symbol: str, is_any: bool, left: Typed, right: Typed) -> Typed:
        if symbol not in ("~~", "!~~", "~~*", "!~~*"):
            raise refuse(f"operator {symbol} ANY")
        tests = f'list_transform({elements(right, "pg_array_elements")}, lambda e: "{symbol}"({left.sql}, e))'
        wanted = "true" if is_any else "false"
        found = f"WHEN list_contains({tests}, {wanted}) THEN {wanted}"
        unknown = f"WHEN list_count({tests}) = len({tests}) THEN NOT {wanted}"
        return Typed(f"CASE {found} {unknown} END", BOOL)

    def _distinct(self, node: Node, scope: Scope, negated: bool) -> Typed:
        a, b = self._expressions.translate(node["lexpr"], scope), self._expressions.translate(node["rexpr"], scope)
        if a.fields or b.fields:
            raise refuse("IS DISTINCT FROM for rows")
        if a.is_null or b.is_null:
            other = b if a.is_null else a
            return Typed(f"({other.sql} IS {'' if negated else 'NOT '}NULL)", BOOL)
        if pg_type.is_citext(a.base) or pg_type.is_citext(b.base):
            x, y = unify([a, b], "IS DISTINCT FROM")
        else:
            resolved = resolve_operator("=", [a.type, b.type])
            x, y = (convert(v, t) for v, t in zip((a, b), operand_types(resolved.arguments, "="), strict=True))
        return Typed(is_distinct(x, y, negated), BOOL)

    def _in(self, symbol: str, node: Node, scope: Scope) -> Typed:
        left = self._expressions.translate(node["lexpr"], scope)
        items = [self._expressions.translate(item, scope) for item in node["rexpr"]["List"]["items"]]
        negated = symbol == "<>"
        if left.fields:
            parts = [self._row_comparison("=", left, item).sql for item in items]
            return Typed(f"({'NOT ' if negated else ''}({' OR '.join(parts)}))", BOOL)
        if all(i.is_unknown or i.type == items[0].type for i in items) and not left.is_unknown:
            # One comparison with all: the items have one type, as PostgreSQL finds it for each.
            first = next((i for i in items if not i.is_unknown), items[0])
            if not pg_type.is_citext(left.base):
                resolved = resolve_operator("=", [left.type, first.type])
                wanted, other = operand_types(resolved.arguments, "=")
                value = convert(left, wanted)
                made = [convert(i, other) for i in items]
                if value.name == "numeric" or value.base.element is not None:
                    value, *made = align([value, *made])
                keys = ", ".join(equality_key(i) for i in made)
                return Typed(f"({equality_key(value)} {'NOT ' if negated else ''}IN ({keys}))", BOOL)
        parts = [self.binary("=", left, item).sql for item in items]
        return Typed(f"({'NOT ' if negated else ''}({' OR '.join(parts)}))", BOOL)

    def _like(self, symbol: str, node: Node, scope: Scope) -> Typed:
        left = self._expressions.translate(node["lexpr"], scope)
        tag, fields = unwrap(node["rexpr"])
        if tag == "FuncCall" and names(fields["funcname"])[-1] == "like_escape":
            pattern, escape = (self._expressions.value(a, scope) for a in fields["args"])
            name = {"~~": "like_escape", "!~~": "not_like_escape", "~~*": "ilike_escape", "!~~*": "not_ilike_escape"}[
                symbol
            ]
            text = convert(left, TEXT) if left.is_unknown else left
            if text.name not in STRINGS | {"bpchar"}:
                raise refuse("LIKE … ESCAPE for this type")
            return Typed(f"{name}({text.sql}, {pattern.sql}, {escape.sql})", BOOL)
        return self.binary(symbol, left, self._expressions.translate(node["rexpr"], scope))

    def _similar(self, symbol: str, node: Node, scope: Scope) -> Typed:
        left = self._expressions.value(node["lexpr"], scope)
        is_citext = pg_type.is_citext(left.base)
        left = convert(left, resolve_operator("~", [left.type, TEXT]).arguments[0])
        _, fields = unwrap(node["rexpr"])
        if len(fields["args"]) > 1:
            raise refuse("SIMILAR TO … ESCAPE")
        pattern = constant_text(self._expressions.value(fields["args"][0], scope), "a pattern of SIMILAR TO")
        expression = sql_literal(regular_expression.similar(pattern, is_citext))
        sql = f"system.main.regexp_full_match({left.sql}, {expression}, 's')"
        return Typed(f"(NOT {sql})" if symbol == "!~" else sql, BOOL)

    def _nullif(self, node: Node, scope: Scope) -> Typed:
        a, b = self._expressions.translate(node["lexpr"], scope), self._expressions.translate(node["rexpr"], scope)
        if a.is_unknown and b.is_unknown:
            a, b = convert(a, TEXT), convert(b, TEXT)
        test = self.binary("=", a, b).sql
        value = convert(a, b.type) if a.is_unknown else a
        if not pg_type.is_citext(value.base) and not pg_type.is_citext(b.base):
            # The result has the type in which the two are compared.
            value = convert(value, resolve_operator("=", [value.type, b.type]).arguments[0])
        return replace(value, sql=f"CASE WHEN {test} THEN NULL ELSE {value.sql} END", is_constant=False)

    def _between(self, kind: str, node: Node, scope: Scope) -> Typed:
        value = self._expressions.translate(node["lexpr"], scope)
        low, high = (self._expressions.translate(item, scope) for item in node["rexpr"]["List"]["items"])
        inside = f"({self.binary('>=', value, low).sql} AND {self.binary('<=', value, high).sql})"
        if "SYM" in kind:
            other = f"({self.binary('>=', value, high).sql} AND {self.binary('<=', value, low).sql})"
            inside = f"({inside} OR {other})"
        return Typed(f"(NOT {inside})" if "NOT" in kind else inside, BOOL)

    def _boolean(self, node: Node, scope: Scope) -> Typed:
        word = {"AND_EXPR": "AND", "OR_EXPR": "OR", "NOT_EXPR": "NOT"}[node["boolop"]]
        parts = [self._expressions.condition(a, scope, word) for a in node["args"]]
        return Typed(f"(NOT {parts[0]})" if word == "NOT" else f"({f' {word} '.join(parts)})", BOOL)

    def _null_test(self, node: Node, scope: Scope) -> Typed:
        value = self._expressions.translate(node["arg"], scope)
        word = "IS NULL" if node["nulltesttype"] == "IS_NULL" else "IS NOT NULL"
        if value.fields:
            return Typed(f"({' AND '.join(f'{f.sql} {word}' for f in value.fields)})", BOOL)
        return Typed(f"({value.sql} {word})", BOOL)

    def _boolean_test(self, node: Node, scope: Scope) -> Typed:
        value = self._expressions.condition(node["arg"], scope, "IS")
        word = node["booltesttype"].removeprefix("IS_").replace("_", " ")
        if "UNKNOWN" in word:
            return Typed(f"({value} IS {'NOT ' if 'NOT' in word else ''}NULL)", BOOL)
        wanted = "true" if "TRUE" in word else "false"
        return Typed(f"({value} IS {'DISTINCT' if 'NOT' in word else 'NOT DISTINCT'} FROM {wanted})", BOOL)


def operand_types(types: Sequence[Type], symbol: str) -> tuple[Type, Type]:
    """The types to compare: PostgreSQL also compares dates with timestamps, which DuckDB converts in its own way."""
    a, b = types
    if symbol in OPERATORS and a != b:
        wanted = [t.name for t in (a, b)]
        for name in ("timestamptz", "timestamp"):
            if name in wanted and all(w in ("date", "timestamp", "timestamptz") for w in wanted):
                return pg_type.built_in(name), pg_type.built_in(name)
    return a, b
