"""A captured source and a Valkey server, whose rows are compared with PostgreSQL's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import oracle
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.valkey_rows import ValkeyRows, connect, escaped
from tests.fixtures.postgres import Database
from tests.sinks.captured_source import CapturedSource
from tests.stepping import DrivenStepper

from tailrace.delivery.contract import State
from tailrace.embedded.valkey import ValkeyServer


class ValkeyScene(CapturedSource):
    def __init__(self, source: Database, server: ValkeyServer, directory: Path, mode: str = "hash") -> None:
        super().__init__(source, directory / "store")
        source.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        self.server = server
        self.place = ValkeyRows(server, mode, without=())
        self.client = connect(server)

    def driver(self, **settings: Any) -> DeliveryDriver:
        return DeliveryDriver(self.place, self.given.store, **settings)

    @contextmanager
    def stepper(self, **settings: Any) -> Iterator[DrivenStepper]:
        with self.driver(**settings).stepper() as one:
            yield one

    def deliver(self, **settings: Any) -> State:
        """Deliver everything with a new object."""
        with self.stepper(**settings) as one:
            one.load_missing()
            one.deliver(one.log_end())
            return one.state

    def assert_rows(self, table: str, *key: str, prefix: str | None = None) -> None:
        """Assert that the keys and hashes of a table are PostgreSQL's rows, and that there are no others."""
        start = f"public:{escaped(table)}" if prefix is None else prefix
        found = {name: row for name, row in self.place.rows().items() if name.startswith(f"{start}:")}
        assert found == self.expected(table, *key, prefix=start)

    def expected(self, table: str, *key: str, prefix: str) -> dict[str, dict[str, bytes]]:
        with self.source.connect(client_encoding="UTF8") as connection:
            columns = [
                str(name)
                for (name,) in connection.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_name = %s", [table]
                )
            ]
            rows = oracle.rows(connection, "public", table, columns)
        found = {}
        for row in rows:
            fields = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
            values = [escaped(fields[name].decode()) for name in key]
            found[":".join([prefix, *values])] = fields
        return found
