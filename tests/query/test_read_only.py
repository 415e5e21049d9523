"""The server is read-only: a client can read the lake's tables and nothing else."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from tests.query.conftest import QueryStack

_REFUSED = ("25006", "42501", "0A000", "42704", "42601", "42P01", "42883")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO orders VALUES (1)",
        "UPDATE orders SET note = ''",
        "DELETE FROM orders",
        "TRUNCATE orders",
        "MERGE INTO orders USING customers ON true WHEN MATCHED THEN DELETE",
        "CREATE TABLE t (a int)",
        "CREATE TEMP TABLE t (a int)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE MACRO m() AS 1",
        "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
        "DROP TABLE orders",
        "DROP VIEW public.orders",
        "ALTER TABLE orders ADD COLUMN x int",
        "SELECT 1 INTO t",
        "COPY orders FROM STDIN",
        "COPY orders TO '/tmp/tailrace-leak.csv'",
        "COPY (SELECT 1) TO '/tmp/tailrace-leak.csv' (FORMAT parquet)",
        "COPY (SELECT 1) TO PROGRAM 'id'",
        "EXPORT DATABASE '/tmp/tailrace-leak'",
        "ATTACH '/tmp/tailrace-leak.db' AS x",
        "ATTACH ':memory:' AS x",
        "DETACH pg",
        "USE memory",
        "INSTALL spatial",
        "LOAD spatial",
        "LOAD '/tmp/evil.duckdb_extension'",
        "PRAGMA database_list",
        "PRAGMA version",
        "CALL pragma_version()",
        "CHECKPOINT",
        "VACUUM",
        "SET memory_limit = '100GB'",
        "SET threads = 100",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "SET lock_configuration = false",
        "RESET lock_configuration",
        "SET GLOBAL threads = 1",
        "SET VARIABLE x = 1",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_csv_auto('/etc/passwd')",
        "SELECT * FROM read_json('/etc/passwd')",
        "SELECT * FROM read_parquet('{warehouse}/**/*.parquet')",
        "SELECT * FROM parquet_scan('{warehouse}/**/*.parquet')",
        "SELECT * FROM parquet_metadata('{warehouse}/**/*.parquet')",
        "SELECT * FROM iceberg_scan('{warehouse}/public/orders')",
        "SELECT * FROM iceberg_metadata('{warehouse}/public/orders')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM '{warehouse}/_tailrace/lake/point.json'",
        'SELECT * FROM "/etc/passwd"',
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
        "SELECT * FROM query_table('orders')",
        "SELECT getenv('HOME')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_databases()",
        "SELECT * FROM pragma_database_list()",
        "SELECT current_setting(concat('secret_', 'directory'))",
        "SELECT * FROM which_secret('s3://x', 's3')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
        "SELECT (SELECT content FROM read_text('/etc/passwd'))",
        "WITH x AS (SELECT * FROM read_text('/etc/passwd')) SELECT * FROM x",
        "SELECT * FROM orders WHERE note IN (SELECT content FROM read_text('/etc/passwd'))",
        "EXPLAIN ANALYZE SELECT * FROM read_text('/etc/passwd')",
        "EXPLAIN ANALYZE INSERT INTO orders VALUES (1)",
        "DECLARE c CURSOR FOR SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT * FROM read_text('/etc/passwd')) TO STDOUT",
        "SELECT lo_import('/etc/passwd')",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT 1; DROP VIEW public.orders",
        "GRANT ALL ON orders TO reader",
        "DO $$ BEGIN END $$",
        "NOTIFY x",
    ],
)
def test_statement_is_refused(stack: QueryStack, statement: str) -> None:
    warehouse = stack.lake.options.root
    with stack.connect() as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(statement.format(warehouse=warehouse).encode())
        assert caught.value.sqlstate in _REFUSED, caught.value
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (500,)
    assert not list(Path("/tmp").glob("tailrace-leak*"))


def test_locked_engine_refuses_by_itself(stack: QueryStack) -> None:
    """DuckDB itself refuses what `reference` refuses, except reading files inside the warehouse."""
    cursor = stack.server.engine.cursor()
    for statement in (
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/tailrace-leak.csv'",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "SET lock_configuration = false",
        "ATTACH '/tmp/tailrace-leak.db' AS x",
        "INSTALL spatial",
        "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')",
    ):
        with pytest.raises(Exception, match=r"disabled|locked|not find|Cannot"):
            cursor.execute(statement).fetchall()
    cursor.close()
    assert not list(Path("/tmp").glob("tailrace-leak*"))
