"""Names for columns that Tailrace adds or renames, chosen so that no other column has them."""

from __future__ import annotations

from collections.abc import Container
from itertools import count

from tailrace.change import Relation

_POSTGRES_BYTES = 63


def unused_name(name: str, relation: Relation, *, ignore_case: bool = True) -> str:
    """`name`, with as many underscores before it as make it different from the table's own columns.

    Args:
        name: The preferred name.
        relation: The table.
        ignore_case: Whether `A` and `a` are the same name, as they are in Spark and DuckDB.
    """
    taken = {column.name.lower() if ignore_case else column.name for column in relation.columns}
    while (name.lower() if ignore_case else name) in taken:
        name = f"_{name}"
    return name


def numbered_name(name: str, taken: Container[str], *, fits_postgres: bool = False) -> str:
    """The first of `name~1`, `name~2` and so on that is not taken.

    Args:
        name: The name without a number.
        taken: Names that are in use.
        fits_postgres: Whether to truncate `name` so that PostgreSQL can hold the result.
    """
    candidates = (with_suffix(name, f"~{n}") if fits_postgres else f"{name}~{n}" for n in count(1))
    return next(candidate for candidate in candidates if candidate not in taken)


def with_suffix(name: str, suffix: str) -> str:
    """`name` and an ASCII suffix, with `name` truncated to fit the 63 bytes of a PostgreSQL name."""
    return name.encode()[: _POSTGRES_BYTES - len(suffix)].decode(errors="ignore") + suffix
