"""`tailrace query`: serves the lake's tables to psql, drivers and BI tools until it is stopped."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tailrace import sinks
from tailrace.cli import Invocation
from tailrace.cli.stop_signal import on_stop
from tailrace.errors import ConfigError
from tailrace.lake.options import IcebergOptions
from tailrace.quantity import count
from tailrace.settings import Settings
from tailrace.settings.parser import did_you_mean

if TYPE_CHECKING:
    from tailrace.query.query_server import QueryServer

_POLL_SECONDS = 0.5
_EXAMPLE = """\
add one to tailrace.toml, for example
  [[sink]]
  type = "iceberg"
  name = "lake"
  warehouse = "file:///data/lake\""""


@click.command("query", short_help="Serve the lake's tables over the PostgreSQL protocol.")
@click.option("--port", type=int, metavar="PORT", help="Port to listen on. Default: [query] port, or 5439.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on. Default: [query] host, or 127.0.0.1.")
@click.option("--sink", "name", metavar="NAME", help="The iceberg sink to serve, if there are several.")
@click.pass_obj
def command(invocation: Invocation, port: int | None, host: str | None, name: str | None) -> None:
    """Serve the lake's tables, read-only, to clients that speak the PostgreSQL protocol: psql, drivers, BI tools.

    The server needs only the warehouse and runs on any machine that can reach it. SIGTERM and Ctrl-C cancel running
    statements, then exit with 0.
    """
    settings = invocation.lake_settings()
    invocation.start_logging()
    name, options = select_lake(settings, name, os.environ)
    limits = replace(
        settings.query,
        port=settings.query.port if port is None else port,
        host=settings.query.host if host is None else host,
    )
    try:
        from tailrace.query.query_server import QueryServer
    except ModuleNotFoundError as error:
        if error.name != "duckdb":
            raise
        raise ConfigError("duckdb is not installed", "run pip install 'tailrace[query]'") from None
    over = threading.Event()
    on_stop(over.set)
    with QueryServer(options, name, limits) as server:
        _serve(server, limits.host, over)


def _serve(server: QueryServer, host: str, over: threading.Event) -> None:
    version = server.lake.version()
    if version is None:
        click.echo(f"{server.lake.url} has no tables yet: waiting for the sink to deliver; clients can already connect")
    click.echo(f"psql -h {host} -p {server.port} {version.database if version else 'postgres'}")
    while version is None and not over.wait(_POLL_SECONDS):
        version = server.lake.version()
        if version is not None:
            click.echo(f"{count(len(version.tables), 'table')} of {version.database}, as of {version.cursor}")
    over.wait()


def select_lake(settings: Settings, name: str | None, environ: Mapping[str, str]) -> tuple[str, IcebergOptions]:
    """Return the name and the options of the sink `name`, or of the only iceberg sink."""
    lakes = [str(sink["name"]) for sink in settings.sinks if sink["type"] == "iceberg"]
    if not lakes:
        raise ConfigError("no sink of type iceberg is configured, so there is no lake", _EXAMPLE)
    if name is None and len(lakes) > 1:
        raise ConfigError(f"there are several lakes: {', '.join(lakes)}", "choose one with --sink NAME")
    if name is not None and name not in lakes:
        raise ConfigError(f"there is no lake {name!r}{did_you_mean(name, lakes)}")
    name = name or lakes[0]
    options = sinks.read_options(settings, name, IcebergOptions, environ)
    options.check()
    return name, options
