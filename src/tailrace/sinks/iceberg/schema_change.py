"""Plans how a table's columns change to those of the next relation: in place, or by rewriting all files. Pure.

In place: adding a column (older rows show what PostgreSQL shows), dropping or renaming one, widening its type. Any
other change of type creates a new column with values cast from the old one, and all files are rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tailrace import text, types
from tailrace.change import Column, Relation
from tailrace.sinks.iceberg.iceberg_schema import (
    IcebergType,
    column_doc,
    iceberg_type,
    may_be_special,
    precision_and_scale,
)
from tailrace.state.evolution import dropped_columns, origins

_WIDER: Final = {("int", "long"), ("float", "double")}


@dataclass(frozen=True)
class AddedColumn:
    column: Column
    default: str | None
    """What older rows show, as a literal that Iceberg can parse."""


@dataclass(frozen=True)
class SchemaChange:
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    widened: tuple[tuple[str, IcebergType], ...] = ()
    """By old name, as in `documented`."""
    added: tuple[AddedColumn, ...] = ()
    documented: tuple[tuple[str, str | None], ...] = ()
    is_rewrite: bool = False
    """Values must be rewritten: their type changed, or Iceberg cannot hold what older rows show as a default."""
    moves_special: bool = False
    """A column was renamed or dropped whose special values are stored under its name."""


def plan_schema_change(old: Relation, new: Relation, *, rows_stay: bool) -> SchemaChange:
    """The changes from `old` to `new`.

    `rows_stay`: whether existing rows stay; without rows, no type change needs a rewrite.
    """
    dropped_names = [old.columns[index].name for index in dropped_columns(old, new)]
    renamed, widened, added, documented, is_rewrite = [], [], [], [], False
    for column, origin in zip(new.columns, origins(old, new), strict=True):
        if origin.index is None:
            default = None
            if rows_stay and origin.missing is not None:
                default = _default(column, origin.missing)
                is_rewrite |= default is None
            added.append(AddedColumn(column, default))
            continue
        before = old.columns[origin.index]
        if is_same_or_wider(iceberg_type(before), iceberg_type(column)):
            if before.name != column.name:
                renamed.append((before.name, column.name))
            if iceberg_type(before) != iceberg_type(column):
                widened.append((before.name, iceberg_type(column)))
            if column_doc(before) != column_doc(column):
                documented.append((before.name, column_doc(column)))
            continue
        dropped_names.append(before.name)
        added.append(AddedColumn(column, None))
        is_rewrite |= rows_stay
    stale = {*dropped_names, *(name for name, _ in renamed)}
    return SchemaChange(
        tuple(dropped_names),
        tuple(renamed),
        tuple(widened),
        tuple(added),
        tuple(documented),
        is_rewrite,
        rows_stay and any(c.name in stale and may_be_special(c) for c in old.columns),
    )


def is_same_or_wider(old: IcebergType, new: IcebergType) -> bool:
    if old == new or (old, new) in _WIDER:
        return True
    if isinstance(old, str) and isinstance(new, str) and old.startswith("decimal") and new.startswith("decimal"):
        (p, s), (q, t) = precision_and_scale(old), precision_and_scale(new)
        return s == t and p <= q
    return False


def _default(column: Column, missing: str) -> str | None:
    """The value as a literal that Iceberg can parse; None if the type has none for it."""
    kind = iceberg_type(column)
    value: Any = types.mapping(column).arrow_value(missing.encode())
    if value is text.SPECIAL or not isinstance(kind, str) or kind in ("binary", "uuid"):
        return None
    if kind in ("timestamp", "timestamptz") and (missing.endswith("BC") or len(missing.partition("-")[0]) != 4):
        return None
    match kind:
        case "boolean":
            return "true" if value else "false"
        case "timestamp":
            return missing.replace(" ", "T")
        case "timestamptz":
            return missing.replace(" ", "T").removesuffix("+00") + "+00:00"
        case "date":
            return missing if len(missing) == 10 else None
        case "float" | "double":
            return missing if missing not in ("NaN", "Infinity", "-Infinity") else None
    return missing
