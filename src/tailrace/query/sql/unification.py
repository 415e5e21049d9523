"""Values in one type and one representation, as CASE, UNION, VALUES, IN and ARRAY need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.query.sql import pg_type
from tailrace.query.sql.cast import convert
from tailrace.query.sql.pg_type import base_type, common_type
from tailrace.query.sql.text_form import cast_text, elements
from tailrace.query.sql.typed import Typed, as_numeric_text, null_of


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


def align_to(value: Typed, target: Typed) -> Typed:
    """A value in the representation of another of its type."""
    if (
        target.name == "numeric"
        and target.scale is not None
        and value.scale is None
        and not value.sql.startswith("CAST(NULL")
    ):
        return replace(value, sql=f"CAST({value.sql} AS DECIMAL(38, {target.scale}))", scale=target.scale)
    if value.is_list and not target.is_list:
        return replace(value, sql=cast_text(value), is_list=False)
    return align([target, value])[1]


def _is_null(value: Typed) -> bool:
    return value.sql.startswith("CAST(NULL AS ")
