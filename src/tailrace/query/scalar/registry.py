"""The functions that DuckDB calls in Python: their names, types and registration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from tailrace.query.scalar import (
    array_text,
    json_value,
    justified,
    network,
    number_template,
    numeric,
    range_text,
    text_value,
)

_ARROW: Final = {
    "VARCHAR": pa.string(), "BOOLEAN": pa.bool_(), "INTEGER": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(), "BLOB": pa.binary(), "VARCHAR[]": pa.list_(pa.string()),
    "DECIMAL(19,2)": pa.decimal128(19, 2),
    "STRUCT(months INTEGER, days INTEGER, microseconds BIGINT)": pa.struct(
        [("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())]
    ),
}  # fmt: skip
_PARTS: Final = "STRUCT(months INTEGER, days INTEGER, microseconds BIGINT)"
TEXT, TEXTS, FLAG, INT, LONG, DOUBLE, BLOB = "VARCHAR", "VARCHAR[]", "BOOLEAN", "INTEGER", "BIGINT", "DOUBLE", "BLOB"

FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], Sequence[str], str]]] = {
    "numeric_parse": (numeric.parse, [TEXT], TEXT),
    "numeric_from_double": (numeric.from_double, [DOUBLE], TEXT),
    "numeric_from_single": (numeric.from_single, [DOUBLE], TEXT),
    "numeric_to_double": (numeric.to_double, [TEXT], DOUBLE),
    "numeric_to_single": (numeric.to_single, [TEXT], "FLOAT"),
    "numeric_sums_variance": (numeric.sums_variance, [LONG, TEXT, TEXT, FLAG, FLAG], TEXT),
    "numeric_to_integer": (numeric.to_integer, [TEXT], TEXT),
    "numeric_fit": (numeric.fit, [TEXT, INT, INT], TEXT),
    "numeric_add": (numeric.add, [TEXT, TEXT], TEXT),
    "numeric_subtract": (numeric.subtract, [TEXT, TEXT], TEXT),
    "numeric_multiply": (numeric.multiply, [TEXT, TEXT], TEXT),
    "numeric_divide": (numeric.divide, [TEXT, TEXT], TEXT),
    "numeric_remainder": (numeric.remainder, [TEXT, TEXT], TEXT),
    "numeric_div": (numeric.integer_quotient, [TEXT, TEXT], TEXT),
    "numeric_negate": (numeric.negate, [TEXT], TEXT),
    "numeric_round": (numeric.rounded, [TEXT, INT], TEXT),
    "numeric_trunc": (numeric.truncated, [TEXT, INT], TEXT),
    "numeric_ceil": (numeric.ceiling, [TEXT], TEXT),
    "numeric_floor": (numeric.floor, [TEXT], TEXT),
    "numeric_abs": (numeric.absolute, [TEXT], TEXT),
    "numeric_sign": (numeric.sign, [TEXT], TEXT),
    "numeric_trim_scale": (numeric.trim_scale, [TEXT], TEXT),
    "numeric_scale": (numeric.scale_of, [TEXT], INT),
    "numeric_full_key": (numeric.key, [TEXT], TEXT),
    "numeric_sum": (numeric.total, [TEXTS], TEXT),
    "numeric_distinct_sum": (numeric.distinct_total, [TEXTS], TEXT),
    "numeric_avg": (numeric.average, [TEXTS], TEXT),
    "numeric_distinct_avg": (numeric.distinct_average, [TEXTS], TEXT),
    "numeric_var_samp": (numeric.sample_variance, [TEXTS], TEXT),
    "numeric_stddev_samp": (numeric.sample_deviation, [TEXTS], TEXT),
    "numeric_var_pop": (numeric.population_variance, [TEXTS], TEXT),
    "numeric_stddev_pop": (numeric.population_deviation, [TEXTS], TEXT),
    "numeric_width_bucket": (numeric.width_bucket, [TEXT, TEXT, TEXT, INT], INT),
    "numeric_to_char": (number_template.to_char, [TEXT, TEXT], TEXT),
    "single_sum": (text_value.single_sum, ["FLOAT[]"], "FLOAT"),
    "double_text": (text_value.double_text, [DOUBLE], TEXT),
    "single_text": (text_value.single_text, [DOUBLE], TEXT),
    "parse_boolean": (text_value.parse_boolean, [TEXT], FLAG),
    "parse_integer": (text_value.parse_integer, [TEXT, TEXT], LONG),
    "parse_uuid": (text_value.parse_uuid, [TEXT], TEXT),
    "parse_bytes": (text_value.parse_bytes, [TEXT], BLOB),
    "bytes_encode": (text_value.encode, [BLOB, TEXT], TEXT),
    "bytes_decode": (text_value.decode, [TEXT, TEXT], BLOB),
    "money_text": (text_value.money_text, ["DECIMAL(19,2)"], TEXT),
    "parse_money": (text_value.parse_money, [TEXT], "DECIMAL(19,2)"),
    "parse_interval_parts": (
        lambda text: dict(zip(("months", "days", "microseconds"), text_value.interval_parts(text), strict=True)),
        [TEXT],
        _PARTS,
    ),
    "justified_hours": (justified.hours, [INT, INT, LONG], _PARTS),
    "justified_days": (justified.days, [INT, INT, LONG], _PARTS),
    "justified_interval": (justified.interval, [INT, INT, LONG], _PARTS),
    "interval_parts_text": (text_value.interval_text, [INT, INT, LONG], TEXT),
    "inet_parse": (network.parse_inet, [TEXT], TEXT),
    "cidr_parse": (network.parse_cidr, [TEXT], TEXT),
    "inet_key": (network.key, [TEXT], TEXT),
    "inet_host": (network.address, [TEXT], TEXT),
    "inet_text": (network.full_text, [TEXT], TEXT),
    "inet_family": (network.family, [TEXT], INT),
    "inet_masklen": (network.mask_length, [TEXT], INT),
    "inet_network": (network.network, [TEXT], TEXT),
    "inet_broadcast": (network.broadcast, [TEXT], TEXT),
    "inet_netmask": (network.netmask, [TEXT], TEXT),
    "inet_within": (network.is_within, [TEXT, TEXT], FLAG),
    "inet_within_equal": (network.is_within_or_equal, [TEXT, TEXT], FLAG),
    "inet_overlaps": (network.overlaps, [TEXT, TEXT], FLAG),
    "array_elements": (array_text.elements, [TEXT], TEXTS),
    "array_plain_elements": (array_text.plain_elements, [TEXT], TEXTS),
    "array_element": (array_text.element, [TEXT, "INTEGER[]"], TEXT),
    "array_write": (array_text.write, [TEXTS], TEXT),
    "array_text_length": (array_text.length, [TEXT, INT], INT),
    "array_text_lower": (array_text.lower, [TEXT, INT], INT),
    "array_text_upper": (array_text.upper, [TEXT, INT], INT),
    "array_text_cardinality": (array_text.cardinality, [TEXT], INT),
    "array_text_ndims": (array_text.dimensions, [TEXT], INT),
    "array_text_dims": (array_text.dimension_text, [TEXT], TEXT),
    "range_lower": (range_text.lower, [TEXT], TEXT),
    "range_upper": (range_text.upper, [TEXT], TEXT),
    "range_isempty": (range_text.is_empty, [TEXT], FLAG),
    "range_lower_inc": (range_text.lower_is_inclusive, [TEXT], FLAG),
    "range_upper_inc": (range_text.upper_is_inclusive, [TEXT], FLAG),
    "range_lower_inf": (range_text.lower_is_infinite, [TEXT], FLAG),
    "range_upper_inf": (range_text.upper_is_infinite, [TEXT], FLAG),
    "jsonb_parse": (json_value.parse_jsonb, [TEXT], TEXT),
    "json_parse": (json_value.parse_json, [TEXT], TEXT),
    "jsonb_full_key": (json_value.key, [TEXT], TEXT),
    "jsonb_member": (json_value.get_member, [TEXT, TEXT], TEXT),
    "jsonb_member_text": (json_value.get_member_text, [TEXT, TEXT], TEXT),
    "jsonb_element": (json_value.get_element, [TEXT, INT], TEXT),
    "jsonb_element_text": (json_value.get_element_text, [TEXT, INT], TEXT),
    "jsonb_path": (json_value.get_path, [TEXT, TEXTS], TEXT),
    "jsonb_path_text": (json_value.get_path_text, [TEXT, TEXTS], TEXT),
    "json_member": (json_value.get_json_member, [TEXT, TEXT], TEXT),
    "json_member_text": (json_value.get_json_member_text, [TEXT, TEXT], TEXT),
    "json_element": (json_value.get_json_element, [TEXT, INT], TEXT),
    "json_element_text": (json_value.get_json_element_text, [TEXT, INT], TEXT),
    "json_path": (json_value.get_json_path, [TEXT, TEXTS], TEXT),
    "json_path_text": (json_value.get_json_path_text, [TEXT, TEXTS], TEXT),
    "jsonb_contains_value": (json_value.contains, [TEXT, TEXT], FLAG),
    "jsonb_has": (json_value.exists, [TEXT, TEXT], FLAG),
    "jsonb_has_any": (json_value.exists_any, [TEXT, TEXTS], FLAG),
    "jsonb_has_all": (json_value.exists_all, [TEXT, TEXTS], FLAG),
    "jsonb_join": (json_value.concat, [TEXT, TEXT], TEXT),
    "jsonb_without_key": (json_value.delete_key, [TEXT, TEXT], TEXT),
    "jsonb_without_keys": (json_value.delete_keys, [TEXT, TEXTS], TEXT),
    "jsonb_without_element": (json_value.delete_element, [TEXT, INT], TEXT),
    "jsonb_without_path": (json_value.delete_path, [TEXT, TEXTS], TEXT),
    "jsonb_with": (json_value.set_path, [TEXT, TEXTS, TEXT, FLAG], TEXT),
    "jsonb_type": (json_value.type_name, [TEXT], TEXT),
    "jsonb_length": (json_value.array_length, [TEXT], INT),
    "json_length": (json_value.json_array_length, [TEXT], INT),
    "jsonb_elements": (json_value.elements, [TEXT], TEXTS),
    "jsonb_elements_text": (json_value.elements_text, [TEXT], TEXTS),
    "jsonb_keys": (json_value.keys, [TEXT], TEXTS),
    "jsonb_values": (json_value.values, [TEXT], TEXTS),
    "jsonb_values_text": (json_value.values_text, [TEXT], TEXTS),
    "json_elements": (json_value.json_elements, [TEXT], TEXTS),
    "json_elements_text": (json_value.json_elements_text, [TEXT], TEXTS),
    "json_names": (json_value.json_keys, [TEXT], TEXTS),
    "json_values": (json_value.json_values, [TEXT], TEXTS),
    "json_values_text": (json_value.json_values_text, [TEXT], TEXTS),
    "jsonb_without_nulls": (json_value.strip_nulls, [TEXT], TEXT),
    "jsonb_indented": (json_value.pretty, [TEXT], TEXT),
    "json_quote_text": (json_value.quote, [TEXT], TEXT),
    "json_array_text": (json_value.build_array, [TEXTS], TEXT),
    "jsonb_array_text": (json_value.build_jsonb_array, [TEXTS], TEXT),
    "json_object_text": (json_value.build_object, [TEXTS, TEXTS], TEXT),
    "json_aggregate_text": (json_value.aggregate_object, [TEXTS, TEXTS], TEXT),
    "jsonb_object_text": (json_value.build_jsonb_object, [TEXTS, TEXTS], TEXT),
    "jsonb_to_numeric": (json_value.to_numeric, [TEXT], TEXT),
    "jsonb_to_boolean": (json_value.to_boolean, [TEXT], FLAG),
}
"""Name → function, parameter types, result type. A NULL argument gives NULL."""

_NULLABLE: Final[dict[str, tuple[Callable[..., Any], Sequence[str], str]]] = {
    "array_slice_text": (
        lambda text, first, last: None if text is None else array_text.slice_(text, first, last), [TEXT, INT, INT], TEXT
    ),
    "array_join": (
        lambda items, mark, null: None if items is None or mark is None else array_text.join(items, mark, null),
        [TEXTS, TEXT, TEXT],
        TEXT,
    ),
}  # fmt: skip
"""Functions that look at NULL arguments themselves."""


_COPIES: Final = {TEXT: "''", BLOB: "''::BLOB"}
"""What a result is concatenated with, so that DuckDB copies it.

