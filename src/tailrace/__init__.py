"""Tailrace turns PostgreSQL's write-ahead log into a durable change log, and builds everything else from it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.change import Change, Lsn, Position
    from tailrace.log.reader import LogReader
    from tailrace.slatedb.wal_reader import WalReader

__all__ = ["Change", "LogReader", "Lsn", "Position", "WalReader"]

__version__ = "0.1.0"

_MODULES = {
    "Change": "tailrace.change",
    "LogReader": "tailrace.log.reader",
    "Lsn": "tailrace.change",
    "Position": "tailrace.change",
    "WalReader": "tailrace.slatedb.wal_reader",
}


def __getattr__(name: str) -> Any:
    # Imported on demand: the command line starts without Arrow, Parquet and the store's client if it needs none.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
