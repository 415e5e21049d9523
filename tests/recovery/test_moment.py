"""The archive and the log agree: a table restored from the log is the table on the restored server."""

from __future__ import annotations

import random
from pathlib import Path

from tests import oracle
from tests.capturing import current_lsn
from tests.fixtures.postgres import Database, running
from tests.recovery.scene import ArchiveThread, back_up, configured, new_directory, restored
from tests.recovery.table_scene import new_database, scene
from tests.workload import Workload

from tailrace.log import published_table
from tailrace.recovery import log_moment
from tailrace.recovery.log_moment import TableEvent
from tailrace.recovery.recovery_target import RecoveryTarget


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
            # Without the event trigger, only the WAL shows the drop: a savepoint's transaction takes the lock.
            it.execute("BEGIN; SAVEPOINT s; DROP TABLE doomed; COMMIT")
            workload.run(60)
            workload.stop()
            archive.wait_for(current_lsn(it.connection))
            it.mark()
            it.record_definitions()
            published_table.save(it.store, [])  # as capture with snapshots does when a table is gone
            commits = sorted({change.position.commit_lsn for change in it.reader.changes()})
            lsn = rng.choice(commits[len(commits) // 2 :])
            programs = server.bin("postgres").parent
            event = TableEvent.parse("drop of public.doomed")
            assert not log_moment.find_event(it.reader, event)
            drop = log_moment.find_dropped_in_wal(it.reader, event, programs)
            assert drop is not None
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
