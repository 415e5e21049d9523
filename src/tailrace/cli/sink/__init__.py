"""`tailrace sink`: commands for one sink, wherever it runs."""

from __future__ import annotations

import click

from tailrace.cli.sink.control_request import forget, pause, reload, resume, rewind
from tailrace.cli.sink.list import list_
from tailrace.cli.sink.test import test


@click.group("sink", short_help="List, pause, resume, reload, rewind, forget and test sinks.")
def command() -> None:
    """List sinks, and tell one of them what to do.

    Requests are objects in the store: the process that delivers to the sink obeys within seconds, on whatever machine
    it runs, or when it is started.
    """


for each in (list_, pause, resume, reload, rewind, forget, test):
    command.add_command(each)
