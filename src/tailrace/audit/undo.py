"""Changes taken back: for each of them, the last first, the statement that undoes it. Pure.

A statement says what it expects to find, so that it changes nothing where somebody has changed the row since.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    is_required: bool = False
    """NOT NULL."""

    @property
    def is_json(self) -> bool:
        return self.type in ("json", "jsonb")

    def literal(self, value: Any) -> sql.Composable:
        # The trail has one null for SQL's and JSON's.
        found = dumps(value) if self.is_json and (value is not None or self.is_required) else text(value)
        return sql.SQL("NULL") if found is None else sql.Literal(found)

    def matches(self, value: Any) -> sql.Composable:
        """That the column holds this value: by the type's own equality, where it has one that tells values apart."""
        name, wanted = sql.Identifier(self.name), self.literal(value)
        if value is None and self.is_json:
            return sql.SQL("coalesce({}::jsonb = 'null', true)").format(name)
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

Place = tuple[str, str]
"""Schema and table."""


@dataclass(frozen=True)
class Reference:
    """A foreign key."""

    child: Place
    columns: tuple[str, ...]
    parent: Place
    parent_columns: tuple[str, ...]
    follows_deletes: bool
    """What happens to children when their parent goes is no error, but CASCADE or the like."""


@dataclass(frozen=True)
class Target:
    """The table as it is now."""

    schema: str
    table: str
    columns: Mapping[str, Column]
    key: tuple[str, ...]
    """Columns that identify a row; none where nothing does."""
    references: tuple[Reference, ...] = ()
    """From it to others, and from others to it."""

    @property
    def place(self) -> Place:
        return self.schema, self.table

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)


Image = Mapping[str, Any]
"""A row as far as it is known."""


@dataclass(frozen=True)
class Statement:
    change: Row
    guarded: sql.Composed
    """Changes the row only if it is as the change left it."""
    forced: sql.Composed
    """Changes it as long as it is there."""
    brings: Image | None = None
    """The row as it leaves it; None where it removes it."""
    done: sql.Composed | None = None
    """Finds the row where it is already as it should be: a foreign key's CASCADE was faster."""


def left(change: Row) -> Image:
    """The row as the change left it."""
    return {name: value for name, value in (change.after or {}).items() if name not in (change.unchanged or ())}


def statements(
    changes: Sequence[Row], found: Mapping[int, Image], targets: Mapping[tuple[str, str], Target]
) -> Iterator[Statement]:
    """The last change first. `found`: by place in `changes`, the row as the change found it."""
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


def ordered(found: Sequence[Statement], references: Iterable[Reference]) -> list[Statement]:
    """In the order in which they are to run: as they are, but a row that others refer to comes back before those.

    What a CASCADE did comes after its cause in the log, so it would be undone before it, and refused.
    """
    brought: dict[tuple[Place, tuple[str, ...]], dict[tuple[str, ...], list[int]]] = {}
    references = set(references)
    for reference in references:
        rows = brought.setdefault((reference.parent, reference.parent_columns), {})
        for number, statement in enumerate(found):
            if (values := _values(statement, reference.parent, reference.parent_columns)) is not None:
                rows.setdefault(values, []).append(number)
    before: list[set[int]] = [set() for _ in found]
    last: dict[tuple[Place, str | None], int] = {}
    for number, statement in enumerate(found):
        change = statement.change
        place = change.schema, change.table
        for key in {change.primary_key, change.key_before}:
            if (place, key) in last:
                before[number].add(last[place, key])
            last[place, key] = number
        for reference in references:
            values = _values(statement, reference.child, reference.columns)
            parents = brought[reference.parent, reference.parent_columns].get(values, []) if values else []
            before[number].update([parent for parent in parents if parent > number])
    following: list[list[int]] = [[] for _ in found]
    for number, earlier in enumerate(before):
        for one in earlier:
            following[one].append(number)
    left = [len(earlier) for earlier in before]
    ready = [number for number, count in enumerate(left) if not count]
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for later in following[number]:
            left[later] -= 1
            if not left[later]:
                heapq.heappush(ready, later)
    # Rows that refer to each other in a circle: their constraints are deferred, or there is no such order.
    return [found[number] for number in order] if len(order) == len(found) else list(found)


def _values(statement: Statement, place: Place, columns: Sequence[str]) -> tuple[str, ...] | None:
    """Of the row that a statement brings to a table; None where it does not, or one of them is null or not known."""
    change, brings = statement.change, statement.brings
    if (change.schema, change.table) != place or brings is None:
        return None
    values = [brings.get(name) for name in columns]
    return None if None in values else tuple(map(dumps, values))


def _uninsert(change: Row, target: Target) -> Statement:
    image = left(change)
    names = _known(target, change, image)
    key = _key(target, image)
    guards = [_where(target, image, names, key), *_unreferred(target, image)]
    return Statement(
        change,
        _delete(target, sql.SQL(" AND ").join(guards)),
        _delete(target, _where(target, image, key or names, key)),
    )


def _unreferred(target: Target, image: Image) -> Iterator[sql.Composable]:
    """Nobody has referred to the row since whom a CASCADE would take along."""
    for reference in target.references:
        if reference.parent != target.place or not reference.follows_deletes:
            continue
        values = [target.columns[name].literal(image.get(name)) for name in reference.parent_columns]
        same = [
            sql.SQL("r.{} = {}").format(sql.Identifier(name), value)
            for name, value in zip(reference.columns, values, strict=True)
        ]
        if reference.child == target.place:
            same.append(sql.SQL("r.ctid <> {}.ctid").format(target.identifier))
        yield sql.SQL("NOT EXISTS (SELECT FROM {} r WHERE {})").format(
            sql.Identifier(*reference.child), sql.SQL(" AND ").join(same)
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

    key = _key(target, image)
    guards = [*key, *(name for name in changed if name not in key)] if key else names
    is_done = sql.SQL("SELECT FROM {} WHERE {}").format(target.identifier, _where(target, before, guards, key))
    return Statement(
        change,
        update(_where(target, image, guards, key)),
        update(_where(target, image, key or names, key)),
        before,
        is_done if key else None,
    )


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
    names = [sql.Identifier(c.name) for c in columns]
    insert = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
        target.identifier,
        sql.SQL(", ").join(names),
        sql.SQL(", ").join([c.literal(before[c.name]) for c in columns]),
    )
    # Somebody has made a row of this key since: it is this one again.
    others = [name for c, name in zip(columns, names, strict=True) if c.name not in target.key]
    again = sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(
        sql.SQL(", ").join(map(sql.Identifier, target.key)),
        sql.SQL(", ").join([sql.SQL("{n} = excluded.{n}").format(n=name) for name in others]),
    )
    return Statement(change, insert, insert + again if target.key and others else insert, before)


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


def _key(target: Target, image: Image) -> tuple[str, ...]:
    """What identifies a row by now, where the image has it: the table may have got another key since."""
    return target.key if {*target.key} <= image.keys() else ()


def _where(target: Target, image: Image, names: Sequence[str], key: Sequence[str]) -> sql.Composable:
    matching = sql.SQL(" AND ").join([target.columns[name].matches(image[name]) for name in names])
    if key:
        return matching
    # Of rows that are the same, one.
    return sql.SQL("ctid = (SELECT ctid FROM {} WHERE {} LIMIT 1)").format(target.identifier, matching)


def _delete(target: Target, where: sql.Composable) -> sql.Composed:
    return sql.SQL("DELETE FROM {} WHERE {}").format(target.identifier, where)


def _differ(one: Any, other: Any) -> bool:
    return bool(one != other or isinstance(one, bool) != isinstance(other, bool))
