"""CASE, COALESCE, GREATEST and LEAST."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.query.sql.cast import convert
from tailrace.query.sql.comparison import compare, order_key
from tailrace.query.sql.pg_type import TEXT, UNKNOWN
from tailrace.query.sql.scope import Scope
from tailrace.query.sql.syntax import Node
from tailrace.query.sql.typed import Typed
from tailrace.query.sql.unification import unify

if TYPE_CHECKING:
    from tailrace.query.sql.expression import Expressions, Rule


class Choices:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions

    def rules(self) -> dict[str, Rule]:
        return {
            "CaseExpr": self._case,
            "CoalesceExpr": self._coalesce,
            "MinMaxExpr": self._extreme,
        }

    def _case(self, node: Node, scope: Scope) -> Typed:
        operand = self._expressions.translate(node["arg"], scope) if "arg" in node else None
        if operand is not None and operand.is_unknown:
            operand = convert(operand, TEXT)
        tests, results = [], []
        for item in node["args"]:
            when = item["CaseWhen"]
            if operand is None:
                tests.append(self._expressions.condition(when["expr"], scope, "CASE/WHEN"))
            else:
                tests.append(
                    self._expressions.operations.binary(
                        "=", operand, self._expressions.translate(when["expr"], scope)
                    ).sql
                )
            results.append(self._expressions.translate(when["result"], scope))
        results.append(
            self._expressions.translate(node["defresult"], scope) if "defresult" in node else Typed("NULL", UNKNOWN)
        )
        # PostgreSQL begins with the ELSE when it looks for the common type.
        *made, last = _rotate(unify([results[-1], *results[:-1]], "CASE"))
        parts = [f"WHEN {t} THEN {r.sql}" for t, r in zip(tests, made, strict=True)]
        return replace(last, sql=f"CASE {' '.join(parts)} ELSE {last.sql} END", is_constant=False)

    def _coalesce(self, node: Node, scope: Scope) -> Typed:
        values = unify([self._expressions.translate(a, scope) for a in node["args"]], "COALESCE")
        return replace(values[0], sql=f"coalesce({', '.join(v.sql for v in values)})", is_constant=False)

    def _extreme(self, node: Node, scope: Scope) -> Typed:
        word = "greatest" if node["op"] == "IS_GREATEST" else "least"
        values = unify([self._expressions.translate(a, scope) for a in node["args"]], word.upper())
        # DuckDB's own turn -0 into 0.
        if all(order_key(v) == v.sql for v in values) and values[0].name not in ("float4", "float8"):
            return replace(values[0], sql=f"{word}({', '.join(v.sql for v in values)})", is_constant=False)
        a, b = (replace(values[0], sql=name, is_constant=False) for name in ("a", "b"))
        better = compare(">=" if word == "greatest" else "<=", a, b)
        step = f"lambda a, b: CASE WHEN {better} OR b IS NULL THEN a ELSE b END"
        listed = f"[{', '.join(v.sql for v in values)}]"
        return replace(values[0], sql=f"list_reduce({listed}, {step})", is_constant=False)


def _rotate(values: list[Typed]) -> list[Typed]:
    return [*values[1:], values[0]]
