"""Taking changes back: what has to be known for it, what stands in the way, and doing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from tailrace.audit.exact_json import dumps
from tailrace.audit.trail import Row, Trail
from tailrace.audit.undo import Column, Image, Place, Reference, Statement, Target, left, ordered, statements
from tailrace.errors import RevertError
from tailrace.sinks.audit.context import PREFIX

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL), a.attgenerated <> '',
       coalesce(a.attnum = ANY (i.indkey[: i.indnkeyatts - 1]), false), a.attnotnull
FROM pg_attribute a
LEFT JOIN pg_index i ON i.indrelid = a.attrelid
    AND i.indexrelid = (SELECT x.indexrelid FROM pg_index x WHERE x.indrelid = a.attrelid
                        AND (x.indisprimary OR x.indisreplident) ORDER BY x.indisprimary DESC LIMIT 1)
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_REFERENCES = """
SELECT cn.nspname::text, c.relname::text, ARRAY(
           SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY u (number, place)
           JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.number ORDER BY u.place),
       pn.nspname::text, p.relname::text, ARRAY(
           SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY u (number, place)
           JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.number ORDER BY u.place),
       k.confdeltype IN ('c', 'n', 'd')
FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_class p ON p.oid = k.confrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE k.contype = 'f' AND to_regclass(%(table)s) IN (k.conrelid, k.confrelid)
"""
# What the triggers did is in the trail as well, and taken back with the rest. Those that only check may stay.
_TRIGGERS = """
SELECT n.nspname::text, c.relname::text, t.tgname::text, t.tgenabled = 'A', pg_has_role(c.relowner, 'USAGE')
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT t.tgisinternal AND t.tgconstraint = 0 AND t.tgenabled IN ('O', 'A')
  AND (c.oid = to_regclass(%(table)s) OR c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%(table)s))))
ORDER BY 1, 2, 3
"""
_PATIENCE = "10s"
"""For others' locks: whoever comes after us waits as long."""


IsMasked = Callable[[str, str, str], bool]
"""Of schema, table and column."""


@dataclass(frozen=True)
class Conflict:
    change: Row
    later: Row


@dataclass(frozen=True)
class Trigger:
    table: Place
    name: str
    is_always: bool
    is_ours: bool
    """To switch off: the table's owner may."""

    def switched(self, how: str) -> sql.Composed:
        return sql.SQL("ALTER TABLE {} {} TRIGGER {}").format(
            sql.Identifier(*self.table), sql.SQL(how), sql.Identifier(self.name)
        )

    @property
    def off(self) -> sql.Composed:
        return self.switched("DISABLE")

    @property
    def on(self) -> sql.Composed:
        return self.switched("ENABLE ALWAYS" if self.is_always else "ENABLE")


@dataclass(frozen=True)
class Undo:
    changes: Sequence[Row]
    statements: Sequence[Statement]
    conflicts: Sequence[Conflict]
    """Later changes of the same rows, that are not taken back with them."""
    triggers: Sequence[Trigger] = ()
    """Of the tables, that would act on what is done here."""

    @property
    def transactions(self) -> int:
        return len({change.commit_position for change in self.changes})


def plan(
    trail: Trail, source: psycopg.Connection[Any], changes: Sequence[Row], is_masked: IsMasked, *, force: bool
) -> Undo:
    """What undoes these changes. RevertError where something of it is not known."""
    places = sorted({(c.schema, c.table) for c in changes})
    targets = {place: _target(source, place, is_masked) for place in places}
    own = {change.position for change in changes}
    found = {
        number: _before(trail, change)
        for number, change in enumerate(changes)
        if change.operation in ("UPDATE", "DELETE")
    }
    conflicts = {
        (later.position, change.qualified_name, change.primary_key): Conflict(change, later)
        for change in changes
        for later in trail.later(change)
        if later.position not in own
    }
    references = [reference for target in targets.values() for reference in target.references]
    made = ordered(list(statements(changes, found, targets)), references)
    return Undo(changes, made, list(conflicts.values()), _triggers(source, places, force=force))


def apply(source: psycopg.Connection[Any], undo: Undo, why: Mapping[str, Any], *, force: bool) -> int:
    """All of it in one transaction, whose own context says what it reverts; how many rows it changed."""
    said = {"tailrace_revert": {**why, "transactions": sorted({c.xid for c in undo.changes if c.xid is not None})}}
    done = 0
    with source.transaction():
        source.execute("SELECT pg_logical_emit_message(true, %s, %s)", [PREFIX, dumps(said)])
        source.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_PATIENCE)))
        source.execute("SET CONSTRAINTS ALL DEFERRED")
        for trigger in undo.triggers:
            with _refused(f"triggers of {'.'.join(trigger.table)} cannot be switched off"):
                source.execute(trigger.off)
        for statement in undo.statements:
            change = statement.change
            what = f"{change.operation} of {change.qualified_name} {change.primary_key}"
            with _refused(f"{change.position}: {what} cannot be undone"):
                count = source.execute(statement.forced if force else statement.guarded).rowcount
                is_done = count == 1 or force or _is_done(source, statement)
            if not is_done:
                raise RevertError(
                    f"{change.position}: {change.qualified_name} {change.primary_key} is no longer as this change "
                    "left it: somebody has changed it since, or made rows that would go with it",
                    "nothing was changed; --force takes back what is still there",
                )
            done += count
        with _refused("what it leaves is not allowed"):
            source.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for trigger in undo.triggers:
                source.execute(trigger.on)
    return done


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise RevertError(f"{what}: {error.diag.message_primary or error}", "nothing was changed") from error


def _is_done(source: psycopg.Connection[Any], statement: Statement) -> bool:
    return statement.done is not None and source.execute(statement.done).rowcount == 1


def _triggers(source: psycopg.Connection[Any], places: Iterable[Place], *, force: bool) -> list[Trigger]:
    found = [
        Trigger((schema, table), name, is_always, is_ours)
        for place in places
        for schema, table, name, is_always, is_ours in source.execute(_TRIGGERS, {"table": _name(source, place)})
    ]
    others = sorted({".".join(trigger.table) for trigger in found if not trigger.is_ours})
    if others and not force:
        raise RevertError(
            f"triggers of {', '.join(others)} would act on what is undone as on any change, and only the table's owner "
            "may switch them off meanwhile",
            "let the owner do it, in [source] url or DB_USER; with --force they act",
        )
    return [trigger for trigger in found if trigger.is_ours]


def _before(trail: Trail, change: Row) -> Image:
    """The row as the change found it: what it says itself, and what the change before it left."""
    last = trail.last_known(change)
    return {**(left(last) if last is not None else {}), **(change.before or {})}


def _target(source: psycopg.Connection[Any], place: tuple[str, str], is_masked: IsMasked) -> Target:
    table = _name(source, place)
    rows = source.execute(_COLUMNS, [table]).fetchall()
    if not rows:
        raise RevertError(
            f"the source has no table {'.'.join(place)}, or it cannot be seen", "was it dropped or renamed?"
        )
    columns = {
        name: Column(name, kind, generated, is_masked(*place, name), is_required)
        for name, kind, generated, _, is_required in rows
    }
    references = [
        Reference((c, child), tuple(columns), (p, parent), tuple(parent_columns), follows_deletes)
        for c, child, columns, p, parent, parent_columns, follows_deletes in source.execute(
            _REFERENCES, {"table": table}
        )
    ]
    return Target(*place, columns, tuple([name for name, _, _, is_key, _ in rows if is_key]), tuple(references))


def _name(source: psycopg.Connection[Any], place: Place) -> str:
    return sql.Identifier(*place).as_string(source)
