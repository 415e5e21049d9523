"""A consumer of the demo's messages, which rebuilds the shop's rows from them. Each message server has a subclass."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from tailrace import settings
from tailrace.change import Position
from tailrace.embedded.process import wait_until
from tailrace.embedded.shop import KEYS
from tailrace.errors import TailraceError


class ConsumedMessage(NamedTuple):
    destination: str
    id: str
    text: str


class DemoConsumer(ABC):
    """Runs a server until the context exits. Once the sink has published, consumes the messages from the first."""

    name: str
    """The column of its rows in the summary."""
    place: str
    """Where the messages are, in a sentence."""
    order: str
    """The order that the server promises, likewise."""
    title: str
    """The title of its panel."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"consumer of {self.name}", daemon=True)
        self._error: TailraceError | None = None
        self.last: ConsumedMessage | None = None
        self.newest: dict[str, ConsumedMessage] = {}
        """The newest message of each operation."""
        self.positions: list[Position] = []
        """The positions of all messages, in the order in which they came."""
        self.positions_by_destination: dict[str, list[Position]] = {}
        self.rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {table: {} for table in KEYS}
        """The rows of each table, by key, as built from the messages."""

    def __enter__(self) -> DemoConsumer:
        self._start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._close()

    @property
    @abstractmethod
    def sink(self) -> settings.SinkTable:
        """The settings of the sink that publishes, in JSON, which is readable in a terminal."""

    @property
    @abstractmethod
    def command(self) -> str:
        """The command to subscribe from another terminal."""

    @abstractmethod
    def has_every(self, expected: list[Position]) -> bool:
        """Whether each of these positions was consumed once, in the order that the server promises."""

    @abstractmethod
    def _start(self) -> None:
        """Start the server."""

    @abstractmethod
    def _close(self) -> None:
        """Stop the server."""

    @abstractmethod
    def _consume(self) -> None:
        """Consume until `_stopping` is set."""

    @abstractmethod
    def _count(self) -> int:
        """The number of messages that the server has."""

    def finish(self) -> int:
        """Wait until all messages are consumed, and return how many there are."""
        count = self._count()
        wait_until(lambda: len(self.positions) >= count or self._error is not None, 10)
        if self._error is not None:
            raise self._error
        return count

    def _run(self) -> None:
        try:
            self._consume()
        except TailraceError as error:
            self._error = error

    def _apply(self, destination: str, id: str, text: str, position: str) -> None:
        payload = json.loads(text)
        operation = payload["operation"]
        if "table" in payload:
            rows, row = self.rows[payload["table"]], payload["data"]
            key = tuple(row[column] for column in KEYS[payload["table"]])
            if operation == "DELETE":
                rows.pop(key, None)
            else:
                rows[key] = row
        self.last = self.newest[operation] = ConsumedMessage(destination, id, text)
        self.positions_by_destination.setdefault(destination, []).append(Position.parse(position))
        self.positions.append(Position.parse(position))
