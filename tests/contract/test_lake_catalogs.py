"""Lakes under every catalog, on files and on S3: PostgreSQL's rows as DuckDB, Spark and pyiceberg read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog as PyCatalog
from pyiceberg.catalog.rest import RestCatalog as PyRestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests import oracle
from tests.contract.delivering import Delivering
from tests.contract.lake import Lake, texts
from tests.contract.scenario import Scenario
from tests.fixtures.postgres import Database
from tests.fixtures.rest import RestCatalog
from tests.fixtures.store import StoreAddress

from tailrace.change import Relation
from tailrace.sinks.iceberg.options import IcebergOptions
from tailrace.sinks.iceberg.properties import properties

FEW = ["public.accounts", "public.twins", "public.toasted", "public.altered"]


@pytest.fixture(params=["sqlite", "postgresql", "postgresql on s3", "rest"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    more: dict[str, Any] = {}
    if request.param.startswith("postgresql"):
        database: Database = request.getfixturevalue("database")
        more["catalog"] = database.url
    if request.param.endswith("s3"):
        address: StoreAddress = request.getfixturevalue("s3_address")
        more |= {"warehouse": address.url, "options": address.options}
    if request.param == "rest":
        rest: RestCatalog = request.getfixturevalue("rest_catalog")
        more |= {"catalog": rest.url, "catalog_options": {"token": rest.token}}
    return Lake(tmp_path / "lake", more=more)


@pytest.mark.usefixtures("spark")
def test_every_catalog_goes_on_where_it_was(scenario: Scenario, lake: Lake, tmp_path: Path) -> None:
    delivering = Delivering(lake, scenario.store_of(tmp_path / "store"), tables=FEW)
    for mark in (scenario.marks[1], scenario.marks[3], scenario.marks[-1]):
        delivering.assert_holds(scenario, mark, delivering.deliver(mark.offset))
    assert {table.name for table in lake.point().tables} == {*FEW}
