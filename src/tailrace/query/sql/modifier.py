"""The length, precision or scale that a declaration demands of a value."""

from __future__ import annotations

from dataclasses import replace

from tailrace.query.sql.pg_type import TEXT, base_type
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.text_form import elements
from tailrace.query.sql.typed import MAX_DIGITS, Typed, as_element, as_numeric_text, numeric_text
from tailrace.types import numeric_modifier


def apply_modifier(value: Typed, modifier: int, is_explicit: bool = True) -> Typed:
    """A value of the right type with what its declaration demands of it, or of its elements."""
    name = value.name
    if modifier < 0 and name != "bpchar":
        return value
    if value.base.element is not None:
        return _apply_to_elements(value, modifier, is_explicit)
    match name:
        case "varchar" | "bpchar":
            size = modifier - 4
            if size < 0:
                return value
            sql = value.sql
            if not is_explicit:
                failed = f"error('[22001] value too long for type character({size})')"
                sql = f"CASE WHEN length(rtrim({sql}, ' ')) > {size} THEN {failed} ELSE {sql} END"
            sql = f"left({sql}, {size})" if name == "varchar" else f"rpad(left({sql}, {size}), {size}, ' ')"
            return replace(value, sql=sql, modifier=modifier)
        case "numeric":
            precision, scale = numeric_modifier(modifier)
            if 1 <= precision <= MAX_DIGITS and 0 <= scale <= precision:
                text = f"pg_numeric_fit({value.sql}, {precision}, {scale})" if value.scale is None else value.sql
                sql = f"CAST({text} AS DECIMAL({precision}, {scale}))"
                return replace(value, sql=sql, modifier=modifier, scale=scale)
            return replace(
                as_numeric_text(value),
                sql=f"pg_numeric_fit({numeric_text(value)}, {precision}, {scale})",
                modifier=modifier,
            )
        case "timestamp" | "timestamptz" | "time":
            if modifier >= 6:
                return replace(value, modifier=modifier)
            return replace(value, sql=f"rounded({value.sql}, {modifier})", modifier=modifier)
        case "bit" | "varbit":
            if name == "bit" and is_explicit:
                return replace(value, sql=f"rpad(left({value.sql}, {modifier}), {modifier}, '0')", modifier=modifier)
            return replace(value, sql=f"left({value.sql}, {modifier})", modifier=modifier)
        case "interval":
            if modifier & 0xFFFF in (6, 0xFFFF) and modifier >> 16 == 0x7FFF:
                return value
            raise refuse("an interval with restricted fields or precision")
    return value


def _apply_to_elements(value: Typed, modifier: int, is_explicit: bool) -> Typed:
    element = Typed("e", base_type(value.base.element or TEXT))
    body = as_element(apply_modifier(element, modifier, is_explicit))
    listed = elements(value)
    sql = listed if body == "e" else f"list_transform({listed}, lambda e: {body})"
    return replace(value, sql=sql, modifier=modifier, is_list=True)
