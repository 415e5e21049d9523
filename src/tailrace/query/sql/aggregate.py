"""The renderings of PostgreSQL's aggregates and window functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tailrace.query.sql import json_text, pg_type
from tailrace.query.sql.cast import convert
from tailrace.query.sql.comparison import equality_key, is_plain, order_key
from tailrace.query.sql.pg_type import FLOAT8, INT4, INT8, NUMERIC, array_of
from tailrace.query.sql.signature import Resolved
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.text_form import output_text
from tailrace.query.sql.typed import MAX_DIGITS, Typed, as_element, numeric_text, representation
from tailrace.types import numeric_modifier

_STATISTICS: Final = {
    "stddev": "stddev_samp", "stddev_samp": "stddev_samp", "stddev_pop": "stddev_pop", "variance": "var_samp",
    "var_samp": "var_samp", "var_pop": "var_pop",
}  # fmt: skip
_TWO_FLOATS: Final = frozenset(
    ("corr", "covar_pop", "covar_samp", "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2",
     "regr_slope", "regr_sxx", "regr_sxy", "regr_syy")
)  # fmt: skip
_RANKS: Final = frozenset(("row_number", "rank", "dense_rank", "percent_rank", "cume_dist"))


@dataclass(frozen=True)
class Call:
    """How an aggregate is called."""

    name: str
    arguments: Sequence[Typed]
    resolved: Resolved
    distinct: bool = False
    order: str = ""
    """`a ASC NULLS LAST, …`; empty without ORDER BY."""
    filter: str = ""
    over: str = ""

    @property
    def suffix(self) -> str:
        return (f" FILTER (WHERE {self.filter})" if self.filter else "") + (f" OVER {self.over}" if self.over else "")

    def guarded(self, sql: str) -> str:
        """The argument of an aggregate that ignores NULLs: not evaluated where the filter excludes the row."""
        return f"CASE WHEN {self.filter} THEN {sql} END" if self.filter else sql

    def plain(self, function: str, sql: str) -> str:
        """A call of DuckDB's aggregate of one argument."""
        distinct = "DISTINCT " if self.distinct else ""
        order = f" ORDER BY {self.order}" if self.order else ""
        return f"{function}({distinct}{self.guarded(sql)}{order}){self.suffix}"

    def numbers(self, sql: str) -> str:
        """All values as a list, for a function that ignores NULLs."""
        return self.values(self.guarded(sql))

    def values(self, sql: str) -> str:
        """All values as a list."""
        order = f" ORDER BY {self.order}" if self.order else ""
        return f"list({sql}{order}){self.suffix}"


def render(call: Call) -> Typed:
    name, arguments = call.name, call.arguments
    result = call.resolved.result
    match name:
        case "count":
            if not arguments:
                return Typed(f"count(*){call.suffix}", INT8)
            value = arguments[0]
            if value.fields:
                raise refuse("count of a row", "Use count(*).")
            sql = equality_key(value) if call.distinct else value.sql
            return Typed(f"count({'DISTINCT ' if call.distinct else ''}{call.guarded(sql)}){call.suffix}", INT8)
        case "sum":
            return _sum(call)
        case "avg":
            return _avg(call)
        case "min" | "max":
            value = arguments[0]
            if is_plain(value):
                return _result(value, call.plain(name, value.sql))
            return _result(value, f"arg_{name}({call.guarded(value.sql)}, {order_key(value)}){call.suffix}")
        case "bool_and" | "every" | "bool_or":
            return Typed(call.plain("bool_and" if name == "every" else name, arguments[0].sql), result)
        case "bit_and" | "bit_or" | "bit_xor":
            if arguments[0].name not in ("int2", "int4", "int8"):
                raise refuse(f"{name} of {arguments[0].name}")
            return Typed(f"CAST({call.plain(name, arguments[0].sql)} AS {representation(result)})", result)
        case "string_agg":
            return _string_agg(call)
        case "array_agg":
            return _array_agg(call)
        case "any_value":
            return _result(arguments[0], call.plain("any_value", arguments[0].sql))
        case "json_agg" | "jsonb_agg" | "json_object_agg" | "jsonb_object_agg":
            return _json(call)
    if name in _STATISTICS:
        return _statistic(call)
    if name in _TWO_FLOATS:
        values = [convert(a, FLOAT8) for a in arguments]
        if call.distinct:
            raise refuse(f"{name}(DISTINCT …)")
        found = f"{name}({values[0].sql}, {values[1].sql}){call.suffix}"
        if name in ("corr", "regr_slope", "regr_intercept", "regr_r2"):
            # PostgreSQL returns NULL if a column does not vary, where DuckDB returns NaN.
            x, y = (v.sql for v in values)
            finite = call.plain("bool_and", f"{x} IS NULL OR {y} IS NULL OR (isfinite({x}) AND isfinite({y}))")
            found = f"CASE WHEN isnan({found}) AND {finite} THEN NULL ELSE {found} END"
        if name != "regr_count":
            found = _of_small(call, found, values, "1e77")
        return Typed(f"CAST({found} AS {representation(result)})", result)
    raise refuse(f"aggregate {name}")


