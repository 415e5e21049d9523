"""The archive and the log agree: a table restored from the log is the table on the restored server."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests import oracle
from tests.capturing import current_lsn
from tests.fixtures.postgres import Database, running
from tests.recovery.scene import ArchiveThread, back_up, configured, new_directory, restored
from tests.recovery.table_scene import new_database, scene
from tests.workload import Workload

from tailrace.cli.restored_server import find_pg_waldump
from tailrace.errors import ConfigError
from tailrace.log import ddl_message
from tailrace.log.reader import LogReader
from tailrace.recovery import log_moment
from tailrace.recovery.log_moment import TableEvent
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.table_drop import FoundDrop, find_drop
from tailrace.store import Store


def test_restored_tables_equal_the_restored_server(workspace: Path) -> None:
    rng = random.Random(7)
    with running(18, autovacuum=False) as server:
        source = Database(server, "postgres")
        workload = Workload(lambda: source.connect(autocommit=True), seed=4)
        names = [(t.schema, t.name) for t in workload.create()]
        source.execute("CREATE TABLE doomed (id int PRIMARY KEY); INSERT INTO doomed VALUES (1)")
        with scene(source, workspace) as it, ArchiveThread(configured(server, synchronous=True), it.store) as archive:
            it.snapshot()
            before_backup = it.mark(("public", "doomed"))
            back_up(server, it.store)
            it.execute("INSERT INTO doomed VALUES (2)")
            workload.run(60)
            # Without the event trigger, only the WAL shows the drop: a savepoint's transaction does it.
            it.execute("BEGIN; SAVEPOINT s; DROP TABLE doomed; COMMIT")
            workload.run(60)
            workload.stop()
            archive.wait_for(current_lsn(it.connection))
            it.mark()
            commits = sorted({change.position.commit_lsn for change in it.reader.changes()})
            lsn = rng.choice(commits[len(commits) // 2 :])
            programs = server.bin("postgres").parent
            event = TableEvent.parse("drop of public.doomed")
            assert not log_moment.find_event(it.reader, event)
            (drop,) = find_drop(it.reader, event, lambda: programs).occurrences
            target = RecoveryTarget("lsn", lsn=drop.lsn)
            # While recovery is paused, the drop holds its lock.
            with restored(server, it.store, target, new_directory(workspace, "drop"), "promote") as copy:
                assert copy.rows("SELECT id FROM doomed ORDER BY id") == [(1,), (2,)]
                assert copy.moment.next_commit is not None
                assert copy.moment.next_commit.transaction == drop.xid
            with restored(server, it.store, RecoveryTarget("immediate"), new_directory(workspace, "first")) as copy:
                assert copy.rows("SELECT id FROM doomed") == [(1,)]
                assert copy.moment.lsn > before_backup
            target = RecoveryTarget("lsn", lsn=lsn)
            with (
                restored(server, it.store, target, new_directory(workspace, "copy"), "promote") as copy,
                copy.server.connect() as physical,
                new_database(source) as other,
            ):
                it.restore(other, names, lsn)
                with other.connect() as logical:
                    for name in names:
                        assert oracle.rows(logical, *name) == oracle.rows(physical, *name), f"{name} at {lsn}"


def test_drop_is_the_last_one_or_refused(workspace: Path) -> None:
    """Tables that were altered, truncated, renamed and created again, without a published list or a backup."""
    with running(16, autovacuum=False, max_prepared_transactions=2) as server:
        source = Database(server, "postgres")
        source.execute(
            "CREATE TABLE alive (id int PRIMARY KEY); CREATE TABLE twice (id int PRIMARY KEY);"
            "CREATE TABLE before (id int PRIMARY KEY); CREATE UNLOGGED TABLE unpublished (id int PRIMARY KEY)"
        )

        def found(event: str, store: Store) -> FoundDrop:
            return find_drop(LogReader(store), TableEvent.parse(event), lambda: find_pg_waldump(store, None))

        with scene(source, workspace) as it, ArchiveThread(configured(server, synchronous=True), it.store) as archive:

            def dropped(name: str, *statements: str) -> int:
                """Drop a table by statements in a transaction, and return its id."""
                it.execute(f"CREATE TABLE IF NOT EXISTS {name} (id int PRIMARY KEY)")
                it.record_definitions()
                it.execute("BEGIN")
                xid = it.connection.execute("SELECT pg_current_xact_id()::text::int8").fetchall()[0][0]
                it.execute(*statements)
                archive.wait_for(current_lsn(it.connection))
                it.mark()
                return int(xid)

            it.record_definitions()
            it.execute("DROP TABLE unpublished", "ALTER TABLE alive ALTER id TYPE bigint", "TRUNCATE alive")
            it.execute("BEGIN", "SAVEPOINT s", "DROP TABLE alive", "ROLLBACK TO s", "COMMIT")
            first = dropped("twice", "DROP TABLE twice", "COMMIT")
            # What takes its place is altered and stays.
            it.execute("CREATE TABLE twice (id int PRIMARY KEY)", "INSERT INTO twice VALUES (1)")
            it.record_definitions()
            it.execute("ALTER TABLE twice ALTER id TYPE bigint", "ALTER TABLE before RENAME TO after")
            renamed = dropped("after", "DROP TABLE after", "COMMIT")
            assert found("drop of twice", it.store).occurrences[-1].xid == first
            assert found("drop of after", it.store).occurrences[-1].xid == renamed
            for event, message, hint in (
                ("drop of alive", r"the WAL from .* shows no drop of public\.alive", "--before-xid"),
                ("drop of before", r"shows no drop of public\.before", "--before 'drop of public.after'"),
                ("drop of unpublished", "never recorded a table of that name", "event trigger"),
            ):
                with pytest.raises(ConfigError, match=message) as refused:
                    found(event, it.store)
                assert hint in refused.value.hint
            # With the event trigger, the log shows drops; without it again, only the WAL does.
            it.execute(ddl_message.TRIGGER)
            logged = dropped("watched", "DROP TABLE watched", "COMMIT")
            assert found("drop of watched", it.store).source == "the log"
            it.execute("CREATE TABLE watched (id int PRIMARY KEY)")
            it.record_definitions()
            archive.wait_for(current_lsn(it.connection))
            assert found("drop of watched", it.store).occurrences[-1].xid == logged
            it.execute("DROP EVENT TRIGGER tailrace_ddl_drop")
            prepared = dropped("watched", "DROP TABLE watched", "PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'")
            assert found("drop of watched", it.store).occurrences[-1].xid == prepared
        shutil.copytree(workspace / "store", workspace / "log only", ignore=shutil.ignore_patterns("wal"))
        with pytest.raises(ConfigError, match="nothing says whether that one was dropped"):
            found("drop of watched", Store.open(str(workspace / "log only")))
        with pytest.raises(ConfigError, match=r"the log shows no drop of public\.twice"):
            found("drop of twice", Store.open(str(workspace / "log only")))
