"""`tailrace audit`: the drop-in for Bemi and Zemi, run by the environment alone."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator

import click

from tailrace.audit import environment
from tailrace.audit.environment import Environment
from tailrace.cli import Invocation, drop_in, reporting
from tailrace.cli.drop_in import DropIn
from tailrace.errors import CorruptError
from tailrace.settings import Http, Secret
from tailrace.source.slot import clean_up

_SHOWN = 100

_log = logging.getLogger("tailrace.run")


@click.group(
    "audit", short_help="Keep an audit trail, with Bemi's and Zemi's environment.", invoke_without_command=True
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Keep the table `changes`: every INSERT, UPDATE, DELETE and TRUNCATE, with the context that the application gave.

    No settings are needed but the environment that Bemi and Zemi have: DB_HOST, DB_PORT, DB_NAME, DB_USER, DB_PASSWORD,
    DB_SSL_MODE, DB_SSL_ROOT_CERT, the same with DEST_ before it for another destination, SLOT_NAME, PUBLICATION_NAME,
    TABLES, LOG_LEVEL, HEALTH_PORT, METRICS_PORT, SHUTDOWN_TIMEOUT, CLEANUP_ON_SHUTDOWN. The log is kept in
    ./tailrace-log, or where TAILRACE_STORE_URL says.
    """
    if ctx.invoked_subcommand in (None, drop_in.PARTS):
        given = environment.read(os.environ)
        # Who has the slot dropped at the end wants to begin anew: what happened meanwhile is a gap.
        capture = ("--accept-gap",) if given.cleans_up else ()
        ctx.obj = DropIn(None, given.log_level, given=given.settings, command=("audit",), capture=capture)
        if ctx.invoked_subcommand is None:
            _run(ctx.obj, given)


def _run(invocation: DropIn, given: Environment) -> None:
    from tailrace.cli.run import served, supervise

    reporting.log_to_stderr(given.log_level)
    # Whoever watches is on another machine. He may look; nobody knows the token that control calls need.
    http = Http(host="0.0.0.0", token=Secret(secrets.token_urlsafe()))  # noqa: S104
    ports = sorted({port for port in (given.health_port, given.metrics_port) if port is not None})
    with _cleaning_up(given):
        # With one half of it there is no trail: whoever started it must learn of that.
        supervise(
            invocation,
            given.settings,
            lambda subject: served(http, subject, ports),
            grace_s=given.shutdown_timeout_s,
            all_or_nothing=True,
        )
    click.echo("stopped")


@contextlib.contextmanager
def _cleaning_up(given: Environment) -> Iterator[None]:
    yield
    if given.cleans_up:
        clean_up(given.settings.source)
        _log.info("dropped slot %s and publication %s", given.settings.source.slot, given.settings.source.publication)


@command.command("verify")
@click.option("--sink", metavar="NAME", help="The audit sink whose table is proved, where there are several.")
@click.pass_obj
def verify(invocation: Invocation, sink: str | None) -> None:
    """Prove that the table still says what the log says, row for row; name what differs, and exit with 1."""
    from tailrace.audit import trail
    from tailrace.audit.verify import Tally
    from tailrace.audit.verify import verify as proved

    settings = invocation.audit_settings()
    options, name = trail.options_of(settings, os.environ, sink)
    common = trail.common_of(settings, os.environ, name)

    def told(tally: Tally) -> None:
        update(f"{tally.changes:,} changes compared, up to {tally.reached}")

    with trail.opened(settings, os.environ, name) as found, reporting.status_line() as update:
        tally = proved(found, settings.store, common, options.inserts, told)
    for difference in tally.differences[:_SHOWN]:
        click.echo(str(difference))
    if len(tally.differences) > _SHOWN:
        click.echo(f"… and {len(tally.differences) - _SHOWN:,} more")
    if tally.erased:
        click.echo(f"{tally.erased:,} rows whose values were erased: the rest of them was compared")
    if tally.older:
        click.echo(f"{tally.older:,} rows from before what is still in the log: they were not compared")
    if tally.strangers:
        click.echo(f"{tally.strangers:,} rows from before Tailrace: the log knows nothing of them")
    for start, end in tally.gaps:
        click.echo(f"what happened between {start} and {end} was lost: neither the log nor the table has it")
    if tally.others:
        click.echo(f"{tally.others:,} rows of other databases: this log knows nothing of them")
    if tally.unproved:
        click.echo(
            f"{tally.unproved:,} values that PostgreSQL did not send: no change before them tells what they were"
        )
    if tally.differences:
        raise CorruptError(
            f"{options.table} differs from the log in {len(tally.differences):,} of {tally.changes:,} changes",
            "`tailrace log verify` proves the log; `tailrace deliver --rewind` writes again what is missing",
        )
    click.echo(f"{tally.changes:,} changes up to {tally.reached}: the table says what the log says")


@command.command("erase")
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@click.option("--column", "columns", multiple=True, help="Only this one's values; may be given more than once.")
@click.option("--sink", metavar="NAME", help="The audit sink whose table it is, where there are several.")
@click.confirmation_option(prompt="This cannot be undone. Erase?")
@click.pass_obj
def erase(invocation: Invocation, table: str, key: tuple[str, ...], columns: tuple[str, ...], sink: str | None) -> None:
    """Erase the values of one row of TABLE from all its changes; `verify` still proves the rest.

    What happened when stays, and so does the key. The log still has the values: [retention] says for how long.
    """
    from tailrace.audit import trail
    from tailrace.audit.erase import erase as erased
    from tailrace.settings.pattern import split_name

    settings = invocation.audit_settings()
    with trail.opened(settings, os.environ, sink) as found:
        count = erased(found, split_name(table), trail.keys_of(key), columns)
    click.echo(f"erased from {count:,} changes")


command.add_command(drop_in.parts())
