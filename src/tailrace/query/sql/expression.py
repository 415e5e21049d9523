"""Expressions: each node of the syntax tree to SQL with its type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tailrace.change import Type
from tailrace.query.query_error import QueryError
from tailrace.query.sql import aggregate, function, operator, pg_type, regular_expression, set_function
from tailrace.query.sql.cast import apply_modifier, as_element, convert, decimal, integer, list_of, parse_sql
from tailrace.query.sql.comparison import OPERATORS, compare, equality_key, is_distinct, order_key
from tailrace.query.sql.pg_type import BOOL, INT4, INT8, TEXT, UNKNOWN, array_of, base_type, common_type
from tailrace.query.sql.scope import Scope
from tailrace.query.sql.signature import can_coerce, functions, resolve_function, resolve_operator
from tailrace.query.sql.syntax import Node, fingerprint, names, refuse, unwrap
from tailrace.query.sql.typed import (
    REG,
    STRINGS,
    Typed,
    as_numeric_text,
    constant_text,
    elements,
    null_of,
    numeric_text,
    text_literal,
)
from tailrace.query.table_view import sql_literal

if TYPE_CHECKING:
    from tailrace.query.sql.select import QueryTranslator

_FILTERS: Final = frozenset(("WHERE", "HAVING", "JOIN/ON", "FILTER", "CASE/WHEN"))
"""Where an unknown condition is as good as a false one."""
_VALUE_FUNCTIONS: Final = {
    "SVFOP_CURRENT_DATE": ("date", "CAST(CAST(now() AS TIMESTAMP) AS DATE)"),
    "SVFOP_CURRENT_TIMESTAMP": ("timestamptz", "now()"),
    "SVFOP_LOCALTIMESTAMP": ("timestamp", "CAST(now() AS TIMESTAMP)"),
    "SVFOP_LOCALTIME": ("time", "CAST(CAST(now() AS TIMESTAMP) AS TIME)"),
}
_SESSION_VALUES: Final = {
    "SVFOP_CURRENT_USER": "current_user", "SVFOP_SESSION_USER": "session_user", "SVFOP_USER": "user",
    "SVFOP_CURRENT_ROLE": "current_role", "SVFOP_CURRENT_CATALOG": "current_catalog",
    "SVFOP_CURRENT_SCHEMA": "current_schema",
}  # fmt: skip
_CITEXT_FUNCTIONS: Final = frozenset(
    ("regexp_match", "regexp_matches", "regexp_replace", "regexp_split_to_array", "regexp_split_to_table", "replace",
     "split_part", "strpos", "translate", "position")
)  # fmt: skip


def unify(values: Sequence[Typed], context: str) -> list[Typed]:
    """The values in one type and one representation, as CASE, UNION, VALUES, IN and ARRAY need them."""
    type_ = common_type([v.type for v in values], context)
    made = [convert(v, type_) if v.type != type_ else v for v in values]
    return align(made)


def align(values: Sequence[Typed]) -> list[Typed]:
    """Values of one type in one representation."""
    type_ = base_type(values[0].type)
    if len({v.modifier for v in values}) > 1:
        values = [replace(v, modifier=-1) for v in values]
    if type_.name == "numeric" and pg_type.is_own(type_):
        scales = {v.scale for v in values if not _is_null(v)}
        if len(scales) == 1 and None not in scales:
            (scale,) = scales
            return [replace(v, sql=null_of(type_, scale), scale=scale) if _is_null(v) else v for v in values]
        return [as_numeric_text(v) for v in values]
    if type_.element is not None and any(v.is_list for v in values):
        return [replace(v, sql=elements(v), is_list=True) for v in values]
    return list(values)


def _is_null(value: Typed) -> bool:
    return value.sql.startswith("CAST(NULL AS ")


class Expressions:
    def __init__(self, queries: QueryTranslator) -> None:
        self._queries = queries
        self._catalog = queries.catalog
        self._rules: dict[str, Callable[[Node, Scope], Typed]] = {
            "A_Const": self._constant,
            "ColumnRef": self._column,
            "ParamRef": self._parameter,
            "TypeCast": self._type_cast,
            "A_Expr": self._operation,
            "BoolExpr": self._boolean,
            "NullTest": self._null_test,
            "BooleanTest": self._boolean_test,
            "CaseExpr": self._case,
            "CoalesceExpr": self._coalesce,
            "MinMaxExpr": self._extreme,
            "FuncCall": self._call,
            "SubLink": self._subquery,
            "A_ArrayExpr": self._array,
            "A_Indirection": self._indirection,
            "RowExpr": self._row,
            "SQLValueFunction": self._value_function,
            "CollateClause": self._collation,
            "GroupingFunc": self._grouping,
        }

    def translate(self, node: Node, scope: Scope) -> Typed:
        if scope.groups and not scope.in_aggregate and (found := scope.groups.get(fingerprint(node))) is not None:
            return found
        tag, fields = unwrap(node)
        rule = self._rules.get(tag)
        if rule is None:
            raise refuse(f"the expression {tag}")
        return rule(fields, scope)

    def value(self, node: Node, scope: Scope) -> Typed:
        """The expression with a known type: a literal without a type is a text."""
        found = self.translate(node, scope)
        return convert(found, TEXT) if found.is_unknown else found

    def condition(self, node: Node, scope: Scope, where: str) -> str:
        if where in _FILTERS and not scope.groups:
            tag, fields = unwrap(node)
            if tag == "BoolExpr" and fields["boolop"] != "NOT_EXPR":
                parts = [self.condition(a, scope, where) for a in fields["args"]]
                return f"({' AND '.join(parts)})" if fields["boolop"] == "AND_EXPR" else f"({' OR '.join(parts)})"
            if tag == "SubLink" and fields["subLinkType"] == "ANY_SUBLINK":
                query = self._queries.query(fields["subselect"], scope)
                return self._in_subquery(fields, query, scope, is_filter=True).sql
        found = self.translate(node, scope)
        if found.is_unknown:
            found = convert(found, BOOL)
        if found.base != BOOL:
            raise QueryError(
                "42804", f"argument of {where} must be type boolean, not type {pg_type.display_name(found.type)}"
            )
        return found.sql

    # Leaves

    def _parameter(self, node: Node, scope: Scope) -> Typed:  # noqa: ARG002
        return self._catalog.parameter(node["number"])

    def _constant(self, node: Node, scope: Scope) -> Typed:  # noqa: ARG002
        if node.get("isnull"):
            return Typed("NULL", UNKNOWN)
        if "ival" in node:
            return integer(node["ival"].get("ival", 0), INT4)
        if "fval" in node:
            return _number(node["fval"].get("fval", "0"))
        if "boolval" in node:
            return Typed("true" if node["boolval"].get("boolval") else "false", BOOL, is_constant=True)
        if "sval" in node:
            text = node["sval"].get("sval", "")
            return Typed(sql_literal(text), UNKNOWN, literal=text, is_constant=True)
        if "bsval" in node:
            return convert(Typed("", UNKNOWN, literal=node["bsval"].get("bsval", "b")), pg_type.built_in("bit"))
        raise refuse("this constant")

    def _column(self, node: Node, scope: Scope) -> Typed:
        fields = node["fields"]
        if "A_Star" in fields[-1]:
            raise refuse("* in this place")
        parts = names(fields)
        if len(parts) == 1:
            return scope.grouped(scope.column(parts[0]))
        return scope.grouped(scope.qualified(parts[-2], parts[-1], parts[-3] if len(parts) > 2 else None))

    def _value_function(self, node: Node, scope: Scope) -> Typed:  # noqa: ARG002
        op = node["op"]
        if op in _VALUE_FUNCTIONS:
            type_, sql = _VALUE_FUNCTIONS[op]
            return Typed(sql, pg_type.built_in(type_))
        if op in _SESSION_VALUES:
            return Typed(self._catalog.constant(_SESSION_VALUES[op]) or "NULL", pg_type.NAME)
        if op in ("SVFOP_CURRENT_TIMESTAMP_N", "SVFOP_LOCALTIMESTAMP_N"):
            type_, sql = _VALUE_FUNCTIONS[op.removesuffix("_N")]
            return apply_modifier(Typed(sql, pg_type.built_in(type_)), node.get("typmod", 6))
        raise refuse(op.removeprefix("SVFOP_"))

    def _collation(self, node: Node, scope: Scope) -> Typed:
        collation = names(node["collname"])[-1]
        if collation.lower() not in ("c", "default", "posix", "c.utf-8", "ucs_basic", "pg_c_utf8"):
            raise refuse(f'collation "{collation}"', "Text is compared by code points, as with the collation C.")
        return self.value(node["arg"], scope)

    # Types and casts

    def type_of(self, node: Node) -> tuple[Type, int]:
        """The type that a type name means, and its modifier."""
        parts = names(node["names"])
        schema = parts[0] if len(parts) > 1 else None
        name = parts[-1]
        found = pg_type.find_built_in(name) if schema in (None, "pg_catalog") else None
        if schema is None and (own := self._catalog.type(None, name)) is not None and found is None:
            found = own
        if found is None:
            found = self._catalog.type(schema, name)
        if found is None or (found.kind == "p" and found.name != "record"):
            raise QueryError("42704", f'type "{".".join(parts)}" does not exist')
        modifiers = [self._modifier(m) for m in node.get("typmods", ())]
        modifier = _pack(found, modifiers)
        if node.get("arrayBounds"):
            return array_of(found), -1
        return found, modifier

    def _modifier(self, node: Node) -> int:
        tag, fields = unwrap(node)
        if tag == "A_Const" and "ival" in fields:
            return int(fields["ival"].get("ival", 0))
        if tag == "A_Expr":
            return -self._modifier(fields["rexpr"])
        raise refuse("this type modifier")

    def _type_cast(self, node: Node, scope: Scope) -> Typed:
        type_, modifier = self.type_of(node["typeName"])
        tag, fields = unwrap(node["arg"])
        if tag == "A_ArrayExpr" and type_.element is not None:
            return self._array(fields, scope, type_.element)
        value = self.translate(node["arg"], scope)
        return self.cast(value, type_, modifier)

    def cast(self, value: Typed, type_: Type, modifier: int = -1) -> Typed:
        base = base_type(type_)
        if base.name in REG or base.name in ("regproc", "regprocedure"):
            return self._reg_cast(value, base)
        if value.fields and base.name != "record":
            raise refuse("the cast of a row")
        return convert(value, type_, modifier, is_explicit=True)

    def _reg_cast(self, value: Typed, type_: Type) -> Typed:
        if value.literal is None:
            if value.is_unknown:
                return Typed(null_of(type_), type_)
            if value.name in STRINGS and type_.name == "regclass":
                return Typed(f"regclass_oid({value.sql})", type_)
            if type_.name in ("regproc", "regprocedure"):
                return Typed(f"CAST({value.sql} AS VARCHAR)", type_)
            return convert(value, type_, is_explicit=True)
        text = value.literal
        if type_.name in ("regproc", "regprocedure"):
            return text_literal(text.rpartition(".")[2].partition("(")[0], type_)
        oid = int(text) if text.isdecimal() else self._catalog.oid(type_.name, text)
        if oid is None:
            what = {"regclass": "relation", "regtype": "type"}.get(type_.name, "name")
            raise QueryError("42P01" if type_.name == "regclass" else "42704", f'{what} "{text}" does not exist')
        return Typed(f"CAST({oid} AS BIGINT)", type_, is_constant=True)

    # Operators

    def _operation(self, node: Node, scope: Scope) -> Typed:
        kind = node["kind"]
        symbol = names(node["name"])[-1]
        match kind:
            case "AEXPR_OP":
                if "lexpr" not in node:
                    return self._prefix(symbol, self.translate(node["rexpr"], scope))
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
        a, b = self.translate(left, scope), self.translate(right, scope)
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
        x, y = (convert(v, t) for v, t in zip((a, b), _operand_types(resolved.arguments, symbol), strict=True))
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
        left = self.translate(node["lexpr"], scope)
        right = self.translate(node["rexpr"], scope)
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
        a, b = self.translate(node["lexpr"], scope), self.translate(node["rexpr"], scope)
        if a.fields or b.fields:
            raise refuse("IS DISTINCT FROM for rows")
        if a.is_null or b.is_null:
            other = b if a.is_null else a
            return Typed(f"({other.sql} IS {'' if negated else 'NOT '}NULL)", BOOL)
        if pg_type.is_citext(a.base) or pg_type.is_citext(b.base):
            x, y = unify([a, b], "IS DISTINCT FROM")
        else:
            resolved = resolve_operator("=", [a.type, b.type])
            x, y = (convert(v, t) for v, t in zip((a, b), _operand_types(resolved.arguments, "="), strict=True))
        return Typed(is_distinct(x, y, negated), BOOL)

    def _in(self, symbol: str, node: Node, scope: Scope) -> Typed:
        left = self.translate(node["lexpr"], scope)
        items = [self.translate(item, scope) for item in node["rexpr"]["List"]["items"]]
        negated = symbol == "<>"
        if left.fields:
            parts = [self._row_comparison("=", left, item).sql for item in items]
            return Typed(f"({'NOT ' if negated else ''}({' OR '.join(parts)}))", BOOL)
        if all(i.is_unknown or i.type == items[0].type for i in items) and not left.is_unknown:
            # One comparison with all: the items have one type, as PostgreSQL finds it for each.
            first = next((i for i in items if not i.is_unknown), items[0])
            if not pg_type.is_citext(left.base):
                resolved = resolve_operator("=", [left.type, first.type])
                wanted, other = _operand_types(resolved.arguments, "=")
                value = convert(left, wanted)
                made = [convert(i, other) for i in items]
                if value.name == "numeric" or value.base.element is not None:
                    value, *made = align([value, *made])
                keys = ", ".join(equality_key(i) for i in made)
                return Typed(f"({equality_key(value)} {'NOT ' if negated else ''}IN ({keys}))", BOOL)
        parts = [self.binary("=", left, item).sql for item in items]
        return Typed(f"({'NOT ' if negated else ''}({' OR '.join(parts)}))", BOOL)

    def _like(self, symbol: str, node: Node, scope: Scope) -> Typed:
        left = self.translate(node["lexpr"], scope)
        tag, fields = unwrap(node["rexpr"])
        if tag == "FuncCall" and names(fields["funcname"])[-1] == "like_escape":
            pattern, escape = (self.value(a, scope) for a in fields["args"])
            name = {"~~": "like_escape", "!~~": "not_like_escape", "~~*": "ilike_escape", "!~~*": "not_ilike_escape"}[
                symbol
            ]
            text = convert(left, TEXT) if left.is_unknown else left
            if text.name not in STRINGS | {"bpchar"}:
                raise refuse("LIKE … ESCAPE for this type")
            return Typed(f"{name}({text.sql}, {pattern.sql}, {escape.sql})", BOOL)
        return self.binary(symbol, left, self.translate(node["rexpr"], scope))

    def _similar(self, symbol: str, node: Node, scope: Scope) -> Typed:
        left = self.value(node["lexpr"], scope)
        is_citext = pg_type.is_citext(left.base)
        left = convert(left, resolve_operator("~", [left.type, TEXT]).arguments[0])
        _, fields = unwrap(node["rexpr"])
        if len(fields["args"]) > 1:
            raise refuse("SIMILAR TO … ESCAPE")
        pattern = constant_text(self.value(fields["args"][0], scope), "a pattern of SIMILAR TO")
        expression = sql_literal(regular_expression.similar(pattern, is_citext))
        sql = f"system.main.regexp_full_match({left.sql}, {expression}, 's')"
        return Typed(f"(NOT {sql})" if symbol == "!~" else sql, BOOL)

    def _nullif(self, node: Node, scope: Scope) -> Typed:
        a, b = self.translate(node["lexpr"], scope), self.translate(node["rexpr"], scope)
        if a.is_unknown and b.is_unknown:
            a, b = convert(a, TEXT), convert(b, TEXT)
        test = self.binary("=", a, b).sql
        value = convert(a, b.type) if a.is_unknown else a
        if not pg_type.is_citext(value.base) and not pg_type.is_citext(b.base):
            # The result has the type in which the two are compared.
            value = convert(value, resolve_operator("=", [value.type, b.type]).arguments[0])
        return replace(value, sql=f"CASE WHEN {test} THEN NULL ELSE {value.sql} END", is_constant=False)

    def _between(self, kind: str, node: Node, scope: Scope) -> Typed:
        value = self.translate(node["lexpr"], scope)
        low, high = (self.translate(item, scope) for item in node["rexpr"]["List"]["items"])
        inside = f"({self.binary('>=', value, low).sql} AND {self.binary('<=', value, high).sql})"
        if "SYM" in kind:
            other = f"({self.binary('>=', value, high).sql} AND {self.binary('<=', value, low).sql})"
            inside = f"({inside} OR {other})"
        return Typed(f"(NOT {inside})" if "NOT" in kind else inside, BOOL)

    def _boolean(self, node: Node, scope: Scope) -> Typed:
        word = {"AND_EXPR": "AND", "OR_EXPR": "OR", "NOT_EXPR": "NOT"}[node["boolop"]]
        parts = [self.condition(a, scope, word) for a in node["args"]]
        return Typed(f"(NOT {parts[0]})" if word == "NOT" else f"({f' {word} '.join(parts)})", BOOL)

    def _null_test(self, node: Node, scope: Scope) -> Typed:
        value = self.translate(node["arg"], scope)
        word = "IS NULL" if node["nulltesttype"] == "IS_NULL" else "IS NOT NULL"
        if value.fields:
            return Typed(f"({' AND '.join(f'{f.sql} {word}' for f in value.fields)})", BOOL)
        return Typed(f"({value.sql} {word})", BOOL)

    def _boolean_test(self, node: Node, scope: Scope) -> Typed:
        value = self.condition(node["arg"], scope, "IS")
        word = node["booltesttype"].removeprefix("IS_").replace("_", " ")
        if "UNKNOWN" in word:
            return Typed(f"({value} IS {'NOT ' if 'NOT' in word else ''}NULL)", BOOL)
        wanted = "true" if "TRUE" in word else "false"
        return Typed(f"({value} IS {'DISTINCT' if 'NOT' in word else 'NOT DISTINCT'} FROM {wanted})", BOOL)

    # Choices

    def _case(self, node: Node, scope: Scope) -> Typed:
        operand = self.translate(node["arg"], scope) if "arg" in node else None
        if operand is not None and operand.is_unknown:
            operand = convert(operand, TEXT)
        tests, results = [], []
        for item in node["args"]:
            when = item["CaseWhen"]
            if operand is None:
                tests.append(self.condition(when["expr"], scope, "CASE/WHEN"))
            else:
                tests.append(self.binary("=", operand, self.translate(when["expr"], scope)).sql)
            results.append(self.translate(when["result"], scope))
        results.append(self.translate(node["defresult"], scope) if "defresult" in node else Typed("NULL", UNKNOWN))
        # PostgreSQL begins with the ELSE when it looks for the common type.
        *made, last = _rotate(unify([results[-1], *results[:-1]], "CASE"))
        parts = [f"WHEN {t} THEN {r.sql}" for t, r in zip(tests, made, strict=True)]
        return replace(last, sql=f"CASE {' '.join(parts)} ELSE {last.sql} END", is_constant=False)

    def _coalesce(self, node: Node, scope: Scope) -> Typed:
        values = unify([self.translate(a, scope) for a in node["args"]], "COALESCE")
        return replace(values[0], sql=f"coalesce({', '.join(v.sql for v in values)})", is_constant=False)

    def _extreme(self, node: Node, scope: Scope) -> Typed:
        word = "greatest" if node["op"] == "IS_GREATEST" else "least"
        values = unify([self.translate(a, scope) for a in node["args"]], word.upper())
        # DuckDB's own turn -0 into 0. The other way repeats the values' SQL.
        is_float = values[0].name in ("float4", "float8") and len(values) < 4
        if all(order_key(v) == v.sql for v in values) and not is_float:
            return replace(values[0], sql=f"{word}({', '.join(v.sql for v in values)})", is_constant=False)
        found = values[0]
        for value in values[1:]:
            better = compare(">=" if word == "greatest" else "<=", found, value)
            first = f"WHEN {value.sql} IS NULL OR {better} THEN {found.sql}"
            sql = f"CASE WHEN {found.sql} IS NULL THEN {value.sql} {first} ELSE {value.sql} END"
            found = replace(found, sql=sql, is_constant=False)
        return found

    # Arrays and rows

    def _array(self, node: Node, scope: Scope, wanted: Type | None = None) -> Typed:
        given = [self.translate(e, scope) for e in node.get("elements", ())]
        if not given:
            if wanted is None:
                raise QueryError(
                    "42P18",
                    "cannot determine type of empty array",
                    "Explicitly cast to the desired type, for example ARRAY[]::integer[].",
                )
            return list_of([], array_of(wanted))
        made = (
            unify(given, "ARRAY")
            if wanted is None
            else [convert(v, base_type(wanted), is_explicit=True) for v in given]
        )
        return list_of([as_element(v) for v in made], array_of(made[0].type))

    def _row(self, node: Node, scope: Scope) -> Typed:
        fields = tuple(self.translate(a, scope) for a in node.get("args", ()))
        return Typed("NULL", pg_type.RECORD, fields=fields)

    def _indirection(self, node: Node, scope: Scope) -> Typed:
        value = self.translate(node["arg"], scope)
        steps = [unwrap(step) for step in node["indirection"]]
        if steps[0][0] == "A_Indices":
            return self._subscript(value, [fields for tag, fields in steps if tag == "A_Indices"], scope)
        if steps[0][0] == "String" and value.fields and value.names:
            name = steps[0][1].get("sval", "")
            if name in value.names:
                return value.fields[value.names.index(name)]
        raise refuse("the selection of a field from a row")

    def _subscript(self, value: Typed, steps: list[Node], scope: Scope) -> Typed:
        if value.name == "jsonb":
            return self._json_subscript(value, steps, scope)
        if value.name == "point" and len(steps) == 1 and not steps[0].get("is_slice"):
            return self._coordinate(value, self._place(steps[0].get("uidx"), scope))
        if value.base.element is None:
            raise refuse(f"a subscript of type {value.base.name}")
        element = base_type(value.base.element)
        places = [self._place(step.get("uidx"), scope) for step in steps]
        if any(step.get("is_slice") for step in steps):
            return self._slice(value, steps, scope)
        if value.name in ("int2vector", "oidvector"):
            return Typed(f"({value.sql})[{places[0]} + 1]", element)
        if value.is_list:
            if len(places) > 1:
                return Typed(null_of(element), element)
            return Typed(f"CASE WHEN {places[0]} > 0 THEN ({value.sql})[{places[0]}] END", element)
        text = f"pg_array_element({value.sql}, CAST([{', '.join(map(str, places))}] AS INTEGER[]))"
        return Typed(parse_sql(text, element), element)

    def _coordinate(self, value: Typed, place: str) -> Typed:
        part = f"split_part(trim({value.sql}, '()'), ',', {place} + 1)"
        text = f"CASE WHEN {place} IN (0, 1) THEN {part} END"
        return Typed(parse_sql(text, pg_type.FLOAT8), pg_type.FLOAT8)

    def _json_subscript(self, value: Typed, steps: list[Node], scope: Scope) -> Typed:
        if any(step.get("is_slice") for step in steps):
            raise refuse("a slice of jsonb")
        keys = [convert(self.value(step["uidx"], scope), TEXT, is_explicit=True).sql for step in steps]
        return Typed(f"pg_jsonb_path({value.sql}, CAST([{', '.join(keys)}] AS VARCHAR[]))", value.type)

    def _place(self, node: Node | None, scope: Scope) -> str:
        if node is None:
            return "NULL"
        return convert(self.translate(node, scope), INT4).sql

    def _slice(self, value: Typed, steps: list[Node], scope: Scope) -> Typed:
        if len(steps) > 1:
            raise refuse("a slice of several dimensions")
        first, last = self._place(steps[0].get("lidx"), scope), self._place(steps[0].get("uidx"), scope)
        if value.is_list:
            low = "1" if first == "NULL" else f"greatest({first}, 1)"
            high = f"len({value.sql})" if last == "NULL" else f"least({last}, len({value.sql}))"
            part = f"({value.sql})[{low}:{high}]"
            sql = f"CASE WHEN {value.sql} IS NULL THEN NULL WHEN {low} > {high} THEN [] ELSE {part} END"
        else:
            given = ", ".join(f"CAST({p} AS INTEGER)" for p in (first, last))
            sql = f"pg_array_slice_text({value.sql}, {given})"
        # A bound that is NULL gives NULL; a missing one is the array's own.
        if tests := [f"{p} IS NULL" for p, key in ((first, "lidx"), (last, "uidx")) if key in steps[0]]:
            sql = f"CASE WHEN NOT ({' OR '.join(tests)}) THEN {sql} END"
        return replace(value, sql=sql, is_constant=False)

    # Functions

    def _call(self, node: Node, scope: Scope) -> Typed:
        parts = names(node["funcname"])
        name = parts[-1]
        if len(parts) > 1 and parts[0] not in ("pg_catalog", "information_schema"):
            raise QueryError("42883", f"function {'.'.join(parts)} does not exist")
        given = node.get("args", [])
        if (special := self._special_call(name, given, node, scope)) is not None:
            return special
        signatures = functions(name)
        kinds = {s.kind for s in signatures}
        if "over" in node or "a" in kinds or "w" in kinds:
            return self._aggregate(name, node, scope, kinds)
        if node.get("agg_order") or node.get("agg_distinct") or node.get("agg_filter") or node.get("agg_star"):
            raise QueryError("42809", f"{name} is not an aggregate function")
        arguments = [self.translate(unwrap(a)[1]["arg"] if "NamedArgExpr" in a else a, scope) for a in given]
        if any("NamedArgExpr" in a for a in given) and name != "make_interval":
            raise refuse(f"named arguments of {name}")
        if name == "make_interval":
            return self._make_interval(given, arguments)
        return self.call(name, arguments, is_variadic=bool(node.get("func_variadic")))

    def _make_interval(self, given: list[Node], arguments: list[Typed]) -> Typed:
        order = ["years", "months", "weeks", "days", "hours", "mins", "secs"]
        parts = dict.fromkeys(order, "0")
        for place, (argument, value) in enumerate(zip(given, arguments, strict=True)):
            word = argument["NamedArgExpr"]["name"] if "NamedArgExpr" in argument else order[place]
            type_ = pg_type.FLOAT8 if word == "secs" else INT4
            if not can_coerce(value.type, type_):
                given_type = pg_type.display_name(value.type)
                raise QueryError("42883", f"function make_interval({word} => {given_type}) does not exist")
            parts[word] = convert(value, type_).sql
        rendering: Any = function.FUNCTIONS["make_interval()"]
        return rendering([Typed(parts[word], INT4) for word in order], pg_type.INTERVAL)  # type: ignore[no-any-return]

    def call(self, name: str, arguments: Sequence[Typed], is_variadic: bool = False) -> Typed:
        """A call of a function that is neither an aggregate nor a window function."""
        type_ = pg_type.find_built_in(name) if len(arguments) == 1 else None
        if type_ is not None and name not in ("text", "char", "bool", "name"):
            has_rendering = any(s.key in function.FUNCTIONS for s in functions(name) if len(s.arguments) == 1)
            if not has_rendering:
                return self.cast(arguments[0], type_)
        if name in _CITEXT_FUNCTIONS and any(pg_type.is_citext(a.base) for a in arguments):
            raise refuse(f"{name} of citext", "Cast to text.")
        if any(a.fields for a in arguments) and name not in (
            "row_to_json",
            "to_json",
            "to_jsonb",
            "json_build_object",
            "jsonb_build_object",
            "json_build_array",
            "jsonb_build_array",
        ):
            raise refuse(f"{name} of a row")
        resolved = resolve_function(name, [a.type for a in arguments], is_variadic)
        made = [self._argument(a, t) for a, t in zip(arguments, resolved.arguments, strict=True)]
        if resolved.signature.kind == "s":
            return set_function.render(resolved, made)
        if is_variadic:
            raise refuse(f"VARIADIC in a call of {name}")
        if name in function.SYSTEM:
            given = [numeric_text(a) if a.name == "numeric" else a.sql for a in made]
            return Typed(f"{name}({', '.join(given)})", resolved.result)
        for key in dict.fromkeys((resolved.signature.key, _variadic_key(resolved.signature.key))):
            found = function.render(key, made, resolved.result)
            if found is not None:
                return found
        types = ", ".join(pg_type.display_name(t) for t in resolved.arguments)
        raise refuse(f"function {name}({types})")

    def _argument(self, value: Typed, type_: Type) -> Typed:
        if value.fields:
            return value
        return (
            self._reg_cast(value, type_) if value.literal is not None and type_.name in REG else convert(value, type_)
        )

    def _special_call(self, name: str, given: list[Node], node: Node, scope: Scope) -> Typed | None:
        """Functions that the session answers, and those with names that PostgreSQL's grammar makes."""
        if "over" in node:
            return None
        if not given and (sql := self._catalog.constant(name)) is not None:
            type_ = {"version": TEXT, "pg_backend_pid": INT4}.get(name, pg_type.NAME)
            return Typed(sql, type_)
        if name in (
            "current_setting",
            "set_config",
            "current_schemas",
            "to_regclass",
            "to_regtype",
            "parse_ident",
            "_pg_expandarray",
        ):
            return self._session_call(name, [self.translate(a, scope) for a in given])
        if name == "timezone" and len(given) == 2:
            return None
        if name == "position" and len(given) == 2:
            # The grammar has already put the arguments in the order of the function.
            return None
        if name == "xmlexists" or name.startswith("xml"):
            raise refuse(name)
        return None

    def _session_call(self, name: str, arguments: list[Typed]) -> Typed:
        texts = [
            constant_text(a, "an argument") if a.is_constant and a.sql.startswith("'") else None for a in arguments
        ]
        match name:
            case "current_setting":
                if texts[0] is None:
                    raise refuse("current_setting of a name that is not a literal")
                value = self._catalog.setting(texts[0])
                if value is None and len(arguments) < 2:
                    raise QueryError("42704", f'unrecognized configuration parameter "{texts[0]}"')
                return Typed("CAST(NULL AS VARCHAR)", TEXT) if value is None else text_literal(value, TEXT)
            case "set_config":
                if len(arguments) != 3 or texts[0] is None or texts[1] is None:
                    raise refuse("set_config with arguments that are not literals")
                self._catalog.set_config(texts[0], texts[1], arguments[2].sql == "true")
                return text_literal(texts[1], TEXT)
            case "current_schemas":
                schemas = self._catalog.search_path()
                if arguments[0].sql == "true":
                    schemas = ["pg_catalog", *schemas]
                return list_of([sql_literal(s) for s in schemas], array_of(pg_type.NAME))
            case "to_regclass" | "to_regtype":
                type_ = pg_type.built_in(name.removeprefix("to_"))
                if texts[0] is None:
                    return Typed(f"regclass_oid({arguments[0].sql})", type_)
                oid = self._catalog.oid(type_.name, texts[0])
                return Typed(null_of(type_) if oid is None else f"CAST({oid} AS BIGINT)", type_)
            case "parse_ident":
                return Typed(f"parse_ident({convert(arguments[0], TEXT).sql})", array_of(TEXT), is_list=True)
            case "_pg_expandarray":
                return set_function.numbered_elements(arguments[0])
        raise refuse(name)

    def _aggregate(self, name: str, node: Node, scope: Scope, kinds: set[str]) -> Typed:
        inner = Scope(scope.parent, scope.items, {}, scope.windows, in_aggregate=True)
        # Inside a window function, expressions still see the groups.
        over_node = node.get("over")
        inside = scope if over_node is not None and (scope.groups or scope.dependent) else inner
        arguments = [self.translate(a, inside) for a in node.get("args", [])]
        filter_ = self.condition(node["agg_filter"], inner, "FILTER") if "agg_filter" in node else ""
        over = self._queries.window(over_node, scope) if over_node is not None else ""
        if node.get("agg_within_group"):
            return self._ordered_set(name, arguments, node, inner, filter_)
        if over and (node.get("agg_order") or node.get("agg_distinct")):
            word = "ORDER BY" if node.get("agg_order") else "DISTINCT"
            raise refuse(f"{word} in an aggregate with OVER", "PostgreSQL does not allow it either.")
        order = self._queries.order_items(node["agg_order"], inside) if "agg_order" in node else ""
        if not order and not over and not node.get("agg_distinct") and len(scope.items) == 1:
            order = scope.items[0].order
        if node.get("agg_star"):
            return aggregate.render(
                aggregate.Call("count", [], resolve_function("count", []), filter=filter_, over=over)
            )
        if any(a.fields for a in arguments) and name not in ("json_agg", "jsonb_agg", "count"):
            raise refuse(f"{name} of a row")
        if (
            name in ("min", "max")
            and arguments
            and arguments[0].base.kind != "e"
            and not pg_type.is_own(arguments[0].base)
            and arguments[0].base.element is None
        ):
            if not pg_type.is_citext(arguments[0].base):
                raise refuse(f"{name} of {arguments[0].base.name}")
            resolved = resolve_function(name, [TEXT])
            return aggregate.render(aggregate.Call(name, arguments, resolved, filter=filter_, over=over))
        resolved = resolve_function(name, [a.type for a in arguments])
        made = [a if a.fields else convert(a, t) for a, t in zip(arguments, resolved.arguments, strict=True)]
        if "w" in kinds:
            if not over:
                raise QueryError("42P20", f"window function {name} requires an OVER clause")
            if node.get("ignore_nulls"):
                raise refuse("IGNORE NULLS")
            if name in ("lag", "lead") and len(made) == 3:
                value, default = align([made[0], convert(made[2], made[0].type)])
                made = [value, made[1], default]
            return aggregate.window(name, made, over)
        if "a" not in kinds:
            raise QueryError("42809", f"OVER specified, but {name} is not a window function nor an aggregate function")
        return aggregate.render(
            aggregate.Call(name, made, resolved, bool(node.get("agg_distinct")), order, filter_, over)
        )

    def _ordered_set(self, name: str, arguments: list[Typed], node: Node, scope: Scope, filter_: str) -> Typed:
        sort = node["agg_order"][0]
        value = self.value(sort["SortBy"]["node"], scope)
        if len(arguments) != 1 or len(node["agg_order"]) != 1 or arguments[0].base.element is not None:
            raise refuse(f"{name} with these arguments")
        is_descending = sort["SortBy"].get("sortby_dir") == "SORTBY_DESC"
        return aggregate.ordered_set(name, arguments[0], value, is_descending, filter_)

    def _grouping(self, node: Node, scope: Scope) -> Typed:
        inner = Scope(scope.parent, scope.items, {}, scope.windows, in_aggregate=True)
        parts = [equality_key(self.value(a, inner)) for a in node["args"]]
        return Typed(f"CAST(grouping({', '.join(parts)}) AS INTEGER)", INT4)

    # Subqueries

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
            return Typed(f"CAST({sql} AS {_list_type(value)})", array_of(value.base), is_list=True)
        if kind in ("ANY_SUBLINK", "ALL_SUBLINK"):
            return self._in_subquery(node, query, scope)
        raise refuse("this subquery")

    def _in_subquery(self, node: Node, query: Any, scope: Scope, is_filter: bool = False) -> Typed:
        left = self.translate(node["testexpr"], scope)
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
        types = _operand_types(resolved.arguments, symbol)
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


