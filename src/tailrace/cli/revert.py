"""`tailrace revert`: changes taken back, as SQL that is shown first."""

from __future__ import annotations

import getpass
import os
from typing import Any

import click
import psycopg

from tailrace.audit import revert, trail
from tailrace.audit.history import entries, line
from tailrace.audit.trail import Selection
from tailrace.change import Lsn, Position
from tailrace.cli import Invocation
from tailrace.errors import ConfigError, RevertError
from tailrace.settings import Settings
from tailrace.settings.pattern import ColumnPattern, split_name
from tailrace.source.connection import connect
from tailrace.source.failure import classified

_LAST_ORDINAL = (1 << 62) - 1


class _Range(click.ParamType[tuple[Position, Position]]):
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


@click.command("revert", short_help="Take changes back.")
@click.option("--xid", type=int, help="Of this transaction.")
@click.option("--position", type=_Range(), help="From one position or LSN to another, both included; or one alone.")
@click.option(
    "--context",
    "said",
    multiple=True,
    metavar="NAME=VALUE",
    help="Made with this in their context; all that are given.",
)
@click.option("--table", metavar="SCHEMA.TABLE", help="Of this table.")
@click.option("--key", "key", multiple=True, metavar="VALUE", help="Of this row; once for each column of the key.")
@click.option(
    "--apply", "is_applied", is_flag=True, help="Do it, in one transaction. Without it the SQL is only shown."
)
@click.option("--force", is_flag=True, help="Also where rows were changed since: what they became meanwhile is lost.")
@click.option("--sink", metavar="NAME", help="The audit sink whose table is read, where there are several.")
@click.pass_obj
def command(
    invocation: Invocation,
    xid: int | None,
    position: tuple[Position, Position] | None,
    said: tuple[str, ...],
    table: str | None,
    key: tuple[str, ...],
    is_applied: bool,
    force: bool,
    sink: str | None,
) -> None:
    """Take back the changes that all of the options say: the SQL that undoes them, the last first, is printed.

    With --apply it is run at the source, in one transaction, which the trail tells about with a context of its own.
    A row that was changed since by somebody else is a conflict: nothing is done, unless --force says so.
    """
    selection = _selection(xid, position, said, table, key)
    settings = invocation.audit_settings()
    with trail.opened(settings, os.environ, sink) as found:
        changes = found.find(selection)
        if not changes:
            raise ConfigError("no change is like that", "`tailrace history` shows the changes of a row")
        commits = {change.commit_position for change in changes}
        if xid is not None and len(commits) > 1:
            raise ConfigError(
                f"there were {len(commits)} transactions {xid}: PostgreSQL uses numbers again",
                f"name one by its LSN: --position {', '.join(str(Lsn(c)) for c in sorted(commits))}",
            )
        source = connect(settings.source)
        try:
            with classified():
                undo = revert.plan(found, source, changes, _is_masked(settings, found.sink), force=force)
                _show(undo, source)
                if undo.conflicts and not force:
                    raise RevertError(
                        f"{len(undo.conflicts)} later change{'s' * (len(undo.conflicts) > 1)} of the same rows: "
                        + "; ".join(_told(conflict) for conflict in undo.conflicts[:5]),
                        "revert those too, or --force",
                    )
                if is_applied:
                    done = revert.apply(source, undo, _why(xid, position, said, table, key), force=force)
                    click.echo(f"-- applied: {done:,} rows")
                else:
                    click.echo("-- not applied: that is what --apply is for")
        finally:
            source.close()


def _selection(
    xid: int | None,
    position: tuple[Position, Position] | None,
    said: tuple[str, ...],
    table: str | None,
    key: tuple[str, ...],
) -> Selection:
    if key and table is None:
        raise ConfigError("--key says which row, and of which table?", "give --table as well")
    context = {}
    for text in said:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--context {text!r} is no NAME=VALUE", "such as --context user=42")
        context[name] = value
    first, last = position if position is not None else (None, None)
    selection = Selection(
        xid,
        first,
        last,
        context,
        None if table is None else split_name(table),
        tuple(trail.keys_of(key)) if key else (),
    )
    if selection.is_empty:
        raise ConfigError("which changes?", "give --xid, --position, --context, or --table with --key")
    return selection


def _show(undo: revert.Undo, source: psycopg.Connection[Any]) -> None:
    noun = "change" if len(undo.changes) == 1 else "changes"
    whole = "one transaction" if undo.transactions == 1 else f"{undo.transactions} transactions"
    click.echo(f"-- undoes {len(undo.changes):,} {noun} of {whole}")
    for trigger in undo.triggers:
        click.echo(trigger.off.as_string(source) + ";")
    for statement in undo.statements:
        click.echo(f"-- {line(next(entries([statement.change])))}")
        click.echo(statement.guarded.as_string(source) + ";")
    for trigger in undo.triggers:
        click.echo(trigger.on.as_string(source) + ";")


def _told(conflict: revert.Conflict) -> str:
    later = conflict.later
    key = f" {conflict.change.primary_key}" if later.operation != "TRUNCATE" else ""
    return f"{later.operation} of {later.qualified_name}{key} at {later.position} (xid {later.xid})"


def _why(
    xid: int | None,
    position: tuple[Position, Position] | None,
    said: tuple[str, ...],
    table: str | None,
    key: tuple[str, ...],
) -> dict[str, object]:
    given = {
        "xid": xid,
        "position": _told_range(*position) if position else None,
        "context": list(said) or None,
        "table": table,
        "key": list(key) or None,
        "by": _user(),
    }
    return {name: value for name, value in given.items() if value is not None}


def _told_range(first: Position, last: Position) -> str:
    return f"{first}..{last.commit_lsn if last.ordinal == _LAST_ORDINAL else last}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's, that nobody gave a name


def _is_masked(settings: Settings, sink: str) -> revert.IsMasked:
    patterns = [ColumnPattern.parse(text) for text in trail.common_of(settings, os.environ, sink).mask]
    return lambda schema, table, column: any(p.matches(schema, table, column) for p in patterns)
