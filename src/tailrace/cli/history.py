"""`tailrace history`: a row's life, from the audit trail."""

from __future__ import annotations

import os
from datetime import datetime

import click

from tailrace.audit import exact_json, history, trail
from tailrace.cli import Invocation
from tailrace.errors import ConfigError
from tailrace.log.rendering import moment, printable
from tailrace.settings.pattern import split_name


class _Moment(click.ParamType[datetime]):
    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return moment(str(value))
        except ValueError:
            self.fail(f"{value!r} is no ISO time, such as 2026-11-16T12:00:00Z", param, ctx)


@click.command("history", short_help="Print a row's life from the audit trail.")
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@click.option(
    "--as-of", type=_Moment(), help="The row as it was then, in place of its life. UTC unless it says otherwise."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--sink", metavar="NAME", help="The audit sink whose table is read, where there are several.")
@click.pass_obj
def command(
    invocation: Invocation, table: str, key: tuple[str, ...], as_of: datetime | None, as_json: bool, sink: str | None
) -> None:
    """Print what happened to a row of TABLE, under the keys that it had before, too: who, when, from what to what.

    KEY is the value of its primary key; of one with several columns, the values in their order. Exits with 1 if the
    trail knows no such row.
    """
    place = split_name(table)
    with trail.opened(invocation.audit_settings(), os.environ, sink) as found:
        rows = found.life(place, trail.keys_of(key))
    if not any(row.operation != "TRUNCATE" for row in rows):
        raise ConfigError(
            f"the audit trail has nothing about {'.'.join(place)} {' '.join(key)}",
            "it knows rows that changed since it began; is the name of the table right?",
        )
    if as_of is not None:
        _print_as_of(history.as_of(rows, as_of), as_json)
        return
    for entry in history.entries(rows):
        if as_json:
            click.echo(history.to_json(entry))
            continue
        click.echo(history.line(entry))
        for text in history.diff(entry):
            click.echo(text)


def _print_as_of(entry: history.Entry | None, as_json: bool) -> None:
    if as_json:
        click.echo(exact_json.dumps(entry.after if entry is not None else None))
    elif entry is None or entry.after is None:
        click.echo("it was not there" if entry is not None else "it was not heard of yet")
    else:
        click.echo(f"as {history.line(entry)} left it")
        width = max(map(len, entry.after))
        for name, value in entry.after.items():
            click.echo(printable(f"    {name:<{width}}  {history.shown(value)}"))
