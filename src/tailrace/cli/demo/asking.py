"""The demo's lake, asked: a query server on its tables, and two questions that a shop has."""

from __future__ import annotations

import importlib.util
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from tailrace import settings
from tailrace.embedded.shop import TABLES
from tailrace.errors import TailraceError
from tailrace.sinks.iceberg.options import IcebergOptions

if TYPE_CHECKING:
    from tailrace.query.server import Server

NAME: Final = "lake"
_EVERY_S: Final = 2.0

QUESTIONS: Final = (
    "SELECT status, count(*) AS orders, sum(total) AS value FROM orders GROUP BY status ORDER BY value DESC",
    "SELECT product, sum(quantity) AS sold FROM orders JOIN order_items ON order_id = id WHERE status = 'paid'"
    " GROUP BY product ORDER BY sold DESC LIMIT 3",
)


def is_possible() -> bool:
    """Whether DuckDB is installed, and what it reads Iceberg with."""
    return all(importlib.util.find_spec(name) for name in ("duckdb", "duckdb_extension_iceberg", "pyroaring"))


class Asking:
    """From the context's beginning to its end, a server; the answers are renewed every two seconds."""

    def __init__(self, warehouse: Path) -> None:
        self._options = IcebergOptions(warehouse=warehouse.as_uri())
        self._server: Server | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._ask_again, name="questions", daemon=True)
        self._stack = ExitStack()
        self.answers: list[list[tuple[Any, ...]]] = []
        """To each question, once there was something to ask."""

    def __enter__(self) -> Asking:
        from tailrace.query.server import Server

        self._server = self._stack.enter_context(Server(self._options, NAME, settings.Query(port=0)))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._stack.close()

    @property
    def command(self) -> str:
        """What to type into another terminal."""
        assert self._server is not None
        return f"psql -h 127.0.0.1 -p {self._server.port} postgres"

    def connect(self) -> psycopg.Connection[Any]:
        assert self._server is not None
        return psycopg.connect(host="127.0.0.1", port=self._server.port, user="demo", dbname="postgres")

    def ask(self) -> None:
        if self._has_tables():
            with self.connect() as connection:
                found = [connection.execute(question.encode()).fetchall() for question in QUESTIONS]
            # Until the shop's first orders are in the lake there is nothing to say.
            self.answers = found if found[0] else []

    def _ask_again(self) -> None:
        while not self._stopping.wait(_EVERY_S if self.answers else 0.2):
            self.ask()

    def _has_tables(self) -> bool:
        assert self._server is not None
        try:
            moment = self._server.lake.moment()
        except TailraceError:
            return False  # it is being made
        wanted = {("public", name) for name in TABLES}
        return moment is not None and wanted <= moment.tables.keys()
