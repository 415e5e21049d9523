"""Steps: what a sink gets next, and from where. Knows the log and the sink, not Spark.

`Stepper.next_step` plans the next step as a list of tasks. The caller runs the tasks, then calls `Stepper.commit` with
their results. What comes next follows from the sink's state and the log, in this order: a step that was begun and not
committed, rows to repair, dead letters to deliver again, tables to load from snapshots, changes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tailrace import settings
from tailrace.change import Lsn, Position, Relation
from tailrace.delivery import cursors, repair
from tailrace.delivery.contract import REWIND, Load, RecordsGaps, State, Step
from tailrace.delivery.dead_letters import DeadLetters, find_change
from tailrace.delivery.latency import LatencyMeter
from tailrace.delivery.repair import Repair, RepairOutcome
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.task import SnapshotRows, StageTask, TaskResult, log_reader
from tailrace.delivery.transforms import Shaping
from tailrace.errors import GapError, PoisonError, SnapshotError
from tailrace.log import planner, source_record
from tailrace.log.decoding import ChangeFilter, TableChanges
from tailrace.log.planner import BatchLimits, LogBatch, Offset
from tailrace.log.snapshot import SnapshotReader, TableSnapshot
from tailrace.log.trim import Trim
from tailrace.quantity import count
from tailrace.settings.pattern import TablePattern
from tailrace.state import log_window
from tailrace.store import Store

_log = logging.getLogger("tailrace.deliver")

SMALL_BYTES: Final = 4 * 1024 * 1024
"""Payload up to this size is one task: it is decoded in less time than a second task would cost."""

_MAX_REPLAYS: Final = 1000
"""Dead letters in one step: few enough that one that is rejected again does not repeat many others."""

# Retention reads the published cursor once a minute; nobody waits for it.
_PUBLISH_SECONDS: Final = 5.0


@dataclass(frozen=True)
class PlannedStep:
    """A step and the tasks that stage it: those of loads first, then those of the log, each in order."""

    step: Step
    tasks: tuple[StageTask, ...]
    is_repeat: bool = False
    """The sink knows the step already: it was begun and not committed."""

    @property
    def is_load(self) -> bool:
        return bool(self.step.loads)

    @property
    def rows_to_load(self) -> int:
        return sum(task.rows.chunk.rows for task in self.tasks if task.rows is not None)

    @property
    def fits_one_task(self) -> bool:
        """Whether its tasks are done one after the other in less time than to start several."""
        return sum(task.bytes for task in self.tasks) <= SMALL_BYTES

    @property
    def is_small(self) -> bool:
        """Whether it is the work of a moment, for one task. A repair is not: its cursor is that of the step before it,
        and an open batch identifies its steps by their cursors."""
        return not self.is_load and not self.step.repair and len(self.tasks) == 1 and self.fits_one_task


class Stepper:
    """Plans and commits the steps of one sink. Not thread-safe."""

    def __init__(
        self, configured: ConfiguredSink, store: settings.StoreSettings, parallelism: Callable[[], int] = lambda: 1
    ) -> None:
        """`parallelism` returns how many tasks can run at the same time now; executors of a cluster come and go."""
        self.sink = configured.sink
        self.common = configured.common
        self._statement = configured.statement
        self.state = State()
        self.changes = 0
        self.steps = 0
        self._starts_at = configured.common.start or configured.sink.start
        self._settings = store
        self._store = Store.open(store.url, store.options)
        self._reader = log_reader(store)
        self.latency = LatencyMeter(self._reader)
        self._snapshots = SnapshotReader(self._store)
        self._shaping = Shaping(configured.common)
        self._parallelism = parallelism
        self._knows_source = False
        self._pending: Step | None = None
        self._loads: list[TableSnapshot] | None = None
        """Snapshots to load next; None when it must be worked out again."""
        self._reported: set[int] = set()
        """Tables that a warning was logged for."""
        self._offset: Offset | None = None
        self._published_cursor: Lsn | None = None
        self._published_at = float("-inf")
        self._dead_letters = DeadLetters(self._reader, self.common.name)
        self._repairs: deque[str] = deque()
        self._is_repairing = False
        """Whether the step that was planned last is a repair."""
        self._next_load_lsn: Lsn | None = None
        """Where the next table can be loaded that takes the place of another."""

    @property
    def cursor(self) -> Lsn | None:
        """The sink's cursor; while the destination cannot be reached, the one last published in the store."""
        return self._published_cursor if self.state.cursor is None else self.state.cursor

    @property
    def dead_letters(self) -> int:
        return len(self._dead_letters.positions)

    @property
    def is_interrupted(self) -> bool:
        """Whether a step was begun and not committed: it comes before anything else."""
        return self._pending is not None

    def open(self) -> None:
        """Open the sink and get its state from the destination."""
        self.sink.close()
        if self._statement is not None:
            self._statement.check()
        source = source_record.load(self._store)
        self._knows_source = source is not None
        self.state = self.sink.open()
        self._offset = self._loads = None
        self._dead_letters.load()
        self._shaping = Shaping(self.common, str(source["database"]) if source else "")
        pending = self.sink.pending()
        # With another cursor it was committed, and only the record of it is left.
        self._pending = pending if pending is not None and pending.before.cursor == self.state.cursor else None
        if self.state.cursor is None:
            self._set_first_state()
        self._check_log_reaches_back()
        self._publish_cursor(at_once=True)

    def close(self) -> None:
        self._publish_cursor(at_once=True)
        self.sink.close()

    def next_step(self, limits: BatchLimits | None = None) -> PlannedStep | None:
        """Plan the next step, up to the limits. None: there is nothing to deliver now."""
        self._learn_source()
        self._is_repairing = False
        if self._pending is not None:
            return self._plan_repeat(self._pending)
        while self._repairs:
            self._is_repairing = True
            if (repairing := self._plan_repair(self._repairs[0])) is not None:
                return repairing
        if self._dead_letters.requested and (replay := self._plan_replay()) is not None:
            return replay
        if snapshots := self._next_loads():
            return self._plan_loads(snapshots)
        batch = self._following(limits)
        return self._plan_changes(batch) if batch.slices else None

    def begin(self, planned: PlannedStep) -> None:
        """Announce a step to the sink, before any of its tasks runs."""
        is_in_log = not planned.is_load and not planned.step.replays and not planned.step.repair
        if is_in_log and not planned.is_repeat:
            self.sink.begin(planned.step)

    def commit(self, planned: PlannedStep, results: Sequence[TaskResult]) -> None:
        """Commit a step whose tasks have all run."""
        step = planned.step
        self.sink.commit(step, [result.receipt for result in results])
        self.state, self._offset = step.after, step.end if step.end.lsn == step.after.cursor else None
        self._pending = None
        if step.replays:
            self._dead_letters.remove(step.replays)
        if step.repair:
            assert planned.tasks[0].repair is not None
            self._finish_repair(step.repair, applied=len(planned.tasks[0].repair))
        self.changes += sum(result.changes for result in results)
        self.steps += 1
        self.latency.measure(planned)
        if planned.is_load:
            assert self._loads is not None
            del self._loads[: len(step.loads)]
        elif self._next_load_lsn is not None and self._next_load_lsn <= self._cursor():
            self.look_for_loads()
        if self._starts_at == "snapshot":
            self._meet_waiting_tables(planned)
        self._publish_cursor()

    def add_dead_letters(self, error: PoisonError) -> bool:
        """Make dead letters of the changes that an error names, if the settings say so or they were dead letters
        before. Returns whether that is so."""
        were_dead_letters = all(Position.parse(text) in self._dead_letters.positions for text in error.positions)
        if not error.positions or (self.common.on_poison != "dead_letter" and not were_dead_letters):
            return False
        self._dead_letters.put(error)
        return True

    @property
    def may_have_loads(self) -> bool:
        """Whether tables are to be loaded, or it must still be worked out whether there are any."""
        return self._starts_at == "snapshot" and (self._loads is None or bool(self._loads))

    @property
    def rows_to_load(self) -> int:
        """Rows of all snapshots that are known to be loaded next."""
        return sum(snapshot.rows for snapshot in self._loads or ())

    def look_for_loads(self) -> None:
        """Look for tables to load before the next step, for there may be new snapshots, and for dead letters to
        deliver again."""
        self._loads = None
        self._dead_letters.load()

    def repair(self, ids: Sequence[str]) -> None:
        """Execute repairs in the next steps."""
        self._repairs.extend(ids)

    def abandon_repair(self, error: str) -> bool:
        """Forget a repair whose step failed. Returns whether the step that was planned last is one."""
        is_repairing, self._is_repairing = self._is_repairing, False
        if is_repairing and self._repairs:
            self._finish_repair(self._repairs[0], error=error)
        return is_repairing

    def rewind(self, where: str) -> None:
        """Deliver again from `snapshot`, an LSN or a time. A sink that keeps tables loads them again."""
        self.state = self.sink.open()
        start = None if where == "snapshot" else self._lsn(where, "the position to rewind to")
        if where == "snapshot" or self.sink.keeps_tables:
            found = self._usable_snapshots(before=start)
            if not found:
                raise SnapshotError(
                    f"sink {self.common.name}: there is no snapshot" + (f" at or before {start}" if start else ""),
                    "take one with `tailrace snapshot`, or rewind to a later position",
                )
            after = State(min(s.lsn for s in found), {})
        else:
            assert start is not None
            after = State(start, dict.fromkeys(self.state.tables, Lsn(0)))
        planner.start_offset(self._reader, after.cursor)  # raises if the log no longer has it
        self.sink.rewind(after)
        self.state, self._offset, self._loads, self._pending = after, None, None, None
        self._publish_cursor(at_once=True)

    def reload(self, patterns: Sequence[str]) -> int:
        """Load some tables again from their newest snapshots, in the next steps. Returns how many."""
        wanted = [TablePattern.parse(pattern) for pattern in patterns]
        return len(
            self._reload_tables(lambda table: any(pattern.matches(table.schema, table.name) for pattern in wanted))
        )

    def _reload_tables(self, is_wanted: Callable[[Relation], bool]) -> set[int]:
        """Load tables again in the next steps. Returns their oids."""
        found = [s for s in self._usable_snapshots() if s.relation.oid in self.state.tables and is_wanted(s.relation)]
        removed = {s.relation.oid for s in found}
        if found:
            tables = {oid: lsn for oid, lsn in self.state.tables.items() if oid not in removed}
            after = replace(self.state, tables=tables)
            self.sink.rewind(after)
            self.state, self._loads = after, None
        return removed

    def offset(self) -> Offset:
        """The sink's cursor as an offset of the log."""
        if self._offset is None or self._offset.lsn != self.cursor:
            self._offset = planner.start_offset(
                self._reader, self.cursor, across_gaps=isinstance(self.sink, RecordsGaps)
            )
        return self._offset

    def backlog(self) -> LogBatch:
        """The first transactions that are not delivered yet; an empty batch if there are none."""
        return self._following(BatchLimits(1, 1))

    def log_end(self) -> Offset:
        return planner.latest_offset(self._reader)

    def read_published_cursor(self) -> None:
        """Use the cursor that was last published as long as the destination cannot be asked."""
        if self.state.cursor is None:
            self._published_cursor = cursors.published(self._store, self.common.name)

    def _learn_source(self) -> None:
        """A sink that was opened before there was a log learns now which source it has."""
        if not self._knows_source and source_record.load(self._store) is not None:
            self.open()

    def _plan_changes(self, batch: LogBatch) -> PlannedStep:
        after = replace(self.state, cursor=batch.end.lsn)
        parts = self._divided(batch)
        step = Step(self.state, after, batch.start, batch.end, len(parts))
        return self._planned(step, parts)

    def _plan_repeat(self, step: Step) -> PlannedStep:
        """Exactly as it was begun, so that it overwrites what it may have left."""
        _log.info("sink %s: repeating a step up to %s that was begun and not committed", self.common.name, step.end.lsn)
        batch = planner.batch_between(self._reader, step.start, step.end)
        return self._planned(step, self._divided(batch, step.parts), is_repeat=True)

    def _plan_repair(self, id: str) -> PlannedStep | None:
        """Correct rows. None: there is none to correct, and the repair is finished."""
        found, cursor = Repair.load(self._store, self.common.name, id), self._cursor()
        changes = None
        if found is not None and found.relation.oid in self.state.tables and self._has_reached(found.position):
            runs = log_window.changes_between(self._reader, found.position, {found.relation.oid: cursor})
            since = self._shaping.apply(runs.get(found.relation.oid, []))
            changes = found.changes(cursor, [run for run in since if isinstance(run, TableChanges)])
        if changes is None:
            self._finish_repair(id)
            return None
        _log.info(
            "sink %s: correcting %s of %s",
            *(self.common.name, count(len(changes), "row"), changes.relation.qualified_name),
        )
        step = Step(self.state, self.state, self.offset(), self.offset(), 1, repair=id)
        task = StageTask(self.sink, self._shaping, self._settings, step, 0, repair=changes)
        return PlannedStep(step, (task,))

    def _has_reached(self, position: Lsn) -> bool:
        """Whether the destination has all transactions below a position. On an idle source, the cursor stays behind."""
        return position <= self._cursor() or not log_window.has_transactions(self._reader, self._cursor(), position)

    def _finish_repair(self, id: str, applied: int = 0, error: str = "") -> None:
        self._is_repairing = False
        if self._repairs and self._repairs[0] == id:
            self._repairs.popleft()
        found = Repair.load(self._store, self.common.name, id)
        skipped = 0 if found is None or error else len(found) - applied
        repair.save_outcome(self._store, self.common.name, id, RepairOutcome(applied, skipped, error))

    def _plan_replay(self) -> PlannedStep | None:
        """Deliver dead letters again; a sink that keeps tables loads their tables again. None: there is no step."""
        requested = self._dead_letters.requested[:_MAX_REPLAYS]
        if self.sink.keeps_tables:
            self._reload_for(requested)
            return None
        if not self.sink.replays_dead_letters:
            _log.warning("sink %s cannot deliver dead letters again", self.common.name)
            self._dead_letters.refuse_replay(requested)
            return None
        if missing := [position for position in requested if find_change(self._reader, position) is None]:
            _log.warning(
                "sink %s: the log no longer has the change at %s: its dead letter stays", self.common.name, missing[0]
            )
            self._dead_letters.refuse_replay(missing)
        found = tuple([position for position in requested if position not in missing])
        if not found:
            return None
        _log.info("sink %s: delivering %s again", self.common.name, count(len(found), "dead letter"))
        transactions = sorted({position.commit_lsn for position in found})
        step = Step(self.state, self.state, self.offset(), self.offset(), len(transactions), replays=found)
        return PlannedStep(step, tuple(self._replay_tasks(step, transactions)))

    def _replay_tasks(self, step: Step, transactions: Sequence[Lsn]) -> Iterator[StageTask]:
        """One task for each transaction that has dead letters, so that none is read twice."""
        for number, lsn in enumerate(transactions):
            start = planner.start_offset(self._reader, lsn)
            end = planner.advance_to(self._reader, start, Lsn(lsn + 1))
            batch = planner.batch_between(self._reader, start, end)
            change_filter = ChangeFilter(lsn, self.state.tables, self._starts_at != "snapshot", end=Lsn(lsn + 1))
            yield StageTask(self.sink, self._shaping, self._settings, step, number, batch.slices, change_filter)

    def _reload_for(self, positions: Sequence[Position]) -> None:
        """Load the tables of dead letters again: the changes since the snapshot follow, with these."""
        tables = {position: self._dead_letters.get(position).relation_id for position in positions}
        loaded = self._reload_tables(lambda relation: relation.oid in tables.values())
        self._dead_letters.remove([position for position, oid in tables.items() if oid in loaded])
        if others := [position for position, oid in tables.items() if oid not in loaded]:
            _log.warning(
                "sink %s: no snapshot of the table of %s can be loaded: its dead letter stays",
                *(self.common.name, others[0]),
            )
            self._dead_letters.refuse_replay(others)

    def _plan_loads(self, snapshots: Sequence[TableSnapshot]) -> PlannedStep:
        """The rows of tables whose snapshots have the same LSN and, if the cursor is beyond it, the tables' changes
        since, in one step."""
        lsn, cursor = snapshots[0].lsn, self._cursor()
        loads = [self._load_of(snapshot) for snapshot in snapshots]
        end = start = self.offset()
        if lsn < cursor:
            start = planner.start_offset(self._reader, lsn)
            # The cursor may be inside a segment: what commits at or above it there is not part of this step.
            end = planner.advance_to(self._reader, start, cursor)
        batch = planner.batch_between(self._reader, start, end)
        since = dict.fromkeys([snapshot.relation.oid for snapshot in snapshots], lsn)
        after = replace(self.state, tables={**self.state.tables, **since})
        parts = self._divided(batch)
        step = Step(self.state, after, start, end, len(parts), tuple(loads))
        for load, snapshot in zip(loads, snapshots, strict=True):
            _log.info(
                "sink %s: loading %s, %s as of %s",
                *(self.common.name, load.relation.qualified_name, count(snapshot.rows, "row"), lsn),
            )
        tasks = [
            task
            for load, snapshot in zip(loads, snapshots, strict=True)
            for task in self._load_tasks(step, load, snapshot)
        ]
        change_filter = ChangeFilter(lsn, since, others=False, messages=False, end=cursor)
        return self._planned(step, parts, tuple(tasks), change_filter)

    def _load_of(self, snapshot: TableSnapshot) -> Load:
        shaped = self._shaping.load(snapshot.relation)
        assert shaped is not None
        relation, target = shaped
        if self._statement is not None:
            relation = self._statement.derive(relation)
        return Load(relation, target, snapshot.id, snapshot.lsn)

    def _planned(
        self,
        step: Step,
        parts: Sequence[tuple[planner.Slice, ...]],
        loading: tuple[StageTask, ...] = (),
        change_filter: ChangeFilter | None = None,
        *,
        is_repeat: bool = False,
    ) -> PlannedStep:
        if change_filter is None:
            change_filter = ChangeFilter(step.start.lsn, step.before.tables, self._starts_at != "snapshot")
        without = self._dead_letters.positions
        tasks = [
            StageTask(self.sink, self._shaping, self._settings, step, number, slices, change_filter, without=without)
            for number, slices in enumerate(parts)
        ]
        return PlannedStep(step, (*loading, *tasks), is_repeat)

    def _load_tasks(self, step: Step, load: Load, snapshot: TableSnapshot) -> Iterator[StageTask]:
        first = 0
        bare = replace(snapshot, store=None)
        for number, chunk in enumerate(snapshot.manifest):
            rows = SnapshotRows(bare, chunk, first, load)
            yield StageTask(self.sink, self._shaping, self._settings, step, number, rows=rows)
            first += chunk.rows

    def _divided(self, batch: LogBatch, count: int | None = None) -> list[tuple[planner.Slice, ...]]:
        whole = self.sink.whole_transactions or (self._statement is not None and self._statement.reads_stream)
        if count is None:
            # Twice the parallelism, so that one slow task does not hold up the others for long.
            count = 1 if batch.bytes <= SMALL_BYTES else 2 * self._parallelism()
        parts = batch.split(count, whole_transactions=whole)
        # There may be fewer than asked for. A repeated step asks for that number, and must get the same parts.
        while len(parts) < count:
            count = len(parts)
            parts = batch.split(count, whole_transactions=whole)
        return parts

    def _following(self, limits: BatchLimits | None = None) -> LogBatch:
        """What follows the cursor, up to a gap; past the gap, if the sink can continue from there."""
        while True:
            try:
                return planner.next_batch(self._reader, self.offset(), limits, up_to_gap=True)
            except GapError:
                gap = planner.gap_after(self._reader, self.offset()) if isinstance(self.sink, RecordsGaps) else None
                if gap is None or gap.gap_from is None:
                    raise
                self._pass_gap(gap.gap_from, gap.end_lsn)

    def _pass_gap(self, lost_from: Lsn, end: Lsn) -> None:
        assert isinstance(self.sink, RecordsGaps)
        after = replace(self.state, cursor=end)
        _log.warning(
            "sink %s: changes between %s and %s are lost: the log does not have them",
            *(self.common.name, lost_from, end),
        )
        self.sink.record_gap(self.state, after, lost_from)
        self.state, self._offset = after, None

    def _check_log_reaches_back(self) -> None:
        """A cursor before the log's first change means that changes between them were never captured."""
        first, cursor = planner.earliest_lsn(self._reader), self._cursor()
        if not 0 < cursor < first:
            return
        if not isinstance(self.sink, RecordsGaps):
            raise GapError(
                f"sink {self.common.name} is at {cursor}, and the log begins at {first}: "
                "the changes between them are in neither",
                "is it the right store? " + REWIND.format(self.common.name),
            )
        self._pass_gap(cursor, first)

    def _set_first_state(self) -> None:
        if self._starts_at == "snapshot":
            found = self._usable_snapshots()
            first = planner.start_offset(self._reader, None)
            after = State(min((s.lsn for s in found), default=first.lsn), {})
        else:
            after = State(self._lsn(self._starts_at, f"sink {self.common.name}: start"), {})
        self.sink.rewind(after)
        self.state = after

    def _lsn(self, text: str, option: str) -> Lsn:
        lsn = planner.resolve_lsn(self._reader, text, option)
        return planner.start_offset(self._reader, None).lsn if lsn is None else lsn

    def _cursor(self) -> Lsn:
        assert self.state.cursor is not None, "open() comes first"
        return self.state.cursor

    def _next_loads(self) -> Sequence[TableSnapshot]:
        """The next table to load and, while they are small, the tables after it with the same LSN. A step takes a tenth
        of a second however little it loads, and a database may have thousands of small tables."""
        if self._starts_at != "snapshot":
            return ()
        if self._loads is None:
            self._loads = self._due_loads()
        found: list[TableSnapshot] = []
        size, targets = 0, set()
        for snapshot in self._loads:
            size += sum(chunk.bytes for chunk in snapshot.manifest)
            target = self._target(snapshot)
            if found and (snapshot.lsn != found[0].lsn or size > SMALL_BYTES or target in targets):
                break
            found.append(snapshot)
            targets.add(target)
        return found

    def _due_loads(self) -> list[TableSnapshot]:
        """Snapshots of tables that the destination lacks."""
        missing = self._missing(self._usable_snapshots())
        if missing and min(s.lsn for s in missing) < self._cursor() and self.log_end().lsn < self._cursor():
            # Until the log reaches the cursor, the changes between a snapshot and the cursor are not known.
            return []
        return missing

    def _missing(self, usable: Sequence[TableSnapshot]) -> list[TableSnapshot]:
        """Tables that share a target, because one was dropped and created again at the source, come one after the
        other: the next once the cursor has passed its snapshot, and never an earlier one again."""
        by_target: dict[object, list[TableSnapshot]] = {}
        for snapshot in usable:
            by_target.setdefault(self._target(snapshot), []).append(snapshot)
        found: list[TableSnapshot] = []
        early: list[TableSnapshot] = []
        for snapshot in sorted(usable, key=lambda s: s.lsn):
            others = by_target[self._target(snapshot)]
            has_later = any(o.lsn > snapshot.lsn and o.relation.oid in self.state.tables for o in others)
            is_early = snapshot.lsn > self._cursor() and any(o.lsn < snapshot.lsn for o in others)
            if snapshot.relation.oid not in self.state.tables and not has_later:
                (early if is_early else found).append(snapshot)
        self._next_load_lsn = early[0].lsn if early else None
        return found

    def _usable_snapshots(self, before: Lsn | None = None) -> list[TableSnapshot]:
        """The newest snapshot that the log reaches back to, of each table that goes to this sink."""
        found = snapshots_in_reach(self._snapshots, before)
        return [snapshot for snapshot in found if self._shaping.load(snapshot.relation) is not None]

    def _target(self, snapshot: TableSnapshot) -> tuple[str, str] | None:
        shaped = self._shaping.load(snapshot.relation)
        return shaped[1] if shaped is not None else None

    def _meet_waiting_tables(self, planned: PlannedStep) -> None:
        """A table with changes in the log is not delivered until its snapshot is loaded: next, if there is one."""
        for segment in {s.segment for task in planned.tasks for s in task.slices}:
            for _, relation in self._reader.relations(segment):
                if relation.oid in self.state.tables or relation.oid in self._reported:
                    continue
                self._reported.add(relation.oid)
                if self._shaping.load(relation) is not None:
                    self.look_for_loads()
                    _log.warning(
                        "sink %s: %s waits for its snapshot; unless capture is about to take it, "
                        "run `tailrace snapshot %s`",
                        *(self.common.name, relation.qualified_name, relation.qualified_name),
                    )

    def _publish_cursor(self, *, at_once: bool = False) -> None:
        """In the store, for retention, which cannot ask the destination."""
        now = time.monotonic()
        if self.state.cursor is not None and (at_once or now - self._published_at >= _PUBLISH_SECONDS):
            cursors.publish(self._store, self.common.name, self.state.cursor)
            self._published_at = now


def snapshots_in_reach(snapshots: SnapshotReader, before: Lsn | None = None) -> list[TableSnapshot]:
    """The newest snapshot of each table that the log reaches back to."""
    since = max(source_record.begins_at(snapshots.store), _trimmed_to(snapshots.store))
    return list(snapshots.newest_of_each(since, before))


def _trimmed_to(store: Store) -> Lsn:
    trim = Trim.load(store)
    return trim.end.commit_lsn if trim else Lsn(0)