def _result(value: Typed, sql: str) -> Typed:
    """The result of a function that returns one of its arguments: without the length or scale of its declaration."""
    return replace(value, sql=sql, type=value.base, modifier=-1, is_constant=False)


def _sum(call: Call) -> Typed:
    (value,) = call.arguments
    match value.name:
        case "int2" | "int4":
            return Typed(f"CAST({call.plain('system.main.sum', value.sql)} AS BIGINT)", INT8)
        case "int8":
            return Typed(f"CAST({call.plain('system.main.sum', value.sql)} AS DECIMAL(38, 0))", NUMERIC, scale=0)
        case "numeric":
            if value.scale is not None:
                sql = f"CAST({call.plain('system.main.sum', value.sql)} AS DECIMAL(38, {value.scale}))"
                return Typed(sql, NUMERIC, scale=value.scale)
            function = "pg_numeric_distinct_sum" if call.distinct else "pg_numeric_sum"
            return Typed(f"{function}({call.numbers(value.sql)})", NUMERIC)
        case "float8":
            return Typed(_checked_sum(call, value.sql), FLOAT8)
        case "float4":
            if call.distinct:
                raise refuse("sum(DISTINCT real)")
            return Typed(f"pg_single_sum({call.numbers(value.sql)})", pg_type.FLOAT4)
        case "money":
            return Typed(f"pg_money({call.plain('system.main.sum', value.sql)})", value.type)
        case "interval":
            if call.distinct:
                raise refuse("sum(DISTINCT interval)")
            parts = [
                call.plain("system.main.sum", f"pg_interval_{part}({value.sql})") for part in ("months", "days", "us")
            ]
            months, days, us = parts
            return Typed(
                f"(to_months(CAST({months} AS INTEGER)) + to_days(CAST({days} AS INTEGER))"
                f" + to_microseconds(CAST({us} AS BIGINT)))",
                value.type,
            )
    raise refuse(f"sum of {value.name}")


def _avg(call: Call) -> Typed:
    (value,) = call.arguments
    match value.name:
        case "int2" | "int4" | "int8":
            return _quotient(call, value.sql)
        case "numeric":
            if value.scale is not None:
                return _quotient(call, value.sql)
            function = "pg_numeric_distinct_avg" if call.distinct else "pg_numeric_avg"
            return Typed(f"{function}({call.numbers(value.sql)})", NUMERIC)
        case "float8" | "float4":
            number = f"CAST({value.sql} AS DOUBLE)"
            return Typed(_of_small(call, call.plain("avg", number), [value]), FLOAT8)
    raise refuse(f"avg of {value.name}")


