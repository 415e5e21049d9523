"""Clients from PyPI against tables of every kind: what they find equals what they find in PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest
import sqlalchemy
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.query import sample_lake
from tests.query.sample_lake import SampleLake

from tailrace.embedded.postgres import Postgres
from tailrace.query.query_server import QueryServer
from tailrace.settings import QuerySettings

_CLIENTS = Path(__file__).parents[2] / ".query-clients"
_SQLALCHEMY_1_4 = _CLIENTS / "sqlalchemy-1.4"
_DBT = _CLIENTS / "dbt"
_TABLES = """
CREATE SCHEMA archive;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN cents AS numeric(12, 2);
CREATE TABLE keyless (a int, b text, c numeric);
CREATE TABLE pairs (a int, b text, value numeric(10, 3) NOT NULL, PRIMARY KEY (b, a));
CREATE TABLE parted (id int, at timestamptz NOT NULL, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE made (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED);
CREATE TABLE typed (id uuid PRIMARY KEY, m mood, c cents, tags text[], doc jsonb, at time(3), span interval,
    net inet, bits bit(3), v varchar(7), ch char(3), f real);
CREATE TABLE chosen (a int NOT NULL, b int, v text);
CREATE UNIQUE INDEX chosen_a ON chosen (a);
ALTER TABLE chosen REPLICA IDENTITY USING INDEX chosen_a;
CREATE TABLE full_rows (a int, b text);
ALTER TABLE full_rows REPLICA IDENTITY FULL;
CREATE VIEW seen AS SELECT a FROM pairs;
CREATE MATERIALIZED VIEW stored AS SELECT a FROM pairs;
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
CREATE FOREIGN TABLE remote (a int) SERVER elsewhere;
CREATE TABLE archive."Mixed ""Case" ("Id" int PRIMARY KEY, "select" text, "a b" date);
COMMENT ON TABLE pairs IS 'two columns are the key';
COMMENT ON COLUMN pairs.value IS 'it''s a comment';
INSERT INTO keyless VALUES (1, 'x', 1.50), (1, 'x', 1.50);
INSERT INTO pairs VALUES (1, 'x', 1.5), (2, 'y', 2);
INSERT INTO parted VALUES (1, '2024-02-03 04:05+00'), (2, '2024-02-04 04:05+00'), (3, '2024-07-04 04:05+00');
INSERT INTO made (a) VALUES (1), (2);
INSERT INTO archive."Mixed ""Case" VALUES (1, 'one', '2024-02-29');
"""
_NAMES = ("keyless", "pairs", "parted", "made", "typed", "chosen", "full_rows", 'archive."Mixed ""Case"')


@dataclass(frozen=True)
class Clients:
    database: Database
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://reader@127.0.0.1:{self.port}/{self.database.name}"


@pytest.fixture(scope="module")
def tables(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    database = make_database(postgres)
    lake = SampleLake.under(tmp_path_factory.mktemp("clients"), database.name)
    with database.connect() as connection:
        connection.execute(_TABLES.encode())
        lake.step(connection, _NAMES)
    with QueryServer(lake.options, sample_lake.SINK, QuerySettings(port=0)) as server:
        yield Clients(database, server.port)
    drop_database(database)


def _reflections(tables: Clients, driver: str, path: str) -> list[dict[str, object]]:
    urls = [url.replace("postgresql://", f"postgresql+{driver}://") for url in (tables.url, tables.database.url)]
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("reflection.py")), *urls],
        env=os.environ | {"PYTHONPATH": path, "PGTZ": "UTC"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    found: list[dict[str, object]] = json.loads(run.stdout)
    # The partitions of a table are no tables of the lake, which has no views and no foreign tables, either.
    theirs: dict[str, object] = found[1]["public"]  # type: ignore[assignment]
    for key in {"tables", "all columns"} & theirs.keys():
        theirs[key] = [t for t in theirs[key] if t not in ("parted_1", "remote")]  # type: ignore[attr-defined]
    theirs.pop("parted_1")
    for key, name in (("views", "seen"), ("materialized views", "stored"), ("foreign tables", "remote")):
        if key in theirs:
            assert name in theirs[key]  # type: ignore[operator]
            theirs[key] = []
    found[1].pop("rows of parted_1")
    # PostgreSQL does not send generated columns, unless the publication says so.
    made: dict[str, list[list[object]]] = theirs["made"]  # type: ignore[assignment]
    made["columns"] = [c for c in made["columns"] if c[0] != "b"]
    return found


def _assert_equal(ours: Any, theirs: Any, place: str = "") -> None:
    """Compare part by part, so that a failure shows what differs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), place
        for key, value in ours.items():
            _assert_equal(value, theirs[key], f"{place} {key}")
    else:
        assert ours == theirs, place


