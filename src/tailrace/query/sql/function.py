"""The renderings of PostgreSQL's functions. A signature that is not here is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tailrace.change import Type
from tailrace.query.query_error import QueryError
from tailrace.query.scalar import number_template
from tailrace.query.sql import json_text, pg_type, regular_expression, time_function
from tailrace.query.sql.pg_type import TEXT, array_of
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.text_form import elements, output_text, parse_sql
from tailrace.query.sql.typed import Typed, constant_text, is_null_constant, numeric_text, representation
from tailrace.query.table_view import sql_literal

Rendering = str | Callable[[Sequence[Typed], Type], Typed]


def _numeric(template: str) -> Rendering:
    """A function of numerics by its texts."""

    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        texts = [numeric_text(a) if a.name == "numeric" else a.sql for a in arguments]
        return Typed(template.format(*texts), result)

    return render


def _keep_scale(decimal_template: str, text_template: str, scale: int | None = None) -> Rendering:
    """A function of a numeric that DuckDB computes for decimals; the result has the same scale, or a fixed one."""

    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        (value,) = arguments
        if value.scale is None:
            return Typed(text_template.format(value.sql), result)
        kept = value.scale if scale is None else scale
        return Typed(f"CAST({decimal_template.format(value.sql)} AS DECIMAL(38, {kept}))", result, scale=kept)

    return render


def _round(arguments: Sequence[Typed], result: Type) -> Typed:
    value = arguments[0]
    if len(arguments) == 1:
        return _keep_scale("round({}, 0)", "pg_numeric_round({}, 0)", 0)(arguments, result)  # type: ignore[operator]
    places = _small_integer(arguments[1])
    if value.scale is not None and places is not None and 0 <= places <= 30:
        if places >= value.scale:
            return Typed(f"CAST({value.sql} AS DECIMAL(38, {places}))", result, scale=places)
        return Typed(f"CAST(round({value.sql}, {places}) AS DECIMAL(38, {places}))", result, scale=places)
    made = Typed(f"pg_numeric_round({numeric_text(value)}, {arguments[1].sql})", result)
    if places is not None and 0 <= places <= 30 and value.scale is not None:
        return made
    return made


def _small_integer(value: Typed) -> int | None:
    text = value.sql.strip("()")
    return int(text) if value.is_constant and re.fullmatch(r"-?[0-9]{1,4}", text) else None


def _trunc(arguments: Sequence[Typed], result: Type) -> Typed:
    places = arguments[1].sql if len(arguments) > 1 else "0"
    return Typed(f"pg_numeric_trunc({numeric_text(arguments[0])}, {places})", result)


def _regex(template: str, needs_extent: bool = False, place: int = 1) -> Rendering:
    """A function of a regular expression. With `needs_extent`, it looks at all matches."""

    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        pattern = arguments[place]
        if is_null_constant(pattern):
            return Typed(
                f"CAST(NULL AS {representation(result, is_list=True)})", result, is_list=result.element is not None
            )
        text = regular_expression.translate(constant_text(pattern, "a regular expression"), needs_extent)
        if needs_extent:
            regular_expression.check_repeats(text)
        texts = [a.sql for a in arguments]
        texts[place] = sql_literal(text)
        return Typed(template.format(*texts), result, is_list=result.element is not None)

    return render


def _regexp_replace(arguments: Sequence[Typed], result: Type) -> Typed:
    flags = constant_text(arguments[3], "a flag") if len(arguments) > 3 else ""
    if set(flags) - set("gi"):
        raise refuse(f"the flags {flags} of regexp_replace")
    source = constant_text(arguments[1], "a regular expression")
    pattern = regular_expression.translate(source, needs_extent=True, ignore_case="i" in flags)
    if "g" in flags:
        regular_expression.check_repeats(pattern)
    new = constant_text(arguments[2], "a replacement")
    if re.search(r"\\(?![1-9&\\])", new):
        raise refuse("this replacement text")
    new = new.replace("\\&", "\\0")
    options = "sg" if "g" in flags else "s"
    return Typed(
        f"system.main.regexp_replace({arguments[0].sql}, {sql_literal(pattern)}, {sql_literal(new)}, '{options}')",
        result,
    )


def _regexp_match(arguments: Sequence[Typed], result: Type) -> Typed:
    source = constant_text(arguments[1], "a regular expression")
    pattern = regular_expression.translate(source, needs_extent=True)
    if len(arguments) > 2:
        raise refuse("regexp_match with flags")
    groups = regular_expression.group_count(pattern)
    text, quoted = arguments[0].sql, sql_literal(pattern)
    found = [f"regexp_extract({text}, {quoted}, {n}, 's')" for n in (range(1, groups + 1) if groups else [0])]
    matches = f"system.main.regexp_matches({text}, {quoted}, 's')"
    return Typed(f"CASE WHEN {matches} THEN [{', '.join(found)}] END", result, is_list=True)


def _substring_regex(arguments: Sequence[Typed], result: Type) -> Typed:
    found = _regexp_match(arguments, array_of(TEXT))
    return Typed(f"({found.sql})[1]", result)


def _number_to_char(arguments: Sequence[Typed], result: Type) -> Typed:
    if is_null_constant(arguments[1]):
        return Typed("CAST(NULL AS VARCHAR)", result)
    template = constant_text(arguments[1], "a template of to_char")
    if number_template.parse(template) is None:
        raise refuse(f"the template {template} of to_char", "Templates of 9, 0, a point, commas and FM are supported.")
    value = arguments[0]
    text = numeric_text(value) if value.name == "numeric" else f"CAST({value.sql} AS VARCHAR)"
    return Typed(f"pg_numeric_to_char({text}, {sql_literal(template)})", result)


def _concat(arguments: Sequence[Typed], result: Type) -> Typed:
    return Typed(f"concat({', '.join(map(output_text, arguments)) or repr('')})", result)


def _concat_ws(arguments: Sequence[Typed], result: Type) -> Typed:
    texts = [arguments[0].sql, *map(output_text, arguments[1:])]
    if len(texts) == 1:
        return Typed(f"CASE WHEN {texts[0]} IS NOT NULL THEN '' END", result)
    return Typed(f"concat_ws({', '.join(texts)})", result)


_NAME: Final = "coalesce(quote_ident({0}), error('[22004] null values cannot be formatted as an SQL identifier'))"


def _format(arguments: Sequence[Typed], result: Type) -> Typed:
    template = constant_text(arguments[0], "a template of format")
    parts, place = [], 1
    for text, kind in re.findall(r"([^%]*)(%.|%$|$)", template, re.DOTALL):
        parts += [sql_literal(text)] if text else []
        if kind == "%%":
            parts.append("'%'")
        elif kind:
            if kind not in ("%s", "%I", "%L") or place >= len(arguments):
                raise refuse(f"{kind} in format()", "Use %s, %I and %L, with a value for each.")
            value = output_text(arguments[place])
            parts.append({"%s": "{}", "%I": _NAME, "%L": "coalesce(pg_quote_literal({}), 'NULL')"}[kind].format(value))
            place += 1
    return Typed(f"concat({', '.join(parts) or repr('')})", result)


def _list(template: str) -> Rendering:
    """A function of arrays as lists; the result is a list if it is an array."""

    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        given = [elements(a) if a.base.element is not None else _as_list_element(a) for a in arguments]
        return Typed(template.format(*given), result, is_list=result.element is not None)

    return render


def _as_list_element(value: Typed) -> str:
    return numeric_text(value) if value.name == "numeric" else value.sql


def _array(text_template: str, list_template: str) -> Rendering:
    """A function of an array that looks at its text, or at a list that the statement made."""

    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        template = list_template if arguments[0].is_list else text_template
        return Typed(template.format(*[a.sql for a in arguments]), result, is_list=result.element is not None)

    return render


def _array_to_string(arguments: Sequence[Typed], result: Type) -> Typed:
    value = arguments[0]
    element = pg_type.base_type(value.base.element or TEXT)
    if value.is_list:
        text = output_text(Typed("e", element))
        texts = value.sql if text == "e" else f"list_transform({value.sql}, lambda e: {text})"
    else:
        texts = f"pg_array_elements({value.sql})"
    null = arguments[2].sql if len(arguments) > 2 else "CAST(NULL AS VARCHAR)"
    return Typed(f"pg_array_join({texts}, {arguments[1].sql}, {null})", result)


def _element_search(template: str) -> Rendering:
    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        from tailrace.query.sql.comparison import equality_key

        element = pg_type.base_type(arguments[0].base.element or TEXT)
        key = equality_key(Typed("e", element))
        keys = elements(arguments[0])
        keys = keys if key == "e" else f"list_transform({keys}, lambda e: {key})"
        wanted = equality_key(replace(arguments[1], sql=_as_list_element(arguments[1]), scale=None))
        given = [elements(arguments[0]), *map(_as_list_element, arguments[2:])]
        return Typed(template.format(keys, wanted, *given), result, is_list=result.element is not None)

    return render


def _range_bound(function: str) -> Rendering:
    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        return Typed(parse_sql(f"{function}({arguments[0].sql})", result), result)

    return render


def _jsonb_path(function: str) -> Rendering:
    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        keys = ", ".join(a.sql for a in arguments[1:])
        return Typed(f"{function}({arguments[0].sql}, CAST([{keys}] AS VARCHAR[]))", result)

    return render


def _to_json(is_binary: bool) -> Rendering:
    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        text = json_text.json_of(arguments[0])
        return Typed(f"pg_jsonb_parse({text})" if is_binary else text, result)

    return render


def _build(function: str, is_object: bool) -> Rendering:
    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        if not is_object:
            items = ", ".join(map(json_text.json_of, arguments))
            return Typed(f"{function}(CAST([{items}] AS VARCHAR[]))", result)
        if len(arguments) % 2:
            raise QueryError("22023", "argument list must have even number of elements")
        keys = ", ".join(map(output_text, arguments[::2]))
        items = ", ".join(map(json_text.json_of, arguments[1::2]))
        return Typed(f"{function}(CAST([{keys}] AS VARCHAR[]), CAST([{items}] AS VARCHAR[]))", result)

    return render


def _utf8(template: str) -> Rendering:
    """A conversion between text and bytes, whose encoding must be UTF-8."""

    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        encoding = constant_text(arguments[1], "an encoding")
        if encoding.lower().replace("-", "") not in ("utf8", "unicode"):
            raise refuse(f"the encoding {encoding}", "Use UTF8.")
        return Typed(template.format(arguments[0].sql), result)

    return render


def _pad(name: str) -> str:
    return f"{name}({{0}}, {{1}}, {{2}})"


_ASCII_ONLY: Final = (
    "CASE WHEN system.main.regexp_matches({0}, '[^\\x00-\\x7F]')"
    " THEN error('[0A000] {1} of text that is not ASCII is not supported') ELSE {2} END"
)

FUNCTIONS: Final[dict[str, Rendering]] = {
    # Text
    "length(text)": "length({0})",
    "length(bpchar)": "length(rtrim({0}, ' '))",
    "length(bytea)": "octet_length({0})",
    "length(bit)": "length({0})",
    "char_length(text)": "length({0})",
    "char_length(bpchar)": "length(rtrim({0}, ' '))",
    "character_length(text)": "length({0})",
    "character_length(bpchar)": "length(rtrim({0}, ' '))",
    "octet_length(text)": "strlen({0})",
    "octet_length(bpchar)": "strlen({0})",
    "octet_length(bytea)": "octet_length({0})",
    "bit_length(text)": "8 * strlen({0})",
    "bit_length(bytea)": "8 * octet_length({0})",
    "lower(text)": "lower({0})",
    "upper(text)": "pg_upper({0})",
    "initcap(text)": _ASCII_ONLY.format("{0}", "initcap", "initcap({0})"),
    "reverse(text)": _ASCII_ONLY.format("{0}", "reverse", "reverse({0})"),
    "substring(text,int4)": "substring({0}, {1})",
    "substring(text,int4,int4)": "pg_substring({0}, {1}, {2})",
    "substr(text,int4)": "substring({0}, {1})",
    "substr(text,int4,int4)": "pg_substring({0}, {1}, {2})",
    "substring(text,text)": _substring_regex,
    "left(text,int4)": "left({0}, {1})",
    "right(text,int4)": "right({0}, {1})",
    "lpad(text,int4)": "lpad({0}, {1}, ' ')",
    "lpad(text,int4,text)": _pad("lpad"),
    "rpad(text,int4)": "rpad({0}, {1}, ' ')",
    "rpad(text,int4,text)": _pad("rpad"),
    "btrim(text)": "trim({0}, ' ')",
    "btrim(text,text)": "trim({0}, {1})",
    "ltrim(text)": "ltrim({0}, ' ')",
    "ltrim(text,text)": "ltrim({0}, {1})",
    "rtrim(text)": "rtrim({0}, ' ')",
    "rtrim(text,text)": "rtrim({0}, {1})",
    "repeat(text,int4)": "repeat({0}, {1})",
    "replace(text,text,text)": "replace({0}, {1}, {2})",
    "split_part(text,text,int4)": "pg_split_part({0}, {1}, {2})",
    "strpos(text,text)": "strpos({0}, {1})",
    "position(text,text)": "strpos({0}, {1})",
    "starts_with(text,text)": "starts_with({0}, {1})",
    "ascii(text)": "CASE WHEN {0} = '' THEN 0 ELSE unicode({0}) END",
    "chr(int4)": "CASE WHEN {0} <= 0 THEN error('[54000] requested character not valid') ELSE chr({0}) END",
    "to_hex(int4)": "lower(system.main.to_hex(CAST({0} AS BIGINT) + CASE WHEN {0} < 0 THEN 4294967296 ELSE 0 END))",
    "to_hex(int8)": "lower(system.main.to_hex({0}))",
    "md5(text)": "md5({0})",
    "sha256(bytea)": "sha256({0})",
    "translate(text,text,text)": "translate({0}, {1}, {2})",
    "overlay(text,text,int4)": "pg_overlay({0}, {1}, {2})",
    "overlay(text,text,int4,int4)": "pg_overlay({0}, {1}, {2}, {3})",
    "concat(any)": _concat,
    "concat_ws(text,any)": _concat_ws,
    "format(text)": _format,
    "format(text,any)": _format,
    "quote_ident(text)": "quote_ident({0})",
    "quote_literal(text)": "pg_quote_literal({0})",
    "quote_nullable(text)": "coalesce(pg_quote_literal({0}), 'NULL')",
    "string_to_array(text,text)": lambda a, r: Typed(f"pg_string_to_array({a[0].sql}, {a[1].sql})", r, is_list=True),
    "encode(bytea,text)": "pg_bytes_encode({0}, {1})",
    "decode(text,text)": "pg_bytes_decode({0}, {1})",
    "convert_to(text,name)": _utf8("encode({})"),
    "convert_from(bytea,name)": _utf8("pg_decode({})"),
    "regexp_replace(text,text,text)": _regexp_replace,
    "regexp_replace(text,text,text,text)": _regexp_replace,
    "regexp_match(text,text)": _regexp_match,
    "regexp_like(text,text)": _regex("system.main.regexp_matches({0}, {1}, 's')"),
    "regexp_count(text,text)": _regex("len(regexp_extract_all({0}, {1}, 0, 's'))", needs_extent=True),
    "textcat(text,text)": "({0} || {1})",
    # Numbers
    "abs(int2)": "abs({0})",
    "abs(int4)": "abs({0})",
    "abs(int8)": "abs({0})",
    "abs(float4)": "abs({0})",
    "abs(float8)": "abs({0})",
    "abs(numeric)": _keep_scale("abs({})", "pg_numeric_abs({})"),
    "sign(float8)": "CAST(sign({0}) AS DOUBLE)",
    "sign(numeric)": _numeric("pg_numeric_sign({0})"),
    "ceil(float8)": "ceil({0})",
    "ceiling(float8)": "ceil({0})",
    "floor(float8)": "floor({0})",
    "ceil(numeric)": _keep_scale("ceil({})", "pg_numeric_ceil({})", 0),
    "ceiling(numeric)": _keep_scale("ceil({})", "pg_numeric_ceil({})", 0),
    "floor(numeric)": _keep_scale("floor({})", "pg_numeric_floor({})", 0),
    "round(float8)": "round_even({0}, 0)",
    "round(numeric)": _round,
    "round(numeric,int4)": _round,
    "trunc(float8)": "system.main.trunc({0})",
    "trunc(numeric)": _trunc,
    "trunc(numeric,int4)": _trunc,
    "mod(int2,int2)": "mod({0}, {1})",
    "mod(int4,int4)": "mod({0}, {1})",
    "mod(int8,int8)": "mod({0}, {1})",
    "mod(numeric,numeric)": _numeric("pg_numeric_remainder({0}, {1})"),
    "div(numeric,numeric)": _numeric("pg_numeric_div({0}, {1})"),
    "scale(numeric)": _numeric("pg_numeric_scale({0})"),
    "trim_scale(numeric)": _numeric("pg_numeric_trim_scale({0})"),
    "sqrt(float8)": "sqrt({0})",
    "cbrt(float8)": "cbrt({0})",
    "exp(float8)": "pg_exp({0})",
    "ln(float8)": "ln({0})",
    "log(float8)": "log10({0})",
    "log10(float8)": "log10({0})",
    "power(float8,float8)": "pg_power({0}, {1})",
    "pow(float8,float8)": "pg_power({0}, {1})",
    "pi()": "pi()",
    "degrees(float8)": "pg_float_divide({0}, 0.017453292519943295::DOUBLE)",
    "radians(float8)": "pg_float_multiply({0}, 0.017453292519943295::DOUBLE)",
    "random()": "random()",
    "gcd(int4,int4)": "gcd({0}, {1})",
    "gcd(int8,int8)": "gcd({0}, {1})",
    "lcm(int4,int4)": "lcm({0}, {1})",
    "lcm(int8,int8)": "lcm({0}, {1})",
    **{f"{f}(float8)": f"{f}({{0}})" for f in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")},
    "atan2(float8,float8)": "atan2({0}, {1})",
    "width_bucket(numeric,numeric,numeric,int4)": _numeric("pg_numeric_width_bucket({0}, {1}, {2}, {3})"),
    "width_bucket(float8,float8,float8,int4)": (
        "pg_numeric_width_bucket(pg_exact_text({0}), pg_exact_text({1}), pg_exact_text({2}), {3})"
    ),
    # Dates and times
    "now()": "now()",
    "clock_timestamp()": "now()",
    "statement_timestamp()": "now()",
    "transaction_timestamp()": "now()",
    "date_trunc(text,timestamp)": time_function.date_trunc,
    "date_trunc(text,timestamptz)": time_function.date_trunc,
    "date_trunc(text,interval)": time_function.date_trunc,
    "date_bin(interval,timestamp,timestamp)": time_function.date_bin,
    "date_bin(interval,timestamptz,timestamptz)": time_function.date_bin,
    **{
        f"{f}(text,{t})": time_function.extract
        for f in ("extract", "date_part")
        for t in ("date", "timestamp", "timestamptz", "time", "interval")
    },
    "age(timestamp,timestamp)": "pg_age({0}, {1})",
    "age(timestamptz,timestamptz)": "pg_age(CAST({0} AS TIMESTAMP), CAST({1} AS TIMESTAMP))",
    "to_char(timestamp,text)": time_function.to_char,
    "to_char(timestamptz,text)": time_function.to_char,
    "to_char(numeric,text)": _number_to_char,
    "to_char(int4,text)": _number_to_char,
    "to_char(int8,text)": _number_to_char,
    "to_date(text,text)": time_function.strptime("DATE"),
    "to_timestamp(text,text)": time_function.strptime("TIMESTAMPTZ"),
    "to_timestamp(float8)": "pg_to_timestamp({0})",
    "make_date(int4,int4,int4)": "make_date(pg_year({0}), {1}, {2})",
    "make_timestamp(int4,int4,int4,int4,int4,float8)": "make_timestamp(pg_year({0}), {1}, {2}, {3}, {4}, {5})",
    "make_time(int4,int4,float8)": "make_time({0}, {1}, {2})",
    **{f"justify_{part}(interval)": f"pg_justify_{part}({{0}})" for part in ("hours", "days", "interval")},
    "isfinite(date)": "isfinite({0})",
    "isfinite(timestamp)": "isfinite({0})",
    "isfinite(timestamptz)": "isfinite({0})",
    "timezone(text,timestamp)": time_function.timezone,
    "timezone(text,timestamptz)": time_function.timezone,
    # Arrays
    "array_length(anyarray,int4)": _array(
        "pg_array_text_length({0}, {1})", "CASE WHEN {1} = 1 THEN nullif(len({0}), 0) END"
    ),
    "array_upper(anyarray,int4)": _array(
        "pg_array_text_upper({0}, {1})", "CASE WHEN {1} = 1 THEN nullif(len({0}), 0) END"
    ),
    "array_lower(anyarray,int4)": _array(
        "pg_array_text_lower({0}, {1})", "CASE WHEN {1} = 1 AND len({0}) > 0 THEN 1 END"
    ),
    "array_ndims(anyarray)": _array("pg_array_text_ndims({0})", "CASE WHEN len({0}) > 0 THEN 1 END"),
    "array_dims(anyarray)": _array(
        "pg_array_text_dims({0})", "CASE WHEN len({0}) > 0 THEN '[1:' || len({0}) || ']' END"
    ),
    "cardinality(anyarray)": _array("pg_array_text_cardinality({0})", "len({0})"),
    "array_append(anycompatiblearray,anycompatible)": _list("list_append(coalesce({0}, []), {1})"),
    "array_prepend(anycompatible,anycompatiblearray)": _list("list_prepend({0}, coalesce({1}, []))"),
    "array_cat(anycompatiblearray,anycompatiblearray)": _list("pg_array_cat({0}, {1})"),
    "array_to_string(anyarray,text)": _array_to_string,
    "array_to_string(anyarray,text,text)": _array_to_string,
    "array_position(anycompatiblearray,anycompatible)": _element_search("list_position({0}, {1})"),
    "array_remove(anycompatiblearray,anycompatible)": _element_search(
        "CASE WHEN {2} IS NOT NULL THEN"
        " list_transform(list_filter(list_zip({2}, {0}), lambda p: p[2] IS DISTINCT FROM {1}), lambda p: p[1]) END"
    ),
    "array_replace(anycompatiblearray,anycompatible,anycompatible)": _element_search(
        "CASE WHEN {2} IS NOT NULL THEN list_transform(list_zip({2}, {0}),"
        " lambda p: CASE WHEN p[2] IS NOT DISTINCT FROM {1} THEN {3} ELSE p[1] END) END"
    ),
    # Ranges
    "lower(anyrange)": _range_bound("pg_range_lower"),
    "upper(anyrange)": _range_bound("pg_range_upper"),
    "isempty(anyrange)": "pg_range_isempty({0})",
    "lower_inc(anyrange)": "pg_range_lower_inc({0})",
    "upper_inc(anyrange)": "pg_range_upper_inc({0})",
    "lower_inf(anyrange)": "pg_range_lower_inf({0})",
    "upper_inf(anyrange)": "pg_range_upper_inf({0})",
    # Networks
    "host(inet)": "pg_inet_host({0})",
    "family(inet)": "pg_inet_family({0})",
    "masklen(inet)": "pg_inet_masklen({0})",
    "network(inet)": "pg_inet_network({0})",
    "broadcast(inet)": "pg_inet_broadcast({0})",
    "netmask(inet)": "pg_inet_netmask({0})",
    "text(inet)": "pg_inet_text({0})",
    # JSON
    "json_typeof(json)": "pg_jsonb_type({0})",
    "jsonb_typeof(jsonb)": "pg_jsonb_type({0})",
    "json_array_length(json)": "pg_json_length({0})",
    "jsonb_array_length(jsonb)": "pg_jsonb_length({0})",
    "jsonb_extract_path(jsonb,text)": _jsonb_path("pg_jsonb_path"),
    "jsonb_extract_path_text(jsonb,text)": _jsonb_path("pg_jsonb_path_text"),
    "json_extract_path(json,text)": _jsonb_path("pg_json_path"),
    "json_extract_path_text(json,text)": _jsonb_path("pg_json_path_text"),
    "jsonb_set(jsonb,_text,jsonb)": _list("pg_jsonb_with({0}, {1}, {2}, true)"),
    "jsonb_set(jsonb,_text,jsonb,bool)": _list("pg_jsonb_with({0}, {1}, {2}, {3})"),
    "jsonb_strip_nulls(jsonb)": "pg_jsonb_without_nulls({0})",
    "jsonb_pretty(jsonb)": "pg_jsonb_indented({0})",
    "to_json(anyelement)": _to_json(False),
    "to_jsonb(anyelement)": _to_json(True),
    "row_to_json(record)": _to_json(False),
    "array_to_json(anyarray)": _to_json(False),
    "json_build_object(any)": _build("pg_json_object_text", True),
    "jsonb_build_object(any)": _build("pg_jsonb_object_text", True),
    "json_build_array(any)": _build("pg_json_array_text", False),
    "jsonb_build_array(any)": _build("pg_jsonb_array_text", False),
    "jsonb_exists(jsonb,text)": "pg_jsonb_has({0}, {1})",
    # Others
    "num_nulls(any)": lambda a, r: Typed(" + ".join(f"CAST({v.sql} IS NULL AS INTEGER)" for v in a), r),
    "num_nonnulls(any)": lambda a, r: Typed(" + ".join(f"CAST({v.sql} IS NOT NULL AS INTEGER)" for v in a), r),
    "make_interval()": time_function.make_interval,
}

SYSTEM: Final = frozenset(
    ("has_table_privilege", "has_schema_privilege", "has_database_privilege", "has_column_privilege",
     "has_any_column_privilege", "has_function_privilege", "has_type_privilege", "has_sequence_privilege",
     "has_server_privilege", "has_tablespace_privilege", "pg_has_role", "pg_is_in_recovery",
     "pg_is_wal_replay_paused", "pg_stat_get_numscans", "pg_get_expr", "pg_get_viewdef", "pg_get_partkeydef",
     "pg_get_statisticsobjdef_columns", "pg_get_function_identity_arguments", "pg_get_function_arguments",
     "pg_get_function_result", "pg_get_triggerdef", "pg_get_ruledef", "pg_get_serial_sequence",
     "pg_relation_is_publishable", "pg_encoding_to_char", "pg_char_to_encoding", "shobj_description",
     "pg_tablespace_location", "pg_tablespace_size", "pg_conversion_is_visible", "pg_opfamily_is_visible",
     "getdatabaseencoding", "pg_get_function_sqlbody",
     "pg_relation_size", "pg_table_size", "pg_total_relation_size", "pg_indexes_size",
     "pg_database_size", "pg_size_pretty", "pg_function_is_visible", "pg_statistics_obj_is_visible",
     "pg_collation_is_visible", "pg_opclass_is_visible", "pg_operator_is_visible", "pg_postmaster_start_time",
     "pg_conf_load_time", "pg_my_temp_schema", "pg_is_other_temp_schema", "txid_current", "inet_server_addr",
     "inet_client_addr", "format_type", "pg_get_userbyid", "pg_get_indexdef", "pg_get_constraintdef",
     "obj_description", "col_description", "pg_table_is_visible", "pg_type_is_visible")
)  # fmt: skip
"""Functions that clients call to inspect the server; a macro has the same name."""


def render(key: str, arguments: Sequence[Typed], result: Type) -> Typed | None:
    """The function's rendering, or None if it has none."""
    found = FUNCTIONS.get(key)
    if found is None:
        return None
    made = found(arguments, result) if callable(found) else Typed(found.format(*map(_plain, arguments)), result)
    if result.name in ("int2", "int4", "int8", "float4") and made.sql[:5] != "CAST(":
        made = replace(made, sql=f"CAST({made.sql} AS {representation(result)})")
    return replace(made, type=result)


def _plain(value: Typed) -> str:
    return numeric_text(value) if value.name == "numeric" else value.sql
