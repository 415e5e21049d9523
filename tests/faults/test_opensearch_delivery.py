"""Kills deliveries to OpenSearch, and the server: its documents are the source's rows.

Real `tailrace deliver` processes run while a workload runs and capture writes. `DELIVERY_KILLS` is the number of kills.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from opensearchpy.exceptions import OpenSearchException
from tests import oracle
from tests.contract.search_indices import KEYLESS, SearchIndices
from tests.faults.test_delivery import KILLS, Scene, kill
from tests.fixtures.opensearch import search_client
from tests.fixtures.postgres import Database
from tests.workload import Workload

from tailrace.embedded.opensearch import OpenSearchServer
from tailrace.embedded.process import wait_until


def _toml(settings: Mapping[str, Any]) -> str:
    flat = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    lines = ["[[sink]]", 'name = "search"', *(f"{name} = {json.dumps(value)}" for name, value in flat.items())]
    for name, table in settings.items():
        if isinstance(table, dict):
            lines += [f"[sink.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)


def _cursor(indices: SearchIndices) -> str:
    """The sink's cursor; empty while there is none, or the server does not answer."""
    try:
        found = search_client(indices.server.url).get(index=f"{indices.prefix}-cursors", id="search")
    except OpenSearchException:
        return ""
    return str(found["_source"]["state"]["cursor"])


@pytest.mark.soak
def test_killed_deliveries_and_servers_lose_nothing(
    database: Database, tmp_path: Path, start_opensearch: Callable[..., OpenSearchServer]
) -> None:
    """The server, the deliveries, or both are killed at any time."""
    rng = random.Random(1)
    server = start_opensearch()
    indices = SearchIndices(server)
    scene = Scene(database, tmp_path, _toml(indices.settings()))
    scene.workload = Workload(database.connect, seed=3, rest_s=0.2, ddl=True, exclusive=0.1, swaps=True)
    with scene.captured():
        for number in range(KILLS):
            process = scene.start()
            try:
                before = _cursor(indices)
                assert wait_until(lambda b=before: _cursor(indices) not in ("", b), 120), scene.tail()  # type: ignore[misc]
                time.sleep(rng.uniform(0, 1.0))
                if number % 2:
                    server.kill9()
                    server.start()
                    if number % 4 == 1:
                        # The same process delivers again when the server is back.
                        after = _cursor(indices)
                        assert wait_until(lambda a=after: _cursor(indices) not in ("", a), 120), scene.tail()  # type: ignore[misc]
            finally:
                kill(process)
    scene.deliver_all()
    with database.connect(client_encoding="UTF8") as connection:
        for name, described in oracle.column_descriptions(connection).items():
            if ".".join(name) in KEYLESS:
                continue
            columns = [column["name"] for column in described]
            types = {column["name"]: column["data_type"] for column in described}
            expected = oracle.rows(connection, *name, columns)
            assert indices.rows(name, columns, types) == indices.comparable(expected, columns, types), name
    indices.assert_no_leftovers()
