"""Cursors in the store: of sinks whose destination cannot hold one, and of all sinks, for retention.

cursors/<sink>/state.json      the state and the step that was begun: the truth for sinks that store it here
cursors/<sink>/position.json   every sink's cursor, published for retention, which reads only the store
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tailrace import stored_json
from tailrace.change import Lsn, Position, Relation
from tailrace.delivery.contract import Load, State, Step
from tailrace.errors import CorruptError, FencedError
from tailrace.log.planner import Offset
from tailrace.log.retention import CURSORS, POSITION, read_cursor
from tailrace.store import Store

_VERSION: Final = 1
_STATE: Final = "state.json"


@dataclass(frozen=True)
class StoredState:
    """The contents of `state.json`."""

    state: State = field(default_factory=State)
    pending: Step | None = None
    replays: int = 0
    """How often the sink was rewound: what it writes then does not overwrite what it wrote before."""
    loaded: tuple[str, ...] = ()
    """The ids of the snapshots that were loaded."""
    place: int = 0
    """The destination's own count of how far it is, such as the last sequence of a stream."""


def load(store: Store, sink: str) -> StoredState | None:
    """Return the stored state; None if the sink never stored one."""
    key = f"{CURSORS}/{sink}/{_STATE}"
    data = store.get(key)
    if data is None:
        return None
    try:
        return from_json(data, key)
    except ValueError as error:
        raise CorruptError(
            f"{store.url}: {key} is not the state of sink {sink}",
            "restore it, or remove it so that the sink starts from the beginning",
        ) from error


def from_json(data: bytes, where: str) -> StoredState:
    """Parse what `to_json` returned. Raises ValueError for anything else.

    Args:
        data: The text.
        where: Where it is stored, for the error about a newer format.
    """
    try:
        raw = stored_json.parse(data)
        if raw["version"] != _VERSION:
            raise CorruptError(f"{where} has format version {raw['version']}", "deliver with a newer Tailrace")
        pending = None if raw["pending"] is None else step_from_json(raw["pending"])
        state, loaded = state_from_json(raw["state"]), tuple(raw["loaded"])
        return stored_json.typed(StoredState(state, pending, int(raw["replays"]), loaded, raw.get("place", 0)))
    except CorruptError:
        raise
    except stored_json.ERRORS as error:
        raise ValueError("not the state of a sink") from error


def save(store: Store, sink: str, kept: StoredState) -> None:
    """Durable when it returns."""
    store.replace(f"{CURSORS}/{sink}/{_STATE}", to_json(kept).encode())


def to_json(kept: StoredState) -> str:
    raw = {
        "version": _VERSION,
        "state": state_to_json(kept.state),
        "pending": None if kept.pending is None else step_to_json(kept.pending),
        "replays": kept.replays,
        "loaded": list(kept.loaded),
        "place": kept.place,
    }
    return json.dumps(raw, ensure_ascii=False)


def advance(store: Store, sink: str, before: State, kept: StoredState) -> StoredState:
    """Store a new state, if the stored one is `before`. Otherwise another process delivers to the sink."""
    require_state(load(store, sink) or StoredState(), before, sink)
    save(store, sink, kept)
    return kept


def require_state(current: StoredState, before: State, sink: str) -> None:
    """Raise if the sink is not in the state where a step starts."""
    if current.state != before:
        raise FencedError(
            f"sink {sink} is at {current.state.cursor}, not at {before.cursor}, where this step starts",
            "is another deliver running with a sink of this name?",
        )


def rewind(store: Store, sink: str, state: State) -> StoredState:
    """Store the state that a sink delivers from now on."""
    kept = rewound(load(store, sink) or StoredState(), state)
    save(store, sink, kept)
    return kept


def rewound(current: StoredState, state: State) -> StoredState:
    """Return what to store for a sink that delivers from another state from now on."""
    replays = current.replays + (current.state.cursor is not None)
    return replace(current, state=state, pending=None, replays=replays)


def publish(store: Store, sink: str, cursor: Lsn) -> None:
    """Publish a sink's cursor for retention, which retains what follows a delivered position.

    A transaction that commits at the cursor itself is still to come, so the position named is just below.
    """
    position = Position(Lsn(max(cursor - 1, 0)), 0)
    store.replace(f"{CURSORS}/{sink}/{POSITION}", json.dumps({"position": str(position)}).encode())


def published(store: Store, sink: str) -> Lsn | None:
    """Return the cursor that a sink published last, which may be a little behind; None if it never ran."""
    key = f"{CURSORS}/{sink}/{POSITION}"
    return None if store.head(key) is None else Lsn(read_cursor(store, key).commit_lsn + 1)


def step_to_json(step: Step) -> dict[str, Any]:
    return {
        "before": state_to_json(step.before),
        "after": state_to_json(step.after),
        "start": step.start.to_json(),
        "end": step.end.to_json(),
        "parts": step.parts,
        "loads": [
            {
                "relation": json.loads(load.relation.to_json()),
                "target": list(load.target),
                "snapshot": load.snapshot,
                "lsn": str(load.lsn),
            }
            for load in step.loads
        ],
    }


def step_from_json(raw: Mapping[str, Any]) -> Step:
    return Step(
        state_from_json(raw["before"]),
        state_from_json(raw["after"]),
        Offset.from_json(raw["start"]),
        Offset.from_json(raw["end"]),
        int(raw["parts"]),
        tuple(
            Load(
                Relation.from_json(json.dumps(load["relation"])),
                (str(load["target"][0]), str(load["target"][1])),
                str(load["snapshot"]),
                Lsn.parse(load["lsn"]),
            )
            for load in raw["loads"]
        ),
    )


def state_to_json(state: State) -> dict[str, Any]:
    return {
        "cursor": None if state.cursor is None else str(state.cursor),
        "tables": {str(oid): str(lsn) for oid, lsn in state.tables.items()},
    }


def state_from_json(raw: Mapping[str, Any]) -> State:
    cursor = raw["cursor"]
    return State(
        None if cursor is None else Lsn.parse(cursor),
        {int(oid): Lsn.parse(lsn) for oid, lsn in raw["tables"].items()},
    )
