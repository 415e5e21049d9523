"""Taking changes back: what has to be known for it, what stands in the way, and doing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from tailrace.audit.exact_json import dumps
from tailrace.audit.trail import Row, Trail
from tailrace.audit.undo import Column, Image, Statement, Target, left, statements
from tailrace.errors import RevertError
from tailrace.sinks.audit.context import PREFIX

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL), a.attgenerated <> '',
       coalesce(a.attnum = ANY (i.indkey), false)
FROM pg_attribute a
LEFT JOIN pg_index i ON i.indrelid = a.attrelid
    AND i.indexrelid = (SELECT x.indexrelid FROM pg_index x WHERE x.indrelid = a.attrelid
                        AND (x.indisprimary OR x.indisreplident) ORDER BY x.indisprimary DESC LIMIT 1)
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""


IsMasked = Callable[[str, str, str], bool]
"""Of schema, table and column."""


@dataclass(frozen=True)
class Conflict:
    change: Row
    later: Row


@dataclass(frozen=True)
class Undo:
    changes: Sequence[Row]
    statements: Sequence[Statement]
    conflicts: Sequence[Conflict]
    """Later changes of the same rows, that are not taken back with them."""

    @property
    def transactions(self) -> int:
        return len({change.commit_position for change in self.changes})


def plan(trail: Trail, source: psycopg.Connection[Any], changes: Sequence[Row], is_masked: IsMasked) -> Undo:
    """What undoes these changes. RevertError where something of it is not known."""
    targets = {place: _target(source, place, is_masked) for place in {(c.schema, c.table) for c in changes}}
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
    return Undo(changes, list(statements(changes, found, targets)), list(conflicts.values()))


def apply(source: psycopg.Connection[Any], undo: Undo, why: Mapping[str, Any], *, force: bool) -> int:
    """All of it in one transaction, whose own context says what it reverts; how many rows it changed."""
    said = {"tailrace_revert": {**why, "transactions": sorted({c.xid for c in undo.changes if c.xid is not None})}}
    done = 0
    with source.transaction():
        source.execute("SELECT pg_logical_emit_message(true, %s, %s)", [PREFIX, dumps(said)])
        source.execute("SET CONSTRAINTS ALL DEFERRED")
        for statement in undo.statements:
            change = statement.change
            try:
                count = source.execute(statement.forced if force else statement.guarded).rowcount
            except psycopg.Error as error:
                raise RevertError(
                    f"{change.position}: {change.operation} of {change.qualified_name} {change.primary_key} cannot be "
                    f"undone: {error.diag.message_primary}",
                    "nothing was changed",
                ) from error
            if count != 1 and not force:
                raise RevertError(
                    f"{change.position}: {change.qualified_name} {change.primary_key} is no longer as this change "
                    "left it: somebody has changed it since",
                    "nothing was changed; --force takes back what is still there",
                )
            done += count
    return done


def _before(trail: Trail, change: Row) -> Image:
    """The row as the change found it: what it says itself, and what the change before it left."""
    last = trail.last_known(change)
    return {**(left(last) if last is not None else {}), **(change.before or {})}


def _target(source: psycopg.Connection[Any], place: tuple[str, str], is_masked: IsMasked) -> Target:
    name = sql.Identifier(*place).as_string(source)
    rows = source.execute(_COLUMNS, [name]).fetchall()
    if not rows:
        raise RevertError(
            f"the source has no table {'.'.join(place)}, or it cannot be seen", "was it dropped or renamed?"
        )
    columns = {name: Column(name, kind, generated, is_masked(*place, name)) for name, kind, generated, _ in rows}
    return Target(*place, columns, tuple([name for name, _, _, is_key in rows if is_key]))
