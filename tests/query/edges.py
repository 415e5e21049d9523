"""Values that break careless renderings, and the expressions to try on each of them."""

from __future__ import annotations

from typing import Final

TEXTS: Final = (
    "''", "' '", "'a'", "'Ab c'", "'  pad  '", "'ünï ☃'", "'ß'", "'ΑΣ'", "'İı'", "'𝄞x'", "E'e\\u0301x'", "'a_b%c'",
    "'a,b,,c'", "E'l1\\nl2'", "'it''s'", "E'back\\\\slash'", "'12'", "' -7 '", "'1e3'", "'abcabc'", "'NULL'", "'ſK'",
    "'{1,2}'", "'aab'", "'foo.bar'", "NULL",
)  # fmt: skip
_INTEGERS: Final = ("0", "1", "-1", "7", "-7", "2147483647", "-2147483648", "32767", "100", "NULL")
_LONGS: Final = ("0", "1", "-1", "9223372036854775807", "'-9223372036854775808'", "4294967296", "NULL")
_FLOATS: Final = (
    "0", "'-0'", "1", "-1", "0.5", "1.5", "2.5", "-0.5", "-2.5", "0.1", "1e15", "1e16", "123456789.123456789", "1e-5",
    "1e-300", "1e300", "1.7976931348623157e308", "5e-324", "'NaN'", "'Infinity'", "'-Infinity'", "99999.5", "NULL",
)  # fmt: skip
_NUMERICS: Final = (
    "0", "0.00", "1", "-1", "1.5", "2.5", "-2.5", "0.5", "-0.5", "1e-20", "99999999999999999999.5", "1e40", "-1e-40",
    "123.456", "'NaN'", "'Infinity'", "'-Infinity'", "1000000", "0.0001", "2147483647.5", "NULL",
)  # fmt: skip
_FIXED: Final = ("0", "1.50", "-1.50", "99999999.99", "-99999999.99", "0.01", "2.50", "NULL")
_DATES: Final = (
    "'2024-02-29'", "'2023-12-31'", "'2021-01-03'", "'1999-12-31'", "'0001-01-01'", "'0044-03-15 BC'", "'infinity'",
    "'-infinity'", "'10000-01-01'", "'1900-03-01'", "'2000-01-01'", "'0001-12-31 BC'", "NULL",
)  # fmt: skip
_TIMESTAMPS: Final = (
    "'2024-02-29 12:34:56.789012'", "'2023-12-31 23:59:59.999999'", "'2021-01-03 00:00'", "'1969-12-31 23:59:59.5'",
    "'0001-01-01'", "'0044-03-15 12:00 BC'", "'infinity'", "'-infinity'", "'10000-01-01 01:00'",
    "'2024-03-31 02:30:00'", "'2024-10-27 02:30:00'", "'1890-01-01'", "'2024-06-15 05:06:07.000008'",
    "'2038-07-01 13:00'", "NULL",
)  # fmt: skip
_TIMES: Final = ("'00:00'", "'23:59:59.999999'", "'12:34:56.5'", "'01:00'", "NULL")
_INTERVALS: Final = (
    "'0'", "'1 day'", "'-1 day'", "'1 mon'", "'30 days'", "'-1 mon 1 day'", "'1 year 2 mons 3 days 04:05:06.7'",
    "'-1 year -2 mons +3 days -04:05:06.7'", "'100:00:00'", "'-00:00:00.000001'", "'1 mon -30 days'", "'36 hours'",
    "'11 years'", "NULL",
)  # fmt: skip
_JSONB: Final = (
    """'{"a": 1, "b": {"c": [1, 2, {"d": null}]}}'""", "'[1, \"x\", null, true, [2]]'", "'\"s\"'", "'5'", "'-0'",
    "'1.50'", "'null'", "'true'", "'{}'", "'[]'", "'{\"a\": \"x\", \"aa\": \"\\\\u00e9\", \"A\": []}'", "'[[1], [2, 3]]'",
    "'1e5'", "'{\"\": 0, \"b c\": \"q\\\\\"r\"}'", "'[{\"a\": 1}, {\"a\": 2}]'", "NULL",
)  # fmt: skip
_BYTES: Final = ("''", "'\\x00'", "'\\xff'", "'\\x4142'", "'\\x5c00'", "NULL")
_INTARRAYS: Final = ("'{}'", "'{1}'", "'{1,2,NULL}'", "'{3,1,2,1}'", "'{{1,2},{3,4}}'", "'[2:3]={5,6}'", "NULL")
_TEXTARRAYS: Final = ("'{}'", "'{a}'", "'{b,NULL,a}'", '\'{"","NULL","a b"}\'', "NULL")
_INETS: Final = (
    "'10.0.0.1'", "'10.0.0.1/8'", "'10.0.0.0/8'", "'::1'", "'fe80::1/64'", "'::ffff:1.2.3.4'", "'::1.2.3.4'",
    "'192.168.1.255/24'", "'0.0.0.0/0'", "'2001:db8::/32'", "NULL",
)  # fmt: skip
_RANGES: Final = ("'[1,5)'", "'empty'", "'(,3]'", "'[2,)'", "'(,)'", "NULL")
_CHARS: Final = ("''", "'a'", "'ab  '", "' b'", "'ünïx'", "NULL")
_BITS: Final = ("B''", "B'1'", "B'0'", "B'10'", "B'1010'", "NULL")
_MONEY: Final = ("'0'", "'1.005'", "'-12.34'", "'1234567.89'", "'92233720368547758.07'", "NULL")
_UUIDS: Final = (
    "'00000000-0000-0000-0000-000000000001'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    "'7fffffff-0000-0000-0000-000000000000'", "'80000000-0000-0000-0000-000000000000'", "NULL",
)  # fmt: skip

