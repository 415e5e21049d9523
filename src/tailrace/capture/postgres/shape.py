"""What changed between two versions of a table, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace import types
from tailrace.change import Column, Relation


def describe_change(old: Relation, new: Relation) -> str:
    """The difference for a log line. Columns are matched by number, or by name where the number is unknown."""
    return "; ".join(_differences(old, new)) or "its definition changed"


def _differences(old: Relation, new: Relation) -> Iterator[str]:
    if old.qualified_name != new.qualified_name:
        yield f"renamed to {new.qualified_name}"
    before = {_identity(column): column for column in old.columns}
    after = {_identity(column): column for column in new.columns}
    for key, column in after.items():
        if (earlier := before.get(key)) is None:
            yield f"added column {column.name} {_type(column)}"
            continue
        if earlier.name != column.name:
            yield f"renamed column {earlier.name} to {column.name}"
        if _type(earlier) != _type(column):
            yield f"column {column.name} is {_type(column)} instead of {_type(earlier)}"
    for key, column in before.items():
        if key not in after:
            yield f"dropped column {column.name}"
    if old.key != new.key and {c.name for c in old.columns} == {c.name for c in new.columns}:
        yield f"the key is ({', '.join(new.key)}) instead of ({', '.join(old.key)})"
    if old.identity != new.identity:
        yield f"the replica identity is {_IDENTITIES.get(new.identity, new.identity)}"


_IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "an index"}


def _identity(column: Column) -> int | str:
    return column.name if column.number is None else column.number


def _type(column: Column) -> str:
    return types.sql_name(column.type, column.modifier)
