"""The statements that revert changes, the last change first. Pure.

A statement contains the row that it expects, so it has no effect if the row has been changed since.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from tailrace.audit.exact_json import dumps, text
from tailrace.audit.trail import AuditRow
from tailrace.errors import RevertError
from tailrace.sinks.audit.change_row import ERASED


@dataclass(frozen=True)
class RevertColumn:
    """A column of the table as it is now."""

    name: str
    type: str
    """Its name in PostgreSQL's catalogue, by `format_type`."""
    is_generated: bool = False
    is_masked: bool = False
    """Whether the trail has a masked value."""
    is_required: bool = False
    """NOT NULL."""

    @property
    def is_json(self) -> bool:
        return self.type in ("json", "jsonb")

    def literal(self, value: Any) -> sql.Composable:
        """A value as an SQL literal."""
        # The trail represents SQL's NULL and JSON's null alike.
        found = dumps(value) if self.is_json and (value is not None or self.is_required) else text(value)
        return sql.SQL("NULL") if found is None else sql.Literal(found)

    def matches(self, value: Any) -> sql.Composable:
        """A condition that the column has this value, by the type's equality if that distinguishes values."""
        name, wanted = sql.Identifier(self.name), self.literal(value)
        if value is None and self.is_json:
            return sql.SQL("coalesce({}::jsonb = 'null', true)").format(name)
        if value is None:
            return sql.SQL("{} IS NULL").format(name)
        if self.type == "json":
            return sql.SQL("{}::jsonb = {}::jsonb").format(name, wanted)
        # A user-defined type: its equality operator, if any, is not in pg_catalog, the only schema that is searched.
        if self.type.removesuffix("[]") in _BY_TEXT or self.type == "json[]" or "." in self.type:
            return sql.SQL("{}::text = {}::{}::text").format(name, wanted, sql.SQL(self.type))
        return sql.SQL("{} = {}").format(name, wanted)


_BY_TEXT: Final = frozenset({"xml", "point", "box", "path", "polygon", "circle", "line", "lseg"})
"""Types without equality, or whose equality compares areas."""

TableName = tuple[str, str]
"""Schema and table."""


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key."""

    child: TableName
    columns: tuple[str, ...]
    parent: TableName
    parent_columns: tuple[str, ...]
    follows_deletes: bool
    """Whether deleting the parent changes or deletes its children, as with CASCADE."""


@dataclass(frozen=True)
class RevertTarget:
    """The table as it is now."""

    schema: str
    table: str
    columns: Mapping[str, RevertColumn]
    key: tuple[str, ...]
    """Columns that identify a row; empty if none do."""
    references: tuple[ForeignKey, ...] = ()
    """Foreign keys of this table, and of others that refer to it."""

    @property
    def table_name(self) -> TableName:
        return self.schema, self.table

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)


RowImage = Mapping[str, Any]
"""A row as far as it is known."""


@dataclass(frozen=True)
class RevertStatement:
    """Reverts one change."""

    change: AuditRow
    guarded_sql: sql.Composed
    """Has an effect only if the row is as the change left it."""
    forced_sql: sql.Composed
    """Has an effect if the row exists."""
    result: RowImage | None = None
    """The row afterwards; None if it is deleted."""
    done_query: sql.Composed | None = None
    """Finds the row if it is already as wanted, because a foreign key's CASCADE reverted it."""


def row_after(change: AuditRow) -> RowImage:
    """The row as the change left it."""
    return {name: value for name, value in (change.after or {}).items() if name not in (change.unchanged or ())}


