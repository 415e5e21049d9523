"""Values that break careless renderings, and the expressions to try on each of them: `edges.txt`.

A block begins with a type. Lines with `=` are its values, the others are expressions over the column x. The first block
has expressions for all types.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EdgeCase:
    """An expression over values of a type."""

    type: str
    values: tuple[str, ...]
    expression: str

    def query(self, values: tuple[str, ...] | None = None) -> str:
        """The expression for some of the values, in a fixed order."""
        first, *others = values or self.values
        rows = ", ".join(f"({n}, {value})" for n, value in enumerate((f"{first}::{self.type}", *others), 1))
        return f"SELECT n, {self.expression} FROM (VALUES {rows}) v(n, x) ORDER BY n"


def edge_cases() -> list[EdgeCase]:
    general, *blocks = Path(__file__).with_name("edges.txt").read_text("utf-8").rstrip("\n").split("\n\n")
    found = []
    for block in blocks:
        name, *lines = block.split("\n")
        values = tuple(line.removeprefix("= ") for line in lines if line.startswith("= "))
        expressions = [line for line in lines if not line.startswith("= ")] + general.split("\n")[1:]
        found += [EdgeCase(name, values, expression) for expression in expressions]
    return found
