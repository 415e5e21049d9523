"""`tailrace check`: reports what is wrong with the source and with destinations, and what fixes it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import click
from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from tailrace import sinks
from tailrace.capture.source import inspect_source
from tailrace.cli import Invocation
from tailrace.delivery.contract import ChecksDestination
from tailrace.errors import ConfigError, TailraceError
from tailrace.finding import Finding, Severity, can_run
from tailrace.log.terminal import printable, printable_lines
from tailrace.recovery.check import inspect_archive
from tailrace.settings import Settings
from tailrace.store import Store

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


@click.command("check", short_help="Check the source and the sinks, and print what fixes them.")
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Check whether capture can run and what it would miss, and print the SQL that fixes each finding. Then check every
    sink: its type and options, whether it can log in to its destination, and the rights that delivery needs there.

    An object is written to the store, and to the destination of a files or iceberg sink, and removed again. With
    `enabled = true` in [archive], check whether the WAL can be archived.

    This changes nothing on the source. Exits with 0 if capture and all sinks can run, with 1 if one of them cannot.
    """
    settings = invocation.audit_settings("source")
    reports = [("capture", [*_findings("source:", lambda: inspect_source(settings)), *_store_findings(settings)])]
    if settings.archive.enabled:
        reports.append(("archive", _findings("archive:", lambda: inspect_archive(settings))))
    reports += _sink_reports(settings)
    for name, findings in reports:
        (_show if sys.stdout.isatty() else _print)(name, findings)
    if not all(can_run(findings) for _, findings in reports):
        raise SystemExit(1)


def _sink_reports(settings: Settings) -> Iterator[tuple[str, list[Finding]]]:
    try:
        configured = sinks.from_settings(settings, os.environ)
    except ConfigError as error:
        # Several faults are one line each, below a title.
        faults = str(error).splitlines()
        yield "delivery", [Finding(Severity.ERROR, "settings:", fault.strip()) for fault in faults[1:] or faults]
        return
    for one in configured:
        check = one.sink.check if isinstance(one.sink, ChecksDestination) else None
        unchecked = Finding(Severity.NOTE, f"sink {one.name}", "does not say whether its destination can be reached")
        name = f"sink {one.name}"
        yield name, [unchecked] if check is None else _findings(f"{name}:", check)


def _store_findings(settings: Settings) -> list[Finding]:
    if not settings.store.url:
        return [Finding(Severity.NOTE, "store", "has no url: set url in [store], where the log is to be stored")]

    def probe() -> Iterable[Finding]:
        Store.open(settings.store.url, settings.store.options).probe()
        return ()

    return _findings("store:", probe)


def _findings(subject: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What a check finds; if it fails, that is what it found."""
    findings: list[Finding] = []
    try:
        findings += check()
    except TailraceError as error:
        findings.append(Finding(Severity.ERROR, subject, error.with_hint))
    return findings


def _print(name: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        click.echo(printable(f"{finding.severity}: {finding.subject} {finding.message}"))
        for line in finding.fix.splitlines():
            click.echo(printable(f"    {line}"))
    click.echo(_verdict(name, findings))


def _show(name: str, findings: Sequence[Finding]) -> None:
    console = Console(highlight=False)
    for finding in findings:
        console.print(
            Text.assemble(
                (f"{finding.severity:<8}", _COLOURS[finding.severity]),
                (printable(finding.subject), "bold"),
                " ",
                printable(finding.message),
            )
        )
        if finding.fix:
            statement = Syntax(printable_lines(finding.fix), "sql", background_color="default", word_wrap=True)
            console.print(Padding(statement, (0, 0, 0, 8)))
    colour = "bold green" if can_run(findings) else "bold red"
    console.print(Text(_verdict(name, findings), colour))


def _verdict(name: str, findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    parts = [f"{counts[severity]} {severity}{'' if counts[severity] == 1 else 's'}" for severity in Severity]
    return f"{name} {'can' if can_run(findings) else 'cannot'} run: {', '.join(parts)}"