def statements(
    changes: Sequence[AuditRow], before: Mapping[int, RowImage], targets: Mapping[tuple[str, str], RevertTarget]
) -> Iterator[RevertStatement]:
    """A statement for each change, the last change first.

    Args:
        changes: The changes, in log order.
        before: The row before each change, by the change's index.
        targets: The tables.
    """
    for number in reversed(range(len(changes))):
        change = changes[number]
        target = targets[change.schema, change.table]
        match change.operation:
            case "INSERT" | "CREATE":
                yield _revert_insert(change, target)
            case "UPDATE":
                statement = _revert_update(change, target, before[number])
                if statement is not None:
                    yield statement
            case "DELETE":
                yield _revert_delete(change, target, before[number])
            case other:
                raise RevertError(
                    f"{change.position}: cannot revert {other} of {change.qualified_name}: the trail lacks its rows",
                    "`tailrace log` has them if the log has an earlier snapshot",
                )


def order_statements(found: Sequence[RevertStatement], references: Iterable[ForeignKey]) -> list[RevertStatement]:
    """The statements in execution order: as they are, but a referenced row is restored before those that refer to it.

    The changes of a CASCADE follow their cause in the log. They would be reverted before it, which PostgreSQL refuses.
    """
    restored: dict[tuple[TableName, tuple[str, ...]], dict[tuple[str, ...], list[int]]] = {}
    references = set(references)
    for reference in references:
        rows = restored.setdefault((reference.parent, reference.parent_columns), {})
        for number, statement in enumerate(found):
            if (values := _values(statement, reference.parent, reference.parent_columns)) is not None:
                rows.setdefault(values, []).append(number)
    before: list[set[int]] = [set() for _ in found]
    last: dict[tuple[TableName, str | None], int] = {}
    for number, statement in enumerate(found):
        change = statement.change
        place = change.schema, change.table
        for key in {change.primary_key, change.key_before}:
            if (place, key) in last:
                before[number].add(last[place, key])
            last[place, key] = number
        for reference in references:
            values = _values(statement, reference.child, reference.columns)
            parents = restored[reference.parent, reference.parent_columns].get(values, []) if values else []
            before[number].update([parent for parent in parents if parent > number])
    following: list[list[int]] = [[] for _ in found]
    for number, earlier in enumerate(before):
        for previous in earlier:
            following[previous].append(number)
    remaining = [len(earlier) for earlier in before]
    ready = [number for number, count in enumerate(remaining) if not count]
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for later in following[number]:
            remaining[later] -= 1
            if not remaining[later]:
                heapq.heappush(ready, later)
    # Rows that refer to each other in a cycle: their constraints are deferred, or no order works.
    return [found[number] for number in order] if len(order) == len(found) else list(found)


def _values(statement: RevertStatement, place: TableName, columns: Sequence[str]) -> tuple[str, ...] | None:
    """The values of a row that a statement restores in a table; None if it does not, or if one is null or unknown."""
    change, result = statement.change, statement.result
    if (change.schema, change.table) != place or result is None:
        return None
    values = [result.get(name) for name in columns]
    return None if None in values else tuple(map(dumps, values))


def _revert_insert(change: AuditRow, target: RevertTarget) -> RevertStatement:
    image = row_after(change)
    names = _usable_columns(target, change, image)
    key = _key(target, image)
    guards = [_where(target, image, names, key), *_not_referenced(target, image)]
    return RevertStatement(
        change,
        _delete(target, sql.SQL(" AND ").join(guards)),
        _delete(target, _where(target, image, key or names, key)),
    )


def _not_referenced(target: RevertTarget, image: RowImage) -> Iterator[sql.Composable]:
    """Conditions that no other row refers to this one by a foreign key with ON DELETE CASCADE or SET."""
    for reference in target.references:
        if reference.parent != target.table_name or not reference.follows_deletes:
            continue
        values = [target.columns[name].literal(image.get(name)) for name in reference.parent_columns]
        same = [
            sql.SQL("r.{} = {}").format(sql.Identifier(name), value)
            for name, value in zip(reference.columns, values, strict=True)
        ]
        if reference.child == target.table_name:
            same.append(sql.SQL("r.ctid <> {}.ctid").format(target.identifier))
        yield sql.SQL("NOT EXISTS (SELECT FROM {} r WHERE {})").format(
            sql.Identifier(*reference.child), sql.SQL(" AND ").join(same)
        )


