"""The PostgreSQL replica: what it holds is what the source holds, whatever happened there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import oracle, values
from tests.e2e.captured import Captured, captured
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.sinks.driving import Driver, deliver
from tests.workload import Workload

from tailrace.embedded.postgres import Postgres
from tailrace.log.plan import Limits
from tailrace.sinks.postgres import PostgresSink, staging
from tailrace.sinks.postgres.sink import PostgresOptions


@pytest.fixture
def replica(postgres: Postgres) -> Iterator[Database]:
    """The destination: another database of the same server."""
    database = make_database(postgres)
    yield database
    drop_database(database)


def sink_to(replica: Database, name: str = "replica", **options: Any) -> PostgresSink:
    return PostgresSink(name, PostgresOptions(url=replica.url, **options))


def assert_same(source: Database, replica: Database, *tables: tuple[str, str]) -> None:
    with source.connect() as ours, replica.connect() as theirs:
        for schema, table in tables:
            assert oracle.rows(theirs, schema, table) == oracle.rows(ours, schema, table), f"{schema}.{table}"


@contextmanager
def log_of(database: Database, directory: Path, **capture: Any) -> Iterator[Captured]:
    with captured(database, directory, **capture) as found:
        yield found


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "staged"])
@pytest.mark.parametrize("seed", range(3))
def test_a_random_workload(
    database: Database, replica: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, inline: bool
) -> None:
    if not inline:
        monkeypatch.setattr(staging, "INLINE_BYTES", 2000)
    rng = random.Random(seed)
    replica.execute(values.DECLARATIONS if seed % 2 else "SELECT")
    with captured(database, tmp_path) as log:
        workload = Workload(lambda: database.connect(), seed, ddl=True, exclusive=0.03)
        tables = workload.create()
        workload.run(250)
        workload.stop()
        log.catch_up()
    steps = deliver(
        sink_to(replica),
        log.store,
        parts=lambda: rng.randint(1, 4),
        limits=lambda: Limits(rng.choice([1, 3, 10, 100]), 1 << 30),
    )
    assert steps > 1
    for table in tables:
        with replica.connect() as theirs:
            found = theirs.execute("SELECT to_regclass(%s)", [table.qualified.as_string()]).fetchone()
            if found == (None,):
                with database.connect() as ours:
                    assert not oracle.rows(ours, table.schema, table.name)
                continue
        assert_same(database, replica, (table.schema, table.name))