The result of a Python function refers to Arrow's memory. DuckDB's COALESCE returns texts of more than 12 bytes after
that memory is freed: the client received random bytes."""


def register(connection: Any) -> None:
    """Create the functions as `pg_<name>`, those in Python or macros of the catalog `pg`."""
    for table, is_strict in ((FUNCTIONS, True), (_NULLABLE, False)):
        for name, (function, parameters, result) in table.items():
            prefix = "py" if result in _COPIES else "pg"
            connection.create_function(
                f"{prefix}_{name}",
                _by_column(function, _ARROW[result], len(parameters), is_strict),
                list(parameters),
                result,
                type="arrow",
                null_handling="special",
                side_effects=False,
            )
            if result in _COPIES:
                given = ", ".join("abcde"[: len(parameters)])
                connection.execute(
                    f"CREATE MACRO pg.main.pg_{name}({given}) AS py_{name}({given}) || {_COPIES[result]}"
                )


def _by_column(
    function: Callable[..., Any], result: pa.DataType, count: int, is_strict: bool
) -> Callable[..., pa.Array]:
    """The function for whole columns. Equal arguments are computed once in a column."""

    def one(a: Any) -> pa.Array:
        known: dict[Any, Any] = {None: None}
        found = []
        for value in a.to_pylist():
            key = tuple(value) if isinstance(value, list) else value
            if key not in known:
                known[key] = function(value)
            found.append(known[key])
        return pa.array(found, result)

    def several(*columns: Any) -> pa.Array:
        rows = zip(*[column.to_pylist() for column in columns], strict=True)
        return pa.array([None if is_strict and None in row else function(*row) for row in rows], result)

    if count == 1 and is_strict:
        return one
    # DuckDB counts the parameters of the function.
    by_count: dict[int, Callable[..., pa.Array]] = {
        1: lambda a: several(a),
        2: lambda a, b: several(a, b),
        3: lambda a, b, c: several(a, b, c),
        4: lambda a, b, c, d: several(a, b, c, d),
        5: lambda a, b, c, d, e: several(a, b, c, d, e),
    }
    return by_count[count]