def _revert_update(change: AuditRow, target: RevertTarget, before: RowImage) -> RevertStatement | None:
    image = row_after(change)
    names = _usable_columns(target, change, image)
    _usable_columns(target, change, {name: value for name, value in before.items() if name in names})
    unknown = [name for name in names if name not in before]
    if unknown:
        raise RevertError(
            f"{change.position}: the previous value of {', '.join(unknown)} of {change.qualified_name} "
            f"{change.primary_key} is unknown",
            "for future changes, use ALTER TABLE … REPLICA IDENTITY FULL",
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
    return RevertStatement(
        change,
        update(_where(target, image, guards, key)),
        update(_where(target, image, key or names, key)),
        before,
        is_done if key else None,
    )


def _revert_delete(change: AuditRow, target: RevertTarget, before: RowImage) -> RevertStatement:
    columns = [c for c in target.columns.values() if not c.is_generated]
    unknown = [c.name for c in columns if c.name not in before]
    if unknown:
        raise RevertError(
            f"{change.position}: the value of {', '.join(unknown)} of {change.qualified_name} {change.primary_key} "
            "is unknown: the row cannot be restored completely",
            "for future changes, use ALTER TABLE … REPLICA IDENTITY FULL",
        )
    _usable_columns(target, change, before)
    names = [sql.Identifier(c.name) for c in columns]
    insert = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
        target.identifier,
        sql.SQL(", ").join(names),
        sql.SQL(", ").join([c.literal(before[c.name]) for c in columns]),
    )
    # A row with this key was inserted since: it becomes this one again.
    others = [name for c, name in zip(columns, names, strict=True) if c.name not in target.key]
    upsert = sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(
        sql.SQL(", ").join(map(sql.Identifier, target.key)),
        sql.SQL(", ").join([sql.SQL("{n} = excluded.{n}").format(n=name) for name in others]),
    )
    return RevertStatement(change, insert, insert + upsert if target.key and others else insert, before)


def _usable_columns(target: RevertTarget, change: AuditRow, image: RowImage) -> list[str]:
    """The columns of an image that can be written; RevertError if the table lacks one, or its value is not known."""
    missing = [name for name in image if name not in target.columns]
    if missing:
        raise RevertError(
            f"{change.qualified_name} no longer has column {', '.join(missing)}, which {change.position} contains",
            "it was renamed or dropped since: revert this by hand",
        )
    masked = [name for name in image if target.columns[name].is_masked]
    if masked:
        raise RevertError(
            f"{change.qualified_name}: {', '.join(masked)} is masked in the trail and cannot be restored",
            "revert this by hand; only a trail without masks can be reverted",
        )
    erased = [name for name, value in image.items() if value == ERASED]
    if erased:
        raise RevertError(
            f"{change.qualified_name} {change.primary_key}: {', '.join(erased)} was erased from the trail",
            "its value is unknown: revert this by hand",
        )
    return [name for name in image if not target.columns[name].is_generated]


def _key(target: RevertTarget, image: RowImage) -> tuple[str, ...]:
    """The table's current key if the image has it: the key may have changed since."""
    return target.key if {*target.key} <= image.keys() else ()


def _where(target: RevertTarget, image: RowImage, names: Sequence[str], key: Sequence[str]) -> sql.Composable:
    matching = sql.SQL(" AND ").join([target.columns[name].matches(image[name]) for name in names])
    if key:
        return matching
    # One of several equal rows.
    return sql.SQL("ctid = (SELECT ctid FROM {} WHERE {} LIMIT 1)").format(target.identifier, matching)


def _delete(target: RevertTarget, where: sql.Composable) -> sql.Composed:
    return sql.SQL("DELETE FROM {} WHERE {}").format(target.identifier, where)


def _differ(one: Any, other: Any) -> bool:
    return bool(one != other or isinstance(one, bool) != isinstance(other, bool))
