"""The pipeline of one sink: it opens the sink, plans steps, commits them, and keeps going after failures.

A streaming query carries the steps. It calls `plan` when it is ready for a batch and `deliver` when it has one, one
after the other; the tasks in between run in Spark's executors. A step that failed is planned again as the query's next
batch, from the destination's cursor: the query itself goes on.

A batch may stay open for more than one step. Its task then hands in the results of a step by `advance`, which commits
them and returns the next step. So a trickle of small steps does not pay for a batch each.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar

from tailrace import settings
from tailrace.change import Lsn
from tailrace.delivery import control, status
from tailrace.delivery.control import ControlRequest
from tailrace.delivery.lag import Backlog, LagMeter
from tailrace.delivery.load_progress import LoadMeter
from tailrace.delivery.pace import Pace
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.stall import StallMeter
from tailrace.delivery.status import Condition, SinkStatus
from tailrace.delivery.step import PlannedStep, Stepper
from tailrace.delivery.task import TaskResult
from tailrace.errors import PoisonError, SinkError, SinkPaused, SparkError, TailraceError, sentences
from tailrace.log.planner import Offset
from tailrace.rate import Rate
from tailrace.retry import Backoff
from tailrace.store import Store

_log = logging.getLogger("tailrace.deliver")

T = TypeVar("T")

# How often the destination is maintained, and snapshots are looked for that were not announced.
_MAINTAIN_S: Final = 10.0
_RATE_OVER_S: Final = 10.0
# How often the log is polled for a new segment, which is a request: less often the longer nothing has come.
_POLL_S: Final = 0.01
_IDLE_POLL_S: Final = 0.1
_POLLS_WHILE_IDLE: Final = 100
_WATCH_S: Final = 0.25
# How long a batch stays open: as long as changes come no further apart than this, and then long enough for the batch's
# own cost of 0.1 s not to matter, but no longer, because Spark's pages show a batch when it has ended.
_LINGER_S: Final = 2.0
_OPEN_S: Final = 10.0


class QueryLostError(SinkError):
    """No query can be started any more. The process ends, and says why once for all sinks."""


class StepQuery(Protocol):
    """Carries steps: a streaming query of Spark's."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def failure(self) -> Exception | None:
        """Why the query ended by itself; None while it runs."""

    def is_lost(self) -> bool:
        """Whether no query can be started any more. The process ends then, and says why."""


@dataclass(eq=False)
class OpenBatch:
    """A batch that stays open for the steps that follow its first."""

    number: int
    """No other open batch of the pipeline has it: the task of an earlier one, which died, may still be heard of."""
    ends_at: float
    """When it takes no more steps, on the monotonic clock."""


