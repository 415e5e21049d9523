"""`tailrace check`: reports what is wrong with the source and with destinations, and what fixes it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence

import click
from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from tailrace import sinks
from tailrace.capture.postgres.check import can_capture, inspect
from tailrace.cli import Invocation
from tailrace.delivery.contract import ChecksDestination
from tailrace.errors import TailraceError
from tailrace.finding import Finding, Severity
from tailrace.recovery.check import inspect_archive

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


@click.command("check", short_help="Check the source and the sinks, and print what fixes them.")
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Check whether capture can run and what it would miss, and print the SQL that fixes each finding. Then log in to
    the destinations of some sinks (kafka, rabbitmq, webhook, mysql, opensearch, valkey) and test the rights that
    delivery needs.

    With `enabled = true` in [archive], check whether the WAL can be archived, and write and remove an object.

    This changes nothing on the source. Exits with 0 if capture and these sinks can run, with 1 if one of them cannot.
    """
    settings = invocation.audit_settings("source")
    reports = [("capture", inspect(settings.source))]
    if settings.archive.enabled:
        reports.append(("archive", inspect_archive(settings)))
    reports += [
        (f"sink {configured.name}", _check_sink(configured.name, configured.sink))
        for configured in sinks.from_settings(settings, os.environ)
        if isinstance(configured.sink, ChecksDestination)
    ]
    for name, findings in reports:
        (_show if sys.stdout.isatty() else _print)(name, findings)
    if not all(can_capture(findings) for _, findings in reports):
        raise SystemExit(1)


def _check_sink(name: str, sink: ChecksDestination) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings += sink.check()
    except TailraceError as error:
        findings.append(Finding(Severity.ERROR, f"sink {name}:", f"{error}. {error.hint}"))
    return findings


def _print(name: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        click.echo(f"{finding.severity}: {finding.subject} {finding.message}")
        for line in finding.fix.splitlines():
            click.echo(f"    {line}")
    click.echo(_verdict(name, findings))


def _show(name: str, findings: Sequence[Finding]) -> None:
    console = Console(highlight=False)
    for finding in findings:
        console.print(
            Text.assemble(
                (f"{finding.severity:<8}", _COLOURS[finding.severity]), (finding.subject, "bold"), " ", finding.message
            )
        )
        if finding.fix:
            statement = Syntax(finding.fix, "sql", background_color="default", word_wrap=True)
            console.print(Padding(statement, (0, 0, 0, 8)))
    colour = "bold green" if can_capture(findings) else "bold red"
    console.print(Text(_verdict(name, findings), colour))


def _verdict(name: str, findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    parts = [f"{counts[severity]} {severity}{'' if counts[severity] == 1 else 's'}" for severity in Severity]
    return f"{name} {'can' if can_capture(findings) else 'cannot'} run: {', '.join(parts)}"
