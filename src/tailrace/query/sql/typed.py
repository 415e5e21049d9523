"""An expression in DuckDB's SQL with its PostgreSQL type, and how values of each type are represented in DuckDB.

| type | representation |
|---|---|
| boolean, integers, floats, text, bytea, uuid, dates, times, intervals | DuckDB's own |
| numeric | DECIMAL if every value has the same scale; else PostgreSQL's text |
| money | DECIMAL(19, 2) |
| oid, regclass and the like | BIGINT |
| arrays | PostgreSQL's text as stored; a list where the statement itself makes one-dimensional arrays |
| all others | PostgreSQL's text |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from tailrace.change import Type
from tailrace.query.sql import pg_type
from tailrace.query.sql.pg_type import base_type, is_own
from tailrace.query.sql.syntax import refuse
from tailrace.query.table_view import sql_literal

_NATIVE: Final = {
    "bool": "BOOLEAN", "int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT", "float4": "FLOAT", "float8": "DOUBLE",
    "money": "DECIMAL(19, 2)", "bytea": "BLOB", "uuid": "UUID", "date": "DATE", "time": "TIME",
    "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ", "interval": "INTERVAL", "oid": "BIGINT", "xid": "BIGINT",
    "regclass": "BIGINT", "regtype": "BIGINT", "regnamespace": "BIGINT", "regrole": "BIGINT", "cid": "BIGINT",
}  # fmt: skip
STRINGS: Final = frozenset(("text", "varchar", "name", "char"))
"""Types whose representation is plain text that compares by bytes."""
REG: Final = frozenset(("regclass", "regtype", "regnamespace", "regrole"))
INTEGER_DIGITS: Final = {"int2": 5, "int4": 10, "int8": 19, "oid": 10}
MAX_DIGITS: Final = 38


@dataclass(frozen=True)
class Typed:
    sql: str
    type: Type
    modifier: int = -1
    scale: int | None = None
    """The scale of a numeric that is a DECIMAL; None if it is a text."""
    is_list: bool = False
    """Whether an array is a list."""
    literal: str | None = None
    """The text of a literal whose type is not known yet."""
    parameter: int | None = None
    """The number of a parameter whose type is not known yet."""
    fields: tuple[Typed, ...] = ()
    """The parts of a row."""
    is_constant: bool = False
    names: tuple[str, ...] = ()
    """The names of a row's parts, where they have any."""
    infer: Callable[[Type], object] | None = field(default=None, compare=False)
    """Called with the type that a parameter turns out to have."""

    @property
    def base(self) -> Type:
        return base_type(self.type)

    @property
    def name(self) -> str:
        """The name of the type under any domains; for a type of the source, with its schema."""
        return pg_type.name_of(self.base)

    @property
    def is_unknown(self) -> bool:
        return self.type == pg_type.UNKNOWN

    @property
    def is_null(self) -> bool:
        return self.is_unknown and self.literal is None and self.parameter is None

    @property
    def is_struct(self) -> bool:
        """Whether a row is one value of DuckDB's, which a query can return. Others exist only as their parts."""
        return bool(self.fields) and self.sql != "NULL"

    def with_sql(self, sql: str) -> Typed:
        return replace(self, sql=sql, is_constant=False)

    def in_column(self, column: str) -> Typed:
        """The value as another query sees it in a column."""
        parts = [replace(f, sql=f'{column}."{name}"') for f, name in zip(self.fields, self.names, strict=False)]
        return replace(self, sql=column, fields=tuple(parts), is_constant=False, literal=None)


def representation(type_: Type, scale: int | None = None, is_list: bool = False) -> str:
    """The DuckDB type of a value."""
    type_ = base_type(type_)
    if type_.element is not None:
        return f"{representation(type_.element)}[]" if is_list else "VARCHAR"
    if not is_own(type_):
        return "VARCHAR"
    if type_.name == "numeric":
        return "VARCHAR" if scale is None else f"DECIMAL({MAX_DIGITS}, {scale})"
    return _NATIVE.get(type_.name, "VARCHAR")


def null_of(type_: Type, scale: int | None = None, is_list: bool = False) -> str:
    return f"CAST(NULL AS {representation(type_, scale, is_list)})"


def is_column(sql: str) -> bool:
    """Whether an expression is just a column, which costs nothing to repeat."""
    return re.fullmatch(r'[\w.]+|\w+\."(?:[^"]|"")+"', sql) is not None


def text_literal(text: str, type_: Type, modifier: int = -1) -> Typed:
    return Typed(sql_literal(text), type_, modifier, is_constant=True)


def numeric_text(value: Typed) -> str:
    """A numeric as its text."""
    return value.sql if value.scale is None else f"CAST({value.sql} AS VARCHAR)"


def as_numeric_text(value: Typed) -> Typed:
    return value if value.scale is None else replace(value, sql=numeric_text(value), scale=None)


def constant_text(value: Typed, what: str) -> str:
    """The text of an argument that must be a literal."""
    if value.is_constant and (found := re.fullmatch(r"'((?:[^']|'')*)'", value.sql, re.DOTALL)):
        return found[1].replace("''", "'")
    raise refuse(f"{what} that is not a literal")


def is_null_constant(value: Typed) -> bool:
    return value.is_constant and value.sql.startswith("CAST(NULL AS ")


def list_of(items: list[str], type_: Type) -> Typed:
    return Typed(f"CAST([{', '.join(items)}] AS {representation(type_, is_list=True)})", type_, is_list=True)


def as_element(value: Typed) -> str:
    """A value as an element of a list, where numerics are texts and arrays are not allowed."""
    if value.base.element is not None:
        raise refuse("an array of arrays")
    return numeric_text(value) if value.name == "numeric" else value.sql
