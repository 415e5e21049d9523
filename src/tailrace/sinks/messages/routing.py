"""Destinations by template: `{schema}.{table}`, `{database}`, `{operation}`, and columns of the row by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from string import Formatter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import ConfigError, PoisonError
from tailrace.log.decoding import OPERATIONS, TableChanges
from tailrace.sinks.messages.row_image import current_values

_TABLE_FIELDS: Final = ("database", "schema", "table")
_OPERATION: Final = "operation"
_EXAMPLE: Final = "for example '{schema}.{table}', or 'events.{region}' for a column `region`"


def _as_is(name: str) -> str:
    return name


@dataclass(frozen=True)
class DestinationTemplate:
    """Makes the destination of each change. `parse` checks the template."""

    parts: tuple[tuple[str, str | None], ...]
    """Literal text, each followed by a placeholder or, at the end, by nothing."""
    database: str = ""
    escape: Callable[[str], str] = _as_is
    """Makes a name or value safe at the destination. Must not map two names to the same text."""

    @classmethod
    def parse(cls, template: str, database: str = "", escape: Callable[[str], str] = _as_is) -> DestinationTemplate:
        """Parse a template.

        Args:
            template: Text with placeholders in braces. Two braces stand for one.
            database: The source's name, for `{database}`.
            escape: Makes a name or value safe at the destination.
        """
        try:
            parsed = [(text, name, spec, conversion) for text, name, spec, conversion in Formatter().parse(template)]
        except ValueError as error:
            raise ConfigError(f"{template!r} is not a template: {error}", _EXAMPLE) from None
        if not parsed:
            raise ConfigError("the template of destinations is empty", _EXAMPLE)
        if any(name == "" or spec or conversion for _, name, spec, conversion in parsed):
            raise ConfigError(f"{template!r}: a placeholder is a name in braces and nothing else", _EXAMPLE)
        for (_, name, _, _), (text, following, _, _) in pairwise(parsed):
            if name is not None and following is not None and not text:
                # {schema}{table} would be the same for a.bc and ab.c.
                raise ConfigError(f"{template!r}: there is nothing between {{{name}}} and {{{following}}}", _EXAMPLE)
        return cls(tuple((text, name) for text, name, _, _ in parsed), database, escape)

    @property
    def columns(self) -> list[str]:
        """The columns of the row that it needs."""
        return [name for _, name in self.parts if name is not None and name not in (*_TABLE_FIELDS, _OPERATION)]

    def of_table(self, target: tuple[str, str]) -> str:
        """Return a table's destination, with `*` for what differs between its changes. Two tables must not share it."""
        fields = self._table_fields(target)
        return "".join(text + ("" if name is None else fields.get(name, "*")) for text, name in self.parts)

    def of_operation(self, target: tuple[str, str], operation: str) -> str:
        """Return the destination of a message about a table, for a template without columns."""
        fields = {**self._table_fields(target), _OPERATION: operation.lower()}
        return "".join(text + ("" if name is None else fields[name]) for text, name in self.parts)

    def of_changes(self, changes: TableChanges) -> pa.Array:
        """Return the destination of each change.

        Raises a PoisonError for changes whose row lacks a value that the template needs.
        """
        if self.columns:
            return self._by_column(changes)
        known = np.unique(changes.operation)
        texts = [self.of_operation(changes.target, OPERATIONS[int(kind)]) for kind in known]
        return pa.array(texts, pa.string()).take(pa.array(np.searchsorted(known, changes.operation)))

    def _by_column(self, changes: TableChanges) -> pa.Array:
        fields: dict[str, pa.Array | str] = {**self._table_fields(changes.target)}
        for column in self.columns:
            fields[column] = self._column(changes, column)
        operations = [OPERATIONS[int(kind)].lower() for kind in changes.operation]
        fields[_OPERATION] = pa.array(operations, pa.string())
        pieces = [piece for text, name in self.parts for piece in (text, *([] if name is None else [fields[name]]))]
        return pc.binary_join_element_wise(*pieces, "")

    def _column(self, changes: TableChanges, name: str) -> pa.Array:
        names = [column.name for column in changes.relation.columns]
        if name not in names:
            raise ConfigError(
                f"{changes.relation.qualified_name} has no column {name}, which its destination needs",
                "Use another template, or exclude the table.",
            )
        texts, present = current_values(changes, names.index(name))
        lacks = pc.is_null(texts).to_numpy(zero_copy_only=False)
        lacks = lacks if present is None else lacks | ~present
        if lacks.any():
            positions = tuple(str(changes.at.position(int(row))) for row in np.flatnonzero(lacks))
            raise PoisonError(
                f"{changes.relation.qualified_name}, {positions[0]}: column {name}, which the destination depends on,"
                " is null or was not sent",
                "REPLICA IDENTITY FULL makes PostgreSQL send it for deleted rows.",
                positions,
            )
        distinct = texts.dictionary_encode()
        escaped = pa.array([self.escape(value) for value in distinct.dictionary.to_pylist()], pa.string())
        return escaped.take(distinct.indices)

    def _table_fields(self, target: tuple[str, str]) -> dict[str, str]:
        values = (self.database, *target)
        return {name: self.escape(value) for name, value in zip(_TABLE_FIELDS, values, strict=True)}
