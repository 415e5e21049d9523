"""Where a table is in MySQL: its database and name."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.sinks.mysql.identifier import identifier, quote


class TableName(NamedTuple):
    database: str
    name: str

    @property
    def sql(self) -> str:
        return f"{quote(self.database)}.{quote(self.name)}"

    @property
    def template(self) -> str:
        """The name in SQL, for a statement with arguments."""
        return self.sql.replace("%", "%%")

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


class TableNames:
    """The names that a sink's tables have."""

    def __init__(self, database: str, *, is_per_schema: bool) -> None:
        """`database` is the URL's. With `is_per_schema`, each schema is a database of its own."""
        self._database = database
        self._is_per_schema = is_per_schema

    def of(self, target: tuple[str, str]) -> TableName:
        """The name of a table, given the schema and name that the sink's settings route it to."""
        schema, name = target
        if self._is_per_schema:
            return TableName(identifier(schema), identifier(name))
        return TableName(self._database, identifier(name if schema == "public" else f"{schema}_{name}"))

    def own(self, name: str) -> TableName:
        """The name of one of Tailrace's own tables."""
        return TableName(self._database, f"tailrace_{name}")

    def staged(self, name: str) -> TableName:
        """The name of a staging table, from a receipt."""
        return TableName(self._database, name)
