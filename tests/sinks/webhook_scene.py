"""A short log of changes of a few rows, and its delivery to a receiver of webhooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.webhook_receiver import HttpReceiver, WebhookReceiver
from tests.log.stream import SOURCE, Server, write
from tests.pgoutput import build

from tailrace import settings
from tailrace.change import Change, Lsn, Operation, Position
from tailrace.delivery.dead_letters import DeadLetters
from tailrace.log import source_record
from tailrace.log.planner import latest_offset
from tailrace.log.reader import LogReader
from tailrace.store import Store

ROWS = 10


class ServerOfUpdates(Server):
    """Updates the rows 0 to 9 of one table, one after the other, again and again."""

    def _change(self) -> tuple[bytes, list[tuple[Operation, dict[str, Any]]]]:
        relation = self.relations[100]
        number = getattr(self, "number", 0)
        self.number = number + 1
        values = (b"%d" % (number % ROWS), b"version %d" % number, b"1.5", b"2.5")
        row = values[: len(relation.columns)]
        return build.update(row, oid=100), [(Operation.UPDATE, {"relation": relation, "new": row})]


class Scene:
    """Delivers a log, with a new object for each attempt, as successive processes would."""

    def __init__(self, server: HttpReceiver, directory: Path, log: Server | None = None) -> None:
        """Write the log, which has 60 changes if none is given."""
        self.server = server
        self.receiver = WebhookReceiver(server)
        self.store = Store.open((directory / "store").as_uri())
        if log is None:
            log = ServerOfUpdates(1)
            for _ in range(12):
                log.transaction(5)
        write(self.store, log, most=8)
        source_record.save(self.store, SOURCE, Lsn(0))
        self.changes: list[Change] = list(LogReader(self.store).changes())

    def driver(self, **more: Any) -> DeliveryDriver:
        receiver = WebhookReceiver(self.server, more)
        return DeliveryDriver(receiver, settings.StoreSettings(self.store.url))

    def deliver(self, **more: Any) -> None:
        self.driver(**more).deliver(latest_offset(LogReader(self.store)))

    def assert_all_accepted(self, *, again: bool = False, without: set[Position] | None = None) -> None:
        expected = [c for c in self.changes if c.position not in (without or set())]
        self.receiver.assert_changes(expected, again=again)

    def position(self, number: int) -> Position:
        return self.changes[number].position

    def dead_letters(self) -> set[Position]:
        letters = DeadLetters(LogReader(self.store), "tested")
        letters.load()
        return set(letters.positions)
