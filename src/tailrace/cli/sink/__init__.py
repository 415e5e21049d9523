"""`tailrace sink`: commands for one sink, each in a module of its own."""

from __future__ import annotations

import click

from tailrace.cli.sink.test import test


@click.group("sink", short_help="Show what a sink would deliver.")
def command() -> None:
    """Show what a sink would deliver."""


command.add_command(test)
