"""A PostgreSQL database with tables of every type, its lake and a query server, shared by read-only tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.query import sample_lake, shop
from tests.query.sample_lake import SampleLake

from tailrace.embedded.postgres import Postgres
from tailrace.query.query_server import QueryServer
from tailrace.settings import QuerySettings


@dataclass(frozen=True)
class QueryStack:
    """A database, its lake and the query server."""

    database: Database
    lake: SampleLake
    server: QueryServer

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return connect(self.server, **options)


def connect(server: QueryServer, **options: Any) -> psycopg.Connection[Any]:
    given = {"user": "reader", "dbname": "shop", "autocommit": True, **options}
    return psycopg.connect(host="127.0.0.1", port=server.port, **given)


@pytest.fixture(scope="session")
def stack(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryStack]:
    database = make_database(postgres)
    lake = SampleLake.under(tmp_path_factory.mktemp("lake"), database.name)
    with database.connect() as connection:
        connection.execute(shop.TABLES.encode())
        lake.step(connection, shop.NAMES)
    with QueryServer(lake.options, sample_lake.SINK, QuerySettings(port=0)) as server:
        yield QueryStack(database, lake, server)
    drop_database(database)
