"""What DDL changed in a table's definition, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tailrace.log.schema_record import RecordedTable

_IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "an index"}


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def describe_change(old: RecordedTable, new: RecordedTable) -> str:
    """The difference between two definitions of one table, for a log line."""
    return "; ".join(_differences(old, new)) or "its definition changed"


def _differences(old: RecordedTable, new: RecordedTable) -> Iterator[str]:
    if old.qualified_name != new.qualified_name:
        yield f"renamed to {new.qualified_name}"
    yield from _column_differences(old, new)
    if old.identity != new.identity:
        yield f"the replica identity is {_IDENTITIES.get(new.identity, new.identity)}"
    for noun, before, after in (
        ("constraint", old.constraints, new.constraints),
        ("index", old.indexes, new.indexes),
        ("partition", old.partitions, new.partitions),
    ):
        yield from _part_differences(noun, before, after)


def _column_differences(old: RecordedTable, new: RecordedTable) -> Iterator[str]:
    before = {column.number: column for column in old.columns}
    for column in new.columns:
        if (earlier := before.pop(column.number, None)) is None:
            yield f"added column {column.name} {column.type}"
            continue
        if earlier.name != column.name:
            yield f"renamed column {earlier.name} to {column.name}"
        if earlier.type != column.type:
            yield f"column {column.name} is {column.type} instead of {earlier.type}"
        if earlier.not_null != column.not_null:
            yield f"column {column.name} is {'NOT NULL' if column.not_null else 'nullable'}"
        if earlier.default != column.default:
            yield f"the default of column {column.name} changed"
    for column in before.values():
        yield f"dropped column {column.name}"


def _part_differences(noun: str, old: Sequence[_Named], new: Sequence[_Named]) -> Iterator[str]:
    before = {part.name: part for part in old}
    for part in new:
        if (earlier := before.pop(part.name, None)) is None:
            yield f"added {noun} {part.name}"
        elif earlier != part:
            yield f"{noun} {part.name} changed"
    for name in before:
        yield f"dropped {noun} {name}"
