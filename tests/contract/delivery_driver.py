"""Deliveries by new objects that know only the settings: in several steps, repeated, or interrupted."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast
from unittest.mock import patch

import psycopg
from psycopg import sql
from pyspark.sql import SparkSession
from tests.contract import recorder
from tests.contract.destinations import Destination, Place
from tests.contract.scenario import Mark, Scenario
from tests.stepping import DrivenStepper, Run

from tailrace import settings, sinks
from tailrace.change import Lsn
from tailrace.delivery.contract import Parallel, State
from tailrace.delivery.step import PlannedStep
from tailrace.delivery.task import Task, TaskResult
from tailrace.embedded.process import wait_until
from tailrace.errors import SinkError, StoreError, TailraceError
from tailrace.http.client import HttpClient
from tailrace.log.planner import Offset
from tailrace.log.reader import LogReader
from tailrace.sinks.iceberg.java_catalog import JavaCatalog
from tailrace.sinks.iceberg.lake_table import LakeTable
from tailrace.sinks.kafka.transport import KafkaTransport
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.nats.client import NatsClient
from tailrace.sinks.rabbitmq.broker_connection import BrokerConnection
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.spark.engine import Engine
from tailrace.store import FileStore, Store


class DeliveryDriver:
    """Creates steppers as successive `deliver` processes would."""

    def __init__(self, destination: Place, store: settings.StoreSettings, **common: Any) -> None:
        self.destination = destination
        self.store = store
        self.reader = LogReader(Store.open(store.url))
        self.began: Lsn | None = None
        self.tables: dict[int, Lsn] = {}
        """All tables that were ever delivered. A sink may forget a table that was replaced by another."""
        self._common = common

    @contextmanager
    def stepper(self, executor: Run | None = None, parallelism: int = 1) -> Iterator[DrivenStepper]:
        made = self.make_stepper(executor, parallelism)
        try:
            # The destination may not have noticed yet that the previous deliverer ended. The engine retries then, too.
            assert wait_until(lambda: _is_open(made), 30), "another delivery is still active"
            self.began = self.began if self.began is not None else made.cursor
            yield made
        finally:
            self.tables |= made.state.tables
            made.sink.close()

    def make_stepper(self, executor: Run | None = None, parallelism: int = 1) -> DrivenStepper:
        """Return a stepper that is not open yet."""
        (configured,) = sinks.from_settings(self._settings(), {})
        run = executor or in_other_processes(random.Random(parallelism))
        return DrivenStepper(configured, self.store, run, lambda: parallelism)

    def deliver(self, end: Offset, executor: Run | None = None, parallelism: int = 1) -> State:
        """Deliver with a new object, which is discarded."""
        with self.stepper(executor, parallelism) as one:
            one.load_missing()
            one.deliver(end)
            return one.state

    def deliver_on(self, spark: SparkSession) -> State:
        """Deliver everything in the log with the sink's streaming query."""
        with self.stepper():
            pass
        given = self._settings()
        engine = Engine(given, sinks.from_settings(given, {}), spark=spark)
        engine.start()
        try:
            assert engine.wait(engine.end(), 180), engine.sinks["tested"].status()
        finally:
            engine.stop()
        state = engine.sinks["tested"]._stepper.state
        self.tables |= state.tables
        return state

    def _settings(self) -> settings.Settings:
        raw = {"name": "tested", **self.destination.settings(), **self._common}
        return settings.Settings(store=self.store, sinks=(raw,))

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State) -> None:
        assert state.cursor == mark.lsn
        assert self.began is not None
        cast(Destination, self.destination).assert_holds(scenario, mark, State(state.cursor, self.tables), self.began)


def _is_open(stepper: DrivenStepper) -> bool:
    try:
        stepper.open()
    except SinkError:
        return False
    return True


def has_delivered(stepper: DrivenStepper) -> bool:
    """Deliver everything; after a failure that may pass, open the sink again, as a pipeline does."""
    with suppress(SinkError):
        try:
            stepper.deliver(stepper.log_end())
            return True
        except SinkError:
            stepper.open()
    return False


def in_other_processes(rng: random.Random, times: int = 1) -> Run:
    """Run tasks as other processes would: on copies, each `times` times, and in random order if the sink allows it."""

    def run(tasks: Sequence[Task], parallel: Parallel) -> list[TaskResult]:
        order = list(range(len(tasks)))
        if parallel is Parallel.RANGES:
            order *= times
            rng.shuffle(order)
        else:
            order = [number for number in order for _ in range(times)]
        done = {}
        for number in order:
            copy = pickle.loads(pickle.dumps(tasks[number]))
            done[number] = pickle.loads(pickle.dumps(copy.run()))
        return [done[number] for number in sorted(done)]

    return run


MYSQL_EXECUTE = MysqlSession.execute


class Crash(BaseException):
    """Not an Exception: no code may catch it and continue."""


