"""DuckDB macros and types for PostgreSQL's functions, operators and types that DuckDB lacks or defines differently.

They precede DuckDB's own on the search path, so a macro replaces a function of the same name.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Final

from tailrace.query.system_catalog.keyword import keywords, quoted_words

if TYPE_CHECKING:
    from tailrace.query.lake_view import LakeVersion

_TYPES: Final = {
    "name": "VARCHAR",
    "citext": "VARCHAR",
    "jsonb": "VARCHAR",
    "inet": "VARCHAR",
    "cidr": "VARCHAR",
    "macaddr": "VARCHAR",
    "xml": "VARCHAR",
    "tsvector": "VARCHAR",
    "regconfig": "VARCHAR",
    "pg_lsn": "VARCHAR",
    "pg_node_tree": "VARCHAR",
    "xid": "BIGINT",
    "money": "DECIMAL(19, 2)",
}

_TRUE_FOR_ALL: Final = (
    "has_table_privilege", "has_schema_privilege", "has_database_privilege", "has_column_privilege",
    "has_any_column_privilege", "has_function_privilege", "has_type_privilege", "has_sequence_privilege",
    "has_server_privilege", "has_tablespace_privilege", "pg_has_role",
)  # fmt: skip

_MAX_TEXT_BYTES: Final = 64 * 1024 * 1024
_TOO_LONG: Final = "error('[54000] requested length too large')"
_OVERFLOW: Final = "error('[22003] value out of range: overflow')"
_UNDERFLOW: Final = "error('[22003] value out of range: underflow')"
_DAY: Final = r"\d{4}-\d{2}-\d{2}"
_CLOCK: Final = r"\d{2}:\d{2}:\d{2}(\.\d{1,6})?"
_NAME: Final = r'\s*(?:"(?:[^"]|"")+"|[A-Za-z_\x{80}-\x{10ffff}][A-Za-z0-9_$\x{80}-\x{10ffff}]*)\s*'
_IDENTIFIER: Final = rf"{_NAME}(?:\.{_NAME})*"
_BACKSLASH: Final = "chr(92)"


def _like_macro(operator: str, function: str) -> str:
    """A macro for LIKE and its variants, where a backslash escapes unless ESCAPE is given; in DuckDB nothing does.

    DuckDB skips files by a pattern only with its own operator."""
    own = f'system.main."{operator}"(a, b)'
    return (
        f'"{operator}"(a, b) AS CASE WHEN contains(b, {_BACKSLASH}) THEN {function}(a, b, {_BACKSLASH}) ELSE {own} END'
    )


def _division_macro(name: str) -> str:
    """A macro that reports division by zero, for which DuckDB returns NULL."""
    failed = "error('[22012] division by zero')"
    # DuckDB reports an overflow for the remainder of the least bigint and -1.
    least = "WHEN b = -1 THEN a - a " if name != "//" else ""
    own = f'system.main."{name}"(a, b)'
    return f'"{name}"(a, b) AS CASE WHEN b = 0 AND a IS NOT NULL THEN {failed} {least}ELSE {own} END'


def _size_text_macros() -> list[str]:
    """pg_size_pretty, which divides by powers of two and rounds only the last digit."""
    parts = ["WHEN abs(n) < 10240 THEN n || ' bytes'"]
    for unit, bits in (("kB", 9), ("MB", 19), ("GB", 29), ("TB", 39)):
        parts.append(f"WHEN abs(n // {2**bits}) < 20479 THEN pg_half(n // {2**bits}) || ' {unit}'")
    whole = f"CASE {' '.join(parts)} ELSE pg_half(n // {2**49}) || ' PB' END"
    fraction = "error('[0A000] pg_size_pretty of a fraction is not supported')"
    return [
        "pg_half(n) AS (n + CASE WHEN n < 0 THEN -1 ELSE 1 END) // 2",
        f"pg_whole_size_text(n) AS {whole}",
        f"pg_size_pretty(a) AS CASE WHEN contains(CAST(a AS VARCHAR), '.') THEN {fraction}"
        " ELSE pg_whole_size_text(CAST(a AS HUGEINT)) END",
    ]


_MACROS: Final = (
    # With integer_division, DuckDB calls `/` `//`.
    *map(_division_macro, ("//", "%", "mod")),
    # Floats: PostgreSQL reports an overflow, for which DuckDB returns infinity.
    f"pg_checked(r, a, b) AS CASE WHEN isinf(r) AND NOT isinf(a) AND NOT isinf(b) THEN {_OVERFLOW} ELSE r END",
    "pg_float_add(a, b) AS pg_checked(a + b, a, b)",
    "pg_float_subtract(a, b) AS pg_checked(a - b, a, b)",
    f"pg_float_multiply(a, b) AS CASE WHEN a * b = 0 AND a <> 0 AND b <> 0 THEN {_UNDERFLOW}"
    " ELSE pg_checked(a * b, a, b) END",
    "pg_float_divide(a, b) AS CASE WHEN b = 0 AND NOT isnan(a) THEN error('[22012] division by zero')"
    f' WHEN system.main."/"(a, b) = 0 AND a <> 0 AND NOT isinf(b) THEN {_UNDERFLOW}'
    ' ELSE pg_checked(system.main."/"(a, b), a, b) END',
    "pg_power(a, b) AS CASE WHEN a = 0 AND b < 0 THEN"
    " error('[2201F] zero raised to a negative power is undefined')"
    " WHEN a < 0 AND b <> system.main.trunc(b) THEN"
    " error('[2201F] a negative number raised to a non-integer power yields a complex result')"
    " WHEN system.main.power(a, b) = 0 AND a <> 0 AND NOT isinf(a) AND NOT isinf(b) THEN"
    f" {_UNDERFLOW} ELSE pg_checked(system.main.power(a, b), a, b) END",
    f"pg_exp(a) AS CASE WHEN exp(a) = 0 AND isfinite(a) THEN {_UNDERFLOW} ELSE pg_checked(exp(a), a, 0) END",
    # The bits that a shift moves out are lost. Beyond the width, PostgreSQL's answer depends on the processor.
    "pg_shifted(a, k, bits, value) AS CASE WHEN k < 0 OR k >= bits THEN"
    " error('[0A000] a shift by more bits than the integer has is not supported') WHEN a IS NOT NULL THEN value END",
    "pg_shift_left(a, k, bits) AS"
    " pg_shifted(a, k, bits, pg_wrapped(a::HUGEINT * pow(2, k)::HUGEINT, pow(2, bits - 1)::HUGEINT))",
    'pg_wrapped(v, half) AS system.main."%"(system.main."%"(v + half, 2 * half) + 2 * half, 2 * half) - half',
    'pg_shift_right(a, k, bits) AS pg_shifted(a, k, bits, system.main."//"('
    "a::HUGEINT - CASE WHEN a < 0 THEN pow(2, k)::HUGEINT - 1 ELSE 0 END, pow(2, k)::HUGEINT))",
    # Without Python where DuckDB's own functions are exact: documents whose numbers end in no zero after the point, so
    # that equal ones have equal texts; finite numerics; members that are texts, numbers or booleans.
    "pg_jsonb_key(a) AS CASE WHEN contains(a, '.') AND system.main.regexp_matches(a, '\\.[0-9]*0([],}]|$)')"
    " THEN pg_jsonb_full_key(a) ELSE a END",
    "pg_numeric_digits(a) AS rtrim(ltrim(replace(ltrim(a, '-'), '.', ''), '0'), '0')",
    "pg_numeric_exponent(a) AS system.main.lpad((500000 + CASE WHEN ltrim(a, '-0')[1] NOT IN ('.', '')"
    " THEN length(ltrim(system.main.split_part(a, '.', 1), '-0')) - 1"
    " ELSE length(ltrim(system.main.split_part(a, '.', 2), '0')) - length(system.main.split_part(a, '.', 2)) - 1"
    " END)::VARCHAR, 6, '0')",
    "pg_numeric_key(a) AS CASE WHEN a[1] IN ('N', 'I') OR a[2] = 'I' THEN pg_numeric_full_key(a)"
    " WHEN pg_numeric_digits(a) = '' THEN 'o'"
    " WHEN a[1] = '-' THEN 'n' || translate(pg_numeric_exponent(a) || pg_numeric_digits(a), '0123456789', '9876543210')"
    " || '~' ELSE 'p' || pg_numeric_exponent(a) || pg_numeric_digits(a) END",
    # `name` is the last key as the document shows it. A fraction is read as written, if it can only be this one.
    "pg_jsonb_fraction(a, name) AS CASE WHEN len(string_split(a, name)) = 2"
    " THEN regexp_extract(string_split(a, name)[2], '^-?[0-9.]+') END",
    "pg_jsonb_at_text(a, path, pointer, name) AS CASE"
    " WHEN json_type(a, pointer) IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'BOOLEAN') THEN json_extract_string(a, pointer)"
    " WHEN json_type(a, pointer) = 'DOUBLE' AND pg_jsonb_fraction(a, name) IS NOT NULL THEN pg_jsonb_fraction(a, name)"
    " WHEN json_type(a, pointer) <> 'NULL' THEN pg_jsonb_path_text(a, path) END",
    "pg_jsonb_at(a, path, pointer, name) AS CASE WHEN json_type(a, pointer) IN ('BIGINT', 'UBIGINT', 'BOOLEAN', 'NULL')"
    " OR (json_type(a, pointer) = 'VARCHAR' AND NOT contains(a, chr(92)))"
    " THEN CAST(json_extract(a, pointer) AS VARCHAR)"
    " WHEN json_type(a, pointer) = 'DOUBLE' AND pg_jsonb_fraction(a, name) IS NOT NULL THEN pg_jsonb_fraction(a, name)"
    " WHEN json_type(a, pointer) IS NOT NULL THEN pg_jsonb_path(a, path) END",
    # Text of dates: PostgreSQL writes BC at the end.
    "pg_date_text(a) AS CASE WHEN contains(a, '(BC)') THEN replace(a, ' (BC)', '') || ' BC' ELSE a END",
    "pg_interval_months(a) AS system.main.date_part('year', a) * 12 + system.main.date_part('month', a)",
    "pg_interval_days(a) AS system.main.date_part('day', a)",
    "pg_interval_us(a) AS system.main.date_part('hour', a) * 3600000000"
    " + system.main.date_part('minute', a) * 60000000 + system.main.date_part('microseconds', a)",
    "pg_interval_key(a) AS (pg_interval_months(a) * 30 + pg_interval_days(a))::HUGEINT * 86400000000"
    " + pg_interval_us(a)",
    "pg_interval_text(a) AS pg_interval_parts_text(pg_interval_months(a)::INTEGER, pg_interval_days(a)::INTEGER,"
    " pg_interval_us(a))",
    "pg_interval_of(p) AS to_months(p.months) + to_days(p.days) + to_microseconds(p.microseconds)",
    *(
        f"pg_justify_{part}(a) AS pg_interval_of(pg_justified_{part}(pg_interval_months(a)::INTEGER,"
        " pg_interval_days(a)::INTEGER, pg_interval_us(a)))"
        for part in ("hours", "days", "interval")
    ),
    "pg_text_to_interval(a) AS pg_interval_of(pg_parse_interval_parts(a))",
    "pg_interval_multiply(a, n) AS CASE WHEN n = system.main.trunc(n) THEN"
    " to_months((pg_interval_months(a) * n)::INTEGER) + to_days((pg_interval_days(a) * n)::INTEGER)"
    " + to_microseconds((pg_interval_us(a) * n::BIGINT)::BIGINT)"
    " WHEN n IS NOT NULL AND a IS NOT NULL THEN"
    " error('[0A000] an interval multiplied by a fraction is not supported') END",
    "pg_time_interval(a) AS to_microseconds(epoch_us(a))",
    # PostgreSQL's centuries begin with the year 1, DuckDB's with 0.
    "pg_truncate_year(a, n) AS CASE WHEN NOT isfinite(a) THEN a WHEN a < TIMESTAMP '0001-01-01' THEN"
    " error('[0A000] date_trunc of years before Christ is not supported') WHEN a IS NOT NULL THEN"
    ' make_timestamp(system.main."//"(year(a) - 1, n) * n + 1, 1, 1, 0, 0, 0) END',
    # DuckDB's year 0 is 1 BC, which is -1 for PostgreSQL.
    "pg_era_year(y) AS CASE WHEN y <= 0 THEN y - 1 ELSE y END",
    'pg_decade(y) AS CASE WHEN y < 0 THEN -system.main."//"(9 - y, 10) ELSE system.main."//"(y, 10) END',
    "pg_year(y) AS CASE WHEN y = 0 THEN error('[22008] date field value out of range: 0') WHEN y < 0 THEN y + 1"
    " ELSE y END",
    "pg_to_timestamp(a) AS CASE WHEN isinf(a) THEN CASE WHEN a > 0 THEN 'infinity' ELSE '-infinity' END::TIMESTAMPTZ"
    " ELSE to_timestamp(a) END",
    "pg_date_minus(a, b) AS CASE WHEN isfinite(a) AND isfinite(b) THEN a - b"
    " WHEN a IS NOT NULL AND b IS NOT NULL THEN error('[22008] cannot subtract infinite dates') END",
    *(
        f"{name}(a, b) AS CASE WHEN isfinite(a) AND isfinite(b) THEN {value} WHEN a IS NOT NULL AND b IS NOT NULL THEN"
        " error('[0A000] infinite intervals are not supported') END"
        for name, value in (("pg_age", "age(a, b)"), ("pg_timestamp_minus", "a - b"))
    ),
    "pg_date_bin(w, a, o) AS CASE WHEN pg_interval_months(w) <> 0 THEN"
    " error('[0A000] timestamps cannot be binned into intervals containing months or years')"
    " ELSE time_bucket(w, a, o) END",
    *(
        f"pg_text_to_{name}(a) AS CASE WHEN a IS NULL OR system.main.regexp_full_match(trim(a), '{pattern}')"
        f" THEN CAST(replace(trim(a), 'T', ' ') AS {type_}) ELSE"
        f" error('[22007] invalid input syntax for type {name}, or a format that the query server does not read') END"
        for name, pattern, type_ in (
            ("date", f"{_DAY}|-?infinity", "DATE"),
            ("timestamp", f"{_DAY}([ T]{_CLOCK})?|-?infinity", "TIMESTAMP"),
            ("timestamptz", rf"{_DAY}([ T]{_CLOCK}([+-]\d{{2}}(:?\d{{2}})?)?)?|-?infinity", "TIMESTAMPTZ"),
            ("time", _CLOCK, "TIME"),
        )
    ),
    "pg_text_to_double(a) AS CASE WHEN a IS NULL OR system.main.regexp_full_match(trim(a),"
    r" '[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?|nan', 'i') THEN"
    " pg_checked(CAST(trim(a) AS DOUBLE), CASE WHEN contains(lower(a), 'n') THEN CAST('inf' AS DOUBLE) ELSE 0 END, 0)"
    """ ELSE error('[22P02] invalid input syntax for type double precision: "' || a || '"') END""",
    "pg_text_to_single(a) AS CASE WHEN pg_text_to_double(a) IS NOT NULL THEN pg_numeric_to_single(trim(a)) END",
    f"pg_double_to_single(a) AS CASE WHEN isfinite(a) AND abs(a) >= CAST('3.40282356779733642748e38' AS DOUBLE)"
    f" THEN {_OVERFLOW} WHEN a <> 0 AND CAST(a AS FLOAT) = 0 THEN {_UNDERFLOW} ELSE CAST(a AS FLOAT) END",
    *(
        f"pg_{name}(l, p) AS CASE WHEN p IS NULL THEN NULL WHEN p < 0 OR p > 1 OR isnan(p) THEN"
        f" error('[22003] percentile value is not between 0 and 1') WHEN l IS NOT NULL THEN {value} END"
        for name, value in (
            ("percentile_disc", "l[greatest(ceil(p * len(l)), 1)::BIGINT]"),
            (
                "percentile_cont",
                "pg_between(l[floor(p * (len(l) - 1))::BIGINT + 1], l[ceil(p * (len(l) - 1))::BIGINT + 1],"
                " p * (len(l) - 1) - floor(p * (len(l) - 1)))",
            ),
        )
    ),
    "pg_between(low, high, part) AS CASE WHEN part = 0 THEN low ELSE low + part * (high - low) END",
    "pg_exact_text(a) AS CASE WHEN isfinite(a) THEN printf('%.40f', a) ELSE CAST(a AS VARCHAR) END",
    "pg_label_position(labels, a) AS CASE WHEN a IS NULL THEN NULL ELSE coalesce(list_position(labels, a),"
    " error('[0A000] the order of a label that was added to the enum later is not known')) END",
    "pg_substring(a, s, n) AS CASE WHEN n < 0 AND a IS NOT NULL AND s IS NOT NULL THEN"
    " error('[22011] negative substring length not allowed')"
    " ELSE substring(a, s, n) END",
    "pg_overlay_part(a, b, s, n) AS CASE WHEN s <= 0 AND (a || b) IS NOT NULL AND n IS NOT NULL THEN"
    " error('[22011] negative substring length not allowed')"
    " ELSE substring(a, 1, s - 1) || b || substring(a, s + n) END",
    "pg_split_part(a, d, n) AS CASE WHEN n = 0 AND a IS NOT NULL AND d IS NOT NULL THEN"
    " error('[22023] field position must not be zero')"
    " WHEN d = '' THEN CASE WHEN n IN (1, -1) THEN a WHEN a IS NOT NULL THEN '' END ELSE split_part(a, d, n) END",
    "pg_string_to_array(a, d) AS CASE WHEN a IS NULL THEN NULL WHEN a = '' THEN [] WHEN d IS NULL THEN"
    " regexp_extract_all(a, '(?s:.)') WHEN d = '' THEN [a] ELSE string_split(a, d) END",
    "pg_quote_literal(a) AS CASE WHEN contains(a, chr(92)) THEN"
    " 'E''' || replace(replace(a, chr(92), chr(92) || chr(92)), '''', '''''') || ''''"
    " ELSE '''' || replace(a, '''', '''''') || '''' END",
    *(
        f"pg_bit_{name}(a, b) AS CASE WHEN length(a) <> length(b) THEN"
        f" error('[22026] cannot {name.upper()} bit strings of different sizes')"
        f" ELSE array_to_string(list_transform(string_split(a, ''),"
        f" lambda x, i: CASE WHEN {test} THEN '1' ELSE '0' END), '') END"
        for name, test in (("and", "x = '1' AND b[i] = '1'"), ("or", "x = '1' OR b[i] = '1'"), ("xor", "x <> b[i]"))
    ),
    *(
        _like_macro(*pair)
        for pair in (
            ("~~", "like_escape"),
            ("!~~", "not_like_escape"),
            ("~~*", "ilike_escape"),
            ("!~~*", "not_ilike_escape"),
        )
    ),
    # DuckDB cannot be interrupted while it builds a single text.
    f"repeat(a, n) AS CASE WHEN strlen(a) * n::HUGEINT > {_MAX_TEXT_BYTES} THEN {_TOO_LONG}"
    " ELSE system.main.repeat(a, n) END",
    *(
        f"{name}(a, n) AS {name}(a, n, ' '),"
        f" (a, n, b) AS CASE WHEN n > {_MAX_TEXT_BYTES} THEN {_TOO_LONG} WHEN b = '' THEN left(a, greatest(n, 0))"
        f" ELSE system.main.{name}(a, n, b) END"
        for name in ("lpad", "rpad")
    ),
    # For a start below 1 DuckDB counts from the end, whereas PostgreSQL starts before the text.
    "substring(a, s) AS system.main.substring(a, greatest(s, 1)),"
    " (a, s, n) AS system.main.substring(a, greatest(s, 1), greatest(n::BIGINT + least(s, 1) - 1, 0))",
    "substr(a, s) AS substring(a, s), (a, s, n) AS substring(a, s, n)",
    "pg_array_cat(a, b) AS CASE WHEN a IS NULL THEN b WHEN b IS NULL THEN a ELSE list_concat(a, b) END",
    # PostgreSQL rounds halves away from its epoch, 2000-01-01.
    "rounded(a TIMESTAMP, n) AS CASE WHEN isfinite(a) THEN"
    " make_timestamp(946684800000000 + round(epoch_us(a) - 946684800000000, n - 6)::BIGINT) ELSE a END,"
    " (a TIMESTAMPTZ, n) AS CASE WHEN isfinite(a) THEN"
    " make_timestamptz(946684800000000 + round(epoch_us(a) - 946684800000000, n - 6)::BIGINT) ELSE a END,"
    " (a TIME, n) AS CASE WHEN round(epoch_us(a), n - 6) >= 86400000000 THEN"
    " error('[0A000] the time 24:00:00 is not supported')"
    " ELSE make_timestamp(round(epoch_us(a), n - 6)::BIGINT)::TIME END",
    "initcap(a) AS CASE WHEN a = '' THEN '' ELSE"
    " array_to_string(list_transform(regexp_extract_all(lower(a), '[a-z0-9]+|[^a-z0-9]+'),"
    " lambda w: upper(w[1]) || w[2:]), '') END",
    "pg_overlay(a, b, s) AS pg_overlay_part(a, b, s, length(b)), (a, b, s, n) AS pg_overlay_part(a, b, s, n)",
    "quote_ident(a) AS CASE WHEN system.main.regexp_matches(a, '^[a-z_][a-z0-9_]*$')"
    f" AND a NOT IN ({', '.join(map(repr, sorted(quoted_words())))}) THEN a"
    """ ELSE '"' || replace(a, '"', '""') || '"' END""",
    # The capital ẞ is not a simple mapping of Unicode, which PostgreSQL uses.
    "pg_upper(a) AS CASE WHEN contains(a, 'ß') THEN"
    " array_to_string(list_transform(string_split(a, 'ß'), lambda part: upper(part)), 'ß') ELSE upper(a) END",
    "pg_decode(a) AS CASE WHEN contains(decode(a), chr(0)) THEN"
    " error('[22021] invalid byte sequence for encoding \"UTF8\": 0x00') ELSE decode(a) END",
    "pg_money(a) AS CASE WHEN a NOT BETWEEN -92233720368547758.08 AND 92233720368547758.07 THEN"
    " error('[22003] money out of range') ELSE a END::DECIMAL(19, 2)",
    "pg_short_interval(a) AS CASE WHEN abs(system.main.date_part('hour', a)) < 2562047 THEN a WHEN a IS NOT NULL THEN"
    " error('[0A000] an interval of more than 2562046 hours is not supported') END",
    "sha256(a) AS unhex(system.main.sha256(a))",
    # Functions that clients call to inspect the server.
    "pg_is_in_recovery() AS true",
    "pg_is_wal_replay_paused() AS false",
    "pg_stat_get_numscans(a) AS NULL::BIGINT",
    'pg_identifier_parts(a) AS list_transform(regexp_extract_all(a, \'"(?:[^"]|"")+"|[^."]+\'), lambda part: CASE WHEN'
    " part[1] = '\"' THEN replace(part[2:-2], '\"\"', '\"') ELSE translate(trim(part), '"
    + ascii_uppercase
    + "', '"
    + ascii_lowercase
    + "') END)",
    "parse_ident(a) AS CASE WHEN system.main.regexp_full_match(a, '" + _IDENTIFIER + "') THEN pg_identifier_parts(a)"
    " WHEN a IS NOT NULL THEN error('[22023] string is not a valid identifier') END",
    "pg_get_expr(a, b) AS a, (a, b, c) AS a",
    "pg_get_viewdef(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_partkeydef(a) AS NULL::VARCHAR",
    "pg_get_statisticsobjdef_columns(a) AS NULL::VARCHAR",
    "pg_get_function_identity_arguments(a) AS NULL::VARCHAR",
    "pg_get_function_arguments(a) AS NULL::VARCHAR",
    "pg_get_function_result(a) AS NULL::VARCHAR",
    "pg_get_triggerdef(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_ruledef(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_serial_sequence(a, b) AS NULL::VARCHAR",
    "pg_relation_is_publishable(a) AS false",
    "pg_encoding_to_char(a) AS 'UTF8'",
    "pg_char_to_encoding(a) AS 6",
    "shobj_description(a, b) AS NULL::VARCHAR",
    "pg_tablespace_location(a) AS ''",
    *_size_text_macros(),
    "pg_tablespace_size(a) AS NULL::BIGINT",
    "getdatabaseencoding() AS 'UTF8'",
    "pg_get_function_sqlbody(a) AS NULL::VARCHAR",
    "pg_conversion_is_visible(a) AS true",
    "pg_opfamily_is_visible(a) AS true",
    "pg_function_is_visible(a) AS true",
    "pg_statistics_obj_is_visible(a) AS true",
    "pg_collation_is_visible(a) AS true",
    "pg_opclass_is_visible(a) AS true",
    "pg_operator_is_visible(a) AS true",
    "pg_postmaster_start_time() AS now()",
    "pg_conf_load_time() AS now()",
    "pg_my_temp_schema() AS 0",
    "pg_is_other_temp_schema(a) AS false",
    "txid_current() AS 1::BIGINT",
    "inet_server_addr() AS NULL::VARCHAR",
    "inet_client_addr() AS NULL::VARCHAR",
    *(f"{name}(a, b) AS true, (a, b, c) AS true, (a, b, c, d) AS true" for name in _TRUE_FOR_ALL),
)


def _keywords() -> str:
    """pg_get_keywords(), which JDBC's metadata read."""
    rows = ", ".join(f"('{word}', '{category}', {str(label).lower()})" for word, category, label in keywords())
    kinds = (
        "CASE category WHEN 'U' THEN 'unreserved' WHEN 'C' THEN 'unreserved (cannot be function or type name)'"
        " WHEN 'T' THEN 'reserved (can be function or type name)' ELSE 'reserved' END"
    )
    head = f"SELECT word, category AS catcode, label AS barelabel, {kinds} AS catdesc"
    labels = "CASE WHEN label THEN 'can be bare label' ELSE 'requires AS' END AS baredesc"
    return f"pg_get_keywords() AS TABLE {head}, {labels} FROM (VALUES {rows}) AS k(word, category, label)"


