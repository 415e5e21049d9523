"""A translated query: its columns, and its SQL for the select list that the surrounding query wants."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tailrace.query.sql.cast import convert
from tailrace.query.sql.pg_type import TEXT
from tailrace.query.sql.scope import NamedColumn
from tailrace.query.sql.typed import Typed, as_element
from tailrace.query.sql.unification import align_to


@dataclass
class Query:
    """A translated query whose columns are `_c1`, `_c2`, …"""

    columns: list[NamedColumn]
    build: Callable[[Sequence[Typed]], str]
    """The SQL, given the select list in its final types."""
    prefix: str = ""
    """WITH …"""
    sort_keys: Sequence[str] = ()
    """The items of ORDER BY, if `build` accepts their keys as further columns."""

    def typed(self) -> list[Typed]:
        """The select list with known types: a literal without a type is a text."""
        return [convert(c.value, TEXT) if c.value.is_unknown else c.value for c in self.columns]

    def resolved(self) -> list[NamedColumn]:
        """The columns as the surrounding query sees them."""
        return [
            NamedColumn(c.name, v.in_column(f"_c{n}"))
            for n, (c, v) in enumerate(zip(self.columns, self.typed(), strict=True), 1)
        ]

    def sql(self, as_elements: bool = False) -> str:
        values = self.typed()
        if as_elements:
            values = [replace(v, sql=as_element(v)) for v in values]
        return self.prefix + self.build(values)

    def converted(self, targets: Sequence[Typed]) -> str:
        """The SQL with the columns in the types and representations of `targets`."""
        values = [align_to(convert(c.value, t.type), t) for c, t in zip(self.columns, targets, strict=True)]
        return self.prefix + self.build(values)

    def sorted_sql(self, as_elements: bool = False) -> tuple[str, list[str]]:
        """The SQL with the keys of ORDER BY as further columns, and an ORDER BY for a list of the rows.

        DuckDB's aggregates ignore the order of the rows of a subquery, which PostgreSQL's see."""
        if not self.sort_keys:
            return self.sql(as_elements), []
        keys, order = [], []
        for number, item in enumerate(self.sort_keys, len(self.columns) + 1):
            key, direction, nulls = re.fullmatch(r"(.*) (ASC|DESC) (NULLS \w+)", item, re.DOTALL).groups()  # type: ignore[union-attr]
            keys.append(Typed(key, TEXT))
            order.append(f"_c{number} {direction} {nulls}")
        values = self.typed()
        if as_elements:
            values = [replace(v, sql=as_element(v)) for v in values]
        return self.prefix + self.build([*values, *keys]), order