def _checked_sum(call: Call, sql: str) -> str:
    """A sum of floats. PostgreSQL reports an overflow, even of a sum in between; DuckDB returns infinity."""
    # DISTINCT takes 1 and -1 for the same size.
    twice = "2 * " if call.distinct else ""
    largest = twice + call.plain("system.main.sum", _size(sql))
    return f"CASE WHEN isinf({largest}) THEN {_OVERFLOW} ELSE {call.plain('system.main.sum', sql)} END"


def _of_small(call: Call, sql: str, values: Sequence[Typed], limit: str = "1e154") -> str:
    """A statistic of floats, or an error if they are so large that PostgreSQL might report an overflow.

    Its averages compute the sum of the squared differences from the mean, too. With n values up to m, all of its terms
    are below (2nm)², for any order of the rows. Statistics of two columns multiply two such sums.
    """
    checks = []
    for value in values:
        if value.name != "float4":
            count = call.plain("count", value.sql)
            largest = call.plain("max", _size(value.sql))
            checks.append(f"({count} > 1 AND 2 * {count} * {largest} >= CAST('{limit}' AS DOUBLE))")
    return f"CASE WHEN {' OR '.join(checks)} THEN {_TOO_LARGE} ELSE {sql} END" if checks else sql


def _size(sql: str) -> str:
    return f"CASE WHEN isfinite({sql}) THEN abs({sql}) END"


_OVERFLOW: Final = "error('[22003] value out of range: overflow')"
_TOO_LARGE: Final = (
    "error('[0A000] statistics of floats this large are not supported, because PostgreSQL may report an overflow;"
    " cast them to numeric')"
)


def _quotient(call: Call, sql: str) -> Typed:
    total = f"CAST({call.plain('system.main.sum', sql)} AS VARCHAR)"
    count = f"CAST({call.plain('count', sql)} AS VARCHAR)"
    return Typed(f"pg_numeric_divide({total}, {count})", NUMERIC)


def _statistic(call: Call) -> Typed:
    (value,) = call.arguments
    function = _STATISTICS[call.name]
    if value.name in ("float4", "float8"):
        number = f"CAST({value.sql} AS DOUBLE)"
        finite = call.plain(function, f"CASE WHEN isfinite({number}) THEN {number} END")
        has_others = call.plain("bool_or", f"NOT isfinite({number})")
        if function.endswith("samp"):
            has_others = f"{has_others} AND {call.plain('count', number)} > 1"
        found = f"CASE WHEN {has_others} THEN CAST('NaN' AS DOUBLE) ELSE {finite} END"
        return Typed(_of_small(call, found, [value]), FLOAT8)
    if call.distinct:
        raise refuse(f"{call.name}(DISTINCT …)")
    if value.name in ("int2", "int4") or (value.scale is not None and _has_few_digits(value)):
        # With 38 digits, because DuckDB multiplies shorter decimals in 64 bits.
        digits = f"CAST({value.sql} AS DECIMAL({MAX_DIGITS}, {value.scale or 0}))"
        total, squares = (
            f"CAST({call.plain('system.main.sum', part)} AS VARCHAR)" for part in (digits, f"{digits} * {digits}")
        )
        options = f"{str(function.endswith('samp')).lower()}, {str(function.startswith('stddev')).lower()}"
        count = call.plain("count", value.sql)
        return Typed(f"pg_numeric_sums_variance({count}, {total}, {squares}, {options})", NUMERIC)
    text = numeric_text(value) if value.name == "numeric" else f"CAST({value.sql} AS VARCHAR)"
    return Typed(f"pg_numeric_{function}({call.numbers(text)})", NUMERIC)


_FEW_DIGITS: Final = 12
"""The sum of 10^14 squares of numbers of so many digits has no more than 38."""


def _has_few_digits(value: Typed) -> bool:
    return value.modifier >= 0 and numeric_modifier(value.modifier)[0] <= _FEW_DIGITS


