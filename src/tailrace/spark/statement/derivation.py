"""What a statement makes of one relation: the driver works it out once, tasks get it pickled. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.change import Relation

HIDDEN: Final = "_tailrace"
"""The column that says to which change a row belongs."""
CONTROL: Final = "_tailrace_control"
"""True in rows that are no rows of the table: they pass every condition, and nothing is computed for them."""
PARTIAL: Final = "_tailrace_partial"
"""True in those, and in rows of which only the key is known."""

CHANGES: Final = Relation(0, "tailrace", "changes", "n", ())
"""What a statement over `changes` reads: the change stream, whose columns are Spark's, not a table's."""


@dataclass(frozen=True)
class ResultColumn:
    """A column of the statement's result."""

    name: str
    source: str | None
    """The table's column that it shows as it is, under this name or another. None for an expression."""
    uses: frozenset[str]
    """The table's columns that it is computed from."""


@dataclass(frozen=True)
class Derivation:
    where: str
    """The sink and the statement, for messages."""
    source: Relation
    """As the statement sees it: shaped by the settings."""
    result: Relation
    columns: tuple[ResultColumn, ...]
    """Those of `result`, in order."""
    condition: frozenset[str]
    """The table's columns that decide whether a row is in the result."""

    @property
    def computed_from(self) -> frozenset[str]:
        """Columns whose values must be known: a column that is only shown may stay unsent."""
        return self.condition.union(*(c.uses for c in self.columns if c.source is None))
