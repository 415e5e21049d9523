"""The system catalogs: complete as in PostgreSQL, and sufficient for psql and SQLAlchemy."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files

import pytest
import sqlalchemy
from tests.query.conftest import QueryStack

# The queries that generated `relations.txt` and `types.txt`, and that they are compared with.
_RELATIONS = r"""
SELECT n.nspname || '.' || c.relname || ' ' || CASE WHEN c.oid < 10000 THEN c.oid ELSE 0 END || ' ' || c.relkind::text
    || ' ' || string_agg(a.attname || ':' || t.typname, ' ' ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 JOIN pg_type t ON t.oid = a.atttypid
WHERE n.nspname IN ('pg_catalog', 'information_schema') AND c.relkind IN ('r', 'v')
AND c.relname !~ '^(pg_stat_(?!activity|user_tables|all_tables)|pg_statio_|_pg_|pg_toast|pg_ts_|pg_aios|pg_shmem|pg_backend_mem|pg_dsm|pg_hba|pg_ident|pg_wait)'
GROUP BY n.nspname, c.relname, c.oid, c.relkind ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
"""  # noqa: E501
_TYPES = """
SELECT concat_ws(' ', oid, typname, typlen, typtype, typcategory, typelem, typarray, typbasetype, typrelid) FROM pg_type
WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype <> 'c'
AND NOT (typcategory = 'A' AND typelem IN (SELECT oid FROM pg_type WHERE typtype = 'c')) ORDER BY oid
"""


@pytest.mark.parametrize(("file", "query"), [("relations.txt", _RELATIONS), ("types.txt", _TYPES)])
def test_system_catalogs_match_postgresql(stack: QueryStack, file: str, query: str) -> None:
    lines = files("tailrace.query.system_catalog").joinpath(file).read_text("utf-8").splitlines()
    assert lines == [row[0] for row in stack.database.rows(query)]


def test_sqlalchemy_reflects(stack: QueryStack) -> None:
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://reader@127.0.0.1:{stack.server.port}/shop")
    source = sqlalchemy.create_engine(stack.database.url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        ours, theirs = sqlalchemy.inspect(engine), sqlalchemy.inspect(source)
        assert sorted(ours.get_table_names()) == sorted(theirs.get_table_names())
        for table in ours.get_table_names():
            assert _description(ours, table) == _description(theirs, table)
        assert ours.get_table_comment("customers") == theirs.get_table_comment("customers")
        metadata = sqlalchemy.MetaData()
        metadata.reflect(engine)
        orders = metadata.tables["orders"]
        with engine.connect() as connection:
            count = sqlalchemy.select(sqlalchemy.func.count())
            query = count.where(orders.c.status == "ok", orders.c.id.in_([1, 2, 3]))
            assert connection.execute(query).scalar() == 1
    finally:
        engine.dispose()
        source.dispose()


def _description(inspector: sqlalchemy.Inspector, table: str) -> tuple[object, ...]:
    columns = [(c["name"], str(c["type"]), c["nullable"], c["comment"]) for c in inspector.get_columns(table)]
    return columns, inspector.get_pk_constraint(table)["constrained_columns"]


_PSQL = shutil.which("psql")


@pytest.mark.skipif(_PSQL is None, reason="no psql on this machine")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (r"\dt", "public|customers|table|tailrace\npublic|empty|table"),
        (r"\dt *.Mixed*", ""),
        (r"\d orders", "id|bigint||not null|\ncustomer|integer|||\nplaced_at|timestamp with time zone|||\namount|num"),
        (r"\d+ customers", "email|character varying(80)||||"),
        (r'\d archive."Mixed Case"', "Id|integer||not null|"),
        (r"\dn", "archive|tailrace\npublic|tailrace\n"),
        (r"\l", "tailrace|UTF8"),
        (r"\du", "tailrace|"),
        (r"\di", "public|orders_pkey|index|tailrace|orders"),
        (r"\dT", "public|mood|"),
        (r"\df", ""),
        (r"\dv", ""),
        (r"\dp orders", "public|orders|table"),
        ("SELECT count(*) FROM orders", "500"),
        (r"\copy (SELECT id FROM customers ORDER BY id LIMIT 2) TO STDOUT", "1\n2\n"),
    ],
)
def test_psql(stack: QueryStack, command: str, expected: str) -> None:
    assert _PSQL is not None
    address = ["-h", "127.0.0.1", "-p", str(stack.server.port), "-U", "reader", "shop"]
    run = subprocess.run([_PSQL, "-XAt", *address, "-c", command], capture_output=True, text=True, timeout=30)
    assert run.returncode == 0, run.stderr
    assert expected in run.stdout