def _string_agg(call: Call) -> Typed:
    value, separator = call.arguments
    if value.name == "bytea":
        raise refuse("string_agg of bytea")
    order = f" ORDER BY {call.order}" if call.order else ""
    if call.distinct:
        if not call.order:
            order = f" ORDER BY {value.sql} ASC NULLS LAST"
        return Typed(f"string_agg(DISTINCT {call.guarded(value.sql)}, {separator.sql}{order}){call.suffix}", value.type)
    if not separator.is_constant:
        raise refuse("string_agg with a separator that is not a literal")
    text = "''" if separator.sql.startswith("CAST(NULL") else separator.sql
    return Typed(f"string_agg({call.guarded(value.sql)}, {text}{order}){call.suffix}", pg_type.TEXT)


def _array_agg(call: Call) -> Typed:
    (value,) = call.arguments
    if value.fields or value.base.element is not None:
        raise refuse("array_agg of rows or arrays")
    element = as_element(value)
    type_ = array_of(value.base)
    if call.distinct:
        if not is_plain(value) or value.name == "numeric":
            raise refuse(f"array_agg(DISTINCT …) of {value.base.name}")
        order = call.order or f"{element} ASC NULLS LAST"
        return Typed(f"list(DISTINCT {element} ORDER BY {order}){call.suffix}", type_, is_list=True)
    return Typed(call.values(element), type_, is_list=True)


def _json(call: Call) -> Typed:
    result = call.resolved.result
    if call.distinct:
        raise refuse(f"{call.name}(DISTINCT …)")
    kind = "jsonb" if call.name.startswith("jsonb") else "json"
    if call.name.endswith("object_agg"):
        key, value = call.arguments
        names, items = call.values(output_text(key)), call.values(json_text.json_of(value))
        function = "pg_jsonb_object_text" if kind == "jsonb" else "pg_json_aggregate_text"
        return Typed(f"{function}({names}, {items})", result)
    (value,) = call.arguments
    if kind == "json" and (value.fields or value.base.element is not None):
        raise refuse("json_agg of rows or arrays", "Use jsonb_agg.")
    return Typed(f"pg_{kind}_array_text({call.values(json_text.json_of(value))})", result)


def ordered_set(name: str, fraction: Typed, value: Typed, is_descending: bool, filter_: str) -> Typed:
    """percentile_cont and percentile_disc."""
    if name not in ("percentile_cont", "percentile_disc"):
        raise refuse(f"{name} with WITHIN GROUP")
    is_between = name == "percentile_cont"
    if is_between and value.name == "interval":
        raise refuse("percentile_cont of intervals")
    value = convert(value, FLOAT8) if is_between else value
    if not is_plain(value):
        raise refuse(f"{name} of {value.base.name}")
    where = f"({filter_}) AND {value.sql} IS NOT NULL" if filter_ else f"{value.sql} IS NOT NULL"
    values = f"list({value.sql}) FILTER (WHERE {where})"
    sql = f"pg_{name}(list_sort({values}, '{'DESC' if is_descending else 'ASC'}'), {convert(fraction, FLOAT8).sql})"
    return replace(value, sql=sql, modifier=-1, is_constant=False)


def window(name: str, arguments: Sequence[Typed], over: str) -> Typed:
    """A function that exists only with OVER."""
    if name in _RANKS:
        type_ = FLOAT8 if name in ("percent_rank", "cume_dist") else INT8
        return Typed(f"{name}() OVER {over}", type_)
    if name == "ntile":
        return Typed(f"CAST(ntile({arguments[0].sql}) OVER {over} AS INTEGER)", INT4)
    if name in ("lag", "lead", "first_value", "last_value", "nth_value"):
        value = arguments[0]
        given = [value.sql, *[a.sql for a in arguments[1:]]]
        if name == "nth_value":
            failed = "error('[22016] argument of nth_value must be greater than zero')"
            given[1] = f"CASE WHEN {given[1]} <= 0 THEN {failed} ELSE {given[1]} END"
        return _result(value, f"{name}({', '.join(given)}) OVER {over}")
    raise refuse(f"window function {name}")
