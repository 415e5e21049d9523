"""The configured sinks, and the ones that a command names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import click

from tailrace import sinks
from tailrace.cli import DEFAULT_CONFIG, Invocation
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import ConfigError
from tailrace.settings import Settings
from tailrace.settings.parser import did_you_mean, read_toml

_EXAMPLE: Final = """\
add one to tailrace.toml, for example
  [[sink]]
  type = "postgres"
  name = "replica"
  url = "postgresql://user@host/database\""""


def configured_sinks(settings: Settings) -> list[ConfiguredSink]:
    """Return the sinks of the settings; a ConfigError if there are none."""
    configured = sinks.from_settings(settings, os.environ)
    if not configured:
        raise ConfigError("no sink is configured", _EXAMPLE)
    return configured


def find_sink(configured: Sequence[ConfiguredSink], name: str) -> ConfiguredSink:
    """Return the sink of this name; a ConfigError if there is none."""
    by_name = {sink.name: sink for sink in configured}
    if name not in by_name:
        raise ConfigError(f"there is no sink {name!r}{did_you_mean(name, list(by_name))}")
    return by_name[name]


def complete_sink(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Return the names of sinks for the shell's completion. It reads the settings file only: it must be fast."""
    config = ctx.obj.config if isinstance(ctx.obj, Invocation) else None
    try:
        found = read_toml(config or DEFAULT_CONFIG).get("sink", [])
    except ConfigError:
        return []
    names = [sink.get("name") for sink in found if isinstance(sink, dict)] if isinstance(found, list) else []
    return [name for name in names if isinstance(name, str) and name.startswith(incomplete)]
