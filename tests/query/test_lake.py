"""Lakes on S3, with a changelog, with names that differ only in case; and the command."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fixtures.postgres import Database
from tests.query.conftest import QueryStack, connect
from tests.query.sample_lake import SINK, SampleLake

from tailrace.embedded.process import free_port, wait_until
from tailrace.embedded.s3 import S3Server
from tailrace.query.query_server import QueryServer
from tailrace.settings import QuerySettings


@pytest.fixture
def source(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with database.connect(autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a numeric); INSERT INTO t VALUES (1, 1.50), (2, NULL)")
        yield connection


def test_lake_on_s3(s3_server: S3Server, source: psycopg.Connection[Any], tmp_path: Path) -> None:
    lake = SampleLake.under(tmp_path, "shop", s3_server.url_of(f"query/{tmp_path.name}"), s3_server.options)
    lake.step(source, ["t"])
    secret = s3_server.options["secret_access_key"]
    with QueryServer(lake.options, SINK, QuerySettings(port=0)) as server, connect(server) as connection:
        assert connection.execute("SELECT sum(a), count(*) FROM t").fetchone() == (1.5, 2)
        cursor = server.engine.cursor()
        output = repr(cursor.execute("SELECT * FROM duckdb_secrets()").fetchall())
        output += repr(cursor.execute("SELECT name, value FROM duckdb_settings()").fetchall())
        assert secret not in output
        with pytest.raises(Exception, match=r"disabled|Cannot access"):
            cursor.execute(f"SELECT * FROM read_text('{s3_server.url_of('elsewhere/x')}')").fetchall()
        cursor.close()


def test_changelog_shows_its_additional_columns(source: psycopg.Connection[Any], tmp_path: Path) -> None:
    lake = SampleLake.under(tmp_path, "shop")
    source.execute("CREATE TABLE log (id int, a text, _operation text, _committed_at timestamptz)")
    source.execute("INSERT INTO log VALUES (1, 'x', 'INSERT', '2025-01-01 00:00+00')")
    lake.step(source, ["log"], "changelog")
    with QueryServer(lake.options, SINK, QuerySettings(port=0)) as server, connect(server) as connection:
        assert connection.execute("SELECT a, _operation FROM log").fetchall() == [("x", "INSERT")]
        columns = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'log'::regclass ORDER BY attnum"
        )
        assert [name for (name,) in columns] == ["id", "a", "_operation", "_committed_at"]


def test_stored_view_shows_values_unchanged(stack: QueryStack) -> None:
    with stack.connect() as connection:
        found = connection.execute('SELECT n, d, _special FROM "kinds$stored" WHERE id = 4').fetchone()
        assert found == ("1234567890123456789.5", None, "{d=0044-03-15 BC}")
        shown = {row[0] for row in connection.execute("SELECT relname FROM pg_class")}
        assert "kinds$stored" not in shown


def test_special_values_are_found_in_a_column_of_any_name(source: psycopg.Connection[Any], tmp_path: Path) -> None:
    """The sink adds underscores until the name differs from the table's own columns, whatever their case."""
    lake = SampleLake.under(tmp_path, "shop")
    source.execute('CREATE TABLE odd (id int, "_Special" text, __special text, d date)')
    source.execute("INSERT INTO odd VALUES (1, 'x', 'y', '0044-03-15 BC')")
    lake.step(source, ["odd"])
    with QueryServer(lake.options, SINK, QuerySettings(port=0)) as server, connect(server) as connection:
        assert connection.execute("SELECT id FROM odd WHERE d < '0001-01-01'").fetchall() == [(1,)]
        assert connection.execute('SELECT ___special FROM "odd$stored"').fetchone() == ("{d=0044-03-15 BC}",)


def test_arrays_with_several_dimensions_are_read(source: psycopg.Connection[Any], tmp_path: Path) -> None:
    lake = SampleLake.under(tmp_path, "shop")
    source.execute("CREATE TABLE a (id int, x int[]); INSERT INTO a VALUES (1, '{{1,2},{3,4}}'), (2, '[0:1]={5,6}')")
    lake.step(source, ["a"])
    query = "SELECT x::text, x[2][1], x[0], array_length(x, 2), array_dims(x), 3 = ANY (x) FROM a ORDER BY id"
    with QueryServer(lake.options, SINK, QuerySettings(port=0)) as server, connect(server) as connection:
        assert connection.execute(query).fetchall() == source.execute(query).fetchall()


def test_names_that_differ_only_in_case_are_an_error(source: psycopg.Connection[Any], tmp_path: Path) -> None:
    lake = SampleLake.under(tmp_path, "shop")
    source.execute('CREATE TABLE "T" (id int); INSERT INTO "T" VALUES (7)')
    lake.step(source, ["t", '"T"'])
    with QueryServer(lake.options, SINK, QuerySettings(port=0)) as server, connect(server) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="t and T differ only in case"):
            connection.execute('SELECT * FROM "T"')
        source.execute('CREATE TABLE c (a int, "A" int); INSERT INTO c VALUES (1, 2)')
        lake.step(source, ["c"])
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=r"a and A of public\.c differ only in case"):
            connection.execute("SELECT * FROM c")


def test_command_serves_the_lake(source: psycopg.Connection[Any], tmp_path: Path) -> None:
    lake = SampleLake.under(tmp_path, "shop")
    config = tmp_path / "tailrace.toml"
    config.write_text(f'[[sink]]\ntype = "iceberg"\nname = "{SINK}"\nwarehouse = "{lake.options.warehouse}"\n')
    port = free_port()
    command = [sys.executable, "-m", "tailrace", "--config", str(config), "query", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "has no tables yet" in process.stdout.readline()
            assert process.stdout.readline() == f"psql -h 127.0.0.1 -p {port} postgres\n"
            lake.step(source, ["t"])
            assert process.stdout.readline() == f"1 table of shop, as of {lake.cursor}\n"
            with psycopg.connect(host="127.0.0.1", port=port, user="x", dbname="shop", autocommit=True) as connection:
                assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("sinks", "arguments", "message"),
    [
        ("", [], "no sink of type iceberg is configured"),
        ('[[sink]]\ntype="iceberg"\nname="a"\n[[sink]]\ntype="iceberg"\nname="b"\n', [], "several lakes: a, b"),
        ('[[sink]]\ntype="iceberg"\nname="a"\n', ["--sink", "b"], "there is no lake 'b'"),
        ('[[sink]]\ntype="iceberg"\nname="a"\nwarehouse="file:///tmp/x"\n', ["--host", "0.0.0.0"], "without users"),
    ],
)
def test_command_reports_configuration_errors(tmp_path: Path, sinks: str, arguments: list[str], message: str) -> None:
    config = tmp_path / "tailrace.toml"
    config.write_text(sinks)
    command = [sys.executable, "-m", "tailrace", "--config", str(config), "query", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert message in run.stderr


def test_command_does_not_import_spark() -> None:
    names = "any(name in sys.modules for name in ('pyspark', 'py4j'))"
    code = f"import sys, tailrace.cli.query, tailrace.query.query_server; sys.exit({names})"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_closing_the_server_cancels_running_statements(stack: QueryStack) -> None:
    with QueryServer(stack.lake.options, SINK, QuerySettings(port=0)) as server:
        connection = connect(server)
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 100000000000) a(x) WHERE x % 7 = 3")
        assert wait_until(lambda: any(client.session.is_busy for client in server.clients), 10)
    assert wait_until(lambda: not server.clients, 10)
    connection.close()
