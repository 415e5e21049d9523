"""`tailrace revert`: undoes changes with SQL that is shown first."""

from __future__ import annotations

import getpass
import os
from typing import Any

import click
import psycopg

from tailrace.audit import revert, trail
from tailrace.audit.row_history import entries, line
from tailrace.audit.trail import Selection
from tailrace.capture.postgres.source_connection import connect
from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import Lsn, Position
from tailrace.cli import Invocation
from tailrace.errors import ConfigError, RevertError
from tailrace.settings import Settings
from tailrace.settings.pattern import ColumnPattern, split_name

_LAST_ORDINAL = (1 << 62) - 1


class _PositionRangeParameter(click.ParamType[tuple[Position, Position]]):
    name = "A..B"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[Position, Position]:
        first, _, last = str(value).partition("..")
        last = last or first
        end = Position.parse(last)
        return Position.parse(first), end if ":" in last else Position(end.commit_lsn, _LAST_ORDINAL)


@click.command("revert", short_help="Undo changes recorded in the audit trail.")
@click.option("--xid", type=int, help="Select changes of this transaction.")
@click.option(
    "--position",
    type=_PositionRangeParameter(),
    help="Select changes between two positions or LSNs, both included, or at one.",
)
@click.option(
    "--context",
    "context_pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Select changes with this value in their context. May be repeated; all must match.",
)
@click.option("--table", metavar="SCHEMA.TABLE", help="Select changes of this table.")
@click.option(
    "--key",
    "key",
    multiple=True,
    metavar="VALUE",
    help="Select changes of this row of --table. Repeat it for each column of the key.",
)
@click.option(
    "--apply", "is_applied", is_flag=True, help="Run the SQL, in one transaction. Without this flag it is only printed."
)
@click.option(
    "--force", is_flag=True, help="Also undo changes of rows that have changed since. Their later changes are lost."
)
@click.option("--sink", metavar="NAME", help="The audit sink to read, if there are several.")
@click.pass_obj
def command(
    invocation: Invocation,
    xid: int | None,
    position: tuple[Position, Position] | None,
    context_pairs: tuple[str, ...],
    table: str | None,
    key: tuple[str, ...],
    is_applied: bool,
    force: bool,
    sink: str | None,
) -> None:
    """Print the SQL that undoes the selected changes, the last change first. Changes must match all given options.

    With --apply, the SQL runs on the source in one transaction. The audit trail records that transaction with a context
    that names the revert. If another change has modified one of the rows since, that is a conflict: nothing is done,
    unless --force is given.
    """
    selection = _selection(xid, position, context_pairs, table, key)
    settings = invocation.audit_settings()
    with trail.open_trail(settings, os.environ, sink) as audit_trail:
        changes = audit_trail.find(selection)
        if not changes:
            raise ConfigError("no change matches these options", "`tailrace history` shows the changes of a row")
        commits = {change.commit_position for change in changes}
        if xid is not None and len(commits) > 1:
            raise ConfigError(
                f"{len(commits)} transactions had the id {xid}: PostgreSQL reuses transaction ids",
                f"select one by its LSN: --position {', '.join(str(Lsn(c)) for c in sorted(commits))}",
            )
        source = connect(settings.source)
        try:
            with source_errors():
                undo = revert.plan(audit_trail, source, changes, _is_masked(settings, audit_trail.sink), force=force)
                _show(undo, source)
                if undo.conflicts and not force:
                    raise RevertError(
                        f"{len(undo.conflicts)} later change{'s' * (len(undo.conflicts) > 1)} of the same rows: "
                        + "; ".join(_describe(conflict) for conflict in undo.conflicts[:5]),
                        "revert those too, or use --force",
                    )
                if is_applied:
                    done = revert.apply(
                        source, undo, _revert_context(xid, position, context_pairs, table, key), force=force
                    )
                    click.echo(f"-- applied: {done:,} rows")
                else:
                    click.echo("-- not applied: use --apply to run it")
        finally:
            source.close()


def _selection(
    xid: int | None,
    position: tuple[Position, Position] | None,
    context_pairs: tuple[str, ...],
    table: str | None,
    key: tuple[str, ...],
) -> Selection:
    if key and table is None:
        raise ConfigError("--key needs --table", "name the table of the row")
    context = {}
    for text in context_pairs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--context {text!r} is not NAME=VALUE", "for example --context user=42")
        context[name] = value
    first, last = position if position is not None else (None, None)
    selection = Selection(
        xid,
        first,
        last,
        context,
        None if table is None else split_name(table),
        tuple(trail.key_texts(key)) if key else (),
    )
    if selection.is_empty:
        raise ConfigError("no changes are selected", "give --xid, --position, --context, or --table with --key")
    return selection


def _show(undo: revert.RevertPlan, source: psycopg.Connection[Any]) -> None:
    noun = "change" if len(undo.changes) == 1 else "changes"
    whole = "one transaction" if undo.transactions == 1 else f"{undo.transactions} transactions"
    click.echo(f"-- undoes {len(undo.changes):,} {noun} of {whole}")
    for trigger in undo.triggers:
        click.echo(trigger.disable.as_string(source) + ";")
    for statement in undo.statements:
        click.echo(f"-- {line(next(entries([statement.change])))}")
        click.echo(statement.guarded_sql.as_string(source) + ";")
    for trigger in undo.triggers:
        click.echo(trigger.enable.as_string(source) + ";")


def _describe(conflict: revert.Conflict) -> str:
    later = conflict.later
    key = f" {conflict.change.primary_key}" if later.operation != "TRUNCATE" else ""
    return f"{later.operation} of {later.qualified_name}{key} at {later.position} (xid {later.xid})"


def _revert_context(
    xid: int | None,
    position: tuple[Position, Position] | None,
    context_pairs: tuple[str, ...],
    table: str | None,
    key: tuple[str, ...],
) -> dict[str, object]:
    context = {
        "xid": xid,
        "position": _format_range(*position) if position else None,
        "context": list(context_pairs) or None,
        "table": table,
        "key": list(key) or None,
        "by": _user(),
    }
    return {name: value for name, value in context.items() if value is not None}


def _format_range(first: Position, last: Position) -> str:
    return f"{first}..{last.commit_lsn if last.ordinal == _LAST_ORDINAL else last}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # in a container, the user may have no name


def _is_masked(settings: Settings, sink: str) -> revert.IsMasked:
    patterns = [ColumnPattern.parse(text) for text in trail.common_settings(settings, os.environ, sink).mask]
    return lambda schema, table, column: any(p.matches(schema, table, column) for p in patterns)
