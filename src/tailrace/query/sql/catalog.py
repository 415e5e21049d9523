"""What the translation needs to know from its session: tables, types, settings, parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tailrace.change import Type
from tailrace.query.sql.scope import NamedColumn
from tailrace.query.sql.typed import Typed


@dataclass(frozen=True)
class Source:
    """A table: its name in DuckDB and its columns, whose SQL is the column's name only."""

    sql: str
    columns: tuple[NamedColumn, ...]
    schema: str | None = None
    key: frozenset[str] = frozenset()
    """The names of the primary key's columns."""


class Catalog(Protocol):
    def source(self, database: str | None, schema: str | None, name: str) -> Source:
        """The table with this name. Raises QueryError if there is none."""

    def type(self, schema: str | None, name: str) -> Type | None:
        """A type of the source, such as an enum."""

    def oid(self, kind: str, name: str) -> int | None:
        """The OID that a name has as `regclass` or `regtype`."""

    def constant(self, name: str) -> str | None:
        """The SQL of a function without arguments whose value the session knows, such as current_user."""

    def setting(self, name: str) -> str | None: ...

    def set_config(self, name: str, value: str, is_local: bool) -> None: ...

    def search_path(self) -> list[str]: ...

    def parameter(self, number: int) -> Typed: ...

    def table_function(self, name: str) -> Source | None:
        """A function of Tailrace's own in FROM, such as tailrace.freshness()."""