_CASTS: Final = (
    "text", "int2", "int4", "int8", "numeric", "numeric(6,2)", "float4", "float8", "bool", "date", "timestamp",
    "timestamptz", "time", "interval", "varchar(3)", "char(4)", "json", "jsonb", "bytea", "uuid", "inet", "money",
    "int4[]", "text[]", "bit(3)",
)  # fmt: skip
_ANY: Final = (
    *(f"x::{t}" for t in _CASTS), *(f"x::text::{t}" for t in _CASTS), "x IS NULL", "coalesce(x, x)", "nullif(x, x)",
    "x IS DISTINCT FROM x", "x = x", "x <> x", "x < x", "x IN (x, NULL)", "x NOT IN (x)", "to_json(x)", "to_jsonb(x)",
    "concat('<', x, '>')", "format('%s %L', x, x)", "ARRAY[x, NULL]", "json_build_object('k', x)",
    "jsonb_build_array(x, 1)", "greatest(x, x)", "quote_literal(x)", "x || 'z'", "num_nulls(x, 1)", "pg_typeof(x)",
    "CASE WHEN n = 1 THEN x END", "x || x", "jsonb_build_object('k', ARRAY[x])", "concat_ws(',', x, NULL, x)",
    "ARRAY[x] = ARRAY[x]", "(x, 1) = (x, 1)", "array_to_string(ARRAY[x, x], ';', '*')", "to_jsonb(ARRAY[x])",
    "abs(x)", "-x", "length(x)", "octet_length(x)", "x IS NOT DISTINCT FROM NULL", "row_to_json(ROW(x, 1))",
)  # fmt: skip
_REGEXES: Final = (
    "'a'", "'^a'", "'b$'", "'[a-c]+'", "'[[:alpha:]]+'", "'\\s'", "'\\w+'", "'a*'", "'b?'", "'x*'", "'.'", "'^$'", "''",
    "'[^a]'", "'a{2}'", "'k'", "'S'", "'ü'", "'(a)(b)'", "'(.*)(b)'", "'a.b'", "'[[:upper:]]'", "'[[:punct:]]'", "'\\.'",
    "'(a|ab)(c|bcd)?'", "'a|b'", "'[0-9]{1,2}'", "'\\d'", "'\\D'", "'[]a]'", "'[a\\]]'", "'i'", "'[a-z]'", "'σ'",
)  # fmt: skip
_TEXT_CALLS: Final = (
    "upper(x)", "lower(x)", "initcap(x)", "reverse(x)", "length(x)", "char_length(x)", "octet_length(x)",
    "bit_length(x)", "md5(x)", "ascii(x)", "trim(x)", "btrim(x, 'a ')", "ltrim(x, ' a')", "rtrim(x, 'c ')", "btrim(x, '')",
    *(f"left(x, {n})" for n in (-2, 0, 2)), *(f"right(x, {n})" for n in (-2, 0, 2)), "lpad(x, 3)", "lpad(x, 9, 'xy')",
    "rpad(x, 2, '')", "rpad(x, 9, '☃')", "lpad(x, -1)", "repeat(x, 2)", "repeat(x, -2)", "replace(x, 'a', 'bb')",
    "replace(x, '', 'z')", "replace(x, 'ab', NULL)", "translate(x, 'abc', 'x')", "translate(x, 'a', 'xyz')",
    "translate(x, 'aa', 'xy')", "translate(x, '', 'y')",
    *(f"split_part(x, ',', {n})" for n in (-9, -1, 0, 1, 2, 9)), "split_part(x, '', 1)", "split_part(x, 'bc', 2)",
    "strpos(x, 'b')", "strpos(x, '')", "position('c' IN x)", "position(x IN 'abcabc')", "starts_with(x, 'a')", "x ^@ 'A'",
    *(f"substring(x, {n})" for n in (-3, 0, 1, 2, 99)),
    *(f"substring(x FROM {a} FOR {b})" for a, b in ((-1, 3), (0, 1), (0, 0), (2, 0), (2, 1), (1, 99), (2, -1), (3, 2147483647))),
    "substring(x FOR 2)", "substr(x, 2, 2)", "substring(x FROM 'b.')",
    *(f"overlay(x PLACING 'ZZ' FROM {a} FOR {b})" for a, b in ((1, 0), (2, 1), (0, 1), (-1, 2), (3, -1), (3, -9), (9, 2))),
    "overlay(x PLACING 'ZZ' FROM 2)", "overlay(x PLACING '' FROM 1)", "string_to_array(x, ',')", "string_to_array(x, '')",
    "string_to_array(x, NULL)", "string_to_array(x, ',', 'b')", "quote_ident(x)", "quote_literal(x)", "quote_nullable(x)",
    "x LIKE 'a%'", "x LIKE '%\\_%'", "x LIKE '_'", "x ILIKE 'A%'", "x ILIKE '%ß%'", "x ILIKE 'ſk'", "x ILIKE 'ασ'",
    "x LIKE 'a!_b%' ESCAPE '!'", "x LIKE 'a\\_%' ESCAPE ''", "x LIKE '%\\'", "x ILIKE '%I%'", "x NOT LIKE '%b%'",
    "x SIMILAR TO '(a|b)%'", "x SIMILAR TO '[a-c]+'", "x SIMILAR TO '_{2}'", "x SIMILAR TO 'a|abc'", "x SIMILAR TO '%,+%'",
    "x < 'a'", "x > 'Z'", "x <= 'ü'", "x BETWEEN ' ' AND 'b'", "x COLLATE \"C\" < 'b'", "x IN ('a', 'ß')",
    "x = ANY('{a,12,NULL}')", "x <> ALL('{a,12}')", "'abc' LIKE x", "chr(length(x) + 65)", "to_hex(length(x))",
    "encode(x::bytea, 'hex')", "encode(convert_to(x, 'UTF8'), 'base64')", "decode(x, 'escape')", "decode(x, 'hex')",
    "convert_from(convert_to(x, 'UTF8'), 'UTF8')", "sha256(convert_to(x, 'UTF8'))", "array_length(string_to_array(x, 'b'), 1)",
    *(f"x ~ {p}" for p in _REGEXES), *(f"x ~* {p}" for p in _REGEXES), *(f"x !~* {p}" for p in _REGEXES[:6]),
    *(f"regexp_replace(x, {p}, '<\\&>', 'g')" for p in _REGEXES), *(f"regexp_replace(x, {p}, '-')" for p in _REGEXES),
    *(f"regexp_match(x, {p})" for p in _REGEXES), *(f"regexp_count(x, {p})" for p in _REGEXES),
    *(f"regexp_replace(x, {p}, '', 'gi')" for p in _REGEXES[:12]), *(f"substring(x, {p})" for p in _REGEXES),
    *(f"regexp_split_to_array(x, {p})" for p in _REGEXES[:8]), "regexp_replace(x, '(a)(b)', '\\2\\1\\\\', 'g')",
    "regexp_like(x, 'A', 'i')", "regexp_substr(x, 'b')", "regexp_instr(x, 'b')", "x::varchar(2)", "x::char(2)", "x::name",
    "x || 1", "x || NULL", "1 || x", "x || ARRAY['q']", "casefold(x)", "unistr(x)", "normalize(x)", "x::regtype",
    "max(x) OVER ()", "x::varchar(3)::char(5) || '|'", "format('%I', x)", "format('%10s|%-4s|', x, x)", "format('%2$s %1$s', x, 1)",
    "to_number(x, '999')", "to_date(x, 'YYYY')", "to_timestamp(x, 'HH24')", "parse_ident(x)", "crc32(x::bytea)", "strpos(x, x)",
)  # fmt: skip
_INTEGER_CALLS: Final = (
    *(f"x {op} {v}" for op in "+-*/%" for v in ("1", "-1", "0", "7", "2147483647", "x", "1.5", "2.0::float8", "9223372036854775807")),
    *(f"x {op} {v}" for op in "&|#" for v in ("1", "-1", "x")), "x << 1", "x >> 1", "~x", "-x", "+x", "@x", "abs(x)",
    "sign(x)", "x ^ 2", "x ^ 0.5", "|/ abs(x)", "mod(x, 3)", "div(x, 3)", "gcd(x, 12)", "lcm(x, 3)", "x::bool", "x::float4",
    "round(x, -1)", "round(x)", "trunc(x, -1)", "to_hex(x)", "to_char(x, '999,999')", "to_char(x, 'FM0000')", "to_char(x, 'S999')",
    "to_char(x, '9.9')", "to_char(x, 'FM9,999,999,999')", "width_bucket(x, -5, 5, 3)", "chr(x)", "x::int2", "x::money",
    "power(x, 2)", "sqrt(x)", "x / 2.0", "x / 3::numeric", "x::numeric / 7", "factorial(x)", "make_interval(days => x)",
    "date '2024-01-31' + x", "x * interval '1 day'", "x * interval '1 month'", "repeat('a', x::int % 100)", "lpad('a', x::int % 100)", "x IN (1, 1.0, NULL)",
    "x BETWEEN SYMMETRIC 5 AND -5", "x = '1'", "x > 1.5", "x = 1::float8", "x < 1e10", "bit_count(x::bit(8))", "x::bit(8)",
    "to_bin(x)", "to_oct(x)", "generate_series(x, x + 1)", "sum(x) OVER (ORDER BY n)", "avg(x) OVER (ORDER BY n)",
    "sum(x * x) OVER ()", "stddev(x) OVER ()", "lag(x, 1, 5) OVER (ORDER BY n)", "ntile(3) OVER (ORDER BY n)",
    "nth_value(x, 2) OVER (ORDER BY n)", "nth_value(x, 0) OVER (ORDER BY n)", "ntile(0) OVER ()", "lag(x, -1) OVER (ORDER BY n)",
    "lead(x, NULL) OVER (ORDER BY n)", "percent_rank() OVER (ORDER BY x)", "cume_dist() OVER (ORDER BY x)",
    "min(x) OVER (ORDER BY n ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING)", "count(x) OVER (ORDER BY n ROWS 1 PRECEDING EXCLUDE CURRENT ROW)",
    "sum(x) OVER (ORDER BY x RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING)", "first_value(x) OVER (ORDER BY x DESC)",
    "last_value(x) OVER (ORDER BY n ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)", "array_agg(x) OVER (ORDER BY n)",
    "max(x) FILTER (WHERE n > 3) OVER (ORDER BY n)", "rank() OVER (ORDER BY x NULLS FIRST)", "avg(x) OVER (ORDER BY n GROUPS 1 PRECEDING)",
)  # fmt: skip
_FLOAT_CALLS: Final = (
    *(f"x {op} {v}" for op in "+-*/" for v in ("1", "0.1", "-3", "x", "0", "1e300", "1e-300", "'NaN'", "1::float4", "2.5::numeric")),
    *(f"{f}(x)" for f in ("abs", "sign", "round", "trunc", "ceil", "floor", "sqrt", "cbrt", "exp", "ln", "log", "sin", "cos", "tan",
      "asin", "acos", "atan", "sinh", "cosh", "tanh", "degrees", "radians", "log10", "cot", "asinh", "acosh", "atanh", "sind", "erf", "gamma")),
    "x ^ 2", "x ^ -1", "x ^ 0.5", "power(2, x)", "power(x, x)", "atan2(x, 1)", "-x", "x::int", "x::int8", "x::int2", "x::numeric",
    "x::numeric(10,2)", "x::float4", "x::float4::float8", "x::float4::text", "x::text", "x = 'NaN'", "x > 'NaN'", "x < 'Infinity'",
    "x = 0", "x = '-0'", "x BETWEEN 0 AND 1", "greatest(x, 1)", "least(x, 'NaN')", "round(x::numeric, 2)", "width_bucket(x, 0, 10, 5)",
    "to_char(x, '999.99')", "x::money", "x * interval '1 day'", "x::bool", "to_timestamp(x)", "x::numeric::text", "sum(x) OVER (ORDER BY n)",
    "avg(x) OVER (ORDER BY n)", "max(x) OVER ()", "min(x) OVER ()", "rank() OVER (ORDER BY x)", "count(*) OVER (PARTITION BY x)",
    "dense_rank() OVER (ORDER BY x DESC)", "x IN (0, 1)", "x % 2", "mod(x::numeric, 2)", "round(x, 1)", "make_time(1, 2, x)", "setseed(x)",
    "make_interval(secs => x)", "x::float8::int4", "(x * 10)::int", "(x / 3)::text", "(x + 0.1)::text", "(x * 1e10)::text",
)  # fmt: skip
_NUMERIC_CALLS: Final = (
    *(f"x {op} {v}" for op in "+-*/%" for v in ("1", "0.10", "-3", "x", "0", "1e30", "1e-30", "'NaN'", "'Infinity'", "7.777777")),
    *(f"{f}(x)" for f in ("abs", "sign", "round", "trunc", "ceil", "floor", "ceiling", "sqrt", "exp", "ln", "log", "scale", "min_scale", "trim_scale")),
    *(f"round(x, {n})" for n in (-2, 0, 1, 5, 40)), *(f"trunc(x, {n})" for n in (-2, 0, 1, 5)), "div(x, 3)", "mod(x, 3)", "x ^ 2", "power(x, 2)",
    "-x", "+x", "x::int", "x::int8", "x::int2", "x::float8", "x::float4", "x::numeric(10,2)", "x::numeric(5,-2)", "x::numeric(3)", "x::text", "x::money",
    "x = 'NaN'", "x > 1", "x = 1.50", "x < 1.5::float8", "x IN (1.5, 2.50)", "greatest(x, 1.5)", "least(x, 'NaN')", "width_bucket(x, 0, 10, 5)",
    "to_char(x, '999.99')", "to_char(x, 'FM999,990.099')", "to_char(x, '0000')", "to_char(x, 'S99')", "to_char(x, '9.99EEEE')", "to_char(x, 'L9')",
    "gcd(x, 6)", "lcm(x, 6)", "factorial(3) + x", "x::numeric(10,2) / 3", "x::numeric(10,2) * x::numeric(10,2)", "x::numeric(10,2) + 0.001",
    "x::numeric(38,10) * 1.0000000000", "x::numeric(30,20) * 1.00000000000000000000", "round(x::numeric(20,10), 3)", "trunc(x::numeric(20,10), 3)",
    "ceil(x::numeric(20,10))", "floor(x::numeric(20,10))", "x::numeric(20,10) % 0.3", "abs(x::numeric(20,10))", "sum(x) OVER (ORDER BY n)",
    "avg(x) OVER ()", "max(x) OVER ()", "stddev(x) OVER ()", "var_pop(x) OVER ()", "rank() OVER (ORDER BY x)", "count(*) OVER (PARTITION BY x)",
    "x::numeric(20,4)::text", "x::numeric(20,4)::int", "x::int + x", "(x * 1.0)::int", "x::numeric::float8::numeric", "x || ''", "pg_typeof(x)",
    "x::numeric(20,4) = x", "x BETWEEN -1 AND 1", "sum(x::numeric(20,4)) OVER ()", "avg(x::numeric(20,4)) OVER ()", "stddev(x::numeric(20,4)) OVER ()",
    "sum(x) OVER (ORDER BY n ROWS 1 PRECEDING)", "lag(x, 1, 0) OVER (ORDER BY n)", "lag(x, 1, 0.5) OVER (ORDER BY n)", "first_value(x) OVER (ORDER BY x)",
)  # fmt: skip
_FIELDS: Final = (
    "century", "day", "decade", "dow", "doy", "epoch", "hour", "isodow", "isoyear", "julian", "microseconds", "millennium", "milliseconds",
    "minute", "month", "quarter", "second", "timezone", "timezone_hour", "week", "year", "fortnight",
)  # fmt: skip
_UNITS: Final = (
    "microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade", "century", "millennium",
)  # fmt: skip
_TEMPLATES: Final = (
    "YYYY-MM-DD HH24:MI:SS.US", "YYY YY Y", "Y,YYY", "IYYY IYY IY I", "Month|MONTH|month|Mon|MON|mon", "FMMonth FMDay FMDD FMMM FMHH12",
    "Day|DAY|day|Dy|DY|dy", "DDD D ID W WW IW IDDD", "CC J Q RM", "HH HH12 HH24 MI SS MS US SSSS SSSSS", "AM PM am pm A.M. p.m.", "BC AD B.C. ad",
    "TZ tz TZH TZM OF", "FF1 FF3 FF6", "DDth DDTH Mth", '"lit" YYYY', "YYYY\\-MM", "\"a\\\"b\" DD", "YYYY-MM-DDTHH24:MI", "FMYYYY-FMMM-FMDD", "", " x%y ",
    "HH24h MIm SSs", "FMSSSS FMMS FMUS", "FMDay, FMDDth FMMonth", "YYYYMMDDHH24MISSMS", "Q\"Q\"", "FMHH:FMMI AM", "TMMonth", "FXYYYY", "D d DD dd",
)  # fmt: skip
_STAMP_CALLS: Final = (
    *(f"extract({f} FROM x)" for f in _FIELDS), *(f"date_part('{f}', x)" for f in ("epoch", "second", "year", "week", "century")),
    *(f"date_trunc('{u}', x)" for u in _UNITS), *(f"to_char(x, '{t}')" for t in _TEMPLATES),
    *(f"x {op} interval {i}" for op in "+-" for i in _INTERVALS[:-1]), "x - x", "x - timestamp '2024-01-31 10:00'", "x + interval '1' day",
    "x - interval '2' month", "x + interval '1.5 days'", "x + interval '90' minute", "x::date", "x::time", "x::timestamp(0)", "x::timestamp(3)",
    "x::timestamptz", "x::text", "age(x, timestamp '2001-03-31 10:00')", "age(timestamp '2024-02-29 12:00', x)", "x::date - date '2000-01-01'",
    *(f"x AT TIME ZONE '{z}'" for z in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "europe/berlin",
      "CET", "EST", "+02", "Etc/GMT+5", "Nowhere/Land", "US/Eastern")), "isfinite(x)", "x > '2024-01-01'", "x = x::date", "x < date '2024-01-01'",
    "x BETWEEN '2000-01-01' AND '2030-01-01'", "date_bin('15 minutes', x, '2001-01-01')", "date_bin('7 days', x, '2001-01-01 03:00')",
    "date_bin('-1 hour', x, '2001-01-01')", "date_bin('0', x, '2001-01-01')", "date_bin('1 month', x, '2001-01-01')", "x::timestamptz AT TIME ZONE 'Europe/Berlin'",
    "date_trunc('day', x::timestamptz, 'Europe/Berlin')", "(x AT TIME ZONE 'Europe/Berlin') AT TIME ZONE 'America/New_York'", "max(x) OVER ()",
    "x - lag(x) OVER (ORDER BY n)", "count(*) OVER (ORDER BY x RANGE BETWEEN '1 day' PRECEDING AND CURRENT ROW)", "x + 1", "x::timestamptz - x",
    "extract(epoch FROM x::timestamptz)", "to_json(x::timestamptz)", "to_char(x::timestamptz, 'YYYY TZ OF')",
    "make_date(2024, 2, extract(day FROM x)::int)", "(x, interval '1 day') OVERLAPS (x, interval '1 hour')", "x::time - time '01:00'",
)  # fmt: skip
_DATE_CALLS: Final = (
    *(f"extract({f} FROM x)" for f in _FIELDS), *(f"date_trunc('{u}', x)" for u in _UNITS), *(f"to_char(x, '{t}')" for t in _TEMPLATES[:14]),
    "x + 1", "x - 1", "x + 10000000", "x - x", "x - date '2000-01-01'", *(f"x {op} interval {i}" for op in "+-" for i in _INTERVALS[:9]),
    "x + time '10:00'", "x::timestamp", "x::timestamptz", "x = x::timestamp", "x > '2024-01-01'", "x >= timestamp '2023-12-31 00:00:01'", "age(x, date '2001-03-31')",
    "isfinite(x)", "x AT TIME ZONE 'Europe/Berlin'", "x - timestamp '2000-01-01'", "x + interval '1' month", "greatest(x, '2024-01-01')", "x::text || '!'",
    "x IN ('2024-02-29', 'infinity')", "lag(x) OVER (ORDER BY x)", "x - lag(x) OVER (ORDER BY n)", "2 + x", "x + x",
)  # fmt: skip
_TIME_CALLS: Final = (
    *(f"extract({f} FROM x)" for f in _FIELDS), "x + interval '2 hours'", "x - interval '30 minutes'", "x + interval '1 day 25:00'", "x - time '10:00'",
    "x::interval", "date_trunc('hour', x)", "to_char(x, 'HH24:MI')", "x::time(0)", "x::time(3)", "x > '12:00'", "date '2024-01-01' + x", "x::text", "x * 2",
    "x = '24:00'", "x AT TIME ZONE 'UTC'", "x + date '2024-01-01'", "max(x) OVER ()", "avg(x) OVER ()",
)  # fmt: skip
_INTERVAL_CALLS: Final = (
    *(f"extract({f} FROM x)" for f in _FIELDS), *(f"date_trunc('{u}', x)" for u in _UNITS), "x + x", "x - x", "x * 2", "x * -1", "x * 1.5", "x / 2", "-x", "x / 0",
    "x = '30 days'", "x > '1 mon'", "x IN ('1 mon', '1 day')", "justify_hours(x)", "justify_days(x)", "justify_interval(x)", "to_char(x, 'HH24:MI')", "x::time",
    "x::text", "isfinite(x)", "sum(x) OVER (ORDER BY n)", "avg(x) OVER ()", "max(x) OVER ()", "rank() OVER (ORDER BY x)", "x::interval(0)", "x::interval day",
    "timestamp '2024-01-31 12:00' + x", "timestamptz '2024-03-31 00:00+00' - x", "date '2024-02-29' + x", "time '12:00' + x", "extract(epoch FROM x) / 3600",
    "x > interval '1' hour", "x + interval '1' year", "make_interval(hours => 5) + x", "x::text::interval", "count(*) OVER (PARTITION BY x)", "-x * 3",
)  # fmt: skip
_JSONB_CALLS: Final = (
    *(f"x -> {k}" for k in ("'a'", "'b'", "0", "-1", "''", "9")), *(f"x ->> {k}" for k in ("'a'", "'b'", "0", "-1", "1", "2")),
    *(f"x #> '{p}'" for p in ("{b,c}", "{b,c,2,d}", "{0}", "{}", "{-1,0}", "{+1}", "{b,c,01}", '{""}')), *(f"x #>> '{p}'" for p in ("{b,c,0}", "{1}", "{a}", "{}")),
    *(f"x @> {v}" for v in _JSONB[:-1]), *(f"x <@ {v}" for v in ("'[1, \"x\", null, true, [2], 3]'", "'{\"a\": 1, \"b\": {\"c\": [1, 2, {\"d\": null}]}, \"z\": 0}'")),
    "x ? 'a'", "x ? 'x'", "x ?| '{a,x}'", "x ?& '{a,b}'", "x ?| '{}'", "x || '{\"a\": 9}'", "x || '[7]'", "x || '1'", "x - 'a'", "x - 0", "x - -1",
    "x - '{a,b}'::text[]", "x #- '{b,c,0}'", "x #- '{0}'", "x #- '{}'", "x #- '{b,c,-1}'", "jsonb_set(x, '{a}', '[1]')", "jsonb_set(x, '{b,c,0}', '5')",
    "jsonb_set(x, '{b,c,9}', '5')", "jsonb_set(x, '{b,c,-9}', '5')", "jsonb_set(x, '{0}', '\"n\"', false)", "jsonb_set(x, '{new}', 'null')", "jsonb_set(x, '{}', '1')",
    "jsonb_set(x, '{a,b}', '1')", "jsonb_insert(x, '{0}', '8')", "jsonb_typeof(x)", "jsonb_array_length(x)", "jsonb_strip_nulls(x)", "jsonb_pretty(x)",
    "jsonb_array_elements(x)", "jsonb_array_elements_text(x)", "jsonb_object_keys(x)", "x = '{\"a\": 1}'", "x = '5.0'", "x <> '[]'", "x < '5'", "x::int", "x::numeric",
    "x::float8", "x::bool", "x::text", "x::json", "x['a']", "x['b']['c'][1]", "x[0]", "x::json -> 'a'", "x::json ->> 0", "x::json #>> '{b,c}'", "x @? '$.a'",
    "jsonb_path_query_first(x, '$.a')", "jsonb_extract_path(x, 'b', 'c')", "jsonb_extract_path_text(x, 'b', 'c', '1')", "jsonb_exists(x, 'a')",
    "json_array_length(x::json)", "json_typeof(x::json)", "count(*) OVER (PARTITION BY x)", "jsonb_agg(x) OVER (ORDER BY n)", "x IN ('5', '[]')",
    "(x ->> 'a')::int", "(x -> 'a')::int", "x - 'zz'", "x IS JSON OBJECT", "jsonb_concat(x, x)", "to_jsonb(x)", "x::text::jsonb", "json_array_elements(x::json)",
    "json_object_keys(x::json)", "jsonb_to_tsvector(x, '\"all\"')", "(x -> 'b') @> '{\"c\": [2]}'", "x @> x", "x || x", "jsonb_object(x::text)", "json_strip_nulls(x::json)",
)  # fmt: skip
_BYTES_CALLS: Final = (
    "length(x)", "octet_length(x)", "bit_length(x)", "encode(x, 'hex')", "encode(x, 'base64')", "encode(x, 'escape')", "encode(x, 'nope')", "md5(x)", "sha256(x)", "x || x",
    "x || '\\x01'", "x = '\\x4142'", "x > '\\x00'", "substring(x, 1, 1)", "get_byte(x, 0)", "position('\\x42' IN x)", "x::text", "convert_from(x, 'UTF8')", "trim('\\x00' FROM x)",
    "reverse(x)", "x LIKE 'A%'", "left(x::text, 3)", "overlay(x PLACING '\\x00' FROM 1)", "rank() OVER (ORDER BY x)", "string_agg(x, ',') OVER ()", "set_byte(x, 0, 1)", "crc32(x)",
    "x IN ('AB', '\\x00')", "max(x) OVER ()",
)  # fmt: skip
_ARRAY_CALLS: Final = (
    *(f"x[{n}]" for n in (-1, 0, 1, 2, 4)), "x[1][2]", "x[2][1]", *(f"x[{s}]" for s in ("1:2", ":2", "2:", ":", "0:1", "3:1", "-5:99", "NULL:2")), "x[1:2][1:1]", "array_length(x, 1)",
    "array_length(x, 2)", "array_length(x, 0)", "array_upper(x, 1)", "array_lower(x, 1)", "array_ndims(x)", "array_dims(x)", "cardinality(x)", "x || x", "x || NULL",
    "array_cat(x, x)", "array_reverse(x)", "array_sort(x)", "x = x", "x < x", "x @> x", "x && x", "x <@ x", "array_to_string(x, ',')", "array_to_string(x, ',', '*')",
    "array_to_string(x, NULL)", "to_json(x)", "to_jsonb(x)", "x::text", "array_to_json(x)", "unnest(x)", "generate_subscripts(x, 1)", "x IS NULL", "array_positions(x, x[1])",
    "array_position(x, x[2])", "array_remove(x, x[1])", "array_replace(x, x[1], x[2])", "trim_array(x, 1)", "array_append(x, x[1])", "array_prepend(x[1], x)", "x[1] = ANY(x)",
    "x[2] <> ALL(x)", "x[1] IN (SELECT unnest(x))", "array_agg(x) OVER ()", "max(x) OVER ()", "rank() OVER (ORDER BY x)", "x::varchar[]", "cardinality(x || x)", "ARRAY[x]", "concat(x, '!')",
    "x[array_length(x, 1)]", "(x || x)[2]", "(x || x)[2:3]", "array_shuffle(x) IS NULL", "coalesce(x, '{}')", "x = '{1}'", "array(SELECT y FROM unnest(x) y ORDER BY 1)", "x || x[1]",
)  # fmt: skip
_INET_CALLS: Final = (
    "host(x)", "text(x)", "x::text", "family(x)", "masklen(x)", "network(x)", "broadcast(x)", "netmask(x)", "hostmask(x)", "abbrev(x)", "set_masklen(x, 16)", "x::cidr", "x << '10.0.0.0/8'",
    "x <<= '10.0.0.1/8'", "x >> '10.0.0.1'", "x >>= '10.0.0.0/8'", "x && '10.0.0.0/16'", "x = '10.0.0.1/32'", "x < '10.0.0.1'", "x > '::1'", "x + 1", "~x", "x & '255.0.0.0'", "x - x",
    "rank() OVER (ORDER BY x)", "max(x) OVER ()", "x IN ('10.0.0.1', '::1')", "inet_same_family(x, '::1')", "inet_merge(x, '10.1.1.1')", "x::varchar", "'h ' || x", "x LIKE '10%'",
    "x::cidr << '0.0.0.0/0'", "text(network(x))", "host(broadcast(x))", "to_json(x)", "x BETWEEN '10.0.0.0' AND '10.0.0.9'",
)  # fmt: skip
_RANGE_CALLS: Final = (
    "lower(x)", "upper(x)", "isempty(x)", "lower_inc(x)", "upper_inc(x)", "lower_inf(x)", "upper_inf(x)", "x @> 3", "x @> 1", "2 <@ x", "x @> '[2,3)'::int4range", "x && '[4,9)'", "x -|- '[5,6)'", "x = '[1,4]'",
    "x < '[2,3)'", "x * '[2,9)'", "x + '[4,9)'", "x - '[2,3)'", "x << '[9,10)'", "range_merge(x, '[9,10)')", "x::text", "range_agg(x) OVER ()", "int4range(1, 5)", "x::int4multirange", "x IS NULL",
    "count(*) OVER (PARTITION BY x)", "rank() OVER (ORDER BY x)", "x <> 'empty'", "upper(x) - lower(x)",
)  # fmt: skip
_CHAR_CALLS: Final = (
    "length(x)", "octet_length(x)", "x || '|'", "x::text || '|'", "x = 'a'", "x = 'a    '", "x = 'a'::text", "x = 'a  '::text", "x LIKE 'a'", "x LIKE 'a%'", "x LIKE 'ab   '", "x ~ 'a$'", "x ~ 'a +$'", "upper(x)",
    "concat(x, '|')", "format('[%s]', x)", "x < 'b'", "x IN ('a', 'ab')", "x::varchar(3) || '|'", "x::char(2)", "x::char(7) || '|'", "md5(x)", "replace(x, ' ', '.')", "reverse(x)", "left(x, 3) || '|'", "to_json(x)",
    "ARRAY[x]", "array_to_string(ARRAY[x], ',')", "x = ANY('{a,ab}')", "trim(x) || '|'", "x BETWEEN 'a' AND 'b'", "position(' ' IN x)", "x || x", "coalesce(x, 'q') || '|'", "CASE WHEN n = 1 THEN x ELSE 'long text' END",
    "nullif(x, 'a')", "greatest(x, 'a')", "substring(x, 2, 3) || '|'", "lpad(x, 8, '*')", "split_part(x, ' ', 1)", "string_to_array(x, ' ')", "ascii(x)", "initcap(x)", "x ILIKE 'A%'", "x SIMILAR TO 'a +'", "max(x) OVER ()",
    "count(*) OVER (PARTITION BY x)", "rank() OVER (ORDER BY x)", "string_agg(x, ',') OVER ()", "quote_literal(x)", "x::bytea", "strpos(x, ' ')", "translate(x, ' ', '_')", "x::name", "x::\"char\"", "bit_length(x)",
)  # fmt: skip
_BIT_CALLS: Final = (
    "length(x)", "x || B'1'", "x = B'1'", "x < B'10'", "x & B'1'", "x | B'10'", "x # B'1010'", "~x", "x << 1", "x >> 1", "x::text", "x::bit(3)", "x::varbit(2)", "x::int", "substring(x, 1, 1)", "get_bit(x, 0)",
    "position(B'1' IN x)", "bit_count(x)", "octet_length(x)", "rank() OVER (ORDER BY x)", "x IN (B'1', B'10')", "to_json(x)",
)  # fmt: skip
_MONEY_CALLS: Final = (
    "x + x", "x - '1'::money", "x * 2", "x * 1.5::float8", "x / 2", "x / '2'::money", "x / 2.5", "x::numeric", "x::text", "x > '1'", "x = '1.01'", "-x", "sum(x) OVER ()", "abs(x::numeric)", "x::numeric::int",
    "rank() OVER (ORDER BY x)", "x IN ('0', '1.01')", "round(x::numeric, 1)", "x * 100000", "greatest(x, '5')", "2 * x", "to_json(x)", "x::int",
)  # fmt: skip
_UUID_CALLS: Final = (
    "x::text", "x < '80000000-0000-0000-0000-000000000000'", "x = '{00000000-0000-0000-0000-000000000001}'", "x = '00000000000000000000000000000001'", "rank() OVER (ORDER BY x)", "max(x) OVER ()", "x IN ('00000000-0000-0000-0000-000000000001')",
    "uuid_extract_version(x)", "md5(x::text)", "x::text LIKE '%1'", "to_json(x)", "x || ''", "left(x::text, 8)", "x > ANY('{80000000-0000-0000-0000-000000000000}')",
)  # fmt: skip

