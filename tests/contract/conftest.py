"""The scenario that every sink delivers, created once a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract import scenario as scenes
from tests.contract.scenario import Scenario
from tests.fixtures.postgres import drop_database, drop_slots, make_database

from tailrace.embedded.postgres import Postgres


@pytest.fixture(scope="session")
def scenario(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    database = make_database(postgres)
    try:
        made = scenes.make(database, tmp_path_factory.mktemp("scenario"))
        drop_slots(database)
        yield made
    finally:
        drop_database(database)