def crash_after_staging(executor: Run) -> Run:
    """Stage everything, then crash the driver."""

    def run(tasks: Sequence[Task], parallel: Parallel) -> list[TaskResult]:
        executor(tasks, parallel)
        raise Crash

    return run


@contextmanager
def crashing(at: int) -> Iterator[None]:
    """Crash before the `at`-th durable act: writing an object or a file, committing a transaction, or running a
    statement outside of one. Also in the middle of some acts, while rows are copied."""
    left = at

    def act() -> None:
        nonlocal left
        if threading.current_thread().name.startswith("requests "):
            return  # this thread answers requests: it would crash without the delivery
        left -= 1
        if left == 0:
            raise Crash

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            act()
            return function(*arguments, **named)

        return wrapped

    execute = psycopg.Cursor.execute

    def executed(self: psycopg.Cursor[Any], query: Any, *arguments: Any, **named: Any) -> Any:
        text = query if isinstance(query, str) else query.as_string() if isinstance(query, sql.Composable) else ""
        is_alone = self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if is_alone and not text.startswith("SELECT"):
            act()
        return execute(self, query, *arguments, **named)

    def before_mysql(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: MysqlSession, *arguments: Any) -> Any:
            text = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            # MySQL commits these statements by itself. Others take effect when a transaction is committed.
            if function is not MYSQL_EXECUTE or text.startswith(
                ("CREATE TABLE", "CREATE DATABASE", "ALTER", "RENAME", "DROP TABLE")
            ):
                try:
                    act()
                except Crash:
                    self._connection._force_close()  # type: ignore[attr-defined]
                    raise
            return function(self, *arguments)

        return wrapped

    leave = psycopg.Transaction.__exit__

    def left_transaction(self: psycopg.Transaction, kind: Any, error: Any, trace: Any) -> Any:
        if kind is None:
            try:
                act()
            except Crash:
                # The server sees that the client disconnected before the commit.
                self.connection.close()
                raise
        with suppress(*[psycopg.OperationalError] if left <= 0 else []):
            return leave(self, kind, error, trace)
        return False

    with (
        patch.object(FileStore, "create", before(FileStore.create)),
        patch.object(FileStore, "replace", before(FileStore.replace)),
        patch.object(FileStore, "delete", before(FileStore.delete)),
        patch.object(recorder, "_write", before(recorder._write)),
        patch.object(LakeTable, "_commit_transaction", before(LakeTable._commit_transaction)),
        patch.object(JavaCatalog, "rename", before(JavaCatalog.rename)),
        patch.object(NatsClient, "_write", before(NatsClient._write)),
        patch.object(BrokerConnection, "write", before(BrokerConnection.write)),
        patch.object(KafkaTransport, "_publish", before(KafkaTransport._publish)),
        patch.object(KafkaTransport, "_commit", before(KafkaTransport._commit)),
        patch.object(ValkeyClient, "_write", before(ValkeyClient._write)),
        patch.object(HttpClient, "exchange", before(HttpClient.exchange)),
        patch.object(MysqlSession, "execute", before_mysql(MysqlSession.execute)),
        patch.object(MysqlSession, "load", before_mysql(MysqlSession.load)),
        patch.object(MysqlSession, "commit", before_mysql(MysqlSession.commit)),
        patch.object(psycopg.Cursor, "execute", executed),
        patch.object(psycopg.Cursor, "copy", before(psycopg.Cursor.copy)),
        patch.object(psycopg.Transaction, "__exit__", left_transaction),
    ):
        yield


@contextmanager
def failing(rng: random.Random, share: float) -> Iterator[Callable[[], int]]:
    """Make a share of the store's requests fail, before or after they take effect. Yields a count of the failures."""
    failures = 0

    def sometimes(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal failures
            fails, late = rng.random() < share, rng.random() < 0.5
            failures += fails
            found = function(*arguments, **named) if late or not fails else None
            if fails:
                raise StoreError("the store is unavailable", "wait")
            return found

        return wrapped

    names = ("get", "get_range", "head", "list", "delete", "create", "replace")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(FileStore, name, sometimes(getattr(FileStore, name))))
        yield lambda: failures


def record_commits(stepper: DrivenStepper, committed: list[tuple[Any, Any]]) -> None:
    """Note each step that is committed, with its receipts."""
    commit = stepper.commit

    def record(planned: PlannedStep, results: Any) -> None:
        commit(planned, results)
        committed.append((planned.step, [each.receipt for each in results]))

    stepper.commit = record  # type: ignore[method-assign]


def count_refused(stepper: DrivenStepper, committed: Sequence[tuple[Any, Any]]) -> int:
    """Commit again, with the current object, what other objects committed. Return how many commits were refused."""
    count = 0
    for step, receipts in committed:
        try:
            stepper.sink.commit(step, receipts)
        except TailraceError:
            count += 1
    return count
