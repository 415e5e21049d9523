"""Lakes with every catalog, on files and on S3: DuckDB, Spark and pyiceberg read PostgreSQL's rows."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
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
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.lake import Lake, texts
from tests.contract.scenario import Scenario
from tests.fixtures.postgres import Database, running
from tests.fixtures.rest import RestCatalog
from tests.fixtures.store import StoreAddress

from tailrace import settings, sinks
from tailrace.change import Lsn, Relation
from tailrace.delivery.contract import State
from tailrace.embedded.process import free_port, wait_until
from tailrace.errors import ConfigError, SinkError, SinkRefused, StoreRefused, TailraceError
from tailrace.lake.options import IcebergOptions
from tailrace.sinks.iceberg import table_maintenance
from tailrace.sinks.iceberg.java_catalog import JavaCatalog
from tailrace.sinks.iceberg.java_error import translate_java_errors
from tailrace.sinks.iceberg.properties import PROBE_CLASSES, catalog_properties
from tailrace.sinks.iceberg.sink import IcebergSink

FEW = ["public.accounts", "public.twins", "public.toasted", "public.altered"]
LATER = datetime(2100, 1, 1, tzinfo=UTC)
PLANTED = "hunter2-Grüße"

pytestmark = pytest.mark.soak
"""Takes a minute with servers and Java that CI does not have: `make chaos` runs it."""


@pytest.fixture(params=["postgresql", "postgresql on s3", "rest"])
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
def test_delivery_resumes_with_every_catalog(scenario: Scenario, lake: Lake, tmp_path: Path) -> None:
    """SQLite is tested below, and by all other tests of lakes."""
    tables = ["public.accounts", "public.renamed", "public.named_anew"]
    delivering = DeliveryDriver(lake, scenario.store_of(tmp_path / "store"), tables=tables)
    for mark in (scenario.marks[1], scenario.marks[-1]):
        delivering.assert_holds(scenario, mark, delivering.deliver(mark.offset))
    assert {table.name for table in lake.point().tables} == {"public.accounts", "public.named_anew"}


def test_engines_agree_with_a_sqlite_catalog(
    scenario: Scenario, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each engine finds the tables by name, in the same SQLite file, whose name needs quoting."""
    monkeypatch.chdir(tmp_path)
    lake = Lake(tmp_path / "Übersicht 100% 🐘 'q'", more={"catalog": f"sqlite:{quote('ein Katalog/ö.db')}"})
    delivering = DeliveryDriver(lake, scenario.store_of(tmp_path / "store"), tables=FEW)
    for mark in (scenario.marks[1], scenario.marks[-1]):
        delivering.assert_holds(scenario, mark, delivering.deliver(mark.offset))
    file = tmp_path / "ein Katalog" / "ö.db"
    assert file.exists()
    assert not (lake.directory / "catalog.db").exists()
    assert_engines_agree(lake, SqlCatalog("lake", uri=f"sqlite:///{file}"), spark)


