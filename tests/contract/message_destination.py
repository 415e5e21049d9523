"""Destinations of message sinks: what was received is compared field by field with the log and the snapshots' rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tests import oracle
from tests.contract.destinations import Event, Record, assert_delivered, assert_results_in
from tests.contract.expected_envelope import ExpectedEnvelope, normalize
from tests.contract.scenario import Mark, Scenario

from tailrace.change import Change, Lsn, Position, Relation
from tailrace.delivery.contract import State
from tailrace.log.change_text import content_text

MESSAGES = "messages-of-applications"
"""Where logical messages go."""


@dataclass(frozen=True)
class ReceivedMessage:
    destination: str
    key: Any
    """Messages with the same key are in order. None: their order is not promised."""
    headers: Mapping[str, str]
    payload: Any
    """Decoded; the envelope is `tailrace`."""

    @property
    def position(self) -> Position:
        return Position.parse(self.headers["Tailrace-Position"])

    @property
    def is_row(self) -> bool:
        """Whether it is a row of a snapshot."""
        return bool(self.payload["operation"] == "SNAPSHOT")


class MessageDestination(ABC):
    """A destination whose sink has the envelope `tailrace` in JSON."""

    is_exact: ClassVar[bool] = True
    """Whether the sink promises each message once. If not, repetitions have equal ids and contents."""
    _read: Sequence[ReceivedMessage] | None = None
    """What was received, while it is compared: to read it takes longer than to compare it."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def beside(self, name: str) -> MessageDestination:
        """Another destination of the same kind."""

    @abstractmethod
    def received(self) -> Sequence[ReceivedMessage]:
        """All messages, those of each key in the order in which they came."""

    @abstractmethod
    def name_of(self, schema: str, table: str) -> str:
        """The name of a table's destination."""

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        self._read = self.received()
        try:
            self._assert_order(self._read)
            self._assert_ids(self._read)
            assert_delivered(self, scenario, state, began, again=not self.is_exact)
        finally:
            self._read = None

    def _assert_order(self, received: Sequence[ReceivedMessage]) -> None:
        """Assert that the changes of each key are in order; the first time that each was received, if they repeat."""
        last: dict[tuple[str, Any], Position] = {}
        seen = set()
        for message in received:
            id = message.payload["msg_id"]
            if id in seen or message.is_row or message.key is None:
                continue
            seen.add(id)
            key = message.destination, message.key
            assert last.get(key, message.position) <= message.position, f"{key}: {message.position} is out of order"
            last[key] = message.position

    def _assert_ids(self, received: Sequence[ReceivedMessage]) -> None:
        contents: dict[str, Any] = {}
        for message in received:
            id = message.payload["msg_id"]
            assert id not in contents or not self.is_exact, f"{id} was received twice"
            assert contents.setdefault(id, message.payload) == message.payload, f"{id} has two contents"

    def _messages(self) -> Sequence[ReceivedMessage]:
        return self.received() if self._read is None else self._read

    def records(self) -> Iterator[Record]:
        for message in self._messages():
            if not message.is_row:
                is_last = message.headers["Tailrace-Last"] == "true"
                yield Record(message.position, is_last, self._content(message))

    def loaded(self) -> Iterator[tuple[tuple[int, Lsn], Any]]:
        for message in self._messages():
            if message.is_row:
                at = message.payload["relation_id"], message.position.commit_lsn
                yield at, json.dumps(normalize(message.payload["data"]))

    def content(self, change: Change) -> Any:
        if change.relation is None:
            content = content_text(change.content or b"")
            return normalize({"content": content, "operation": "MESSAGE", "prefix": change.prefix})
        envelope, relation = ExpectedEnvelope(), change.relation
        return normalize(
            {
                "data": envelope.data(change),
                "operation": change.operation.name,
                "relation_id": relation.oid,
                "schema": relation.schema,
                "table": relation.name,
                **envelope.more(change),
            }
        )

    def row(self, relation: Relation, row: oracle.Row) -> Any:
        pairs = zip(relation.columns, row, strict=True)
        return json.dumps(normalize({column.name: ExpectedEnvelope().value(value, column) for column, value in pairs}))

    def _content(self, message: ReceivedMessage) -> Any:
        """The payload without what differs between destinations, which is checked here."""
        payload = dict(message.payload)
        id, subject = payload.pop("msg_id"), payload.pop("subject")
        assert id.startswith(str(message.position)), f"{id} is not {message.position}"
        is_message = payload["operation"] == "MESSAGE"
        name = MESSAGES if is_message else self.name_of(payload["schema"], payload["table"])
        assert message.destination == subject == name
        return normalize(payload)

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        events = []
        for message in self.received():
            payload = message.payload
            if payload["operation"] != "MESSAGE":
                is_delete = payload["operation"] == "DELETE"
                before = payload["data"] if is_delete else payload.get("old_key")
                after = None if is_delete else payload["data"]
                name = f"{payload['schema']}.{payload['table']}"
                events.append(Event(name, message.position, payload["operation"], before, after))
        assert_results_in(events, schema, tables)

    def fingerprint(self) -> Any:
        return self.received()
