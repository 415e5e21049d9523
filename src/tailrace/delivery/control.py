"""Control requests: what an operator, or the destination itself, wants of a sink, wherever it runs.

A request is an object in the store, `cursors/<sink>/control.json`. The process that delivers to the sink reads it every
few seconds, so no connection to that process is needed, and a pause survives restarts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final

from tailrace import stored_json
from tailrace.errors import CorruptError
from tailrace.log.retention import CURSORS
from tailrace.store import Store

_CONTROL: Final = "control.json"


@dataclass(frozen=True)
class ControlRequest:
    """The latest request to one sink."""

    is_paused: bool = False
    at: str = ""
    """When the request was made: a repeated request differs from the one before it."""
    reload: tuple[str, ...] = ()
    """Patterns of the tables to load again. The sink removes them once it has done so."""
    rewind: str = ""
    """Where to deliver again from: `snapshot`, an LSN or a time. The sink removes it once it is there."""
    repair: tuple[str, ...] = ()
    """Ids of repairs to execute. The sink removes them before it does so: see `tailrace.delivery.repair`."""
    reason: str = ""
    """Why the sink is paused, if it was its destination that asked for it."""


def load(store: Store, sink: str) -> ControlRequest:
    """Return the current request; without an object in the store, the default one."""
    key = f"{CURSORS}/{sink}/{_CONTROL}"
    data = store.get(key)
    try:
        raw = {} if data is None else stored_json.parse(data)
        lists = {name: tuple(raw.get(name, ())) for name in ("reload", "repair")}
        return stored_json.typed(ControlRequest(**raw | lists))
    except stored_json.ERRORS as error:
        raise CorruptError(
            f"{key}: not a control request", f"`tailrace sink resume {sink}` writes a new one"
        ) from error


def pause(store: Store, sink: str, reason: str = "") -> ControlRequest:
    """Pause a sink until it is resumed. It stops delivering within seconds and stays paused over restarts."""
    return _save(store, sink, replace(load(store, sink), is_paused=True, reason=reason))


def resume(store: Store, sink: str) -> ControlRequest:
    """Resume a sink that is paused or has failed. It delivers again within seconds."""
    return _save(store, sink, replace(load(store, sink), is_paused=False, reason=""))


def reload(store: Store, sink: str, tables: Sequence[str]) -> ControlRequest:
    """Ask a sink to load some tables again from their newest snapshots, while it continues with the others."""
    before = load(store, sink)
    return _save(store, sink, replace(before, reload=(*before.reload, *tables)))


def finish_reload(store: Store, sink: str, tables: Sequence[str]) -> ControlRequest:
    """Remove patterns whose tables have been loaded again."""
    before = load(store, sink)
    return _save(store, sink, replace(before, reload=tuple([t for t in before.reload if t not in tables])))


def repair(store: Store, sink: str, ids: Sequence[str]) -> ControlRequest:
    """Ask a sink to correct rows."""
    before = load(store, sink)
    return _save(store, sink, replace(before, repair=(*before.repair, *ids)))


def finish_repair(store: Store, sink: str, ids: Sequence[str]) -> ControlRequest:
    """Remove repairs that the sink is about to execute, or that nobody waits for any more."""
    before = load(store, sink)
    return _save(store, sink, replace(before, repair=tuple([i for i in before.repair if i not in ids])))


def rewind(store: Store, sink: str, where: str) -> ControlRequest:
    """Ask a sink to deliver again from `snapshot`, an LSN or a time. It starts a sink that has failed."""
    return _save(store, sink, replace(load(store, sink), rewind=where))


def finish_rewind(store: Store, sink: str) -> ControlRequest:
    """Remove a request to rewind that the sink has fulfilled, or cannot fulfil."""
    return _save(store, sink, replace(load(store, sink), rewind=""))


def _save(store: Store, sink: str, request: ControlRequest) -> ControlRequest:
    request = replace(request, at=datetime.now(UTC).isoformat())
    store.replace(f"{CURSORS}/{sink}/{_CONTROL}", json.dumps(asdict(request)).encode())
    return request
