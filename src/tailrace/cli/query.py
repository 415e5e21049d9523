"""`tailrace query`: the lake's tables to psql, drivers and BI tools, until told to stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tailrace import sinks
from tailrace.cli import Invocation, reporting
from tailrace.cli.signals import on_stop
from tailrace.errors import ConfigError
from tailrace.settings import Settings
from tailrace.settings.reading import did_you_mean
from tailrace.sinks.iceberg.options import IcebergOptions

if TYPE_CHECKING:
    from tailrace.query.server import Server

_POLL_SECONDS = 0.5
_EXAMPLE = """\
add one to tailrace.toml, such as
  [[sink]]
  type = "iceberg"
  name = "lake"
  warehouse = "file:///data/lake\""""


@click.command("query", short_help="Serve the lake's tables over PostgreSQL's protocol.")
@click.option("--port", type=int, metavar="PORT", help="5439 unless [query] says otherwise.")
@click.option("--host", metavar="ADDRESS", help="127.0.0.1 unless [query] says otherwise.")
@click.option("--sink", "name", metavar="NAME", help="Whose lake, where there are several sinks of type iceberg.")
@click.pass_obj
def command(invocation: Invocation, port: int | None, host: str | None, name: str | None) -> None:
    """Serve the lake's tables to whoever speaks PostgreSQL's protocol: psql, drivers, BI tools. Read-only.

    Needs the warehouse alone, and runs wherever that can be reached. SIGTERM and Ctrl-C: statements under way are
    cancelled, exit with 0.
    """
    settings = invocation.lake_settings()
    reporting.log_to_stderr()
    name, options = chosen(settings, name, os.environ)
    limits = replace(
        settings.query,
        port=settings.query.port if port is None else port,
        host=settings.query.host if host is None else host,
    )
    try:
        from tailrace.query.server import Server
    except ModuleNotFoundError as error:
        if error.name != "duckdb":
            raise
        raise ConfigError("duckdb is not installed", "pip install 'tailrace[query]'") from None
    over = threading.Event()
    on_stop(over.set)
    with Server(options, name, limits) as server:
        _serve(server, limits.host, over)


def _serve(server: Server, host: str, over: threading.Event) -> None:
    moment = server.lake.moment()
    if moment is None:
        click.echo(
            f"{server.lake.url} has no tables yet: waiting for the sink to deliver; connections are taken already"
        )
    click.echo(f"psql -h {host} -p {server.port} {moment.database if moment else 'postgres'}")
    while moment is None and not over.wait(_POLL_SECONDS):
        moment = server.lake.moment()
        if moment is not None:
            click.echo(f"{len(moment.tables)} tables of {moment.database}, as of {moment.cursor}")
    over.wait()


def chosen(settings: Settings, name: str | None, environ: Mapping[str, str]) -> tuple[str, IcebergOptions]:
    """The lake's sink: the one that is named, or the only one."""
    lakes = [str(sink["name"]) for sink in settings.sinks if sink["type"] == "iceberg"]
    if not lakes:
        raise ConfigError("there is no sink of type iceberg, and so no lake", _EXAMPLE)
    if name is None and len(lakes) > 1:
        raise ConfigError(f"there are several lakes: {', '.join(lakes)}", "say which: --sink NAME")
    if name is not None and name not in lakes:
        raise ConfigError(f"there is no lake {name!r}{did_you_mean(name, lakes)}")
    name = name or lakes[0]
    options = sinks.options(settings, name, IcebergOptions, environ)
    options.check()
    return name, options
