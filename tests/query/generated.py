"""Random tables of every type and random queries over them, for comparisons of the query server with PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TYPES_SQL: Final = """
CREATE TYPE tint AS ENUM ('violet', 'amber', 'cyan', 'blue');
CREATE DOMAIN price AS numeric(10, 2);
CREATE TYPE pair AS (a int, b text);
"""

# Column name → type and the values that its rows choose from, as SQL.
COLUMNS: Final[dict[str, tuple[str, list[str]]]] = {
    "b": ("bool", ["true", "false"]),
    "i2": ("int2", ["0", "1", "-3", "32767", "7"]),
    "i4": ("int4", ["0", "1", "2", "-7", "2147483647", "100"]),
    "i8": ("int8", ["0", "1", "5", "-9223372036854775807", "4294967296"]),
    "f4": ("float4", ["0", "1.5", "-2.25", "'NaN'", "1e10"]),
    "f8": ("float8", ["0", "0.1", "-3.75", "'NaN'", "'Infinity'", "1e200"]),
    "n": ("numeric", ["0", "1.50", "1.5", "-2.000", "'NaN'", "1e-20", "12345678901234567890.123456789012345", "7"]),
    "np": ("numeric(12,3)", ["0", "1.5", "-2.345", "99.999"]),
    "c": ("price", ["0", "19.99", "-1.50"]),
    "t": ("text", ["''", "'a'", "'B'", "'a b'", "'ünï'", "'\\x4142'", "'2024-01-01 12:00Z'", "'10'", "'a_b%'",
               "'a text of more than twelve bytes'", "'Über 12 ſ'"]),
    "v": ("varchar(12)", ["''", "'abc'", "'ABC'", "'42'"]),
    "ch": ("char(5)", ["''", "'ab'", "'ab  '", "'z'"]),
    "bin": ("bytea", ["'\\x00ff'", "''", "'\\x4142'"]),
    "u": ("uuid", ["'00000000-0000-0000-0000-000000000001'", "'ffffffff-0000-0000-0000-000000000001'"]),
    "d": ("date", ["'2024-02-29'", "'1999-12-31'", "'infinity'", "'0044-03-15 BC'"]),
    "ts": ("timestamp", ["'2024-02-29 12:34:56.789'", "'1970-01-01'", "'-infinity'"]),
    "tz": ("timestamptz", ["'2024-02-29 12:34:56+02'", "'2001-01-01 00:00+00'"]),
    "ti": ("time", ["'12:34:56.5'", "'00:00'", "'23:59:59'"]),
    "iv": ("interval", ["'1 day'", "'1 mon'", "'30 days'", "'-02:03:04.5'", "'1 year 2 mons'", "'0'"]),
    "j": ("json", ["'{\"a\": 1.50,  \"b\": [1, 2]}'", "'[1, \"x\", null]'", "'\"s\"'", "'null'"]),
    "jb": ("jsonb", ["'{\"a\": 1.50, \"b\": {\"c\": [1, 2]}}'", "'{\"a\": 1.5}'", "'[1, \"x\", null]'", "'3'", "'{}'",
                    "'{\"a\": \"a text of more than twelve bytes\"}'"]),
    "ia": ("int[]", ["'{1,2,NULL}'", "'{}'", "'{{1,2},{3,4}}'", "'[0:1]={5,6}'", "'{7}'"]),
    "na": ("numeric[]", ["'{1.50,2}'", "'{NaN}'", "'{}'"]),
    "ta": ("text[]", ["'{\"longer than twelve bytes\",b}'", "'{a,\"b c\",NULL}'", "'{}'", "'{\"{}\",\"q\\\"x\"}'"]),
    "ea": ("tint[]", ["'{amber,violet}'", "'{}'"]),
    "net": ("inet", ["'10.0.0.1/8'", "'10.0.0.1'", "'9.1.1.1'", "'::1'", "'192.168.0.0/16'"]),
    "e": ("tint", ["'violet'", "'amber'", "'cyan'", "'blue'"]),
    "r": ("int4range", ["'[1,5)'", "'empty'", "'(,3]'", "'[2,)'"]),
    "nr": ("numrange", ["'[1.0,2.50)'", "'empty'"]),
    "mo": ("money", ["'12.34'", "'-0.01'", "'1234.5'"]),
    "bt": ("bit(4)", ["B'0000'", "B'1010'", "B'0111'"]),
    "vb": ("varbit", ["B''", "B'1'", "B'10'", "B'0111'"]),
    "p": ("point", ["'(1,2)'", "'(0,0)'"]),
    "cmp": ("pair", ["'(1,x)'", "'(2,)'"]),
}  # fmt: skip


@dataclass(frozen=True)
class RandomTable:
    name: str
    columns: tuple[str, ...]

    @property
    def sql(self) -> str:
        listed = ", ".join(f"{c} {COLUMNS[c][0]}" for c in self.columns)
        return f"CREATE TABLE {self.name} (id int PRIMARY KEY, {listed});"


def make_table(rng: random.Random, name: str, rows: int) -> tuple[RandomTable, str]:
    """A table with all columns, and the statements that create and fill it."""
    table = RandomTable(name, tuple(COLUMNS))
    lines = []
    for row in range(1, rows + 1):
        values = [rng.choice([*COLUMNS[c][1], *COLUMNS[c][1], "NULL"]) for c in table.columns]
        lines.append(f"({row}, {', '.join(values)})")
    return table, f"{table.sql} INSERT INTO {name} VALUES {', '.join(lines)};"


_COMPARISONS: Final = ("=", "<>", "<", ">", "<=", ">=", "IS DISTINCT FROM")
_OPERATORS: Final = (
    "+", "-", "*", "/", "%", "||", "->", "->>", "@>", "<@", "&&", "#>>", "#>", "?", "~", "~~", "~~*", "!~~", "&", "|",
    "#", "^", "<<", ">>=", "#-",
)  # fmt: skip
_CASTS: Final = (
    "text", "int", "bigint", "smallint", "numeric", "numeric(8,2)", "float8", "float4", "date", "timestamp",
    "timestamptz", "time", "interval", "bool", "varchar(3)", "char(4)", "json", "jsonb", "inet", "bytea", "money",
    "uuid", "text[]",
    "int[]", "tint", "bit(3)",
)  # fmt: skip
_FUNCTIONS: Final = (
    "abs", "length", "upper", "lower", "round", "trunc", "ceil", "floor", "sign", "sqrt", "md5", "reverse", "initcap",
    "cardinality", "array_to_string", "host", "masklen", "family", "network", "isempty", "lower_inc", "upper_inf",
    "jsonb_typeof", "json_typeof", "jsonb_array_length", "to_json", "to_jsonb", "octet_length", "btrim", "ascii",
    "isfinite", "array_length", "array_upper", "array_ndims", "array_dims", "date_trunc", "left", "right", "repeat",
    "substring", "concat", "concat_ws", "to_hex", "scale", "jsonb_pretty", "jsonb_strip_nulls", "num_nulls",
    "quote_literal", "char_length", "extract", "age", "to_char", "mod", "div", "power", "replace", "split_part",
    "strpos", "jsonb_set", "jsonb_build_object", "json_build_array", "coalesce", "nullif", "greatest", "least",
    "array_append", "array_cat", "array_position", "array_remove", "string_to_array", "date_part", "date_bin",
    "width_bucket", "to_date", "jsonb_extract_path_text", "trim_scale", "lpad", "starts_with", "lower_inf", "chr",
    "broadcast", "netmask", "translate", "overlay", "encode", "format", "num_nonnulls", "quote_nullable", "make_date",
)  # fmt: skip
AGGREGATES: Final = (
    "count", "sum", "avg", "min", "max", "array_agg", "json_agg", "jsonb_agg", "bool_and", "string_agg", "variance",
    "stddev_pop", "bit_or", "bool_or", "every", "bit_and", "count(DISTINCT", "jsonb_object_agg", "any_value",
)  # fmt: skip


_PATTERNS: Final = ("'a%'", "'%B%'", "'_'", "'%\\_b\\%'", "''", "'%'", "NULL", "'a b'")
_EXPRESSIONS: Final = (
    "'^a'",
    "'b$'",
    "'[A-Z]'",
    "'a b'",
    "'\\d+'",
    "''",
    "'ü'",
    "'a|ab'",
    "'(a)(.)'",
    "'b*'",
    "'x?'",
    "'[[:alpha:]]+'",
    "'[^b]'",
    "'\\w\\s?'",
    "'^$'",
    "'[a-c]{2}'",
    "'(.*)b'",
)
_ARRAYS: Final = (
    ("i4", "ia"),
    ("i2", "ia"),
    ("i8", "ia"),
    ("t", "ta"),
    ("v", "ta"),
    ("n", "na"),
    ("i4", "na"),
    ("e", "ea"),
)
_INTERVALS: Final = ("'1 day'", "'1 month'", "'-90 minutes'", "'1 year 2 mons 3 days 04:05:06.7'", "'30 days'")


class ExpressionGenerator:
    """Makes expressions over one table."""

    def __init__(self, rng: random.Random, table: RandomTable) -> None:
        self.rng = rng
        self.table = table

    def column(self) -> str:
        return self.rng.choice(self.table.columns)

    def literal(self, column: str) -> str:
        return self.rng.choice(COLUMNS[column][1])

    def operand(self) -> str:
        """A column, a literal of its type, or a small constant."""
        column = self.column()
        rng = self.rng
        return rng.choice(
            [column, column, column, f"{self.literal(column)}::{COLUMNS[column][0]}", "NULL", "2", "1.5", "'a'", "'1'",
             self.literal(column), "id"]
        )  # fmt: skip

    def expression(self, depth: int = 1) -> str:
        kinds: list[Callable[[], str]] = [
            self.column,
            lambda: self._comparison(),
            lambda: f"({self.operand()} {self.rng.choice(_OPERATORS)} {self.operand()})",
            lambda: f"{self.operand()}::{self.rng.choice(_CASTS)}",
            lambda: f"{self.column()}::{self.rng.choice(_CASTS)}",
            lambda: self._call(),
            lambda: f"{self.rng.choice(('ia', 'na', 'ta', 'ea'))}[{self.rng.choice((0, 1, 2))}]",
            lambda: " ".join(map(self.rng.choice, (("jb", "j"), ("->", "->>"), ("'a'", "0", "'b'", "-1")))),
            lambda: self._case(),
            self._membership,
            self._pattern,
            self._time,
            self._document,
            self._text,
            self._number,
            lambda: f"({self.operand()})::text::{self.rng.choice(_CASTS)}",
        ]
        made = self.rng.choice(kinds)()
        if depth and self.rng.random() < 0.25:
            made = f"({made})::text"
        return made

    def _comparison(self) -> str:
        column = self.column()
        other = self.rng.choice([self.literal(column), column, self.literal(column), self.operand()])
        return f"({column} {self.rng.choice(_COMPARISONS)} {other})"

    def _call(self) -> str:
        name = self.rng.choice(_FUNCTIONS)
        a, b = self.operand(), self.operand()
        special = {
            "array_to_string": f"array_to_string({self.rng.choice(('ia', 'na', 'ta', 'ea'))}, ',', '*')",
            "array_length": f"array_length({self.rng.choice(('ia', 'ta'))}, 1)",
            "array_upper": f"array_upper({self.rng.choice(('ia', 'ta'))}, 1)",
            "date_trunc": f"date_trunc('month', {self.rng.choice(('d', 'ts', 'tz'))})",
            "extract": f"extract({self.rng.choice(('year', 'month', 'day', 'hour', 'epoch', 'second', 'dow'))}"
            f" FROM {self.rng.choice(('d', 'ts', 'tz', 'ti', 'iv'))})",
            "to_char": f"to_char({self.rng.choice(('ts', 'tz'))}, 'YYYY-MM-DD HH24:MI:SS')",
            "age": "age(ts, '2001-02-03'::timestamp)",
            "left": f"left({a}, 2)", "right": f"right({a}, 2)", "repeat": f"repeat({a}, 2)",
            "substring": f"substring({a}, 1, 2)", "replace": f"replace({a}, 'a', 'x')",
            "split_part": f"split_part({a}, ' ', 1)", "strpos": f"strpos({a}, 'b')",
            "jsonb_set": "jsonb_set(jb, '{a}', '9')", "jsonb_build_object": f"jsonb_build_object('k', {a})",
            "json_build_array": f"json_build_array({a}, {b})", "concat_ws": f"concat_ws('-', {a}, {b})",
            "round": f"round({a}, 1)", "array_append": f"array_append(ia, {a})", "array_cat": f"array_cat({a}, {b})",
            "array_position": f"array_position(ta, {a})", "array_remove": f"array_remove(ta, {a})",
            "string_to_array": f"string_to_array({a}, ' ')", "date_part": f"date_part('hour', {a})",
            "date_bin": f"date_bin('90 minutes', {self.rng.choice(('ts', 'tz'))}, '2001-01-01')",
            "width_bucket": f"width_bucket({a}, 0, 50, 7)", "to_date": "to_date('2024-02-03', 'YYYY-MM-DD')",
            "jsonb_extract_path_text": f"jsonb_extract_path_text(jb, 'b', {a})", "lpad": f"lpad({a}, 4, '*')",
            "starts_with": f"starts_with({a}, 'a')", "chr": "chr(i2 + 70)", "translate": f"translate({a}, 'ab', 'x')",
            "overlay": f"overlay({a} placing 'zz' from 2)", "encode": f"encode({a}, 'hex')",
            "format": f"format('%s|%L', {a}, {b})", "num_nonnulls": f"num_nonnulls({a}, {b})",
            "make_date": "make_date(2000 + id, 1 + id % 12, 3)",
        }  # fmt: skip
        two = ("concat", "mod", "div", "power", "coalesce", "nullif", "greatest", "least")
        return special.get(name) or (f"{name}({a}, {b})" if name in two else f"{name}({a})")

    def _case(self) -> str:
        column = self.column()
        other = self.rng.choice((column, "NULL", self.literal(column)))
        return f"CASE WHEN {self._comparison()} THEN {column} ELSE {other} END"

    def _membership(self) -> str:
        rng = self.rng
        value, array = rng.choice(_ARRAYS)
        column = self.column()
        return rng.choice(
            [
                f"({value} {rng.choice(_COMPARISONS[:6])} {rng.choice(('ANY', 'ALL'))}({array}))",
                f"({value} = ANY({self.literal(array)}))",
                f"({value} <> ALL(ARRAY[{self.literal(value)}, {self.literal(value)}]::{COLUMNS[value][0]}[]))",
                f"({column} {rng.choice(('IN', 'NOT IN'))} ({self.literal(column)}, {self.literal(column)}, NULL))",
                f"({column} IN ({self.literal(column)}, {self.operand()}))",
                f"({column} {rng.choice(('', 'NOT '))}BETWEEN {self.literal(column)} AND {self.operand()})",
                f"(({column}, id) = ({self.literal(column)}, {rng.randrange(9)}))",
                f"({array}[{rng.randrange(3)}:{rng.randrange(4)}])",
                f"({array} || {self.rng.choice((self.literal(value), array, self.literal(array)))})",
                f"({array} {rng.choice(('@>', '<@', '&&', '=', '<'))} {self.literal(array)})",
            ]
        )

    def _pattern(self) -> str:
        rng, text = self.rng, self.rng.choice(("t", "v", "ch", "t", self.column()))
        likes = ("LIKE", "ILIKE", "NOT LIKE", "NOT ILIKE")
        return rng.choice(
            [
                f"({text} {rng.choice(likes)} {rng.choice(_PATTERNS)})",
                f"({text} {rng.choice(('~', '~*', '!~', '!~*'))} {rng.choice(_EXPRESSIONS)})",
                f"({text} SIMILAR TO {rng.choice(_PATTERNS)})",
                f"({text} LIKE ANY(ARRAY[{rng.choice(_PATTERNS)}, {rng.choice(_PATTERNS)}]))",
                f"regexp_replace({text}, {rng.choice(_EXPRESSIONS)}, '<\\&>', 'g')",
                f"regexp_match({text}, {rng.choice(_EXPRESSIONS)})",
                f"substring({text} from {rng.choice(_EXPRESSIONS)})",
            ]
        )

    def _text(self) -> str:
        rng, text = self.rng, self.rng.choice(("t", "v", "ch", "t"))
        a, b = rng.randrange(-3, 6), rng.randrange(-3, 6)
        return rng.choice(
            [
                f"substring({text} FROM {a} FOR {b})",
                f"overlay({text} PLACING 'ZZ' FROM {a} FOR {b})",
                f"split_part({text}, '{rng.choice(('a', ' ', ':', ''))}', {a})",
                f"{rng.choice(('left', 'right'))}({text}, {a})",
                f"{rng.choice(('lpad', 'rpad'))}({text}, {b + 3}, '{rng.choice(('*', 'xy', ''))}')",
                f"translate({text}, 'aB ', '{rng.choice(('x', 'xyz', ''))}')",
                f"({text} {rng.choice(('<', '>=', '=', '||'))} {rng.choice(('t', 'v', 'ch'))})",
                f"string_to_array({text}, {rng.choice((repr(' '), repr(''), 'NULL'))})",
                f"regexp_count({text}, {rng.choice(_EXPRESSIONS)})",
                f"regexp_replace({text}, {rng.choice(_EXPRESSIONS)}, '-', '{rng.choice(('', 'g', 'i', 'gi'))}')",
            ]
        )

    def _number(self) -> str:
        rng = self.rng
        a, b = (rng.choice(("i2", "i4", "i8", "f4", "f8", "n", "np", "c", "mo", "id")) for _ in "ab")
        other = rng.choice((b, "2", "-1", "0", "1.5", "'3'", "1e10::float8", "0.001"))
        return rng.choice(
            [
                f"({a} {rng.choice('+-*/%^&|#')} {other})",
                f"({a} {rng.choice(_COMPARISONS)} {other})",
                f"round({a}::numeric, {rng.randrange(-2, 5)})",
                f"trunc({a}::numeric, {rng.randrange(-2, 5)})",
                f"{a}::{rng.choice(('int2', 'int4', 'int8', 'numeric(20,4)', 'numeric(4,-1)', 'float4', 'text'))}",
                f"{rng.choice(('floor', 'ceil', 'sign', 'abs', 'exp', 'sqrt', 'ln', 'cbrt', 'trunc'))}({a})",
                f"{rng.choice(('mod', 'div', 'gcd', 'power', 'atan2'))}({a}, {other})",
                f"to_char({a}, '{rng.choice(('999', 'FM990.09', '0,000', '9.9'))}')",
                f"width_bucket({a}, {rng.choice(('-5', '0.5', '10'))}, {rng.choice(('5', '100', '-7'))}, 4)",
                f"(({a}, {b}) {rng.choice(('<', '=', '>=', '<>'))} (1, {other}))",
                f"({a} / nullif({b}, 0))",
            ]
        )

    def _time(self) -> str:
        rng = self.rng
        if rng.random() < 0.3:
            days, seconds = rng.randrange(-40_000, 40_000), rng.randrange(86_400)
            moment = f"(timestamp '2000-01-01' + interval '{days} days {seconds} seconds')"
            return rng.choice(
                [
                    f"age({rng.choice(('ts', 'd', 'tz::timestamp'))}, {moment})",
                    f"age({moment}, {rng.choice(('ts', 'd'))})",
                    f"({moment} AT TIME ZONE '{rng.choice(('Europe/Berlin', 'America/New_York', 'Asia/Tehran'))}')",
                    f"date_bin('{rng.choice(('7 days', '36 minutes', '1.5 seconds'))}', {moment}, '2001-02-03 04:05')",
                    f"({moment} {rng.choice('+-')} interval '{rng.randrange(-99, 99)}' {rng.choice(('day', 'month'))})",
                    f"(ts - {moment})",
                    f"date_trunc('{rng.choice(('week', 'quarter', 'century'))}', {moment} - interval '5' hour)",
                ]
            )
        column = rng.choice(("d", "ts", "tz", "ti", "iv"))
        other = rng.choice(("d", "ts", "tz", "ti", "iv", "i4"))
        zone = rng.choice(("Europe/Berlin", "UTC", "Asia/Kolkata"))
        template = rng.choice(("DD Mon YY", "IYYY-IW", "HH12:MI AM", "Day", "J", "Q", "SS.MS", "SSSS"))
        field = rng.choice(("week", "quarter", "isoyear", "milliseconds", "isodow", "doy", "decade", "century"))
        return rng.choice(
            [
                f"({rng.choice(('ts', 'tz', 'd'))} AT TIME ZONE '{zone}')",
                f"({column} {rng.choice('+-')} interval {rng.choice(_INTERVALS)})",
                f"({column} {rng.choice('+-')} {other})",
                f"({column} {rng.choice(_COMPARISONS)} {other})",
                f"extract({field} FROM {column})",
                f"date_trunc('{rng.choice(('week', 'day', 'hour', 'quarter', 'decade', 'second'))}', {column})",
                f"to_char({column}, '{template}')",
                f"{column}::{rng.choice(('date', 'time', 'timestamp(0)', 'timestamptz(2)', 'time(1)', 'interval'))}",
                f"({column} * {rng.choice(('2', '0.5', 'i2'))})",
            ]
        )

    def _document(self) -> str:
        rng, json = self.rng, self.rng.choice(("jb", "jb", "j"))
        literal = rng.choice(COLUMNS["jb"][1])
        part = rng.choice(("0", "'a'", "-1", "'{a,b}'::text[]"))
        key, last = rng.choice(("'b'", "0", "i2", "t")), rng.choice(("'c'", "1", "id"))
        return rng.choice(
            [
                f"({json} #> '{rng.choice(('{b,c}', '{a}', '{0}', '{}', '{b,c,-1}'))}')",
                f"({json} #>> '{rng.choice(('{b,c}', '{a}', '{1}', '{}', '{b,c,0}'))}')",
                f"({json} {rng.choice(('@>', '<@', '=', '||', '<>'))} {literal})",
                f"({json} ? '{rng.choice('abx')}')",
                f"({json} - {part})",
                f"({json} -> {key} ->> {last})",
                f"({json}['a'])",
                f"({json} ->> 'a')::{rng.choice(('numeric', 'float8', 'text', 'int'))}",
                f"({json} -> 'a')::{rng.choice(('numeric', 'float8', 'int'))}",
                f"jsonb_path_query_array({json}, '$.*')",
            ]
        )
