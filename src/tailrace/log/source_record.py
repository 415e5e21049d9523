"""`source.json`: the source of a log, and the LSN at which the log begins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tailrace import stored_json
from tailrace.change import Lsn
from tailrace.errors import CorruptError
from tailrace.log.segment import SourceIdentity
from tailrace.log.writer import LogWriter
from tailrace.store import Store

KEY: Final = "source.json"


def save(store: Store, source: SourceIdentity, begins_at: Lsn) -> None:
    raw = source.to_raw() | {"begins_at": str(begins_at)}
    store.replace(KEY, json.dumps(raw, indent=2).encode())


def begin(store: Store, writer: LogWriter, lsn: Lsn, resume: str | None = None) -> None:
    """Start the log at an LSN, or continue it after a gap: first the record of its origin, then the log itself."""
    save(store, writer.source, lsn)
    writer.begin_at(lsn, resume)


def load(store: Store) -> Mapping[str, Any] | None:
    """The record; None before the first run of capture."""
    data = store.get(KEY)
    if data is None:
        return None
    try:
        raw = stored_json.parse(data)
        Lsn.parse(raw["begins_at"])
    except stored_json.ERRORS as error:
        raise CorruptError(f"{KEY} is not a file that capture wrote", "restore it from a copy of the store") from error
    return raw  # type: ignore[no-any-return]


def slot(store: Store) -> str | None:
    """The slot that the log is captured from; None before the first run of capture, and if the source has no slots."""
    raw = load(store)
    return None if raw is None or "slot" not in raw else str(raw["slot"])


def begins_at(store: Store) -> Lsn:
    """The LSN from which on the log has every change: where it was started, or restarted after a gap."""
    raw = load(store)
    return Lsn.parse(raw["begins_at"]) if raw else Lsn(0)