_TABLE_MACROS: Final = (
    # Functions in FROM, where a scalar function is a table of one row.
    "string_to_array(a, b) AS TABLE SELECT system.main.string_to_array(a, b) AS string_to_array",
    "pg_show_all_settings() AS TABLE SELECT NULL::VARCHAR AS name, NULL::VARCHAR AS setting WHERE false",
    _keywords(),
    "pg_available_extensions() AS TABLE"
    " SELECT NULL::VARCHAR AS name, NULL::VARCHAR AS default_version, NULL::VARCHAR AS comment WHERE false",
)

STATEMENTS: Final = (
    *(f"CREATE TYPE {name} AS {type_}" for name, type_ in _TYPES.items()),
    *(f"CREATE MACRO {macro}" for macro in (*_MACROS, *_TABLE_MACROS)),
)


def freshness(catalog: str, version: LakeVersion) -> str:
    """The statement that creates `tailrace_freshness()` in a version's catalog."""
    committed = "NULL" if version.committed_at is None else f"'{version.committed_at.isoformat()}'"
    return (
        f"CREATE MACRO {catalog}.main.tailrace_freshness() AS TABLE SELECT '{version.cursor}' AS lsn,"
        f" {committed}::TIMESTAMPTZ AS committed_at, '{version.published_at.isoformat()}'::TIMESTAMPTZ AS published_at,"
        f" epoch(now() - {committed}::TIMESTAMPTZ) AS age_seconds"
    )
