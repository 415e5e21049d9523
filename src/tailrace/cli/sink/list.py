"""`tailrace sink list`: the sinks of the settings, and others that the store knows."""

from __future__ import annotations

import json

import click

from tailrace.cli import Invocation, sink_table
from tailrace.delivery import control
from tailrace.ops.probe import sink_statuses
from tailrace.ops.status import Overview
from tailrace.store import Store


@click.command("list", short_help="List the sinks with their state and lag.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.pass_obj
def list_(invocation: Invocation, as_json: bool) -> None:
    """List the configured sinks, and those that delivered from this log before. `tailrace sink forget` removes the
    latter from the store."""
    settings = invocation.settings("store")
    store = Store.open(settings.store.url, settings.store.options)
    statuses = sink_statuses(store, settings.sinks)
    configured = {str(raw["name"]) for raw in settings.sinks}
    if as_json:
        for raw in Overview(sinks=statuses).to_json()["sinks"]:
            click.echo(json.dumps(raw | {"is_configured": raw["name"] in configured}, ensure_ascii=False))
        return
    sink_table.show(statuses)
    for status in statuses:
        if status.state in ("new", "stopped") and control.load(store, status.name).is_paused:
            click.echo(
                f"{status.name} is paused: when it is started, it waits for `tailrace sink resume {status.name}`"
            )
        if status.name not in configured:
            click.echo(f"{status.name} is not in the settings; `tailrace sink forget {status.name}` removes it")
