"""The demo's lake: a query server on its tables, and two queries that a shop would run."""

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
from tailrace.lake.options import IcebergOptions

if TYPE_CHECKING:
    from tailrace.query.query_server import QueryServer

NAME: Final = "lake"
_REFRESH_S: Final = 2.0

QUERIES: Final = (
    "SELECT status, count(*) AS orders, sum(total) AS value FROM orders GROUP BY status ORDER BY value DESC",
    "SELECT product, sum(quantity) AS sold FROM orders JOIN order_items ON order_id = id WHERE status = 'paid'"
    " GROUP BY product ORDER BY sold DESC LIMIT 3",
)


def is_installed() -> bool:
    """Whether DuckDB and its Iceberg dependencies are installed."""
    return all(importlib.util.find_spec(name) for name in ("duckdb", "duckdb_extension_iceberg", "pyroaring"))


class DemoLake:
    """Runs a query server until the context exits, and repeats the queries every two seconds."""

    def __init__(self, warehouse: Path) -> None:
        self._options = IcebergOptions(warehouse=warehouse.as_uri())
        self._server: QueryServer | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="queries", daemon=True)
        self._stack = ExitStack()
        self.results: list[list[tuple[Any, ...]]] = []
        """The rows of each query, once the lake has orders."""

    def __enter__(self) -> DemoLake:
        from tailrace.query.query_server import QueryServer

        self._server = self._stack.enter_context(QueryServer(self._options, NAME, settings.QuerySettings(port=0)))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._stack.close()

    @property
    def command(self) -> str:
        """The command to connect from another terminal."""
        assert self._server is not None
        return f"psql -h 127.0.0.1 -p {self._server.port} postgres"

    def connect(self) -> psycopg.Connection[Any]:
        assert self._server is not None
        return psycopg.connect(host="127.0.0.1", port=self._server.port, user="demo", dbname="postgres")

    def query(self) -> None:
        """Run the queries and store their results."""
        if self._has_tables():
            with self.connect() as connection:
                results = [connection.execute(query.encode()).fetchall() for query in QUERIES]
            # Until the first orders are in the lake there is nothing to show.
            self.results = results if results[0] else []

    def _refresh(self) -> None:
        while not self._stopping.wait(_REFRESH_S if self.results else 0.2):
            self.query()

    def _has_tables(self) -> bool:
        assert self._server is not None
        try:
            version = self._server.lake.version()
        except TailraceError:
            return False  # it is being made
        wanted = {("public", name) for name in TABLES}
        return version is not None and wanted <= version.tables.keys()
