"""Spark: the session, the log as a data source, and the engine that delivers it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Not on demand: once its module is imported, this name would be the module's. It imports pyspark only when called.
from tailrace.spark.session import session

if TYPE_CHECKING:
    from tailrace.spark.dataframe_sink import sink
    from tailrace.spark.datasource import register
    from tailrace.spark.state_source import state

__all__ = ["register", "session", "sink", "state"]

_HOMES = {
    "register": "tailrace.spark.datasource",
    "sink": "tailrace.spark.dataframe_sink",
    "state": "tailrace.spark.state_source",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
