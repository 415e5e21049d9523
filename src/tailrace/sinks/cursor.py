"""Where a sink stands, kept in the store: for sinks whose destination cannot hold it, and for retention.

cursors/<sink>/state.json      the state, and the step that was begun: the truth of sinks that keep it here
cursors/<sink>/position.json   every sink's cursor, mirrored for retention, which asks the store alone
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tailrace.change import Lsn, Position, Relation
from tailrace.errors import CorruptError, FencedError, TailraceError
from tailrace.log.plan import Offset
from tailrace.log.retention import CURSORS, POSITION, cursor_in
from tailrace.sinks.base import Load, State, Step
from tailrace.store import Store

_VERSION: Final = 1
_STATE: Final = "state.json"


@dataclass(frozen=True)
class Kept:
    """What `state.json` says."""

    state: State = field(default_factory=State)
    pending: Step | None = None
    replays: int = 0
    """How often the sink was rewound: what it writes then stands beside what it wrote before."""
    loaded: tuple[str, ...] = ()
    """The snapshots that were loaded, by id."""
    place: int = 0
    """How far the destination was, as it counts itself."""


def load(store: Store, sink: str) -> Kept | None:
    """None when the sink never kept anything."""
    key = f"{CURSORS}/{sink}/{_STATE}"
    data = store.get(key)
    if data is None:
        return None
    try:
        raw = json.loads(data)
        if raw["version"] != _VERSION:
            raise CorruptError(f"{key} has format version {raw['version']}", "deliver with a newer Tailrace")
        pending = None if raw["pending"] is None else step_from_json(raw["pending"])
        return Kept(
            _state_from_json(raw["state"]), pending, int(raw["replays"]), tuple(raw["loaded"]), raw.get("place", 0)
        )
    except CorruptError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, TailraceError) as error:
        raise CorruptError(
            f"{store.url}: {key} does not say where sink {sink} stands",
            "restore it, or remove it and let the sink begin anew",
        ) from error


def save(store: Store, sink: str, kept: Kept) -> None:
    """Durable when it returns."""
    raw = {
        "version": _VERSION,
        "state": _state_to_json(kept.state),
        "pending": None if kept.pending is None else step_to_json(kept.pending),
        "replays": kept.replays,
        "loaded": list(kept.loaded),
        "place": kept.place,
    }
    store.replace(f"{CURSORS}/{sink}/{_STATE}", json.dumps(raw, ensure_ascii=False).encode())


def keep(store: Store, sink: str, before: State, kept: Kept) -> Kept:
    """What is kept from now on, if the sink stands where it should."""
    current = load(store, sink) or Kept()
    if current.state != before:
        raise FencedError(
            f"sink {sink} stands at {current.state.cursor}, not at {before.cursor}, where this starts",
            "is another deliver running with a sink of this name?",
        )
    save(store, sink, kept)
    return kept


def rewound(store: Store, sink: str, state: State) -> Kept:
    """The same, of a sink that tells from now on what follows a state."""
    current = load(store, sink) or Kept()
    replays = current.replays + (current.state.cursor is not None)
    kept = replace(current, state=state, pending=None, replays=replays)
    save(store, sink, kept)
    return kept


def mirror(store: Store, sink: str, cursor: Lsn) -> None:
    """For retention, which keeps what comes after a position that was delivered.

    A transaction that commits at the cursor itself is still to come, so the position named is just below.
    """
    position = Position(Lsn(max(cursor - 1, 0)), 0)
    store.replace(f"{CURSORS}/{sink}/{POSITION}", json.dumps({"position": str(position)}).encode())


def mirrored(store: Store, sink: str) -> Lsn | None:
    """Where a sink stood, or a little before, when it ran last; None when it never did."""
    key = f"{CURSORS}/{sink}/{POSITION}"
    return None if store.head(key) is None else Lsn(cursor_in(store, key).commit_lsn + 1)


def step_to_json(step: Step) -> dict[str, Any]:
    return {
        "before": _state_to_json(step.before),
        "after": _state_to_json(step.after),
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
        _state_from_json(raw["before"]),
        _state_from_json(raw["after"]),
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


def _state_to_json(state: State) -> dict[str, Any]:
    return {
        "cursor": None if state.cursor is None else str(state.cursor),
        "tables": {str(oid): str(lsn) for oid, lsn in state.tables.items()},
    }


def _state_from_json(raw: Mapping[str, Any]) -> State:
    cursor = raw["cursor"]
    return State(
        None if cursor is None else Lsn.parse(cursor),
        {int(oid): Lsn.parse(lsn) for oid, lsn in raw["tables"].items()},
    )
