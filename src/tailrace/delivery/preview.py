"""The first rows that a sink would get: read from the log and shaped, without its destination."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

from tailrace import settings
from tailrace.change import Position
from tailrace.delivery.contract import BaseSink, Load, Parallel, Part, State, Step
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.step import snapshots_in_reach
from tailrace.delivery.task import SnapshotRows, StageTask, TaskResult, log_reader
from tailrace.delivery.transforms import Shaping
from tailrace.errors import TailraceError
from tailrace.log import planner, source_record
from tailrace.log.decoding import OPERATIONS, ChangeFilter, TableChanges
from tailrace.log.planner import BatchLimits, Offset
from tailrace.log.snapshot import SnapshotReader

Run = Callable[[Sequence[StageTask]], Sequence[TaskResult]]

# Small batches: a few rows are wanted, and those that a condition leaves out are read in vain.
_LIMITS: Final = BatchLimits(segments=100)


@dataclass(frozen=True)
class PreviewRow:
    position: Position
    operation: str
    table: str
    """Where it would go."""
    values: dict[str, str | None]
    """PostgreSQL's own texts: the new row, or what is known of a deleted one."""


class PreviewSink(BaseSink):
    """Returns the first rows of each part as its receipt."""

    values: ClassVar[Literal["text", "typed"]] = "text"
    parallel: ClassVar[Parallel] = Parallel.NONE

    def __init__(self, count: int) -> None:
        self._count = count

    def stage(self, part: Part) -> list[PreviewRow]:
        found: list[PreviewRow] = []
        for chunk in part.chunks:
            for run in chunk:
                if isinstance(run, TableChanges):
                    found += _rows(run, self._count)
            if len(found) >= self._count:
                break
        return sorted(found, key=lambda row: row.position)[: self._count]


def preview(configured: ConfiguredSink, store: settings.StoreSettings, run: Run, count: int = 10) -> list[PreviewRow]:
    """The first rows: those of snapshots, for a sink that starts from them, then changes. `run` runs tasks."""
    if configured.statement is not None:
        configured.statement.check()
    found: list[PreviewRow] = []
    for task in _tasks(configured, store, count):
        (result,) = run([task])
        if isinstance(result, TailraceError):
            raise result
        found += result.receipt
        if len(found) >= count:
            break
    return found[:count]


def _tasks(configured: ConfiguredSink, store: settings.StoreSettings, count: int) -> Iterator[StageTask]:
    reader = log_reader(store)
    source = source_record.load(reader.store)
    shaping = Shaping(configured.common, str(source["database"]) if source else "")
    sink: Any = PreviewSink(count)
    start = planner.start_offset(reader, None)
    step = Step(State(), State(), start, start, 1)
    starts_at = configured.common.start or configured.sink.start
    lsns = {}
    if starts_at == "snapshot":
        for snapshot in snapshots_in_reach(SnapshotReader(reader.store)):
            if (shaped := shaping.load(snapshot.relation)) is None:
                continue
            lsns[snapshot.relation.oid] = snapshot.lsn
            relation, target = shaped
            load = Load(relation, target, snapshot.id, snapshot.lsn)
            first = 0
            for number, chunk in enumerate(snapshot.manifest):
                rows = SnapshotRows(replace(snapshot, store=None), chunk, first, load)
                yield StageTask(sink, shaping, store, step, number, rows=rows)
                first += chunk.rows
    elif (lsn := planner.resolve_lsn(reader, starts_at, "start")) is not None:
        start = planner.start_offset(reader, lsn)
    change_filter = ChangeFilter(start.lsn, lsns, others=starts_at != "snapshot")
    yield from _log_tasks(sink, shaping, store, start, change_filter)


def _log_tasks(
    sink: Any, shaping: Shaping, store: settings.StoreSettings, start: Offset, change_filter: ChangeFilter
) -> Iterator[StageTask]:
    reader = log_reader(store)
    while (batch := planner.next_batch(reader, start, _LIMITS, up_to_gap=True)).slices:
        step = Step(State(), State(), batch.start, batch.end, 1)
        yield StageTask(sink, shaping, store, step, 0, tuple(batch.slices), change_filter)
        start = batch.end


def _rows(run: TableChanges, count: int) -> Iterator[PreviewRow]:
    for row in range(min(len(run), count)):
        images = run.new if run.new.present[row] else run.old
        values = images.batch.slice(row, 1).to_pylist()[0] if images.present[row] else {}
        operation = OPERATIONS[int(run.operation[row])]
        yield PreviewRow(run.at.position(row), operation, ".".join(run.target), values)