class Pipeline:
    """Runs from `start` to `stop`."""

    def __init__(
        self,
        configured: ConfiguredSink,
        store: settings.StoreSettings,
        parallelism: Callable[[], int],
        active: Callable[[], int] = lambda: 1,
        open_batches: threading.Semaphore | None = None,
    ) -> None:
        """`parallelism` returns how many tasks can run at the same time, `active` how many sinks are delivering.
        `open_batches` says how many sinks may keep a batch open at the same time; without it, none may."""
        self.name = configured.name
        self.sink = configured.sink
        self._type = configured.common.type
        self._store = Store.open(store.url, store.options)
        self._stepper = Stepper(configured, store, parallelism)
        interval = configured.common.interval_ms
        interval_s = (self.sink.interval_ms if interval is None else interval) / 1000
        self._pace = Pace(interval_s, active)
        # A step at an interval has nothing to gain: the next one is not due yet. A statement is evaluated by Spark.
        can_stay_open = not interval_s and configured.statement is None
        self._open_batches = open_batches if can_stay_open else None
        self._open_batch: OpenBatch | None = None
        self._numbers = itertools.count()
        self._condition: Condition = "starting"
        self._error: TailraceError | None = None
        self._must_open = True
        """The sink has to be opened before the next step: at the start, and after a failure."""
        self._retry_at = float("-inf")
        self._backoff = Backoff()
        self._failures = 0
        self._recoveries = 0
        self._step_s = 0.0
        self._batches = 0
        self._batch_rows = 0
        self._batch_s: float | None = None
        self._rate = Rate(_RATE_OVER_S)
        self._backlog = Backlog()
        self._load = LoadMeter()
        self._stall = StallMeter()
        self._stalled_s: float | None = None
        self._request = ControlRequest()
        self._must_read_request = True
        """A sink that was paused before this process started must not deliver a step first."""
        self._planned: PlannedStep | None = None
        self._came_at = float("-inf")
        self._maintain_at = 0.0
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._busy = threading.Lock()
        """Held while the stepper is used."""
        self._batch = threading.Lock()
        """Held during a batch."""
        self._may_end = threading.Event()
        """The query may be stopped: stopping it earlier would cancel the current step's job."""
        self._thread: threading.Thread | None = None

    # What a process does with a pipeline.

    def start(self, query: StepQuery) -> None:
        self._thread = threading.Thread(target=self._run, args=(query,), name=f"deliver {self.name}", daemon=True)
        self._thread.start()

    def stop(self, grace_s: float) -> bool:
        """Finish the current step and stop. Returns whether that took less than `grace_s` seconds; if it did not, the
        next run repeats the step."""
        self._stopping.set()
        self._close_batch()
        finished = self._batch.acquire(timeout=grace_s)
        if finished:
            self._batch.release()
        self._may_end.set()
        if self._thread is not None:
            self._thread.join(grace_s)
        return finished

    def pause(self) -> None:
        self._obey(control.pause(self._store, self.name))

    def resume(self) -> None:
        """Resume a sink that is paused or has failed."""
        self._obey(control.resume(self._store, self.name))

    @property
    def cursor(self) -> Lsn | None:
        return self._stepper.cursor

    @property
    def has_failed(self) -> bool:
        return self._condition == "failed"

    @property
    def is_paused_by_destination(self) -> bool:
        return self._request.is_paused and bool(self._request.reason)

    @property
    def error(self) -> TailraceError | None:
        """The last error, or why the sink is paused."""
        if self._error is None and self.is_paused_by_destination:
            return SinkPaused(self._request.reason, f"Continue with `tailrace sink resume {self.name}`.")
        return self._error

    @property
    def is_active(self) -> bool:
        """Whether it is delivering now, or was a moment ago."""
        return self._pace.is_active

    def has_delivered(self, end: Offset) -> bool:
        """Whether everything before an offset is at the destination, including tables that have to be loaded.

        False while a step is running: it may take as long as the destination likes.
        """
        if not self._busy.acquire(blocking=False):
            return False
        try:
            cursor = self._stepper.state.cursor
            if cursor is None or self._condition in ("starting", "loading") or self._stepper.may_have_loads:
                return False
            if cursor >= end.lsn:
                return True
            backlog = self._stepper.backlog()
            return not backlog.slices or backlog.start.lsn >= end.lsn
        finally:
            self._busy.release()

    @property
    def _shown_condition(self) -> Condition:
        is_between_steps = self._condition in ("starting", "running") or self._planned is None
        is_paused = (
            self._request.is_paused and is_between_steps and self._condition in ("starting", "running", "loading")
        )
        return "paused" if is_paused else self._condition

    def status(self) -> SinkStatus:
        now = time.time()
        behind = self._backlog.lag(self._stepper.cursor, now)
        error = self.error
        load = self._load.progress
        return SinkStatus(
            name=self.name,
            type=self._type,
            state=self._shown_condition,
            cursor=self._stepper.cursor,
            log_end=self._backlog.log_end,
            lag_bytes=behind.bytes,
            lag_seconds=behind.seconds,
            changes=self._stepper.changes,
            changes_per_second=self._rate.of(self._stepper.changes),
            steps=self._stepper.steps,
            last_error=str(error) if error else None,
            last_error_hint=error.hint if error else None,
            failures=self._failures,
            recoveries=self._recoveries,
            last_step_seconds=self._step_s,
            dead_letters=self._stepper.dead_letters,
            updated_at=datetime.fromtimestamp(now, UTC),
            batches=self._batches,
            batch_rows=self._batch_rows,
            last_batch_seconds=self._batch_s,
            load_rows=None if load is None else load.rows,
            load_total_rows=None if load is None else load.total_rows,
            load_seconds_left=None if load is None else load.seconds_left,
            latency_seconds=self._stepper.latency.commit_s,
            seal_latency_seconds=self._stepper.latency.seal_s,
            stalled_seconds=self._stalled_s,
        )

    def publish_status(self, meter: LagMeter) -> None:
        """Read the operator's control request, measure the lag, and publish the status in the store."""
        self._obey(control.load(self._store, self.name))
        if self._busy.acquire(blocking=False):
            try:
                self._stepper.read_published_cursor()
            finally:
                self._busy.release()
        self._backlog = meter.backlog(self.name, self._stepper.cursor)
        found = self.status()
        is_behind = bool(found.lag_seconds) or found.state in ("starting", "loading")
        progress = (found.state, found.cursor, found.steps, found.load_rows, found.failures)
        self._stalled_s = self._stall.observe(progress, is_waiting=is_behind and found.state != "paused")
        status.save(self._store, replace(found, stalled_seconds=self._stalled_s))

    def look_for_loads(self) -> None:
        """Look for tables to load before the next step: a snapshot was finished."""
        self._maintain_at = 0.0
        self._woken.set()

    # What the query calls.

    def plan(self, patience_s: float) -> PlannedStep | None:
        """Plan the next step; waits until there is one. None: nothing came within `patience_s` seconds."""
        self._planned = self._next_step(patience_s)
        return self._planned

    def keep_open(self) -> int | None:
        """Keep the batch of the planned step open for the steps that follow, and return its number. None: it may not
        stay open."""
        if self._open_batches is None or self._planned is None or not self._planned.is_small:
            return None
        if self._open_batch is None and self._open_batches.acquire(blocking=False):
            self._open_batch = OpenBatch(next(self._numbers), time.monotonic() + _OPEN_S)
        return None if self._open_batch is None else self._open_batch.number

    def deliver(self, run: Callable[[PlannedStep], Sequence[TaskResult | TailraceError]]) -> None:
        """Deliver the planned step; `run` runs its tasks and returns their results, unless they were handed in.
        Returns when the step is durable, or has failed."""
        with self._batch:
            try:
                planned = self._attempt(self._begin)
                if planned is not None:
                    results = self._guard(lambda: run(planned))
                    if results is not None and self._planned is not None:
                        self._commit(self._planned, results, self._open_batch)
            finally:
                self._end_batch()

    def advance(self, number: int, cursor: Lsn, results: Sequence[TaskResult | TailraceError]) -> PlannedStep | None:
        """Commit the step of an open batch that leads to `cursor`, and begin the next. None: the batch ends.

        A task calls it, while `deliver` waits for the task. If the task dies, `deliver` may have ended the batch
        meanwhile, and the step is being repeated: then nothing is committed or begun here. Nor is it if Spark repeats
        the task: what it hands in first may be committed already, and `deliver` finds that a result is missing.
        """
        batch, planned = self._open_batch, self._planned
        if batch is None or batch.number != number or planned is None or planned.step.after.cursor != cursor:
            return None
        if not self._commit(planned, results, batch) or time.monotonic() >= batch.ends_at:
            return None
        following = self._next_step(_LINGER_S, batch)

        def begin() -> PlannedStep | None:
            if following is None or not following.is_small or batch is not self._open_batch:
                return None
            self._planned = following
            return self._begin()

        return self._attempt(begin)

    def _next_step(self, patience_s: float, batch: OpenBatch | None = None) -> PlannedStep | None:
        """Wait for a step, and for no longer than the open batch is, if one is given."""
        give_up_at = time.monotonic() + patience_s
        while not self._stopping.is_set():
            self._woken.clear()
            planned = self._attempt(self._next)
            now = time.monotonic()
            if planned is not None:
                self._came_at = now
                return planned
            has_ended = batch is not None and (batch is not self._open_batch or now >= batch.ends_at)
            if has_ended or now >= give_up_at:
                break
            self._woken.wait(min(self._pause_s(now), give_up_at - now))
        return None

    def _begin(self) -> PlannedStep | None:
        planned = self._planned
        if planned is None or self._must_open or self._stopping.is_set():
            return None
        self._pace.start()
        self._stepper.begin(planned)
        return planned

    def _commit(
        self, planned: PlannedStep, results: Sequence[TaskResult | TailraceError], batch: OpenBatch | None
    ) -> bool:
        """Commit a step, unless its batch has ended."""

        def act() -> bool:
            if batch is not self._open_batch:
                return False
            self._planned = None
            done = []
            for result in results:
                if isinstance(result, TailraceError):
                    raise result
                done.append(result)
            if len(done) != len(planned.tasks):
                raise SinkError(f"sink {self.name}: {len(done)} of {len(planned.tasks)} tasks returned a result")
            self._stepper.commit(planned, done)
            if planned.is_load:
                self._load.commit()
            self._step_s = self._pace.finish(was_large=not planned.is_small)
            return True

        if not self._attempt(act):
            return False
        self._recover()
        return True

    def _close_batch(self) -> None:
        """Let an open batch end after its current step."""
        if (batch := self._open_batch) is not None:
            batch.ends_at = float("-inf")
        self._woken.set()

    def _end_batch(self) -> None:
        with self._busy:
            self._planned = None
            if self._open_batch is not None:
                assert self._open_batches is not None
                self._open_batch = None
                self._open_batches.release()
        self._woken.set()

    def report_load(self, part: Hashable, rows: int) -> None:
        """A task has read so many rows of a part of a load."""
        self._load.report(part, rows)

    def record_batch(self, rows: int, seconds: float) -> None:
        """Note what Spark reports of a batch that has ended."""
        self._batches += 1
        self._batch_rows += rows
        self._batch_s = seconds

    def _next(self) -> PlannedStep | None:
        if self._must_read_request:
            self._obey(control.load(self._store, self.name))
        now = time.monotonic()
        if self._request.is_paused or self.has_failed or now < self._retry_at:
            return None
        if self._request.rewind:
            self._rewind(self._request.rewind)
        if self._must_open:
            self._stepper.open()
            self._must_open = False
            self._maintain_at = now + _MAINTAIN_S
        if self._request.reload and not self._stepper.is_interrupted:
            self._reload(self._request.reload)
        if self._request.repair and not self._stepper.is_interrupted:
            # Removed first: a repair that may have been executed is not repeated.
            ids = self._request.repair
            self._request = control.finish_repair(self._store, self.name, ids)
            self._stepper.repair(ids)
        if now >= self._maintain_at:
            self._maintain_at = now + _MAINTAIN_S
            self._stepper.look_for_loads()
            self.sink.maintain()
        if self._pace.wait_s():
            if self._error is not None:
                self._recover()  # it failed between steps: a step that failed is repeated without a pause
            return None
        planned = self._stepper.next_step()
        if planned is not None and planned.is_load:
            self._condition = "loading"
            self._load.begin(planned.rows_to_load, self._stepper.rows_to_load)
            return planned
        self._load.end()
        if planned is None:
            self._recover()
        elif self._condition != "retrying":
            self._condition = "running"
        return planned

    def _rewind(self, where: str) -> None:
        """Deliver again from there. A request that cannot be fulfilled fails the sink once, and is then forgotten."""
        try:
            self._stepper.rewind(where)
        except TailraceError as error:
            if not error.retry:
                self._request = control.finish_rewind(self._store, self.name)
            raise
        self._request = control.finish_rewind(self._store, self.name)
        self._must_open = True
        _log.info("sink %s is rewound to %s", self.name, self._stepper.cursor)

    def _reload(self, patterns: Sequence[str]) -> None:
        count = self._stepper.reload(patterns)
        self._request = control.finish_reload(self._store, self.name, patterns)
        if not count:
            _log.warning("sink %s: no table to load again matches %s", self.name, ", ".join(patterns))

    def _pause_s(self, now: float) -> float:
        if now < self._retry_at:
            return self._retry_at - now
        poll_s = min(max((now - self._came_at) / _POLLS_WHILE_IDLE, _POLL_S), _IDLE_POLL_S)
        return max(min(self._pace.wait_s(), self._maintain_at - now), poll_s)

    # Failures.

    def _attempt(self, act: Callable[[], T]) -> T | None:
        """Act while nobody else uses the stepper. None: it failed, which has been reported."""

        def alone() -> T:
            with self._busy:
                return act()

        return self._guard(alone)

    def _guard(self, act: Callable[[], T]) -> T | None:
        """None: it failed, which has been reported."""
        try:
            return act()
        except PoisonError as error:
            self._poisoned(error)
        except SinkPaused as error:
            self._pause(error)
        except TailraceError as error:
            self._fail(error)
        except Exception as error:
            # A sink of the user's own may raise anything. That stops this sink, and no other.
            _log.exception("sink %s", self.name)
            self._fail(SparkError(f"sink {self.name}: {type(error).__name__}: {error}", "this is a bug in the sink"))
        return None

    def _poisoned(self, error: PoisonError) -> None:
        try:
            if self._has_abandoned_repair(error):
                return
            if not self._stepper.add_dead_letters(error):
                self._fail(error)
        except TailraceError as other:
            self._fail(other)

    def _pause(self, error: SinkPaused) -> None:
        """Pause, as an operator would: the request in the store outlives this process."""
        try:
            request = control.pause(self._store, self.name, str(error))
        except TailraceError as other:
            self._fail(other)
            return
        self._error = None
        self._must_open = True
        self._condition = "starting"
        self._obey(request)
        _log.warning("sink %s is paused: %s", self.name, error.with_hint)

    def _has_abandoned_repair(self, error: TailraceError) -> bool:
        """Whether it was a repair that failed. The sink goes on without it."""
        try:
            if not self._stepper.abandon_repair(str(error)):
                return False
        except TailraceError as other:
            # Who waits for the outcome compares the rows again.
            _log.warning("sink %s: the outcome of a repair was not stored: %s", self.name, other)
        self._must_open = True
        _log.warning("sink %s: rows were not corrected: %s", self.name, error)
        return True

    def _fail(self, error: TailraceError) -> None:
        if self._has_abandoned_repair(error):
            return
        self._error = error
        self._failures += 1
        self._must_open = True
        if self._stopping.is_set():
            return
        if not error.retry:
            self._condition = "failed"
            _log.error("sink %s stopped: %s", self.name, error.with_hint)
            return
        self._condition = "retrying"
        delay = self._backoff.next()
        self._retry_at = time.monotonic() + delay
        level = logging.DEBUG if isinstance(error, QueryLostError) else logging.WARNING
        _log.log(level, "sink %s: %s", self.name, sentences(f"{error}; retrying in {delay:.1f} s", error.hint))

    def _recover(self) -> None:
        self._condition = "loading" if self._stepper.rows_to_load else "running"
        if self._error is not None:
            self._error = None
            self._recoveries += 1
            self._backoff = Backoff()
            _log.info("sink %s delivers again", self.name)

    def _obey(self, request: ControlRequest) -> None:
        """A new request starts a failed sink again; one from before its failure does not."""
        is_new, self._request = request != self._request, request
        self._must_read_request = False
        if is_new and not request.is_paused and self.has_failed:
            self._condition = "starting"
            self._retry_at = float("-inf")
        if is_new:
            self._woken.set()

    def _run(self, query: StepQuery) -> None:
        """Keep the query running."""
        while not self._stopping.is_set():
            try:
                query.start()
                while not self._stopping.wait(_WATCH_S):
                    if (failure := query.failure()) is not None:
                        raise failure
                self._may_end.wait()
            except Exception as error:
                if not self._stopping.is_set() and query.is_lost():
                    self._stopping.wait()
                elif not self._stopping.is_set():
                    self._fail(error if isinstance(error, TailraceError) else _ended(self.name, error))
                    self._stopping.wait(max(self._retry_at - time.monotonic(), 0))
            finally:
                query.stop()
        if self._condition != "failed":
            self._condition = "stopped"
        try:
            with self._busy:
                self._stepper.close()
            status.save(self._store, self.status())
        except TailraceError as error:
            _log.warning("sink %s: %s", self.name, error)


def _ended(sink: str, error: Exception) -> SinkError:
    """In one line: of a traceback what was raised, without the calls that led there."""
    lines = [line for line in str(error).splitlines() if line[:1].strip()] or ["it was stopped"]
    reason = lines[1] if "Traceback" in lines[0] and len(lines) > 1 else lines[0]
    return SinkError(f"sink {sink}: the streaming query ended: {reason}")
