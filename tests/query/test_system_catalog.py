"""The system catalogs: complete as in PostgreSQL, and sufficient for psql and SQLAlchemy."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files

import psycopg
import pytest
import sqlalchemy
from tests.query import shop
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


def test_sizes_and_row_counts_are_those_of_the_version(stack: QueryStack) -> None:
    files = {name: stack.lake.files_of(name) for name in shop.NAMES}
    with stack.connect() as ours, stack.database.connect() as theirs:
        for name in shop.NAMES:
            count = len(theirs.execute(f"SELECT FROM {name}".encode()).fetchall())
            query = "SELECT reltuples, {0}(oid), {0}(oid::regclass), {0}({1}) FROM pg_class WHERE oid = {1}::regclass"
            size = sum(files[name].values())
            for function in ("pg_total_relation_size", "pg_table_size", "pg_relation_size"):
                row = ours.execute(query.format(function, f"'{name}'").encode()).fetchone()
                assert row == (count, size, size, size)
        total = sum(sum(found.values()) for found in files.values())
        database = stack.database.name
        row = ours.execute("SELECT pg_database_size(%s), pg_database_size(5::oid)", [database]).fetchone()
        assert row == (total, total)
        unknown = "SELECT reltuples, pg_relation_size(oid) FROM pg_class WHERE relname = 'pg_type'"
        assert ours.execute(unknown).fetchone() == (-1, None)
        assert ours.execute("SELECT reltuples FROM pg_class WHERE relname = 'orders_pkey'").fetchone() == (500,)
        known = "SELECT relpages, relallvisible FROM pg_class WHERE relname = {}"
        pages = -(-sum(files["public.orders"].values()) // 8192)
        assert ours.execute(known.format("'orders'").encode()).fetchone() == (pages, None)
        assert ours.execute(known.format("'orders_pkey'").encode()).fetchone() == (None, None)
        statistics = "SELECT n_live_tup, n_dead_tup, seq_scan FROM pg_stat_user_tables WHERE relid = 'orders'::regclass"
        assert ours.execute(statistics).fetchone() == (500, None, None)
        parts = "SELECT pg_indexes_size('orders'), pg_total_relation_size('orders') - pg_table_size('orders')"
        assert ours.execute(parts).fetchone() == (0, 0)
        assert ours.execute("SELECT pg_indexes_size('pg_type')").fetchone() == (None,)
        for query, state in (
            ("SELECT pg_relation_size('nowhere')", "42P01"),
            ("SELECT (relname || 'x')::text::regclass FROM pg_class", "42P01"),
            ("SELECT pg_relation_size('orders', 'x')", "22023"),
            ("SELECT pg_database_size('nowhere')", "3D000"),
        ):
            with pytest.raises(psycopg.Error) as caught:
                ours.execute(query.encode())
            assert caught.value.sqlstate == state


def test_elements_of_keys_are_numbered(stack: QueryStack) -> None:
    """As pgjdbc reads primary keys and indexes."""
    function = "information_schema._pg_expandarray(indkey)"
    inner = f"SELECT indrelid::regclass AS t, ({function}).n, {function} AS k FROM pg_index WHERE indisprimary"
    query = f"SELECT t::text, n, (k).x, (q.k).n FROM ({inner}) q WHERE (k).x > 0 AND t::text = 'items' ORDER BY 2"
    with stack.connect() as ours, stack.database.connect() as theirs:
        assert ours.execute(query.encode()).fetchall() == theirs.execute(query.encode()).fetchall()
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="a row in a select list"):
            ours.execute(f"SELECT {function} FROM pg_index".encode())


def test_size_texts_match_postgresql(stack: QueryStack) -> None:
    """Around each limit where the unit changes, on both sides of zero."""
    numbers = {sign * (base * 2**bits + d) for bits in range(0, 60, 10) for base in (1, 2, 5, 10, 15, 20)
               for d in (-513, -512, -1, 0, 1, 511, 512) for sign in (1, -1) if base * 2**bits < 2**62}  # fmt: skip
    texts = ", ".join(f"({n}::bigint)" for n in sorted(numbers))
    query = f"SELECT n, pg_size_pretty(n), pg_size_pretty(n::numeric) FROM (VALUES {texts}) v(n) ORDER BY n".encode()
    with stack.connect() as ours, stack.database.connect() as theirs:
        assert ours.execute(query).fetchall() == theirs.execute(query).fetchall()


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
        (r"\dt+ orders", "public|orders|table|tailrace|permanent|heap|{orders}|\n"),
        (r"\dt+ empty", "public|empty|table|tailrace|permanent|heap|{empty}|\n"),
        (r"\l+", "{total}|pg_default|"),
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
    assert expected.format(**_size_texts(stack)) in run.stdout


def test_psql_18_describes_tables(stack: QueryStack) -> None:
    """Newer versions of psql ask for more: here that of the embedded server."""
    address = ["-h", "127.0.0.1", "-p", str(stack.server.port), "-U", "reader", "shop"]
    commands = (r"\d orders", r"\d+ items", r"\dx", r"\db+", r"\dt+", r"\l+", r"\dn+")
    options = [option for command in commands for option in ("-c", command)]
    psql = str(stack.database.server.bin("psql"))
    run = subprocess.run(
        [psql, "-XA", "-v", "ON_ERROR_STOP=1", *address, *options], capture_output=True, text=True, timeout=30
    )
    assert run.returncode == 0, run.stderr
    assert "placed_at|timestamp with time zone|" in run.stdout
    assert '"items_pkey" PRIMARY KEY, btree (order_id, line)' in run.stdout


def _size_texts(stack: QueryStack) -> dict[str, str]:
    sizes = {name: sum(stack.lake.files_of(name).values()) for name in shop.NAMES}
    sizes = {"orders": sizes["public.orders"], "empty": sizes["public.empty"], "total": sum(sizes.values())}
    rows = {name: stack.database.rows(f"SELECT pg_size_pretty({size}::bigint)") for name, size in sizes.items()}
    return {name: text for name, ((text,),) in rows.items()}
