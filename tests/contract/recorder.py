"""Third-party sinks, configured by their import path, which write everything they receive to files, with their state.

There is one for each kind of parallelism, and each is as simple as the contract allows. Where parts are visible as soon
as they are staged, their names follow from the step, and an unfinished step is repeated. Where parts become visible
with their commit, the file with the cursor lists their names.
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
from tailrace.delivery.contract import Load, Parallel, Part, State, Step
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import FencedError
from tailrace.images import Images
from tailrace.log.decoding import OPERATIONS, LogicalMessages, TableChanges


@dataclass(frozen=True)
class RecordedChange:
    """One change as the sink received it."""

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
class WrittenPart:
    """One part as it was staged, in the order of arrival."""

    step: Step
    number: int
    load: Load | None
    changes: tuple[RecordedChange, ...]


@dataclass(frozen=True)
class RecorderOptions:
    directory: str = ""


@dataclass(frozen=True)
class _RecorderState:
    state: State = field(default_factory=State)
    pending: Step | None = None
    files: tuple[str, ...] = ()
    replays: int = 0


class Recorder:
    """Stages parts one after another, each visible as soon as it is staged."""

    Options: ClassVar[type] = RecorderOptions
    values: ClassVar[Literal["text", "typed"]] = "text"
    parallel: ClassVar[Parallel] = Parallel.NONE
    whole_transactions: ClassVar[bool] = True
    keeps_tables: ClassVar[bool] = False
    start: ClassVar[str] = "snapshot"
    interval_ms: ClassVar[int] = 0
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, options: RecorderOptions, context: SinkContext) -> None:
        self.name = name
        self.directory = Path(options.directory)
        self._saved = _RecorderState()

    def open(self) -> State:
        (self.directory / "parts").mkdir(parents=True, exist_ok=True)
        self._saved = load_state(self.directory)
        return self._saved.state

    def pending(self) -> Step | None:
        return self._saved.pending

    def begin(self, step: Step) -> None:
        self._save(replace(self._saved, pending=step))

    def stage(self, part: Part) -> str:
        changes = tuple(_recorded_changes(part))
        name = self._name(part)
        _write(self.directory / "parts" / name, WrittenPart(part.step, part.number, part.load, changes))
        with (self.directory / "staged").open("a") as file:
            file.write(f"{name}\n")
        return name

    def commit(self, step: Step, receipts: Sequence[str]) -> None:
        current = load_state(self.directory)
        if current.state != step.before:
            raise FencedError(f"sink {self.name} is at another state", "is another deliver running?")
        self._save(replace(current, state=step.after, pending=None, files=(*current.files, *receipts)))

    def maintain(self) -> None:
        pass

    def rewind(self, state: State) -> None:
        current = load_state(self.directory)
        self._save(replace(current, state=state, pending=None, replays=current.replays + 1))

    def close(self) -> None:
        pass

    def _name(self, part: Part) -> str:
        """The name depends on the step alone: a repetition overwrites itself."""
        what = f"load-{part.load.relation.oid}" if part.load else "log"
        which = f"{part.step.start.lsn:016X}-{part.step.after.cursor:016X}-{len(part.step.after.tables)}"
        return f"{self._saved.replays}-{which}-{what}-{part.number:04d}"

    def _save(self, new: _RecorderState) -> None:
        _write(self.directory / "state", new)
        self._saved = new


class RecorderOfRanges(Recorder):
    """Stages parts in parallel, visible with their commit. Each attempt has its own name."""

    parallel = Parallel.RANGES
    whole_transactions = False

    def begin(self, step: Step) -> None:
        pass

    def _name(self, part: Part) -> str:
        return f"{super()._name(part)}-{uuid.uuid4()}"


def load_state(directory: Path) -> _RecorderState:
    try:
        found = pickle.loads((directory / "state").read_bytes())
    except FileNotFoundError:
        return _RecorderState()
    assert isinstance(found, _RecorderState)
    return found


def written_parts(directory: Path) -> list[WrittenPart]:
    """The committed parts, in the order of their receipts."""
    return [pickle.loads((directory / "parts" / name).read_bytes()) for name in load_state(directory).files]


def staged_names(directory: Path) -> list[str]:
    """The names of all parts that were ever staged, in time order."""
    return (directory / "staged").read_text().splitlines()


def _write(path: Path, content: object) -> None:
    draft = path.with_name(f"{path.name}#{uuid.uuid4()}")
    draft.write_bytes(pickle.dumps(content))
    os.replace(draft, path)


def _recorded_changes(part: Part) -> Iterator[RecordedChange]:
    for number, chunk in enumerate(part.chunks):
        for run in chunk:
            found = _messages(run) if isinstance(run, LogicalMessages) else _changes(run, part.load)
            yield from (replace(one, chunk=number) for one in found)


def _messages(run: LogicalMessages) -> Iterator[RecordedChange]:
    for row in range(len(run)):
        message = run.prefix[row], run.content[row], bool(run.transactional[row])
        yield RecordedChange(_position(run, row), bool(run.at.is_last[row]), "MESSAGE", None, message=message)


def _changes(run: TableChanges, load: Load | None) -> Iterator[RecordedChange]:
    old, new = list(_images(run.old)), list(_images(run.new))
    for row in range(len(run)):
        yield RecordedChange(
            _position(run, row),
            bool(run.at.is_last[row]),
            OPERATIONS[int(run.operation[row])],
            run.relation,
            run.target,
            old[row],
            new[row],
            load=load,
        )


def _position(run: TableChanges | LogicalMessages, row: int) -> Position:
    return Position(Lsn(run.at.commit_lsn[row]), int(run.at.ordinal[row]))


def _images(images: Images) -> Iterator[Image | None]:
    columns = [column.to_pylist() for column in images.batch.columns]
    for row, present in enumerate(images.present):
        image = [None if column[row] is None else column[row].encode() for column in columns]
        for index, mask in images.unchanged.items():
            if mask[row]:
                image[index] = UNCHANGED
        yield tuple(image) if present else None
