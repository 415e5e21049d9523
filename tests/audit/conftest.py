"""Where trails are kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fixtures.postgres import Database, drop_database, make_database

from tailrace.embedded.postgres import Postgres


@pytest.fixture
def destination(postgres: Postgres) -> Iterator[Database]:
    database = make_database(postgres)
    yield database
    drop_database(database)
