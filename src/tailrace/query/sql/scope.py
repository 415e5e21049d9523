"""The names that an expression can use: tables, their columns, and what surrounds a subquery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tailrace.query.query_error import QueryError
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.typed import Typed

_SYSTEM_COLUMNS: Final = frozenset(("xmin", "xmax", "cmin", "cmax", "ctid", "tableoid"))


@dataclass(frozen=True)
class NamedColumn:
    name: str
    value: Typed


@dataclass(frozen=True)
class TableName:
    """A table's alias and its columns, for `alias.column`."""

    alias: str
    columns: tuple[NamedColumn, ...]
    schema: str | None = None
    key: frozenset[str] = frozenset()
    """The SQL of the primary key's columns."""


@dataclass(frozen=True)
class FromItem:
    sql: str
    tables: tuple[TableName, ...]
    columns: tuple[NamedColumn, ...]
    """What `*` and names without a table see. JOIN … USING has each shared column once."""
    scalar: str | None = None
    """The alias of a function that returns one column: the alias alone means the value."""
    order: str = ""
    """The order of the rows, where an aggregate depends on it."""


@dataclass(frozen=True)
class CommonTable:
    """A query of WITH."""

    sql: str
    columns: tuple[NamedColumn, ...]
    is_sorted: bool = False


@dataclass
class Scope:
    parent: Scope | None = None
    items: list[FromItem] = field(default_factory=list)
    groups: dict[str, Typed] = field(default_factory=dict)
    """Fingerprint of a GROUP BY expression → what stands for it after grouping."""
    windows: dict[str, object] = field(default_factory=dict)
    in_aggregate: bool = False
    dependent: set[str] = field(default_factory=set)
    """The SQL of columns that GROUP BY does not list, but of tables whose primary keys it lists."""

    def grouped(self, value: Typed) -> Typed:
        """A column as grouping leaves it."""
        return value.with_sql(f"any_value({value.sql})") if value.sql in self.dependent else value

    def tables(self) -> Iterator[TableName]:
        for item in self.items:
            yield from item.tables

    def column(self, name: str) -> Typed:
        scope: Scope | None = self
        while scope is not None:
            found = [c.value for item in scope.items for c in item.columns if c.name == name]
            if len(found) > 1:
                raise QueryError("42702", f'column reference "{name}" is ambiguous')
            if found:
                return found[0]
            row = [item for item in scope.items if item.scalar == name]
            if row:
                return row[0].columns[0].value
            if whole := scope.row(name):
                return whole
            scope = scope.parent
        if name in _SYSTEM_COLUMNS:
            raise refuse(f"the system column {name}", "The lake has rows without their places in the source.")
        raise QueryError("42703", f'column "{name}" does not exist')

    def row(self, alias: str) -> Typed | None:
        """A whole row of a table."""
        from tailrace.query.sql import pg_type

        for table in self.tables():
            if table.alias == alias:
                names = tuple(c.name for c in table.columns)
                return Typed("NULL", pg_type.RECORD, fields=tuple(c.value for c in table.columns), names=names)
        return None

    def table(self, alias: str, schema: str | None = None) -> TableName:
        scope: Scope | None = self
        while scope is not None:
            found = [t for t in scope.tables() if t.alias == alias and (schema is None or t.schema == schema)]
            if len(found) > 1:
                raise QueryError("42P09", f'table reference "{alias}" is ambiguous')
            if found:
                return found[0]
            scope = scope.parent
        raise QueryError("42P01", f'missing FROM-clause entry for table "{alias}"')

    def qualified(self, alias: str, name: str, schema: str | None = None) -> Typed:
        table = self.table(alias, schema)
        found = [c.value for c in table.columns if c.name == name]
        if not found and name in _SYSTEM_COLUMNS:
            raise refuse(f"the system column {name}", "The lake has rows without their places in the source.")
        if not found:
            raise QueryError("42703", f"column {alias}.{name} does not exist")
        if len(found) > 1:
            raise QueryError("42702", f'column reference "{name}" is ambiguous')
        return found[0]


def renamed(columns: Sequence[NamedColumn], aliases: Sequence[str]) -> list[NamedColumn]:
    if len(aliases) > len(columns):
        raise QueryError("42P10", f"table has {len(columns)} columns available but {len(aliases)} columns specified")
    return [replace(c, name=aliases[n]) if n < len(aliases) else c for n, c in enumerate(columns)]