def test_sqlalchemy_reflects_tables_of_every_kind(tables: Clients) -> None:
    ours, theirs = _reflections(tables, "psycopg", "")
    _assert_equal(ours, theirs)


@pytest.mark.skipif(
    not _SQLALCHEMY_1_4.exists(), reason="SQLAlchemy 1.4 is not installed: `make query-clients` does it"
)
def test_sqlalchemy_1_4_reflects_tables_of_every_kind(tables: Clients) -> None:
    """The inspector that Superset uses, and its statements."""
    ours, theirs = _reflections(tables, "psycopg2", str(_SQLALCHEMY_1_4))
    assert str(ours["version"]).startswith("1.4.")
    _assert_equal(ours, theirs)


def test_pandas_reads_the_same_frames(tables: Clients) -> None:
    statements = ("SELECT * FROM pairs ORDER BY a", "SELECT * FROM parted ORDER BY id", "SELECT a, c FROM keyless")
    ours, theirs = (
        sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        for url in (tables.url, tables.database.url)
    )
    try:
        for statement in statements:
            pandas.testing.assert_frame_equal(pandas.read_sql(statement, ours), pandas.read_sql(statement, theirs))
        assert len(pandas.read_sql_table("made", ours)) == 2
    finally:
        ours.dispose()
        theirs.dispose()


_DBT_FILES = {
    "dbt_project.yml": "{name: shop, version: '1.0', profile: shop, model-paths: [models],"
    " flags: {send_anonymous_usage_stats: false}}",
    "models/schema.yml": "{version: 2, sources: [{name: lake, schema: public, tables: [{name: pairs}]}],"
    " models: [{name: plain, columns: [{name: a, data_tests: [not_null, unique]}]}]}",
    "models/plain.sql": "{{ config(materialized='ephemeral') }} SELECT a, b FROM {{ source('lake', 'pairs') }}",
    "models/made.sql": "SELECT * FROM {{ ref('plain') }} ORDER BY a",
}


@pytest.mark.skipif(not _DBT.exists(), reason="dbt is not installed: `make query-clients` does it")
def test_dbt_reads_and_says_why_it_cannot_write(tables: Clients, tmp_path: Path) -> None:
    profile = {"type": "postgres", "host": "127.0.0.1", "port": tables.port, "user": "reader", "password": "x"}
    profile |= {"dbname": tables.database.name, "schema": "public", "threads": 1}
    files = _DBT_FILES | {"profiles.yml": json.dumps({"shop": {"target": "dev", "outputs": {"dev": profile}}})}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    checked, written, tested, shown, failed = _dbt(
        tmp_path,
        ["debug"],
        ["docs", "generate"],
        ["test"],
        ["show", "-s", "made", "--output", "json"],
        ["run"],
    )
    assert "All checks passed" in checked
    assert "Catalog written" in written
    catalog = json.loads((tmp_path / "target" / "catalog.json").read_text())
    (source,) = catalog["sources"].values()
    columns = {name: column["type"] for name, column in source["columns"].items()}
    assert columns == {"a": "integer", "b": "text", "value": "numeric(10,3)"}
    assert source["metadata"]["comment"] == "two columns are the key"
    assert "PASS=2" in tested
    assert '"b": "y"' in shown
    assert "cannot execute CREATE VIEW in a read-only transaction" in failed
    assert "Only the sink writes to the lake." in failed


_DBT_PROGRAM = """
import json, sys
from dbt.cli.main import dbtRunner
for command in json.loads(sys.argv[1]):
    print(chr(12), flush=True)
    result = dbtRunner().invoke(command)
    assert result.success == (command != ["run"]), result.exception
"""


def _dbt(project: Path, *commands: list[str]) -> list[str]:
    """What each command prints, run in one process, because dbt takes seconds to start."""
    run = subprocess.run(
        [sys.executable, "-c", _DBT_PROGRAM, json.dumps(commands)],
        env=os.environ
        | {"PYTHONPATH": str(_DBT), "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "DBT_VERSION_CHECK": "false"}
        | {"DBT_PROFILES_DIR": ".", "DBT_USE_COLORS": "false"},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.split("\f")[1:]
