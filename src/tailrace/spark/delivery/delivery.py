"""One sink's delivery: a streaming query that is its clock and its ledger, and whoever keeps it going.

The query decides when a batch is due and up to where it reaches; the sink's cursor decides where it begins. So the
query's checkpoint is made anew at each start, and nothing is lost with it. The batch itself is done in the query's
callback: small ones right there, without a job of Spark's.

A sink that takes changes as they come (`interval_ms` 0) does not wait for the query, whose every batch costs a tenth of
a second: whoever keeps it going follows the log too, and the query writes down now and then how far that is.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace import settings
from tailrace.change import Lsn
from tailrace.errors import SinkError, SparkError, TailraceError
from tailrace.log.plan import Offset
from tailrace.rate import Rate
from tailrace.retry import Backoff
from tailrace.sinks import Configured, status
from tailrace.sinks.status import Condition, SinkStatus, Wish
from tailrace.sinks.stepper import Stepper
from tailrace.spark.delivery.staff import Executors
from tailrace.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("tailrace.deliver")

# Between two steps: a snapshot whose message got lost (the log itself tells of others), and the sink's own upkeep.
_LOOK_S: Final = 10.0
_RATE_OVER_S: Final = 10.0
# What comes into the log is looked for this often, and less often when nothing came for a while: it costs a request.
_POLL_S: Final = 0.02
_IDLE_POLL_S: Final = 0.05
_IDLE_AFTER_S: Final = 1.0
# How often a query writes down how far a sink is that does not wait for it.
_LEDGER_S: Final = 10
# A query takes one or two to begin; four that begin at once, on one processor, eight.
_START_S: Final = 20.0


class _StoppedError(Exception):
    """The delivery was stopped, or has to start again, while it waited."""


class Delivery:
    """Runs in a thread of its own from `start` to `stop`."""

    def __init__(self, spark: SparkSession, configured: Configured, store: settings.Store, checkpoint: Path) -> None:
        self.name = configured.name
        self._type = configured.common.type
        interval = configured.common.interval_ms
        self._interval_ms = configured.sink.interval_ms if interval is None else interval
        self._spark = spark
        self._settings = store
        self._store = Store.open(store.url, store.options)
        self._checkpoint = checkpoint
        context = spark.sparkContext
        # Asked anew each time: executors of a cluster come and go.
        self._stepper = Stepper(
            configured, store, Executors(context, self.name), lambda: max(context.defaultParallelism, 1)
        )
        self._condition: Condition = "starting"
        self._error: TailraceError | None = None
        self._is_lost = False
        """Something failed, and where the sink stands is to be asked again before anything else."""
        self._broken: Exception | None = None
        """What a batch ended with; the query itself would only tell it as Java does."""
        self._failures = 0
        self._recoveries = 0
        self._step_s = 0.0
        self._rate = Rate(_RATE_OVER_S)
        self._oldest_us: int | None = None
        self._log_end = Lsn(0)
        self._stopping = threading.Event()
        self._again = threading.Event()
        self._has_ticked = threading.Event()
        """The query has made its first batch."""
        self._is_in_batch = False
        self._paused = threading.Event()
        self._wish = Wish()
        self._busy = threading.Lock()
        """Held while a step is done, and by whoever needs that none is."""
        self._query: StreamingQuery | None = None
        self._starter: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name=f"deliver {self.name}", daemon=True)
        self._next_look = 0.0
        self._backoff = Backoff()

    def start(self) -> None:
        self._thread.start()

    def stop(self, grace_s: float) -> bool:
        """Whether the step under way was finished in time. What was not committed is delivered by the next run."""
        self._stopping.set()
        self._again.set()
        finished = self._busy.acquire(timeout=grace_s)
        if finished:
            self._busy.release()
        # Who began the query ends it: nobody else knows whether it has begun.
        if self._thread.ident is not None:
            self._thread.join(grace_s)
        return finished

    def pause(self) -> None:
        self._heed(status.pause(self._store, self.name))

    def resume(self) -> None:
        """Also a sink that failed: what was in its way has been removed, says whoever calls."""
        self._heed(status.resume(self._store, self.name))

    def rewind(self, where: str) -> None:
        """See `Stepper.rewind`; the delivery goes on from there."""
        with self._busy:
            self._stepper.rewind(where)
            self._again.set()

    @property
    def cursor(self) -> Lsn | None:
        return self._stepper.cursor

    @property
    def has_failed(self) -> bool:
        return self._condition == "failed"

    @property
    def error(self) -> TailraceError | None:
        return self._error

    def has_delivered(self, end: Offset) -> bool:
        """Whether everything before a place in the log is at the destination, the tables that are due too.

        Of a sink in the middle of a step it is not asked: a step may take as long as the destination likes.
        """
        if not self._busy.acquire(blocking=False):
            return False
        try:
            cursor = self._stepper.state.cursor
            if cursor is None or self._condition in ("starting", "loading"):
                return False
            if cursor >= end.lsn:
                return True
            backlog = self._stepper.backlog()
            return not backlog.slices or backlog.start.lsn >= end.lsn
        finally:
            self._busy.release()

    def status(self) -> SinkStatus:
        cursor, now = self._stepper.cursor, time.time()
        oldest = self._oldest_us
        # Until the log was looked at, nobody knows.
        is_known = cursor is not None and self._log_end > 0
        return SinkStatus(
            name=self.name,
            type=self._type,
            state="paused" if self._paused.is_set() and self._condition == "running" else self._condition,
            cursor=cursor,
            log_end=self._log_end,
            lag_bytes=None if not is_known else 0 if oldest is None else max(self._log_end - (cursor or 0), 0),
            lag_seconds=None if not is_known else 0.0 if oldest is None else max(now - oldest / 1e6, 0.0),
            changes=self._stepper.changes,
            changes_per_second=self._rate.of(self._stepper.changes),
            steps=self._stepper.steps,
            last_error=str(self._error) if self._error else None,
            last_error_hint=self._error.hint if self._error else None,
            failures=self._failures,
            recoveries=self._recoveries,
            last_step_seconds=self._step_s,
            set_aside=self._stepper.set_aside,
            updated_at=datetime.fromtimestamp(now, UTC),
        )

    def look(self, log_end: Lsn) -> None:
        """Find out how far behind the sink is, and what an operator wants. Called now and then by the engine."""
        self._log_end = log_end
        self._heed(status.wish(self._store, self.name))
        if self._busy.acquire(blocking=False):
            try:
                self._stepper.recall()
                if self._stepper.cursor is not None:
                    self._oldest_us = self._stepper.oldest_undelivered_us()
            finally:
                self._busy.release()
        status.save(self._store, self.status())

    def _heed(self, wish: Wish) -> None:
        """A wish that is new wakes a sink that failed; one from before its failure does not."""
        is_new, self._wish = wish != self._wish, wish
        (self._paused.set if wish.is_paused else self._paused.clear)()
        if is_new and not wish.is_paused and self.has_failed:
            self._again.set()

    def _run(self) -> None:
        """Open, deliver until something happens, wait, begin anew."""
        while not self._stopping.is_set():
            self._again.clear()
            self._has_ticked.clear()
            self._is_lost = False
            self._broken = None
            try:
                self._condition = "starting"
                with self._busy:
                    self._stepper.open()
                    self._condition = "loading"
                    self._stepper.load_missing()
                    self._stepper.backlog()  # raises where the log cannot be read on from the cursor
                self._next_look = time.monotonic() + _LOOK_S
                self._condition = "running"
                self._follow()
            except _StoppedError:
                continue
            except TailraceError as error:
                self._fail(error)
                if not error.retry:
                    self._again.wait()
            except (PySparkException, Py4JError) as error:
                self._fail(_ended(self.name, error))
            except Exception as error:
                # A sink from outside may raise anything: it is this sink's end, and nobody else's.
                _log.exception("sink %s", self.name)
                self._fail(
                    SparkError(f"sink {self.name}: {type(error).__name__}: {error}", "this is a bug in the sink")
                )
                self._again.wait()
            finally:
                self._end_query()
        if self._condition != "failed":
            self._condition = "stopped"
        try:
            with self._busy:
                self._stepper.close()
            status.save(self._store, self.status())
        except TailraceError as error:
            _log.warning("sink %s: %s", self.name, error)

    def _fail(self, error: TailraceError) -> None:
        """Say it, and wait if it may pass."""
        self._error = error
        self._failures += 1
        if self._stopping.is_set():
            return
        if not error.retry:
            self._condition = "failed"
            _log.error("%s stops: %s. %s", self.name, error, error.hint)
            return
        self._condition = "retrying"
        delay = self._backoff.next()
        _log.warning("sink %s: %s; tried again in %.1f s. %s", self.name, error, delay, error.hint)
        self._stopping.wait(delay)

    def _begin_query(self) -> None:
        """Beside the deliveries of a sink that does not wait for it: it takes a second or two, and many more where much
        begins at once."""
        if self._interval_ms:
            self._start_query()
            return

        def begin() -> None:
            try:
                self._start_query()
            except Exception as error:
                self._broken = error

        self._starter = threading.Thread(target=begin, name=f"query {self.name}", daemon=True)
        self._starter.start()

    def _start_query(self) -> None:
        from tailrace.spark.datasource import register

        shutil.rmtree(self._checkpoint, ignore_errors=True)
        register(self._spark)
        stream = self._spark.readStream.format("tailrace").option("starting", str(self._stepper.cursor))
        for key, value in self._settings.options.items():
            stream = stream.option(f"store.{key}", value)
        self._query = (
            stream.load(self._settings.url)
            .writeStream.queryName(f"tailrace {self.name}")
            .foreachBatch(self._batch)
            .option("checkpointLocation", self._checkpoint.as_uri())
            .trigger(processingTime=f"{self._interval_ms or 1000 * _LEDGER_S} milliseconds")
            .start()
        )

    def _deliver(self, end: Offset) -> None:
        # Nobody can look while a step is under way, and it may take for ever.
        self._oldest_us = self._stepper.oldest_undelivered_us()
        began = time.monotonic()
        self._stepper.deliver(end)
        self._step_s = time.monotonic() - began
        self._oldest_us = None

    def _deliver_ahead(self) -> bool:
        """What there is; whether there was anything."""
        ahead = self._stepper.ahead()
        if ahead.slices:
            self._deliver(ahead.end)
        return bool(ahead.slices)

    def _follow(self) -> None:
        """Until the query ends, or somebody wants it to. What is in the log already does not wait for the query, which
        takes seconds of both processors to begin: it is started when that is delivered."""
        backlog_end = self._stepper.log_end()
        looked_at = came_at = float("-inf")
        while not self._again.is_set():
            # What failed between two batches must not wait for the next one.
            is_due = self._takes_itself or (self._is_lost and not self._is_in_batch)
            came = is_due and not self._paused.is_set() and self._try(self._deliver_ahead)
            if self._broken is not None:
                raise self._broken
            now = time.monotonic()
            if now - looked_at >= _IDLE_POLL_S:
                self._look_after()
                looked_at = now
            is_behind = came and (self.cursor or 0) < backlog_end.lsn
            if self._query is None and self._starter is None and not is_behind:
                self._begin_query()
            if came:
                came_at = now
                continue
            self._again.wait(_POLL_S if now - came_at < _IDLE_AFTER_S else _IDLE_POLL_S)
        raise _StoppedError

    @property
    def _takes_itself(self) -> bool:
        return self._interval_ms == 0 or not self._has_ticked.is_set()

    def _look_after(self) -> None:
        """The query, and between two steps what is due: tables to load, the destination's upkeep."""
        if self._query is not None and not self._query.isActive:
            with self._busy:
                self._stepper.backlog()  # if it was the log, that says it in words
            raise _ended(self.name, self._query.exception())
        if self._paused.is_set() or self._is_lost:
            return
        if self._wish.reload:
            self._reload(self._wish.reload)
        if time.monotonic() >= self._next_look:
            self._try(self._tend)
            self._next_look = time.monotonic() + _LOOK_S

    def _tend(self) -> None:
        self._stepper.load_missing()
        self._stepper.sink.tend()

    def _reload(self, patterns: Sequence[str]) -> None:
        with self._busy:
            count = self._stepper.reload(patterns)
        self._wish = status.reloaded(self._store, self.name, patterns)
        if not count:
            _log.warning("sink %s: there is nothing to load anew of %s", self.name, ", ".join(patterns))

    def _end_query(self) -> None:
        if (starter := self._starter) is not None:
            starter.join()
        query, self._query, self._starter = self._query, None, None
        if query is not None:
            try:
                # Stopped before, it would leave a process behind that complains that nobody answers.
                given_up = time.monotonic() + _START_S
                while _is_starting(query) and time.monotonic() < given_up:
                    time.sleep(0.02)
                query.stop()
            except (PySparkException, Py4JError, OSError) as error:  # OSError: Java is gone, and its port with it
                _log.debug("sink %s: the query did not stop: %s", self.name, error)

    def _batch(self, _: DataFrame, batch_id: int) -> None:
        """Called by the query for each of its batches. Returns when it is durable at the destination.

        Or when it never will be: `_follow` ends the query then. An exception that goes through Java is printed
        there, twice and at length; the query's own ledger, which takes the batch for done, is not kept.
        """
        end = self._end_of(batch_id)
        self._has_ticked.set()
        self._is_in_batch = True
        try:
            self._do_batch(end)
        finally:
            self._is_in_batch = False

    def _do_batch(self, end: Offset) -> None:
        while self._broken is None and not self._again.is_set():
            if self._interval_ms == 0 or self._paused.is_set():
                if self.has_delivered(end) or self._again.wait(_IDLE_POLL_S):
                    return
            elif self._try(lambda: self._deliver(end)):
                return

    def _try(self, act: Callable[[], bool | None]) -> bool:
        """Whether it was done. What was not, and may pass, is told of, and where the sink stands is asked again."""
        try:
            with self._busy:
                if self._is_lost:
                    self._stepper.open()
                    self._is_lost = False
                came = act()
        except TailraceError as error:
            if error.retry:
                self._is_lost = True
                self._fail(error)
            else:
                self._broken = error
            return False
        except Exception as error:
            self._broken = error
            return False
        if self._error is not None:
            self._recoveries += 1
            _log.info("sink %s: delivers again", self.name)
        self._condition, self._error = "running", None
        self._backoff = Backoff()
        return came is not False

    def _end_of(self, batch_id: int) -> Offset:
        """From the query's ledger: a line of version, one of Spark's own, one for each source."""
        lines = (self._checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        return Offset.from_json(json.loads(lines[2]))


def _is_starting(query: StreamingQuery) -> bool:
    return query.isActive and query.status["message"] in ("Initializing StreamExecution", "Initializing sources")


def _ended(sink: str, error: Exception | None) -> SinkError:
    """In one line: of a traceback what was raised, without the calls that led there."""
    lines = [line for line in str(error or "").splitlines() if line[:1].strip()] or ["it was stopped"]
    reason = lines[1] if "Traceback" in lines[0] and len(lines) > 1 else lines[0]
    return SinkError(f"sink {sink}: the query ended: {reason}")
