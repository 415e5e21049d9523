"""`tailrace audit`: the drop-in replacement for Bemi and Zemi, configured by the environment alone."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator

import click

from tailrace.audit import bemi_environment
from tailrace.audit.bemi_environment import BemiEnvironment
from tailrace.capture.postgres.slot import drop_slot_and_publication
from tailrace.cli import Invocation, compatibility, output
from tailrace.cli.compatibility import CompatibleInvocation
from tailrace.errors import CorruptError
from tailrace.settings import HttpSettings, Secret

_MAX_DIFFERENCES = 100

_log = logging.getLogger("tailrace.run")


@click.group("audit", short_help="Record an audit trail; replaces Bemi and Zemi.", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Record every INSERT, UPDATE, DELETE and TRUNCATE in the table `changes`, with the context set by the application.

    This replaces Bemi and Zemi, and reads the same environment variables: DB_HOST, DB_PORT, DB_NAME, DB_USER,
    DB_PASSWORD, DB_SSL_MODE, DB_SSL_ROOT_CERT; the same with the prefix DEST_ for another destination; SLOT_NAME,
    PUBLICATION_NAME, TABLES, LOG_LEVEL, HEALTH_PORT, METRICS_PORT, SHUTDOWN_TIMEOUT, CLEANUP_ON_SHUTDOWN. No settings
    file is needed. The log is stored in ./tailrace-log/<slot>, or at TAILRACE_STORE_URL. A log that an earlier version
    stored in ./tailrace-log stays there.
    """
    if ctx.invoked_subcommand in (None, compatibility.PROCESS_GROUP):
        env = bemi_environment.read(os.environ)
        # If the slot is dropped at shutdown, the next run starts with a new slot. The changes in between are a gap.
        capture = ("--accept-gap",) if env.cleans_up else ()
        ctx.obj = CompatibleInvocation(
            None,
            env.log_level,
            ctx.obj.log_format,
            own_settings=env.settings,
            command=("audit",),
            capture_flags=capture,
        )
        if ctx.invoked_subcommand is None:
            _run(ctx.obj, env)


def _run(invocation: CompatibleInvocation, env: BemiEnvironment) -> None:
    from tailrace.cli.run import supervise
    from tailrace.ops.http import serve

    invocation.start_logging()
    _log.info("slot %s, log at %s", env.settings.source.slot, env.settings.store.url)
    # Monitoring runs on other machines, so status is readable there. Control requests need a token that nobody knows.
    http = HttpSettings(host="0.0.0.0", token=Secret(secrets.token_urlsafe()))  # noqa: S104
    ports = sorted({port for port in (env.health_port, env.metrics_port) if port is not None})
    with _clean_up_at_end(env):
        # If either capture or delivery fails, there is no audit trail, so the command must fail too.
        supervise(
            invocation,
            env.settings,
            lambda service: serve(http, service, ports, guards_reads=False),
            grace_s=env.shutdown_timeout_s,
            all_or_nothing=True,
        )
    click.echo("stopped")


@contextlib.contextmanager
def _clean_up_at_end(env: BemiEnvironment) -> Iterator[None]:
    yield
    if env.cleans_up:
        drop_slot_and_publication(env.settings.source)
        _log.info("dropped slot %s and publication %s", env.settings.source.slot, env.settings.source.publication)


@command.command("verify", short_help="Verify the audit table against the log.")
@click.option("--sink", metavar="NAME", help="The audit sink to verify, if there are several.")
@click.pass_obj
def verify(invocation: Invocation, sink: str | None) -> None:
    """Verify the audit table against the log, row by row.

    Prints the differences and exits with 1 if there are any.
    """
    from tailrace.audit import trail
    from tailrace.audit.verify import VerificationReport
    from tailrace.audit.verify import verify as verify_trail

    settings = invocation.audit_settings()
    options, name = trail.audit_options(settings, os.environ, sink)
    common = trail.common_settings(settings, os.environ, name)

    def show_progress(report: VerificationReport) -> None:
        update(f"{report.changes:,} changes compared, up to {report.reached}")

    with trail.open_trail(settings, os.environ, name) as audit_trail, output.live_line() as update:
        report = verify_trail(audit_trail, settings.store, common, options.inserts, show_progress)
    for difference in report.differences[:_MAX_DIFFERENCES]:
        click.echo(str(difference))
    if len(report.differences) > _MAX_DIFFERENCES:
        click.echo(f"… and {len(report.differences) - _MAX_DIFFERENCES:,} more")
    if report.erased:
        click.echo(f"{report.erased:,} rows have erased values: their other values were compared")
    if report.older:
        click.echo(f"{report.older:,} rows are older than the retained log: not compared")
    if report.foreign:
        click.echo(f"{report.foreign:,} rows were written before Tailrace: they are not in the log")
    for start, end in report.gaps:
        click.echo(f"changes between {start} and {end} were lost: neither the log nor the table has them")
    if report.others:
        click.echo(f"{report.others:,} rows belong to other databases: they are not in this log")
    if report.unverified:
        click.echo(
            f"{report.unverified:,} values were not sent by PostgreSQL and are in no earlier change: not compared"
        )
    if report.differences:
        raise CorruptError(
            f"{options.table} differs from the log in {len(report.differences):,} of {report.changes:,} changes",
            "`tailrace log verify` checks the log itself; `tailrace sink rewind` writes missing rows again",
        )
    click.echo(f"{report.changes:,} changes up to {report.reached}: the table matches the log")


@command.command("erase", short_help="Erase the values of one row from the audit trail.")
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@click.option("--column", "columns", multiple=True, help="Erase only the values of this column. May be repeated.")
@click.option("--sink", metavar="NAME", help="The audit sink to use, if there are several.")
@click.confirmation_option(prompt="This cannot be undone. Erase?")
@click.pass_obj
def erase(invocation: Invocation, table: str, key: tuple[str, ...], columns: tuple[str, ...], sink: str | None) -> None:
    """Erase the values of one row of TABLE from all of its recorded changes.

    The operations, their times and the key KEY stay, and `tailrace audit verify` still verifies them. The log retains
    the values for as long as [retention] says.
    """
    from tailrace.audit import trail
    from tailrace.audit.erase import erase as erase_values
    from tailrace.settings.pattern import split_name

    settings = invocation.audit_settings()
    with trail.open_trail(settings, os.environ, sink) as audit_trail:
        count = erase_values(audit_trail, split_name(table), trail.key_texts(key), columns)
    click.echo(f"erased values from {count:,} changes")


command.add_command(compatibility.process_group())