EDGES: Final[dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    "text": ("text", TEXTS, _TEXT_CALLS),
    "varchar": ("varchar", TEXTS[:8], ("x || 1", "length(x)", "x = 'a'", "x LIKE 'a%'", "upper(x)", "x::char(3)", "x < 'b'", "nullif(x, 'a')", "coalesce(x, 'q')", "x IN ('a')")),
    "int2": ("int2", ("0", "1", "-1", "32767", "-32768", "NULL"), _INTEGER_CALLS),
    "int4": ("int4", _INTEGERS, _INTEGER_CALLS),
    "int8": ("int8", _LONGS, _INTEGER_CALLS),
    "float8": ("float8", _FLOATS, _FLOAT_CALLS),
    "float4": ("float4", (*(f for f in _FLOATS if "e" not in f), "1e-45", "3.4028235e38", "1e10", "1.00000005960464477540"), _FLOAT_CALLS),
    "numeric": ("numeric", _NUMERICS, _NUMERIC_CALLS),
    "fixed": ("numeric(10,2)", _FIXED, _NUMERIC_CALLS),
    "timestamp": ("timestamp", _TIMESTAMPS, _STAMP_CALLS),
    "timestamptz": ("timestamptz", _TIMESTAMPS, _STAMP_CALLS),
    "date": ("date", _DATES, _DATE_CALLS),
    "time": ("time", _TIMES, _TIME_CALLS),
    "interval": ("interval", _INTERVALS, _INTERVAL_CALLS),
    "jsonb": ("jsonb", _JSONB, _JSONB_CALLS),
    "bytea": ("bytea", _BYTES, _BYTES_CALLS),
    "ints": ("int4[]", _INTARRAYS, _ARRAY_CALLS),
    "texts": ("text[]", _TEXTARRAYS, _ARRAY_CALLS),
    "numerics": ("numeric[]", ("'{}'", "'{1.50,NULL,2}'", "'{NaN}'", "NULL"), _ARRAY_CALLS),
    "inet": ("inet", _INETS, _INET_CALLS),
    "range": ("int4range", _RANGES, _RANGE_CALLS),
    "char": ("char(5)", _CHARS, _CHAR_CALLS),
    "varbit": ("varbit", _BITS, _BIT_CALLS),
    "money": ("money", _MONEY, _MONEY_CALLS),
    "uuid": ("uuid", _UUIDS, _UUID_CALLS),
    "bool": ("bool", ("true", "false", "NULL"), ("x AND n > 1", "x OR NULL", "NOT x", "x IS TRUE", "x IS NOT FALSE", "x IS UNKNOWN", "x < true", "x::int", "x::text", "bool_and(x) OVER (ORDER BY n)", "rank() OVER (ORDER BY x)")),
}  # fmt: skip
"""Group → type, values, expressions over the column x (n numbers the values)."""

for _name, (_type, _values, _calls) in list(EDGES.items()):
    EDGES[_name] = (_type, _values, tuple(dict.fromkeys((*_calls, *_ANY))))
