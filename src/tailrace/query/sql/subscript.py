"""Arrays and rows: how they are written, and their elements and slices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.change import Type
from tailrace.query.query_error import QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.cast import convert
from tailrace.query.sql.pg_type import INT4, TEXT, array_of, base_type
from tailrace.query.sql.scope import Scope
from tailrace.query.sql.syntax import Node, refuse, unwrap
from tailrace.query.sql.text_form import parse_sql
from tailrace.query.sql.typed import Typed, as_element, list_of, null_of
from tailrace.query.sql.unification import unify

if TYPE_CHECKING:
    from tailrace.query.sql.expression import Expressions, Rule


class Subscripts:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions

    def rules(self) -> dict[str, Rule]:
        return {
            "A_ArrayExpr": self.array,
            "RowExpr": self._row,
            "A_Indirection": self._indirection,
        }

    def array(self, node: Node, scope: Scope, wanted: Type | None = None) -> Typed:
        given = [self._expressions.translate(e, scope) for e in node.get("elements", ())]
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
        fields = tuple(self._expressions.translate(a, scope) for a in node.get("args", ()))
        return Typed("NULL", pg_type.RECORD, fields=fields)

    def _indirection(self, node: Node, scope: Scope) -> Typed:
        value = self._expressions.translate(node["arg"], scope)
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
        keys = [convert(self._expressions.value(step["uidx"], scope), TEXT, is_explicit=True).sql for step in steps]
        return Typed(f"pg_jsonb_path({value.sql}, CAST([{', '.join(keys)}] AS VARCHAR[]))", value.type)

    def _place(self, node: Node | None, scope: Scope) -> str:
        if node is None:
            return "NULL"
        return convert(self._expressions.translate(node, scope), INT4).sql

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
