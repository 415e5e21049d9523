"""How a table's columns become those of the next relation: what Iceberg does in place, and what takes a rewrite. Pure.

In place: a column that comes (older rows show what PostgreSQL shows), goes, gets another name or a wider type. Every
other change of a type makes a new column, whose values are cast from those of the old one: all files are rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tailrace import text, types
from tailrace.change import Column, Relation
from tailrace.log.evolution import dropped, origins
from tailrace.sinks.iceberg.schema import IcebergType, digits, doc, may_be_special, type_of

_WIDER: Final = {("int", "long"), ("float", "double")}


@dataclass(frozen=True)
class Addition:
    column: Column
    default: str | None
    """What older rows show, in the form that Iceberg reads."""


@dataclass(frozen=True)
class Evolution:
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    widened: tuple[tuple[str, IcebergType], ...] = ()
    """By their old names, as are the documented ones."""
    added: tuple[Addition, ...] = ()
    documented: tuple[tuple[str, str | None], ...] = ()
    is_rewrite: bool = False
    """Values have to be written anew: of another type, or what older rows show and Iceberg cannot hold as a default."""
    moves_special: bool = False
    """A column has another name, or is gone, whose special values stand beside the rows by its name."""


def evolution(old: Relation, new: Relation, *, rows_stay: bool) -> Evolution:
    """`rows_stay`: whether there are rows that stay; else every type can become every other."""
    gone = [old.columns[index].name for index in dropped(old, new)]
    renamed, widened, added, documented, is_rewrite = [], [], [], [], False
    for column, origin in zip(new.columns, origins(old, new), strict=True):
        if origin.index is None:
            default = None
            if rows_stay and origin.missing is not None:
                default = _default(column, origin.missing)
                is_rewrite |= default is None
            added.append(Addition(column, default))
            continue
        before = old.columns[origin.index]
        if is_same_or_wider(type_of(before), type_of(column)):
            if before.name != column.name:
                renamed.append((before.name, column.name))
            if type_of(before) != type_of(column):
                widened.append((before.name, type_of(column)))
            if doc(before) != doc(column):
                documented.append((before.name, doc(column)))
            continue
        gone.append(before.name)
        added.append(Addition(column, None))
        is_rewrite |= rows_stay
    stale = {*gone, *(name for name, _ in renamed)}
    return Evolution(
        tuple(gone),
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
        (p, s), (q, t) = digits(old), digits(new)
        return s == t and p <= q
    return False


def _default(column: Column, missing: str) -> str | None:
    """As Iceberg reads a literal of the type; None where it has none."""
    kind = type_of(column)
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
