"""Functions that return sets of rows: as lists that DuckDB unnests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.query.sql import function, pg_type
from tailrace.query.sql.pg_type import INT4, INT8, JSON, JSONB, TEXT, array_of, base_type
from tailrace.query.sql.scope import NamedColumn
from tailrace.query.sql.signature import Resolved
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.text_form import elements
from tailrace.query.sql.typed import Typed, representation

_JSON_LISTS: Final = {
    "jsonb_array_elements": ("pg_jsonb_elements", JSONB, "value"),
    "jsonb_array_elements_text": ("pg_jsonb_elements_text", TEXT, "value"),
    "jsonb_object_keys": ("pg_jsonb_keys", TEXT, "jsonb_object_keys"),
    "json_array_elements": ("pg_json_elements", JSON, "value"),
    "json_array_elements_text": ("pg_json_elements_text", TEXT, "value"),
    "json_object_keys": ("pg_json_names", TEXT, "json_object_keys"),
}
_JSON_PAIRS: Final = {
    "jsonb_each": ("pg_jsonb_keys", "pg_jsonb_values", JSONB),
    "jsonb_each_text": ("pg_jsonb_keys", "pg_jsonb_values_text", TEXT),
    "json_each": ("pg_json_names", "pg_json_values", JSON),
    "json_each_text": ("pg_json_names", "pg_json_values_text", TEXT),
}


def lists(resolved: Resolved, arguments: Sequence[Typed]) -> list[NamedColumn]:
    """The function's columns, each as a list of its values; the SQL of a column is that of the list."""
    name = resolved.signature.name
    value = arguments[0] if arguments else None
    if name in _JSON_LISTS and value is not None:
        call, type_, column = _JSON_LISTS[name]
        return [NamedColumn(column, Typed(f"{call}({value.sql})", type_))]
    if name in _JSON_PAIRS and value is not None:
        keys, values, type_ = _JSON_PAIRS[name]
        return [
            NamedColumn("key", Typed(f"{keys}({value.sql})", TEXT)),
            NamedColumn("value", Typed(f"{values}({value.sql})", type_)),
        ]
    if name == "pg_partition_ancestors":
        # The lake's tables are neither partitions nor partitioned.
        return [NamedColumn(name, Typed("CAST([] AS BIGINT[])", pg_type.built_in("regclass")))]
    if name == "unnest" and value is not None and value.base.element is not None:
        element = base_type(value.base.element)
        return [NamedColumn(name, Typed(elements(value, "pg_array_elements"), element))]
    if name == "generate_series":
        type_ = resolved.result
        if type_ == pg_type.NUMERIC:
            raise refuse("generate_series of numerics", "Use integers.")
        given = [
            f"CAST({a.sql} AS {'BIGINT' if a.base in (INT4, INT8) else representation(a.base)})" for a in arguments
        ]
        series = f"generate_series({', '.join(given)})"
        return [NamedColumn(name, Typed(f"CAST({series} AS {representation(type_)}[])", type_))]
    if name == "generate_subscripts" and value is not None:
        if len(arguments) > 2:
            raise refuse("generate_subscripts in reverse")
        low, high = (function.render(f"array_{side}(anyarray,int4)", arguments, INT4) for side in ("lower", "upper"))
        assert low is not None and high is not None  # noqa: PT018
        sql = f"CAST(CASE WHEN {low.sql} IS NULL THEN [] ELSE generate_series({low.sql}, {high.sql}) END AS INTEGER[])"
        return [NamedColumn(name, Typed(sql, INT4))]
    if name == "regexp_matches" and len(arguments) == 2:
        found = function.FUNCTIONS["regexp_match(text,text)"]
        assert callable(found)
        match = found(arguments, array_of(TEXT))
        sql = f"list_filter([{match.sql}], lambda m: m IS NOT NULL)"
        return [NamedColumn(name, Typed(sql, array_of(TEXT), is_list=True))]
    if name == "string_to_table" and len(arguments) == 2:
        return [NamedColumn(name, Typed(f"pg_string_to_array({arguments[0].sql}, {arguments[1].sql})", TEXT))]
    raise refuse(f"the set-returning function {name}")


def numbered_elements(array: Typed) -> Typed:
    """information_schema._pg_expandarray in a select list, by which pgjdbc reads keys: rows of element and place."""
    if array.name not in ("int2vector", "oidvector"):
        raise refuse(f"_pg_expandarray of {array.name}")
    element = base_type(array.base.element or INT4)
    struct = f"{{'x': CAST(e AS {representation(element)}), 'n': CAST(i AS INTEGER)}}"
    sql = f"unnest(list_transform({array.sql}, lambda e, i: {struct}))"
    parts = (Typed(f"({sql}).x", element), Typed(f"({sql}).n", INT4))
    return Typed(sql, pg_type.RECORD, fields=parts, names=("x", "n"))


def render(resolved: Resolved, arguments: Sequence[Typed]) -> Typed:
    """The function in a select list."""
    columns = lists(resolved, arguments)
    if len(columns) != 1:
        raise refuse(f"{resolved.signature.name} in a select list", "Use it in FROM.")
    value = columns[0].value
    return Typed(f"unnest({value.sql})", value.type, is_list=value.is_list)
