"""The configured sinks, and the ones that a command names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from tailrace import sinks
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import ConfigError
from tailrace.settings import Settings
from tailrace.settings.parser import did_you_mean

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
