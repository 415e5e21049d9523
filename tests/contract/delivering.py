"""Deliveries as tests make them: by objects that know nothing but the settings, in pieces, twice, or broken off."""

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
from tests.contract import recorder
from tests.contract.destinations import Destination, Place
from tests.contract.scenario import Mark, Scenario

from tailrace import settings, sinks
from tailrace.change import Lsn
from tailrace.embedded.process import wait_until
from tailrace.errors import SinkError, StoreError, TailraceError
from tailrace.log.plan import Offset
from tailrace.log.reader import LogReader
from tailrace.sinks.base import Parallel, State
from tailrace.sinks.errand import Staff, Staged, Work
from tailrace.sinks.iceberg.catalog import Catalog
from tailrace.sinks.iceberg.table import LakeTable
from tailrace.sinks.nats.wire import Wire
from tailrace.sinks.stepper import Stepper
from tailrace.store import FileStore, Store


class Delivering:
    """Steppers as one deliver after the other would make them."""

    def __init__(self, destination: Place, store: settings.Store, **common: Any) -> None:
        self.destination = destination
        self.store = store
        self.reader = LogReader(Store.open(store.url))
        self.began: Lsn | None = None
        self.tables: dict[int, Lsn] = {}
        """All that were ever delivered: a sink may forget one that another took the place of."""
        self._common = common

    @contextmanager
    def stepper(self, staff: Staff | None = None, hands: int = 1) -> Iterator[Stepper]:
        made = self.made(staff, hands)
        try:
            # A destination may not know yet that whoever delivered before is gone; then the engine tries again, too.
            assert wait_until(lambda: _is_open(made), 30), "another delivers"
            self.began = self.began if self.began is not None else made.cursor
            yield made
        finally:
            self.tables |= made.state.tables
            made.sink.close()

    def made(self, staff: Staff | None = None, hands: int = 1) -> Stepper:
        """Not open yet."""
        raw = {"name": "tested", **self.destination.settings(), **self._common}
        (configured,) = sinks.configured(settings.Settings(store=self.store, sinks=(raw,)), {})
        return Stepper(configured, self.store, staff or elsewhere(random.Random(hands)), lambda: hands)

    def deliver(self, end: Offset, staff: Staff | None = None, hands: int = 1) -> State:
        """By a new object, which is thrown away."""
        with self.stepper(staff, hands) as one:
            one.load_missing()
            one.deliver(end)
            return one.state

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State) -> None:
        assert state.cursor == mark.lsn
        assert self.began is not None
        cast(Destination, self.destination).assert_holds(scenario, mark, State(state.cursor, self.tables), self.began)


def _is_open(stepper: Stepper) -> bool:
    try:
        stepper.open()
    except SinkError:
        return False
    return True


def elsewhere(rng: random.Random, times: int = 1) -> Staff:
    """What other processes would do: work on copies, in any order where the sink allows it, some of it repeatedly."""

    def carried_out(errands: Sequence[Work], parallel: Parallel) -> list[Staged]:
        order = list(range(len(errands)))
        if parallel is Parallel.RANGES:
            order *= times
            rng.shuffle(order)
        else:
            order = [number for number in order for _ in range(times)]
        done = {}
        for number in order:
            copy = pickle.loads(pickle.dumps(errands[number]))
            done[number] = pickle.loads(pickle.dumps(copy.stage()))
        return [done[number] for number in sorted(done)]

    return carried_out


class Crash(BaseException):
    """Not an Exception: nobody may catch it and go on."""


def dying(staff: Staff) -> Staff:
    """Everything is staged, and then the driver is no more."""

    def carried_out(errands: Sequence[Work], parallel: Parallel) -> list[Staged]:
        staff(errands, parallel)
        raise Crash

    return carried_out


@contextmanager
def crashing(at: int) -> Iterator[None]:
    """Dies before the `at`-th act that anybody could see afterwards: an object or a file written, a transaction
    committed, a statement that is one by itself; and in the middle of some, as rows are copied."""
    left = at

    def act() -> None:
        nonlocal left
        if threading.current_thread().name.startswith("requests "):
            return  # who answers them beside the delivery would die alone
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

    leave = psycopg.Transaction.__exit__

    def left_transaction(self: psycopg.Transaction, kind: Any, error: Any, trace: Any) -> Any:
        if kind is None:
            try:
                act()
            except Crash:
                # As the server sees it: whoever was to commit is gone.
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
        patch.object(LakeTable, "_finish", before(LakeTable._finish)),
        patch.object(Catalog, "rename", before(Catalog.rename)),
        patch.object(Wire, "_write", before(Wire._write)),
        patch.object(psycopg.Cursor, "execute", executed),
        patch.object(psycopg.Cursor, "copy", before(psycopg.Cursor.copy)),
        patch.object(psycopg.Transaction, "__exit__", left_transaction),
    ):
        yield


@contextmanager
def failing(rng: random.Random, share: float) -> Iterator[Callable[[], int]]:
    """A store of which some requests fail, before or after they did something; gives how many did."""
    failures = 0

    def sometimes(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal failures
            fails, late = rng.random() < share, rng.random() < 0.5
            failures += fails
            found = function(*arguments, **named) if late or not fails else None
            if fails:
                raise StoreError("the store is away", "wait")
            return found

        return wrapped

    names = ("get", "get_range", "head", "list", "delete", "create", "replace")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(FileStore, name, sometimes(getattr(FileStore, name))))
        yield lambda: failures


def refused(stepper: Stepper, committed: Sequence[tuple[Any, Any]]) -> int:
    """Commits again, by an object of today, what another committed; how many of them were refused."""
    count = 0
    for step, receipts in committed:
        try:
            stepper.sink.commit(step, receipts)
        except TailraceError:
            count += 1
    return count
