"""Reverts changes: plans the statements, finds conflicts, and executes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from tailrace.audit.exact_json import dumps
from tailrace.audit.revert_statement import (
    ForeignKey,
    RevertColumn,
    RevertStatement,
    RevertTarget,
    RowImage,
    TableName,
    order_statements,
    row_after,
    statements,
)
from tailrace.audit.trail import AuditRow, Trail
from tailrace.delivery.context import PREFIX
from tailrace.errors import RevertError

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
# The trail has the triggers' own changes, too, which are reverted with the rest. Constraint triggers may stay enabled.
_TRIGGERS = """
SELECT n.nspname::text, c.relname::text, t.tgname::text, t.tgenabled = 'A', pg_has_role(c.relowner, 'USAGE')
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT t.tgisinternal AND t.tgconstraint = 0 AND t.tgenabled IN ('O', 'A')
  AND (c.oid = to_regclass(%(table)s) OR c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%(table)s))))
ORDER BY 1, 2, 3
"""
_LOCK_TIMEOUT = "10s"
"""Sessions that queue behind a revert wait as long."""


IsMasked = Callable[[str, str, str], bool]
"""Takes schema, table and column."""


@dataclass(frozen=True)
class Conflict:
    """A later change of a row that a selected change affects."""

    change: AuditRow
    later: AuditRow


@dataclass(frozen=True)
class Trigger:
    table: TableName
    name: str
    is_always: bool
    is_owner: bool
    """Whether the session's user owns the table, and so may disable the trigger."""

    def _alter(self, action: str) -> sql.Composed:
        return sql.SQL("ALTER TABLE {} {} TRIGGER {}").format(
            sql.Identifier(*self.table), sql.SQL(action), sql.Identifier(self.name)
        )

    @property
    def disable(self) -> sql.Composed:
        return self._alter("DISABLE")

    @property
    def enable(self) -> sql.Composed:
        return self._alter("ENABLE ALWAYS" if self.is_always else "ENABLE")


@dataclass(frozen=True)
class RevertPlan:
    """The statements that revert changes, and what prevents them."""

    changes: Sequence[AuditRow]
    statements: Sequence[RevertStatement]
    conflicts: Sequence[Conflict]
    """Later changes of the same rows that are not reverted with them."""
    triggers: Sequence[Trigger] = ()
    """Triggers of the tables that would fire."""

    @property
    def transactions(self) -> int:
        return len({change.commit_position for change in self.changes})


def plan(
    trail: Trail, source: psycopg.Connection[Any], changes: Sequence[AuditRow], is_masked: IsMasked, *, force: bool
) -> RevertPlan:
    """The plan that reverts changes; RevertError if something needed is unknown.

    Args:
        trail: The trail.
        source: The source database.
        changes: The changes, in log order.
        is_masked: Whether a column is masked in the trail.
        force: Whether to let triggers fire that the user may not disable.
    """
    tables = sorted({(c.schema, c.table) for c in changes})
    targets = {table_name: _target(source, table_name, is_masked) for table_name in tables}
    own = {change.position for change in changes}
    found = {
        number: _row_before(trail, change)
        for number, change in enumerate(changes)
        if change.operation in ("UPDATE", "DELETE")
    }
    conflicts = {
        (later.position, change.qualified_name, change.primary_key): Conflict(change, later)
        for change in changes
        for later in trail.later_changes(change)
        if later.position not in own
    }
    references = [reference for target in targets.values() for reference in target.references]
    planned = order_statements(list(statements(changes, found, targets)), references)
    return RevertPlan(changes, planned, list(conflicts.values()), _triggers(source, tables, force=force))


def apply(source: psycopg.Connection[Any], plan: RevertPlan, why: Mapping[str, Any], *, force: bool) -> int:
    """Execute a plan in one transaction, whose context says what it reverts; returns the number of changed rows.

    Args:
        source: The source database.
        plan: The plan.
        why: The selection that is reverted, for the context.
        force: Whether to revert rows that have changed since.
    """
    context = {"tailrace_revert": {**why, "transactions": sorted({c.xid for c in plan.changes if c.xid is not None})}}
    done = 0
    with source.transaction():
        source.execute("SELECT pg_logical_emit_message(true, %s, %s)", [PREFIX, dumps(context)])
        source.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))
        source.execute("SET CONSTRAINTS ALL DEFERRED")
        for trigger in plan.triggers:
            with _raise_revert_errors(f"triggers of {'.'.join(trigger.table)} cannot be disabled"):
                source.execute(trigger.disable)
        for statement in plan.statements:
            change = statement.change
            what = f"{change.operation} of {change.qualified_name} {change.primary_key}"
            with _raise_revert_errors(f"{change.position}: {what} cannot be reverted"):
                count = source.execute(statement.forced_sql if force else statement.guarded_sql).rowcount
                is_done = count == 1 or force or _is_done(source, statement)
            if not is_done:
                raise RevertError(
                    f"{change.position}: {change.qualified_name} {change.primary_key} is no longer as this change "
                    "left it: it was changed since, or rows were added that a CASCADE would delete",
                    "nothing was changed; --force reverts the rows that still exist",
                )
            done += count
        with _raise_revert_errors("the result violates a constraint"):
            source.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for trigger in plan.triggers:
                source.execute(trigger.enable)
    return done


@contextmanager
def _raise_revert_errors(what: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise RevertError(f"{what}: {error.diag.message_primary or error}", "nothing was changed") from error


def _is_done(source: psycopg.Connection[Any], statement: RevertStatement) -> bool:
    return statement.done_query is not None and source.execute(statement.done_query).rowcount == 1


def _triggers(source: psycopg.Connection[Any], tables: Iterable[TableName], *, force: bool) -> list[Trigger]:
    found = [
        Trigger((schema, table), name, is_always, is_owner)
        for table_name in tables
        for schema, table, name, is_always, is_owner in source.execute(
            _TRIGGERS, {"table": _quote_table(source, table_name)}
        )
    ]
    others = sorted({".".join(trigger.table) for trigger in found if not trigger.is_owner})
    if others and not force:
        raise RevertError(
            f"triggers of {', '.join(others)} would fire, and only the table's owner may disable them",
            "connect as the owner with [source] url or DB_USER, or let them fire with --force",
        )
    return [trigger for trigger in found if trigger.is_owner]


def _row_before(trail: Trail, change: AuditRow) -> RowImage:
    """The row before the change: its old image, and the row that the previous change left."""
    last = trail.previous_change(change)
    return {**(row_after(last) if last is not None else {}), **(change.before or {})}


def _target(source: psycopg.Connection[Any], table_name: tuple[str, str], is_masked: IsMasked) -> RevertTarget:
    table = _quote_table(source, table_name)
    rows = source.execute(_COLUMNS, [table]).fetchall()
    if not rows:
        raise RevertError(
            f"table {'.'.join(table_name)} does not exist at the source or is not visible",
            "it may have been dropped or renamed",
        )
    columns = {
        name: RevertColumn(name, kind, generated, is_masked(*table_name, name), is_required)
        for name, kind, generated, _, is_required in rows
    }
    references = [
        ForeignKey((c, child), tuple(columns), (p, parent), tuple(parent_columns), follows_deletes)
        for c, child, columns, p, parent, parent_columns, follows_deletes in source.execute(
            _REFERENCES, {"table": table}
        )
    ]
    return RevertTarget(
        *table_name, columns, tuple([name for name, _, _, is_key, _ in rows if is_key]), tuple(references)
    )


def _quote_table(source: psycopg.Connection[Any], table_name: TableName) -> str:
    return sql.Identifier(*table_name).as_string(source)