def _operand_types(types: Sequence[Type], symbol: str) -> tuple[Type, Type]:
    """The types to compare: PostgreSQL also compares dates with timestamps, which DuckDB converts in its own way."""
    a, b = types
    if symbol in OPERATORS and a != b:
        wanted = [t.name for t in (a, b)]
        for name in ("timestamptz", "timestamp"):
            if name in wanted and all(w in ("date", "timestamp", "timestamptz") for w in wanted):
                return pg_type.built_in(name), pg_type.built_in(name)
    return a, b


def _list_type(value: Typed) -> str:
    from tailrace.query.sql.typed import representation

    return representation(array_of(value.base), is_list=True)


def _variadic_key(key: str) -> str:
    """`concat(any,any,any)` → `concat(any)`: the key of a function with any number of arguments."""
    name, _, rest = key.partition("(")
    parts = rest.rstrip(")").split(",")
    while len(parts) > 1 and parts[-1] == parts[-2]:
        parts.pop()
    return f"{name}({','.join(parts)})"


def _rotate(values: list[Typed]) -> list[Typed]:
    return [*values[1:], values[0]]


def _number(text: str) -> Typed:
    plain = text.replace("_", "")
    if plain[:2].lower() in ("0x", "0o", "0b") or plain.removeprefix("-").isdecimal():
        number = int(plain, 0) if plain[:2].lower() in ("0x", "0o", "0b") else int(plain)
        if -(2**31) <= number < 2**31:
            return integer(number, INT4)
        if -(2**63) <= number < 2**63:
            return integer(number, INT8)
        plain = str(number)
    return decimal(plain)


def _pack(type_: Type, modifiers: list[int]) -> int:
    """The modifier of a type from the numbers in its brackets."""
    if not modifiers:
        return -1
    match type_.name:
        case "numeric":
            scale = modifiers[1] if len(modifiers) > 1 else 0
            return ((modifiers[0] << 16) | (scale & 0x7FF)) + 4
        case "varchar" | "bpchar":
            return modifiers[0] + 4
        case "interval":
            return (modifiers[0] << 16) | (modifiers[1] if len(modifiers) > 1 else 0xFFFF)
    return modifiers[0]
