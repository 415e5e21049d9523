"""`tailrace capture` as scripts and operators use it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.capturing import capture_to_end, environment, tailrace
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import Store


def _run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(tailrace(*arguments), env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("any_database", "store_address"), [("18", "s3"), ("16", "file")], indirect=True)
def test_the_first_run_creates_everything_and_takes_snapshots(
    any_database: Database, store_address: StoreAddress
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t VALUES (1, 'before')")
    env = environment(any_database, *store_address) | {"TAILRACE_SNAPSHOT_ON_START": "true"}
    first = _run(env, "capture", "--until-lsn", "current")
    assert first.returncode == 0, first.stderr
    store = Store.open(*store_address)
    snapshot = SnapshotReader(store).newest("public", "t")
    assert snapshot is not None
    assert [batch.to_pylist() for batch in snapshot.chunks()] == [[{"id": 1, "note": "before", "_special": None}]]

    any_database.execute("INSERT INTO t VALUES (2, 'after')")
    second = _run(env, "capture", "--until-lsn", "current")
    assert second.returncode == 0, second.stderr
    changes = [c for c in LogReader(store).changes() if c.relation]
    assert [(c.after, c.position.commit_lsn >= snapshot.lsn) for c in changes] == [({"id": 2, "note": "after"}, True)]
    assert len(SnapshotReader(store).list("public", "t")) == 1, "a finished table is not copied again"

    printed = _run(env, "log", "cat", "--json", "--table", "public.t")
    assert json.loads(printed.stdout)["after"] == {"id": 2, "note": "after"}


def test_other_slots_receive_nothing_of_ours(database: Database, file_address: StoreAddress) -> None:
    """A consumer beside Tailrace, such as Debezium, must not meet events that are not its own."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION theirs FOR ALL TABLES")
    database.execute("SELECT pg_create_logical_replication_slot('beside', 'pgoutput'); INSERT INTO t VALUES (1)")
    env = environment(database, *file_address) | {"TAILRACE_SNAPSHOT_ON_START": "true"}
    for row in (2, 3):
        capture_to_end(env)
        database.execute(f"INSERT INTO t VALUES ({row})")
    kinds = database.rows(
        "SELECT convert_from(substr(data, 1, 1), 'SQL_ASCII') FROM pg_logical_slot_peek_binary_changes('beside', NULL,"
        " NULL, 'proto_version', '1', 'publication_names', 'theirs', 'messages', 'true')"
    )
    # The server may describe the table again whenever its cache of definitions was invalidated.
    assert "".join(kind for (kind,) in kinds if kind != "R") == "BIC" * 3, "three rows, and no message"


def test_until_lsn_returns_at_once_if_it_is_durable_already(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    env = environment(database, *file_address)
    assert _run(env, "capture", "--until-lsn", "current").returncode == 0
    again = _run(env, "capture", "--until-lsn", "0/1")
    assert again.returncode == 0
    assert "captured 0 changes" in again.stdout


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"TAILRACE_STORE_URL": "ftp://x"}, 2, ["unknown scheme", "s3://"]),
        ({"TAILRACE_CAPTURE_SEGMENT_BYTES": "1"}, 2, ["SEGMENT_BYTES", "at least 65536"]),
        ({"TAILRACE_SOURCE_TABLES": "other.*"}, 0, ["WARNING there is no table to capture yet", "other.*"]),
    ],
)
def test_errors_say_what_to_do(
    change: dict[str, str], code: int, words: list[str], database: Database, file_address: StoreAddress
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    done = _run(environment(database, *file_address) | change, "capture", "--until-lsn", "current")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_the_error_for_a_bad_lsn_shows_an_example(database: Database, file_address: StoreAddress) -> None:
    done = _run(environment(database, *file_address), "capture", "--until-lsn", "yesterday")
    assert done.returncode == 2
    assert "0/1A2B3C4" in done.stderr


def test_a_table_without_replica_identity_is_left_out_with_a_warning(
    database: Database, file_address: StoreAddress
) -> None:
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY); CREATE TABLE bare (n int); INSERT INTO bare VALUES (1)")
    done = _run(environment(database, *file_address), "capture", "--until-lsn", "current")
    assert done.returncode == 0
    assert done.stderr.count("public.bare is not captured") == 1, done.stderr
    database.execute("UPDATE bare SET n = 2")  # the application's statements still work


def test_tailraces_own_tables_are_not_published(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE own (id int PRIMARY KEY); COMMENT ON TABLE own IS 'Tailrace: a cursor'")
    done = _run(environment(database, *file_address), "capture", "--until-lsn", "current")
    assert "there is no table to capture yet" in done.stderr
    database.execute("DROP PUBLICATION tailrace; CREATE TABLE t (id int PRIMARY KEY)")
    done = _run(environment(database, *file_address), "capture", "--until-lsn", "current")
    assert done.returncode == 0
    assert database.rows("SELECT tablename FROM pg_publication_tables") == [("t",)]
    assert "own" not in done.stderr


def test_a_store_that_cannot_be_written(database: Database, tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("not a directory")
    done = _run(environment(database, str(occupied / "store")), "capture", "--until-lsn", "current")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "hint:" in done.stderr
