"""`tailrace check`: reports what is wrong with a source, and the SQL that fixes it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import click
from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from tailrace.capture.check import Finding, Severity, can_capture, inspect
from tailrace.cli import Invocation

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


@click.command("check", short_help="Check the source and print the SQL that fixes it.")
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Check whether capture can run and what it would miss, and print the SQL that fixes each finding.

    This changes nothing. Exits with 0 if capture can run, with 1 if it cannot.
    """
    findings = inspect(invocation.audit_settings("source").source)
    (_show if sys.stdout.isatty() else _print)(findings)
    if not can_capture(findings):
        raise SystemExit(1)


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        click.echo(f"{finding.severity}: {finding.subject} {finding.message}")
        for line in finding.fix.splitlines():
            click.echo(f"    {line}")
    click.echo(_verdict(findings))


def _show(findings: Sequence[Finding]) -> None:
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
    console.print(Text(_verdict(findings), colour))


def _verdict(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    parts = [f"{counts[severity]} {severity}{'' if counts[severity] == 1 else 's'}" for severity in Severity]
    return f"capture {'can' if can_capture(findings) else 'cannot'} run: {', '.join(parts)}"
