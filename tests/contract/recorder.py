"""A sink from outside, named by its path: it keeps everything it is given in files, and its state beside them.

Three of them, one for each way in which parts are made, each as simple as the contract allows: those whose parts are
seen at once give them names that follow from the step and repeat what was begun; the one whose parts wait for their
commit names them in the same file as its cursor.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from tailrace.change import UNCHANGED, Image, Lsn, Position, Relation
from tailrace.errors import FencedError
from tailrace.log.decoding import OPERATIONS, Messages, TableChanges
from tailrace.pgoutput.columns import Images
from tailrace.sinks import Context
from tailrace.sinks.base import Load, Parallel, Part, State, Step


@dataclass(frozen=True)
class Told:
    """One change as the sink was given it."""

    position: Position
    is_last: bool
    operation: str
    relation: Relation | None
    target: tuple[str, str] = ("", "")
    old: Image | None = None
    new: Image | None = None
    message: tuple[str, bytes, bool] | None = None
    load: Load | None = None
    chunk: int = 0


@dataclass(frozen=True)
class Written:
    """One part as it was staged, in the order in which it came."""

    step: Step
    number: int
    load: Load | None
    told: tuple[Told, ...]


@dataclass(frozen=True)
class RecorderOptions:
    directory: str = ""


@dataclass(frozen=True)
class _Kept:
    state: State = field(default_factory=State)
    pending: Step | None = None
    files: tuple[str, ...] = ()
    replays: int = 0


class Recorder:
    """Parts one after the other, seen at once."""

    Options: ClassVar[type] = RecorderOptions
    values: ClassVar[Literal["text", "typed"]] = "text"
    parallel: ClassVar[Parallel] = Parallel.NONE
    whole_transactions: ClassVar[bool] = True
    keeps_tables: ClassVar[bool] = False
    start: ClassVar[str] = "snapshot"
    interval_ms: ClassVar[int] = 0
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, options: RecorderOptions, context: Context) -> None:
        self.name = name
        self.directory = Path(options.directory)
        self._kept = _Kept()

    def open(self) -> State:
        (self.directory / "parts").mkdir(parents=True, exist_ok=True)
        self._kept = kept(self.directory)
        return self._kept.state

    def pending(self) -> Step | None:
        return self._kept.pending

    def begin(self, step: Step) -> None:
        self._keep(replace(self._kept, pending=step))

    def stage(self, part: Part) -> str:
        told = tuple(_told(part))
        name = self._name(part)
        _write(self.directory / "parts" / name, Written(part.step, part.number, part.load, told))
        with (self.directory / "staged").open("a") as file:
            file.write(f"{name}\n")
        return name

    def commit(self, step: Step, receipts: Sequence[str]) -> None:
        current = kept(self.directory)
        if current.state != step.before:
            raise FencedError(f"sink {self.name} stands elsewhere", "is another deliver running?")
        self._keep(replace(current, state=step.after, pending=None, files=(*current.files, *receipts)))

    def tend(self) -> None:
        pass

    def rewind(self, state: State) -> None:
        current = kept(self.directory)
        self._keep(replace(current, state=state, pending=None, replays=current.replays + 1))

    def close(self) -> None:
        pass

    def _name(self, part: Part) -> str:
        """Of the step alone: a repetition overwrites itself."""
        what = f"load-{part.load.relation.oid}" if part.load else "log"
        which = f"{part.step.start.lsn:016X}-{part.step.after.cursor:016X}-{len(part.step.after.tables)}"
        return f"{self._kept.replays}-{which}-{what}-{part.number:04d}"

    def _keep(self, new: _Kept) -> None:
        _write(self.directory / "state", new)
        self._kept = new


class RecorderOfRanges(Recorder):
    """Parts at the same time, seen when they are committed: a name for each attempt."""

    parallel = Parallel.RANGES
    whole_transactions = False

    def begin(self, step: Step) -> None:
        pass

    def _name(self, part: Part) -> str:
        return f"{super()._name(part)}-{uuid.uuid4()}"


class RecorderOfKeys(Recorder):
    """Keys at the same time, seen at once."""

    parallel = Parallel.KEYS
    whole_transactions = False


def kept(directory: Path) -> _Kept:
    try:
        found = pickle.loads((directory / "state").read_bytes())
    except FileNotFoundError:
        return _Kept()
    assert isinstance(found, _Kept)
    return found


def written(directory: Path) -> list[Written]:
    """What is committed, in the order of the receipts."""
    return [pickle.loads((directory / "parts" / name).read_bytes()) for name in kept(directory).files]


def staged(directory: Path) -> list[str]:
    """Every part that was ever staged, in the order of time."""
    return (directory / "staged").read_text().splitlines()


def _write(path: Path, content: object) -> None:
    aside = path.with_name(f"{path.name}#{uuid.uuid4()}")
    aside.write_bytes(pickle.dumps(content))
    os.replace(aside, path)


def _told(part: Part) -> Iterator[Told]:
    for number, chunk in enumerate(part.chunks):
        for run in chunk:
            found = _messages(run) if isinstance(run, Messages) else _changes(run, part.load)
            yield from (replace(one, chunk=number) for one in found)


def _messages(run: Messages) -> Iterator[Told]:
    for row in range(len(run)):
        said = run.prefix[row], run.content[row], bool(run.transactional[row])
        yield Told(_position(run, row), bool(run.at.is_last[row]), "MESSAGE", None, message=said)


def _changes(run: TableChanges, load: Load | None) -> Iterator[Told]:
    old, new = list(_images(run.old)), list(_images(run.new))
    for row in range(len(run)):
        yield Told(
            _position(run, row),
            bool(run.at.is_last[row]),
            OPERATIONS[int(run.operation[row])],
            run.relation,
            run.target,
            old[row],
            new[row],
            load=load,
        )


def _position(run: TableChanges | Messages, row: int) -> Position:
    return Position(Lsn(run.at.commit_lsn[row]), int(run.at.ordinal[row]))


def _images(images: Images) -> Iterator[Image | None]:
    columns = [column.to_pylist() for column in images.batch.columns]
    for row, present in enumerate(images.present):
        image = [None if column[row] is None else column[row].encode() for column in columns]
        for index, mask in images.unchanged.items():
            if mask[row]:
                image[index] = UNCHANGED
        yield tuple(image) if present else None
