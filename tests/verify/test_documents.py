"""Documents that differ from the source's rows are found, named and repaired, under load."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.contract.valkey_rows import connect
from tests.fixtures.postgres import Database
from tests.verify import planted
from tests.verify.load import TABLES
from tests.verify.running_sink import named, scene
from tests.workload import Workload

WITHOUT_KEY = ["public.bag"]


@pytest.fixture(
    params=["valkey json", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("valkey hash", "opensearch"))]
)
def sink(request: pytest.FixtureRequest) -> dict[str, Any]:
    kind, _, mode = request.param.partition(" ")
    if kind == "valkey":
        server = request.getfixturevalue("valkey_server")
        connect(server).flushall()
        return {"type": "valkey", "url": server.url, "mode": mode, "exclude": WITHOUT_KEY}
    server = request.getfixturevalue("opensearch_server")
    prefix = uuid.uuid4().hex
    return {
        "type": "opensearch",
        "url": server.url,
        "index": f"{prefix}-{{schema}}-{{table}}",
        "cursor_index": f"{prefix}-cursors",
        "exclude": WITHOUT_KEY,
    }


def test_planted_differences_are_named_and_repaired_under_load(
    database: Database, sink: dict[str, Any], tmp_path: Path
) -> None:
    database.execute(TABLES)
    planted.create(database)
    with scene(database, tmp_path, sink) as own:
        planted.assert_planted_rows_are_named_and_repaired(own)


@pytest.mark.soak
def test_a_random_workload_has_no_false_alarm(database: Database, sink: dict[str, Any], tmp_path: Path) -> None:
    workload = Workload(lambda: database.connect(), 8, exclusive=0.0, rest_s=0.01)
    workload.create()
    workload.run(100)
    with scene(database, tmp_path, sink) as own:
        own.catch_up()
        with workload:
            for _ in range(3):
                report = own.verify()
                assert named(report) == []
                assert not [(t.table, t.error) for t in report.tables if t.error]
