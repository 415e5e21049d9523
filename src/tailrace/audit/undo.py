"""Changes taken back: for each of them, the last first, the statement that undoes it. Pure.

A statement says what it expects to find, so that it changes nothing where somebody has changed the row since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from tailrace.audit.exact_json import dumps, text
from tailrace.audit.trail import Row
from tailrace.errors import RevertError
from tailrace.sinks.audit.rows import ERASED


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    """As PostgreSQL's catalogue calls it: `format_type`."""
    is_generated: bool = False
    is_masked: bool = False
    """In the trail: what it holds is not the value."""

    @property
    def is_json(self) -> bool:
        return self.type in ("json", "jsonb")

    def literal(self, value: Any) -> sql.Composable:
        found = dumps(value) if self.is_json and value is not None else text(value)
        return sql.SQL("NULL") if found is None else sql.Literal(found)

    def matches(self, value: Any) -> sql.Composable:
        """That the column holds this value: by the type's own equality, where it has one that tells values apart."""
        name, wanted = sql.Identifier(self.name), self.literal(value)
        if value is None:
            return sql.SQL("{} IS NULL").format(name)
        if self.type == "json":
            return sql.SQL("{}::jsonb = {}::jsonb").format(name, wanted)
        # A type of somebody's own: its equality is not found where only pg_catalog is searched, if it has any.
        if self.type.removesuffix("[]") in _BY_TEXT or self.type == "json[]" or "." in self.type:
            return sql.SQL("{}::text = {}::{}::text").format(name, wanted, sql.SQL(self.type))
        return sql.SQL("{} = {}").format(name, wanted)


_BY_TEXT: Final = frozenset({"xml", "point", "box", "path", "polygon", "circle", "line", "lseg"})
"""Types without equality, or with one of areas."""


@dataclass(frozen=True)
class Target:
    """The table as it is now."""

    schema: str
    table: str
    columns: Mapping[str, Column]
    key: tuple[str, ...]
    """Columns that identify a row; none where nothing does."""

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)


@dataclass(frozen=True)
class Statement:
    change: Row
    guarded: sql.Composed
    """Changes the row only if it is as the change left it."""
    forced: sql.Composed
    """Changes it as long as it is there."""


Image = Mapping[str, Any]
"""A row as far as it is known."""


def left(change: Row) -> Image:
    """The row as the change left it."""
    return {name: value for name, value in (change.after or {}).items() if name not in (change.unchanged or ())}


def statements(
    changes: Sequence[Row], found: Mapping[int, Image], targets: Mapping[tuple[str, str], Target]
) -> Iterator[Statement]:
    """In the order in which they are to run. `found`: by place in `changes`, the row as the change found it."""
    for number in reversed(range(len(changes))):
        change = changes[number]
        target = targets[change.schema, change.table]
        match change.operation:
            case "INSERT" | "CREATE":
                yield _uninsert(change, target)
            case "UPDATE":
                made = _unupdate(change, target, found[number])
                if made is not None:
                    yield made
            case "DELETE":
                yield _undelete(change, target, found[number])
            case other:
                raise RevertError(
                    f"{change.position}: {other} of {change.qualified_name} has no rows to bring back",
                    "the trail has no before-images of it: `tailrace log` has the rows, from a snapshot on",
                )


def _uninsert(change: Row, target: Target) -> Statement:
    image = left(change)
    names = _known(target, change, image)
    return Statement(
        change,
        _delete(target, _where(target, image, names)),
        _delete(target, _where(target, image, target.key or names)),
    )


def _unupdate(change: Row, target: Target, before: Image) -> Statement | None:
    image = left(change)
    names = _known(target, change, image)
    _known(target, change, {name: value for name, value in before.items() if name in names})
    unknown = [name for name in names if name not in before]
    if unknown:
        raise RevertError(
            f"{change.position}: what {', '.join(unknown)} of {change.qualified_name} {change.primary_key} was before "
            "is not known",
            "from now on it is with ALTER TABLE … REPLICA IDENTITY FULL",
        )
    changed = [name for name in names if _differ(before[name], image[name])]
    if not changed:
        return None
    sets = sql.SQL(", ").join(
        [sql.SQL("{} = {}").format(sql.Identifier(n), target.columns[n].literal(before[n])) for n in changed]
    )

    def update(where: sql.Composable) -> sql.Composed:
        return sql.SQL("UPDATE {} SET {} WHERE {}").format(target.identifier, sets, where)

    guards = [*target.key, *(name for name in changed if name not in target.key)] if target.key else names
    return Statement(change, update(_where(target, image, guards)), update(_where(target, image, target.key or names)))


def _undelete(change: Row, target: Target, before: Image) -> Statement:
    columns = [c for c in target.columns.values() if not c.is_generated]
    unknown = [c.name for c in columns if c.name not in before]
    if unknown:
        raise RevertError(
            f"{change.position}: what {', '.join(unknown)} of {change.qualified_name} {change.primary_key} was is not "
            "known: the row cannot be brought back whole",
            "from now on it is with ALTER TABLE … REPLICA IDENTITY FULL",
        )
    _known(target, change, before)
    insert = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
        target.identifier,
        sql.SQL(", ").join([sql.Identifier(c.name) for c in columns]),
        sql.SQL(", ").join([c.literal(before[c.name]) for c in columns]),
    )
    return Statement(change, insert, insert)


def _known(target: Target, change: Row, image: Image) -> list[str]:
    """The columns of an image that the table has; all of them, or it is another table by now."""
    strangers = [name for name in image if name not in target.columns]
    if strangers:
        raise RevertError(
            f"{change.qualified_name} has no column {', '.join(strangers)} any more, which {change.position} knows",
            "its columns were renamed or dropped since: this has to be undone by hand",
        )
    masked = [name for name in image if target.columns[name].is_masked]
    if masked:
        raise RevertError(
            f"{change.qualified_name}: {', '.join(masked)} is masked in the trail, and cannot be written back",
            "undo this by hand; a trail without masks is needed to revert",
        )
    erased = [name for name, value in image.items() if value == ERASED]
    if erased:
        raise RevertError(
            f"{change.qualified_name} {change.primary_key}: {', '.join(erased)} was erased from the trail",
            "nobody knows what it was: this has to be undone by hand",
        )
    return [name for name in image if not target.columns[name].is_generated]


def _where(target: Target, image: Image, names: Sequence[str]) -> sql.Composable:
    matching = sql.SQL(" AND ").join([target.columns[name].matches(image[name]) for name in names])
    if target.key:
        return matching
    # Of rows that are the same, one.
    return sql.SQL("ctid = (SELECT ctid FROM {} WHERE {} LIMIT 1)").format(target.identifier, matching)


def _delete(target: Target, where: sql.Composable) -> sql.Composed:
    return sql.SQL("DELETE FROM {} WHERE {}").format(target.identifier, where)


def _differ(one: Any, other: Any) -> bool:
    return bool(one != other or isinstance(one, bool) != isinstance(other, bool))
