"""One PostgreSQL with tables of every kind, its lake, and a query server on it: made once, as nobody writes to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.query import lakes, shop
from tests.query.lakes import Made

from tailrace.embedded.postgres import Postgres
from tailrace.query.server import Server
from tailrace.settings import Query


@dataclass(frozen=True)
class Served:
    """A database, its lake, and the server that shows it."""

    database: Database
    lake: Made
    server: Server

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return connect(self.server, **options)


def connect(server: Server, **options: Any) -> psycopg.Connection[Any]:
    given = {"user": "reader", "dbname": "shop", "autocommit": True, **options}
    return psycopg.connect(host="127.0.0.1", port=server.port, **given)


@pytest.fixture(scope="session")
def served(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    database = make_database(postgres)
    lake = Made.under(tmp_path_factory.mktemp("lake"), database.name)
    with database.connect() as connection:
        connection.execute(shop.TABLES.encode())
        lake.step(connection, shop.NAMES)
    with Server(lake.options, lakes.SINK, Query(port=0)) as server:
        yield Served(database, lake, server)
    drop_database(database)
