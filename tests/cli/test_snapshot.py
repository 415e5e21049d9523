"""`tailrace snapshot` on the command line."""

from __future__ import annotations

import subprocess

from tests.capturing import capture_to_end, environment, tailrace
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace.log.snapshot import SnapshotReader


def _run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(tailrace("snapshot", *arguments), env=env, capture_output=True, text=True, timeout=60)


def test_tables_and_patterns(database: Database, file_address: StoreAddress) -> None:
    database.execute("""
        CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE order_items (id int PRIMARY KEY);
        CREATE TABLE "Customers" (id int PRIMARY KEY); CREATE SCHEMA hr; CREATE TABLE hr.people (id int PRIMARY KEY);
        INSERT INTO orders SELECT generate_series(1, 1234);
        CREATE PUBLICATION tailrace FOR ALL TABLES;
    """)
    env = environment(database, *file_address)
    early = _run(env)
    assert early.returncode == 1
    assert "has no log" in early.stderr
    assert "hint: run `tailrace capture` first" in early.stderr
    capture_to_end(env)

    one = _run(env, "public.orders")
    assert one.returncode == 0, one.stderr
    assert one.stdout.startswith("copied 1 table, 1,234 rows, at ")
    assert [s.relation.name for s in SnapshotReader(*file_address).list()] == ["orders"]

    unknown = _run(env, "public.oders")
    assert unknown.returncode == 2
    assert "error: publication tailrace has no table public.oders" in unknown.stderr
    assert "public.orders" in unknown.stderr.splitlines()[-1]

    database.execute("CREATE TABLE hr.own (id int PRIMARY KEY); COMMENT ON TABLE hr.own IS 'Tailrace: a cursor'")
    own = _run(env, "hr.own")
    assert own.returncode == 2
    assert "error: hr.own: Tailrace's own tables are not captured" in own.stderr

    assert _run(env, "--missing", "public.o*", 'public."Customers"', "hr.*").stdout.startswith("copied 3 tables, ")
    assert _run(env, "--missing").stdout == "every table has a snapshot: nothing to copy\n"
    tables = sorted(s.relation.name for s in SnapshotReader(*file_address).list())
    assert tables == ["Customers", "order_items", "orders", "people"]


def test_refuses_when_later_changes_would_not_be_captured(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")
    env = environment(database, *file_address)
    capture_to_end(env)
    other = _run(env | {"TAILRACE_SOURCE_URL": database.server.url})
    assert other.returncode == 1
    assert "the log" in other.stderr
    database.execute("SELECT pg_drop_replication_slot('tailrace')")
    dropped = _run(env)
    assert dropped.returncode == 1
    assert "slot tailrace does not exist" in dropped.stderr
    assert SnapshotReader(*file_address).list() == []
