"""`examples/webhook_receiver.py` as a process, and the changes that it stored."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.contract.destinations import assert_same
from tests.contract.expected_envelope import normalize
from tests.contract.message_destination import MessageDestination, ReceivedMessage
from tests.contract.webhook_receiver import SECRET, assert_order_per_key

from tailrace.change import Change, Position
from tailrace.embedded.process import free_port, wait_until
from tailrace.log.ddl_message import OWN_PREFIXES

_EXAMPLE = Path(__file__).parents[2] / "examples" / "webhook_receiver.py"


class ExampleReceiver(MessageDestination):
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "receiver.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def settings(self) -> Mapping[str, Any]:
        return {"type": "webhook", "url": self.url, "secret": SECRET, "allow_private": True}

    def beside(self, name: str) -> ExampleReceiver:
        raise NotImplementedError

    def name_of(self, schema: str, table: str) -> str:
        return "/"

    def received(self) -> list[ReceivedMessage]:
        return [ReceivedMessage("/", None, {}, change) for change in self.changes().values()]

    def start(self) -> None:
        command = [sys.executable, str(_EXAMPLE), str(self._directory / "changes.db"), str(self.port)]
        environment = os.environ | {"WEBHOOK_SECRET": SECRET}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        assert wait_until(self._is_listening, 60), self._log.read_text()

    def kill9(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def changes(self) -> dict[str, Any]:
        """The changes by id, in the order in which they came first."""
        with closing(sqlite3.connect(self._directory / "changes.db", timeout=30)) as database:
            rows = database.execute("SELECT id, change FROM changes ORDER BY number").fetchall()
        return {id: json.loads(change) for id, change in rows}

    def requests(self) -> list[str]:
        """What it printed."""
        return self._log.read_text().splitlines()

    def assert_matches(self, changes: Iterable[Change]) -> None:
        """Assert that it has exactly these changes, which came in order for each key."""
        expected = {str(c.position): c for c in changes if c.prefix not in OWN_PREFIXES}
        found = self.changes()
        assert_same(map(Position.parse, found), map(Position.parse, expected))
        for id, change in expected.items():
            without_address = {name: value for name, value in found[id].items() if name not in ("msg_id", "subject")}
            assert normalize(without_address) == self.content(change), f"{id}: {change.operation} of {change.table}"
        assert_order_per_key([expected[id] for id in found])