def test_engines_agree_with_a_rest_catalog(
    scenario: Scenario, rest_catalog: RestCatalog, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake", more={"catalog": rest_catalog.url, "catalog_options": {"token": rest_catalog.token}})
    delivering = DeliveryDriver(lake, scenario.store_of(tmp_path / "store"), tables=["public.accounts"])
    delivering.deliver(scenario.marks[1].offset)
    client = PyRestCatalog("lake", uri=rest_catalog.url, token=rest_catalog.token)
    assert_engines_agree(lake, client, spark)
    assert "POST namespaces/tables" in rest_catalog.requests


def assert_engines_agree(lake: Lake, client: PyCatalog, spark: SparkSession) -> None:
    """pyiceberg and Spark return the same rows as DuckDB, which other tests compare with PostgreSQL."""
    options = IcebergOptions(**{key: value for key, value in lake.settings().items() if key != "type"})
    # A separate session: Spark caches a catalog's settings on first use.
    own = spark.newSession()
    own.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in catalog_properties(options).items():
        own.conf.set(f"spark.sql.catalog.lake.{key}", value)
    for table in lake.point().tables:
        relation, expected = lake.relation(table), lake.rows(table)
        assert expected
        scanned = client.load_table((table.schema, table.table)).scan(snapshot_id=table.snapshot).to_arrow()
        assert _rows(relation, scanned) == expected, f"pyiceberg: {table.name}"
        shown = own.read.table(f"lake.{table.schema}.{table.table}").toArrow()
        assert _rows(relation, shown) == expected, f"Spark: {table.name}"


def _rows(relation: Relation, found: pa.Table) -> oracle.Rows:
    plain = [pa.string() if pa.types.is_large_string(field.type) else field.type for field in found.schema]
    return Counter(texts(relation, found.cast(pa.schema(list(zip(found.column_names, plain, strict=True))))))


def test_maintenance_of_a_lake_on_s3(
    scenario: Scenario, database: Database, s3_address: StoreAddress, spark: SparkSession, tmp_path: Path
) -> None:
    more = {"catalog": database.url, "warehouse": s3_address.url, "options": s3_address.options}
    lake = Lake(tmp_path, more=more)
    delivering = DeliveryDriver(lake, scenario.store_of(tmp_path / "store"), tables=["public.accounts"])
    with delivering.stepper() as one:
        one.load_missing()
        one.deliver(scenario.marks[1].offset)
        one.deliver(scenario.end)
        lake_of_sink = one.sink._require_open()  # type: ignore[attr-defined]
        (table,) = lake_of_sink.tables
        orphan, neighbour = f"{table.directory}/data/x.parquet", f"{table.directory}-2/data/x.parquet"
        for location in (orphan, neighbour):
            lake_of_sink.context.warehouse.put(location, b"orphan")
        before, after = table_maintenance.compact(lake_of_sink.context, table, table_maintenance.FILE_BYTES, 1 << 30)
        assert before > after == 1
        table_maintenance.expire(
            table, table_maintenance.superseded_snapshots(table_maintenance.history(lake_of_sink.context, table), LATER)
        )
        assert table_maintenance.remove_orphans(lake_of_sink.context, table, LATER) == 1
        with pytest.raises(SinkError, match="is missing"):
            lake_of_sink.context.warehouse.get(orphan)
        assert lake_of_sink.context.warehouse.get(neighbour)
        state = one.state
        one.sink.rewind(state)
    delivering.assert_holds(scenario, scenario.marks[-1], state)


class Trial:
    """Opens sinks with given settings, and checks that no error, log or setting of Spark contains a secret."""

    def __init__(self, directory: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
        self._directory = directory
        self._spark = spark
        self._caplog = caplog

    def sink(self, **more: Any) -> IcebergSink:
        raw = {"type": "iceberg", "name": "tested", "warehouse": self._directory.as_uri(), **more}
        store = settings.StoreSettings((self._directory / "store").as_uri())
        (configured,) = sinks.from_settings(settings.Settings(store=store, sinks=(raw,)), {})
        assert isinstance(configured.sink, IcebergSink)
        return configured.sink

    def open(self, **more: Any) -> None:
        with closing(self.sink(**more)) as sink:
            assert sink.open() == State()

    def refused(self, kind: type[TailraceError], **more: Any) -> TailraceError:
        sink = self.sink(**more)
        with self._caplog.at_level(logging.DEBUG), pytest.raises(kind) as raised, closing(sink):
            _begin(sink)
        output = "".join(traceback.format_exception(raised.value)) + repr(raised.value.args) + self._caplog.text
        output += str(self._spark.sparkContext.getConf().getAll()) + str(self._spark.conf.getAll)
        assert PLANTED not in output
        assert raised.value.hint
        return raised.value


def _begin(sink: IcebergSink) -> None:
    sink.open()
    sink.rewind(State(Lsn(1)))


@pytest.fixture
def trial(tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture) -> Trial:
    return Trial(tmp_path, spark, caplog)


def test_a_postgresql_catalog_that_refuses_or_is_down(trial: Trial, scenario: Scenario, tmp_path: Path) -> None:
    with running(auth="scram-sha-256", password="the right one") as server:
        url, given = server.url_of("postgres"), {"catalog": server.url_of("postgres"), "catalog_password": PLANTED}
        error = trial.refused(SinkRefused, **given)
        assert 'password authentication failed for user "postgres"' in str(error)
        assert "catalog_password" in error.hint
        assert "authentication failed" in str(trial.refused(SinkRefused, catalog=url.replace("@", f":{PLANTED}@")))
        given["catalog_password"] = "the right one"
        assert "nowhere" in str(trial.refused(SinkRefused, **given | {"catalog": server.url_of("nowhere")}))

        lake, store = Lake(tmp_path / "lake", more=given), scenario.store_of(tmp_path / "store")
        delivering = DeliveryDriver(lake, store, tables=["public.accounts"])
        with delivering.stepper() as one:
            one.load_missing()
            server.stop("immediate")
            with pytest.raises(SinkError) as raised:
                one.deliver(scenario.marks[1].offset)
            assert raised.value.retry
            assert trial.refused(SinkError, **given).retry
            server.start()
            one.open()
            one.deliver(scenario.marks[1].offset)
            state = one.state
        delivering.assert_holds(scenario, scenario.marks[1], state)
        with server.connect() as connection:
            others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            assert wait_until(lambda: connection.execute(others).fetchone() == (1,), 10), "connections were leaked"


def test_a_rest_catalog_that_refuses_or_is_down(trial: Trial, rest_catalog: RestCatalog) -> None:
    error = trial.refused(SinkRefused, catalog=rest_catalog.url, catalog_options={"token": PLANTED})
    assert "credentials" in error.hint
    nobody = f"http://127.0.0.1:{free_port()}"
    assert trial.refused(SinkError, catalog=nobody, catalog_options={"token": PLANTED}).retry


def test_s3_that_refuses(
    trial: Trial, s3_address: StoreAddress, missing_bucket: StoreAddress, database: Database, spark: SparkSession
) -> None:
    planted = s3_address.options | {"secret_access_key": PLANTED}
    wrong = {"catalog": database.url, "warehouse": s3_address.url, "options": planted}
    assert "permission denied" in str(trial.refused(StoreRefused, **wrong))
    assert "credentials" in _java_refusal(s3_address.url, database.url, planted).hint
    missing = {"catalog": database.url, "warehouse": missing_bucket.url, "options": missing_bucket.options}
    assert "no such bucket" in str(trial.refused(StoreRefused, **missing))
    assert "bucket" in _java_refusal(missing_bucket.url, database.url, missing_bucket.options).hint


def _java_refusal(warehouse: str, catalog: str, options: dict[str, str]) -> TailraceError:
    """What Java raises, without the object store's check before it."""
    schema = '{"type": "struct", "fields": [{"id": 1, "name": "id", "required": false, "type": "int"}]}'
    java_catalog = JavaCatalog(IcebergOptions(warehouse=warehouse, options=options, catalog=catalog))
    with pytest.raises(SinkRefused) as raised, translate_java_errors("a table"):
        java_catalog.create(("public", "t"), schema, f"{warehouse}/t", {}).commitTransaction()
    java_catalog.close()
    assert PLANTED not in "".join(traceback.format_exception(raised.value))
    return raised.value


def test_a_table_that_the_sink_did_not_create_is_refused(
    scenario: Scenario, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    lake.directory.mkdir()
    theirs = SqlCatalog("lake", uri=f"sqlite:///{lake.directory / 'catalog.db'}", warehouse=str(lake.directory))
    theirs.create_namespace("public")
    theirs.create_table("public.accounts", pa.schema([("id", pa.int64())]))
    delivering = DeliveryDriver(lake, scenario.store_of(tmp_path / "store"), tables=["public.accounts"])
    with pytest.raises(SinkRefused, match=r"public\.accounts is already in the catalog") as raised:
        delivering.deliver(scenario.marks[0].offset)
    assert "route" in raised.value.hint
    assert theirs.load_table("public.accounts").current_snapshot() is None


def test_a_session_without_a_required_library(
    trial: Trial, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, driver) = trial.sink(catalog=database.url).packages
    monkeypatch.setitem(PROBE_CLASSES, driver, "org.postgresql.Absent")
    error = trial.refused(ConfigError, catalog=database.url)
    assert driver in str(error)
    assert driver in error.hint


def test_a_sqlite_catalog_in_a_directory_that_cannot_be_created(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = trial.refused(SinkRefused, catalog=f"sqlite://{tmp_path}/file/catalog.db")
    assert str(tmp_path / "file") in str(error)


def test_a_locale_that_cannot_encode_the_warehouse(trial: Trial, tmp_path: Path, spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    system = java.java.lang.System
    before = system.setProperty("sun.jnu.encoding", "ANSI_X3.4-1968")
    try:
        error = trial.refused(ConfigError, warehouse=(tmp_path / "Übersicht").as_uri())
        trial.open(warehouse=(tmp_path / "plain").as_uri())
    finally:
        system.setProperty("sun.jnu.encoding", before)
    assert "Übersicht" in str(error)
    assert "LC_ALL" in error.hint
    trial.open(warehouse=(tmp_path / "Übersicht").as_uri())
