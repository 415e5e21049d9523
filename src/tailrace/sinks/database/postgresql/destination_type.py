"""The type that a column of the source has at the destination."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from tailrace import types
from tailrace.change import Column, Type
from tailrace.sinks.database.staged_rows import StagingField

TEXT: Final = "text"


class DestinationTypes:
    """Maps the source's types to the destination's.

    PostgreSQL's own types are unchanged and domains become their base type. Other types are unchanged if the
    destination has a type of the same name, and text otherwise.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._exists_by_name: dict[str, bool] = {}

    def of(self, column: Column) -> str:
        """The column's type in SQL, for a session whose search path contains only pg_catalog."""
        return self._type_name(column.type, column.modifier)

    def of_field(self, field: StagingField) -> str:
        return field.type if isinstance(field.type, str) else self.of(field.type)

    def _type_name(self, declared: Type, modifier: int) -> str:
        type_, modifier = types.base(declared, modifier)
        if type_.element is not None:
            element = self._type_name(type_.element, modifier)
            return TEXT if element == TEXT and not _is_text(type_.element) else f"{element}[]"
        name = types.sql_name(type_, modifier)
        return name if self._exists(type_) else TEXT

    def _exists(self, type_: Type) -> bool:
        name = f"{_quote_type(type_.schema)}.{_quote_type(type_.name)}"
        if name not in self._exists_by_name:
            row = self._connection.execute("SELECT to_regtype(%s) IS NOT NULL", [name]).fetchone()
            assert row is not None
            self._exists_by_name[name] = bool(row[0])
        return self._exists_by_name[name]


def _is_text(element: Type) -> bool:
    base, _ = types.base(element, -1)
    return (base.schema, base.name) == ("pg_catalog", "text")


def _quote_type(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
