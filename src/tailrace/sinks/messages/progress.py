"""How far a destination is, finer than the sink's cursor: a step that is repeated continues after it.

A sink publishes three series of changes, each in order: the log, the load of each table, and dead letters that are
delivered again. `Progress` has the last published position of each. The destination stores it, as JSON, together with
the messages. The store holds it for destinations that cannot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tailrace import stored_json
from tailrace.change import Position
from tailrace.delivery.contract import Part
from tailrace.log.decoding import SNAPSHOT, Chunk, LogicalMessages, TableChanges

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LoadProgress:
    """The last published row of a snapshot, and the last published change since."""

    row: Position | None = None
    change: Position | None = None


@dataclass(frozen=True)
class Progress:
    source: str = ""
    """The system and database that the positions belong to."""
    replays: int = 0
    """How often the sink was rewound. Progress of an earlier delivery does not count."""
    log: Position | None = None
    loads: Mapping[str, LoadProgress] = field(default_factory=dict)
    """By snapshot id: the loads of the step that is under way."""
    dead_letters: frozenset[Position] = frozenset()
    """The dead letters that the step under way has published again."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "source": self.source,
                "replays": self.replays,
                "log": _text(self.log),
                "loads": {id: [_text(load.row), _text(load.change)] for id, load in self.loads.items()},
                "dead_letters": [str(position) for position in sorted(self.dead_letters)],
            }
        )

    @classmethod
    def from_json(cls, data: str | bytes) -> Progress:
        """Parse what `to_json` returned. Raises ValueError for anything else."""
        try:
            raw = stored_json.parse(data)
            loads = {id: LoadProgress(*map(_position, positions)) for id, positions in raw["loads"].items()}
            return cls(
                str(raw["source"]),
                int(raw["replays"]),
                _position(raw["log"]),
                loads,
                frozenset(Position.parse(text) for text in raw["dead_letters"]),
            )
        except stored_json.ERRORS as error:
            raise ValueError("not the progress of a sink") from error


class PartProgress:
    """Follows the progress through one part: selects what is missing, and returns the progress after it."""

    def __init__(self, progress: Progress, part: Part) -> None:
        self.progress = self._of_step(progress, part)
        self._is_replay = bool(part.step.replays)
        self._snapshots = {load.relation.oid: load.snapshot for load in part.step.loads}

    @staticmethod
    def _of_step(progress: Progress, part: Part) -> Progress:
        """Forget the loads and dead letters of other steps: those are committed."""
        snapshots = {load.snapshot for load in part.step.loads}
        loads = {id: load for id, load in progress.loads.items() if id in snapshots}
        return replace(progress, loads=loads, dead_letters=progress.dead_letters & set(part.step.replays))

    def select_missing(self, chunk: Chunk) -> tuple[Chunk, Progress]:
        """Return the changes of a chunk that the destination lacks, and the progress once it has them."""
        missing: list[TableChanges | LogicalMessages] = []
        after = self.progress
        for run in chunk:
            if not len(run):
                continue
            mask = self._missing(run)
            if mask.all():
                missing.append(run)
            elif mask.any():
                missing.append(run.take(mask))
            after = self._after(after, run)
        self.progress = after
        return missing, after

    def _missing(self, run: TableChanges | LogicalMessages) -> Mask:
        if self._is_replay:
            known = self.progress.dead_letters
            return np.array([run.at.position(row) not in known for row in range(len(run))], np.bool_)
        last = self._last(run)
        if last is None:
            return np.ones(len(run), np.bool_)
        lsn, ordinal = run.at.commit_lsn, run.at.ordinal
        is_later: Mask = (lsn > last.commit_lsn) | ((lsn == last.commit_lsn) & (ordinal > last.ordinal))
        return is_later

    def _last(self, run: TableChanges | LogicalMessages) -> Position | None:
        snapshot = self._snapshot(run)
        if snapshot is None:
            return self.progress.log
        load = self.progress.loads.get(snapshot, LoadProgress())
        return load.row if _is_snapshot(run) else load.change

    def _snapshot(self, run: TableChanges | LogicalMessages) -> str | None:
        """The load that a run belongs to. A step that loads tables has nothing but their rows and changes."""
        return self._snapshots.get(run.relation.oid) if isinstance(run, TableChanges) else None

    def _after(self, progress: Progress, run: TableChanges | LogicalMessages) -> Progress:
        if self._is_replay:
            positions = {run.at.position(row) for row in range(len(run))}
            return replace(progress, dead_letters=progress.dead_letters | positions)
        last = run.at.position(len(run) - 1)
        snapshot = self._snapshot(run)
        if snapshot is None:
            return replace(progress, log=_later(progress.log, last))
        load = progress.loads.get(snapshot, LoadProgress())
        if _is_snapshot(run):
            load = replace(load, row=_later(load.row, last))
        else:
            load = replace(load, change=_later(load.change, last))
        return replace(progress, loads={**progress.loads, snapshot: load})


def _is_snapshot(run: TableChanges | LogicalMessages) -> bool:
    return isinstance(run, TableChanges) and int(run.operation[0]) == SNAPSHOT


def _later(first: Position | None, second: Position) -> Position:
    return second if first is None or second > first else first


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)


def _position(text: str | None) -> Position | None:
    return None if text is None else Position.parse(text)
