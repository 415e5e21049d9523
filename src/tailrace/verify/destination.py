"""Which sinks can be compared with the source, and how their rows are read."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from tailrace import sinks
from tailrace.delivery.contract import ReadsRows
from tailrace.delivery.row_reader import RowReader
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import ConfigError, SinkRefused
from tailrace.lake.options import IcebergOptions
from tailrace.settings import Settings

_LAKE = "iceberg"


def check_source(settings: Settings) -> None:
    """Raise unless the source's rows can be compared."""
    if settings.slatedb is not None:
        raise ConfigError(
            f"the source is the SlateDB database {settings.slatedb.url}, and only rows of PostgreSQL can be compared",
            "`tailrace log verify` checks the log itself",
        )


def check_verifiable(settings: Settings, configured: ConfiguredSink) -> None:
    """Raise unless the sink's rows can be compared with the source's."""
    check_source(settings)
    common, sink = configured.common, configured.sink
    if common.sql or common.transform:
        raise ConfigError(
            f"sink {common.name} delivers the rows of its `{'sql' if common.sql else 'transform'}`, "
            "which the source does not have",
            "verify a sink that delivers the table itself",
        )
    is_lake = common.type == _LAKE
    if is_lake and _lake_options(settings, common.name).mode == "changelog":
        raise SinkRefused(f"sink {common.name} keeps changes, and not rows that could be compared", 'mode = "both"')
    if not is_lake and not isinstance(sink, ReadsRows):
        raise SinkRefused(
            f"sink {common.name} ({common.type}) delivers events and keeps no rows that could be compared",
            "`tailrace log verify` checks the log that it delivers from; `tailrace deadletter` lists what was rejected",
        )
    if (common.start or sink.start) != "snapshot":
        raise ConfigError(
            f"sink {common.name} starts at {common.start}: it has changes only, and not the rows from before",
            'only a sink with start = "snapshot" can be compared',
        )


def read_rows(settings: Settings, configured: ConfiguredSink) -> AbstractContextManager[RowReader]:
    """A view of the destination of a sink for which `check_verifiable` holds."""
    if configured.common.type == _LAKE:
        from tailrace.verify.lake_reader import read_lake  # it needs DuckDB

        return read_lake(configured.name, _lake_options(settings, configured.name))
    assert isinstance(configured.sink, ReadsRows)
    return configured.sink.read_rows()


def _lake_options(settings: Settings, name: str) -> IcebergOptions:
    return sinks.read_options(settings, name, IcebergOptions, os.environ)
