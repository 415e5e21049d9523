"""A generated log for tests of the sink `rabbitmq`, and deliveries of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.rabbitmq_messages import Consumed, RabbitMqQueue, RabbitMqStreams
from tests.log.stream import SOURCE, Capture, Server, split_randomly
from tests.pgoutput import build
from tests.stepping import DrivenStepper

from tailrace import settings
from tailrace.change import Lsn, Operation, Position
from tailrace.delivery import dead_letters
from tailrace.embedded.rabbitmq import RabbitMqServer
from tailrace.errors import PoisonError
from tailrace.log import published_table, source_record
from tailrace.store import Store

TABLES = [("public", f"t{oid}") for oid in (100, 101, 102)]
LARGE = 1_500_000
"""More than a frame of the stream protocol may have, and less than a message to an exchange."""


class ServerWithSizes(Server):
    """Inserts rows of these sizes into one table."""

    sizes: Sequence[int] = (10, 10, 10, LARGE)

    def _change(self) -> tuple[bytes, list[tuple[Operation, dict[str, Any]]]]:
        relation = self.relations[100]
        body = b"x" * self.rng.choice(self.sizes)
        row = (b"%d" % self.rng.randint(0, 99), body, *[b"1.5"] * (len(relation.columns) - 2))
        return build.insert(row, oid=100), [(Operation.INSERT, {"relation": relation, "new": row})]


class GeneratedLog:
    def __init__(self, directory: Path, server: Server, transactions: int = 60) -> None:
        self.server = server
        self.store = Store.open((directory / "store").as_uri())
        self.settings = settings.StoreSettings(self.store.url)
        self._capture = Capture(self.store)
        source_record.save(self.store, SOURCE, Lsn(0))
        published_table.save(self.store, server.relations.values())
        self._sent = 0
        self.grow(transactions)

    def grow(self, transactions: int) -> None:
        """Capture more transactions."""
        self.server.work(transactions)
        for part in split_randomly(self.server.rng, self.server.frames(self._sent), 8):
            self._capture.add(part)
        self._sent = self.server.lsn

    def expected(self, *tables: str) -> Counter[Position]:
        """The positions of all changes, or of those of some tables."""
        return Counter(c.position for c in self.server.changes if not tables or c.table in tables)

    def dead_letters(self) -> set[Position]:
        return {letter.position for letter in dead_letters.load_all(self.store, "tested")}

    def request_replay(self) -> None:
        for letter in dead_letters.load_all(self.store, "tested"):
            dead_letters.request_replay(self.store, letter)


def make_streams(server: RabbitMqServer, **more: Any) -> RabbitMqStreams:
    return RabbitMqStreams(server, TABLES, {"start": "earliest", **more})


def make_queue(server: RabbitMqServer, arguments: dict[str, Any] | None = None, **more: Any) -> RabbitMqQueue:
    return RabbitMqQueue(server, {"start": "earliest", **more}, arguments or {})


def deliver(driver: DeliveryDriver) -> None:
    with driver.stepper() as one:
        deliver_all(one)


def deliver_all(stepper: DrivenStepper) -> None:
    cursor = None
    while stepper.cursor != cursor:
        cursor = stepper.cursor
        stepper.deliver(stepper.ahead().end)


def replay(stepper: DrivenStepper) -> None:
    """Deliver the dead letters that were requested, as a pipeline does."""
    stepper.look_for_loads()
    while (planned := stepper.next_step()) is not None and planned.step.replays:
        stepper.begin(planned)
        try:
            stepper.commit(planned, stepper.run(planned.tasks, stepper.sink.parallel))
        except PoisonError as error:
            stepper.add_dead_letters(error)


def positions(messages: Sequence[Consumed]) -> list[Position]:
    return [Position.parse(message.headers["Tailrace-Position"]) for message in messages]
