"""Expressions: each node of the syntax tree to SQL with its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tailrace.change import Type
from tailrace.query.query_error import QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.call import Calls
from tailrace.query.sql.cast import convert
from tailrace.query.sql.choice import Choices
from tailrace.query.sql.constant import constant, session_value
from tailrace.query.sql.modifier import apply_modifier
from tailrace.query.sql.operation import Operations
from tailrace.query.sql.pg_type import BOOL, TEXT, base_type
from tailrace.query.sql.scope import Scope
from tailrace.query.sql.subquery import Subqueries
from tailrace.query.sql.subscript import Subscripts
from tailrace.query.sql.syntax import Node, fingerprint, names, refuse, unwrap
from tailrace.query.sql.type_name import type_of
from tailrace.query.sql.typed import REG, STRINGS, Typed, null_of, text_literal

if TYPE_CHECKING:
    from tailrace.query.sql.select import QueryTranslator

Rule = Callable[[Node, Scope], Typed]
_FILTERS: Final = frozenset(("WHERE", "HAVING", "JOIN/ON", "FILTER", "CASE/WHEN"))
"""Where an unknown condition is as good as a false one."""


class Expressions:
    def __init__(self, queries: QueryTranslator) -> None:
        self.queries = queries
        self.catalog = queries.catalog
        self.operations = Operations(self)
        self.calls = Calls(self)
        self._subscripts = Subscripts(self)
        self._subqueries = Subqueries(self)
        self._rules: dict[str, Rule] = {
            "A_Const": lambda node, _: constant(node),
            "ColumnRef": self._column,
            "ParamRef": self._parameter,
            "TypeCast": self._type_cast,
            "SQLValueFunction": self._value_function,
            "CollateClause": self._collation,
            **self.operations.rules(),
            **Choices(self).rules(),
            **self.calls.rules(),
            **self._subqueries.rules(),
            **self._subscripts.rules(),
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
                query = self.queries.query(fields["subselect"], scope)
                return self._subqueries.membership(fields, query, scope, is_filter=True).sql
        found = self.translate(node, scope)
        if found.is_unknown:
            found = convert(found, BOOL)
        if found.base != BOOL:
            raise QueryError(
                "42804", f"argument of {where} must be type boolean, not type {pg_type.display_name(found.type)}"
            )
        return found.sql

    def _parameter(self, node: Node, scope: Scope) -> Typed:  # noqa: ARG002
        return self.catalog.parameter(node["number"])

    def _column(self, node: Node, scope: Scope) -> Typed:
        fields = node["fields"]
        if "A_Star" in fields[-1]:
            raise refuse("* in this place")
        parts = names(fields)
        if len(parts) == 1:
            return scope.grouped(scope.column(parts[0]))
        return scope.grouped(scope.qualified(parts[-2], parts[-1], parts[-3] if len(parts) > 2 else None))

    def _value_function(self, node: Node, scope: Scope) -> Typed:  # noqa: ARG002
        return session_value(node, self.catalog)

    def _collation(self, node: Node, scope: Scope) -> Typed:
        collation = names(node["collname"])[-1]
        if collation.lower() not in ("c", "default", "posix", "c.utf-8", "ucs_basic", "pg_c_utf8"):
            raise refuse(f'collation "{collation}"', "Text is compared by code points, as with the collation C.")
        return self.value(node["arg"], scope)

    def _type_cast(self, node: Node, scope: Scope) -> Typed:
        type_, modifier = type_of(node["typeName"], self.catalog)
        tag, fields = unwrap(node["arg"])
        if tag == "A_ArrayExpr" and type_.element is not None:
            return apply_modifier(self._subscripts.array(fields, scope, type_.element), modifier)
        value = self.translate(node["arg"], scope)
        return self.cast(value, type_, modifier)

    def cast(self, value: Typed, type_: Type, modifier: int = -1) -> Typed:
        base = base_type(type_)
        if base.name in REG or base.name in ("regproc", "regprocedure"):
            return self.reg_cast(value, base)
        if value.fields and base.name != "record":
            raise refuse("the cast of a row")
        return convert(value, type_, modifier, is_explicit=True)

    def reg_cast(self, value: Typed, type_: Type) -> Typed:
        if value.literal is None:
            if value.is_unknown:
                return Typed(null_of(type_), type_)
            if value.name in STRINGS and type_.name == "regclass":
                return Typed(f"regclass_of({value.sql})", type_)
            if type_.name in ("regproc", "regprocedure"):
                return Typed(f"CAST({value.sql} AS VARCHAR)", type_)
            return convert(value, type_, is_explicit=True)
        text = value.literal
        if type_.name in ("regproc", "regprocedure"):
            return text_literal(text.rpartition(".")[2].partition("(")[0], type_)
        oid = int(text) if text.isdecimal() else self.catalog.oid(type_.name, text)
        if oid is None:
            what = {"regclass": "relation", "regtype": "type"}.get(type_.name, "name")
            raise QueryError("42P01" if type_.name == "regclass" else "42704", f'{what} "{text}" does not exist')
        return Typed(f"CAST({oid} AS BIGINT)", type_, is_constant=True)
