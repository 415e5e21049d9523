"""`tailrace history`: prints the history of a row from the audit trail."""

from __future__ import annotations

import os
from datetime import datetime

import click

from tailrace.audit import exact_json, row_history, trail
from tailrace.cli import Invocation
from tailrace.errors import ConfigError
from tailrace.log.terminal import printable
from tailrace.log.timestamp import parse_timestamp
from tailrace.settings.pattern import split_name


class _TimeParameter(click.ParamType[datetime]):
    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return parse_timestamp(str(value))
        except ValueError:
            self.fail(f"{value!r} is not an ISO time such as 2026-11-16T12:00:00Z", param, ctx)


@click.command("history", short_help="Print the history of a row from the audit trail.")
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@click.option(
    "--as-of",
    type=_TimeParameter(),
    help="Print the row as it was at this time instead of its history. UTC, unless the time has a zone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--sink", metavar="NAME", help="The audit sink to read, if there are several.")
@click.pass_obj
def command(
    invocation: Invocation, table: str, key: tuple[str, ...], as_of: datetime | None, as_json: bool, sink: str | None
) -> None:
    """Print every change of one row of TABLE, also under its earlier keys: who made it, when, and what changed.

    KEY is the value of the row's primary key. For a key with several columns, give the values in order. Exits with 2 if
    the audit trail has no such row.
    """
    name = split_name(table)
    with trail.open_trail(invocation.audit_settings(), os.environ, sink) as audit_trail:
        rows = audit_trail.history(name, trail.key_texts(key))
    if not any(row.operation != "TRUNCATE" for row in rows):
        raise ConfigError(
            f"the audit trail has nothing about {'.'.join(name)} {' '.join(key)}",
            "it has only rows that changed since it began; check the name of the table",
        )
    if as_of is not None:
        _print_as_of(row_history.as_of(rows, as_of), as_json)
        return
    for entry in row_history.entries(rows):
        if as_json:
            click.echo(row_history.to_json(entry))
            continue
        click.echo(row_history.line(entry))
        for text in row_history.diff(entry):
            click.echo(text)


def _print_as_of(entry: row_history.HistoryEntry | None, as_json: bool) -> None:
    if as_json:
        click.echo(exact_json.dumps(entry.after if entry is not None else None))
    elif entry is None or entry.after is None:
        click.echo(
            "the row did not exist" if entry is not None else "the audit trail has no change of this row up to then"
        )
    else:
        click.echo(f"as of {row_history.line(entry)}")
        width = max(map(len, entry.after))
        for name, value in entry.after.items():
            click.echo(printable(f"    {name:<{width}}  {row_history.value_text(value)}"))
