"""`tailrace history`: prints changes from the audit trail: of a row, of a table, or by transaction."""

from __future__ import annotations

import os
from collections.abc import Sequence
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


@click.command("history", short_help="Print changes from the audit trail: of a row, a table, or by transaction.")
@click.argument("table", required=False)
@click.argument("key", nargs=-1)
@click.option(
    "--as-of",
    type=_TimeParameter(),
    help="Print the row as it was at this time instead of its history. UTC, unless the time has a zone.",
)
@click.option(
    "--transactions", is_flag=True, help="Print the last transactions instead; with TABLE, those that changed it."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="How many changes or transactions to print, if there is no KEY.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--sink", metavar="NAME", help="The audit sink to read, if there are several.")
@click.pass_obj
def command(
    invocation: Invocation,
    table: str | None,
    key: tuple[str, ...],
    as_of: datetime | None,
    transactions: bool,
    limit: int,
    as_json: bool,
    sink: str | None,
) -> None:
    """Print changes from the audit trail: who made them, when, and what changed. The newest comes last.

    With TABLE and KEY, print every change of one row, also under its earlier keys. KEY is the value of the row's
    primary key; for a key with several columns, give the values in order. With TABLE alone, print the table's last
    changes. Exits with 2 if the audit trail has no such row or table.
    """
    name = None if table is None else split_name(table)
    if transactions and key:
        raise click.UsageError("--transactions takes no KEY")
    if name is None and not transactions:
        raise click.UsageError("name a TABLE, or use --transactions")
    if as_of is not None and not key:
        raise click.UsageError("--as-of needs the KEY of a row")
    with trail.open_trail(invocation.audit_settings(), os.environ, sink) as audit_trail:
        if transactions:
            _print_transactions(audit_trail.transactions(name, limit), as_json)
        elif name is not None and not key:
            _print_recent(audit_trail, name, limit, as_json)
        elif name is not None:
            _print_row(audit_trail, name, key, as_of, as_json)


def _print_row(
    audit_trail: trail.Trail, name: tuple[str, str], key: tuple[str, ...], as_of: datetime | None, as_json: bool
) -> None:
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
        _print_entry(entry, row_history.line(entry), as_json)


def _print_recent(audit_trail: trail.Trail, name: tuple[str, str], limit: int, as_json: bool) -> None:
    rows = audit_trail.recent(name, limit)
    if not rows:
        raise ConfigError(
            f"the audit trail has nothing about {'.'.join(name)}",
            "it has only changes since it began; check the name of the table",
        )
    for row in rows:
        previous = audit_trail.previous_change(row)
        *_, entry = row_history.entries([row] if previous is None else [previous, row])
        _print_entry(entry, row_history.recent_line(entry), as_json)


def _print_entry(entry: row_history.HistoryEntry, line: str, as_json: bool) -> None:
    if as_json:
        click.echo(row_history.to_json(entry))
        return
    click.echo(line)
    for text in row_history.diff(entry):
        click.echo(text)


def _print_transactions(found: Sequence[trail.AuditTransaction], as_json: bool) -> None:
    if not found and not as_json:
        click.echo("no transactions")
    for transaction in found:
        click.echo(
            row_history.transaction_to_json(transaction) if as_json else row_history.transaction_line(transaction)
        )


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
