"""A destination for trails, and a shop with a trail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.audit.trail_follower import Shell, trailing, write_config
from tests.fixtures.postgres import Database, drop_database, make_database

from tailrace.embedded.postgres import Postgres

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, status text, amount numeric(10, 2), tags text[], details jsonb,
                     placed_at timestamptz DEFAULT '2026-01-01');
CREATE TABLE lines (order_id int REFERENCES orders, number int, body json, PRIMARY KEY (order_id, number),
                    twice int GENERATED ALWAYS AS (number * 2) STORED);
CREATE TABLE bare (n int, t text);
ALTER TABLE orders REPLICA IDENTITY FULL;
ALTER TABLE bare REPLICA IDENTITY FULL;
"""


@pytest.fixture
def destination(postgres: Postgres) -> Iterator[Database]:
    database = make_database(postgres)
    yield database
    drop_database(database)


@pytest.fixture
def shell(database: Database, destination: Database, tmp_path: Path) -> Iterator[Shell]:
    database.execute(TABLES)
    with trailing(database, destination, tmp_path) as audited:
        yield Shell(audited, write_config(tmp_path / "tailrace.toml", database, destination, audited.log.store.url))
