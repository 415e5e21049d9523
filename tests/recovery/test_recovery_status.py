"""The status of archive, backups and drills is measured by whoever shows it, and says when something is wrong."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.capturing import current_lsn, environment, tailrace
from tests.fixtures.postgres import Database, running
from tests.fixtures.store import StoreAddress
from tests.recovery.scene import ArchiveThread, archive_all, back_up, configured

from tailrace.change import Lsn
from tailrace.embedded.process import wait_until
from tailrace.ops import prometheus
from tailrace.ops.probe import recovery_status
from tailrace.ops.status import Overview, RecoveryStatus
from tailrace.recovery.drill_record import DrillRecord, TableDifference
from tailrace.recovery.wal_archive import WalArchive
from tailrace.store import Store


def test_status_follows_the_archive_and_reports_that_it_stopped(file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    with running(18) as server, server.connect() as connection:
        settings = configured(server, synchronous=True)
        assert recovery_status(settings, store) is None, "without an archive there is nothing to report"
        with ArchiveThread(settings, store) as archive:
            record = back_up(server, store)
            connection.execute("CREATE TABLE t AS SELECT n FROM generate_series(1, 1000) n")
            end = current_lsn(connection)
            archive.wait_for(end)
            found = recovery_status(settings, store)
            assert found is not None
            assert found.archived_lsn is not None
            assert found.archived_lsn >= end
            assert found.is_archiving
            assert found.parts > 0
            assert (found.backups, found.last_backup, found.last_backup_kind) == (1, record.id, "full")
            assert found.lag_bytes is not None
            assert not Overview(recovery=found).faults
        last = WalArchive.require(store).last
        assert last is not None
        connection.execute("INSERT INTO t SELECT n FROM generate_series(1, 300000) n")
        connection.execute("SELECT pg_switch_wal()")

        def stopped() -> RecoveryStatus:
            status = recovery_status(settings, store)
            assert status is not None
            return status

        assert wait_until(lambda: stopped().is_archiving is False, 30)
        found = stopped()
        assert found.archived_lsn == last.end
        assert found.lag_bytes is not None
        assert found.lag_bytes > 16 << 20
        assert Overview(recovery=found).faults == [
            "the archive does not run: nobody streams from slot tailrace_archive"
        ]
        archive_all(server, store)  # over several segments, with a position that is older than them
        found = stopped()
        assert found.lag_bytes is not None
        assert found.lag_bytes < 1 << 20
        drill = DrillRecord(
            datetime.now(UTC), "different", end, record.id, 3, 500, 1.5, 2.5, [TableDifference("t", "7", "missing")]
        )
        drill.save(store)
        env = environment(Database(server, "postgres"), store.url)
        done = subprocess.run(tailrace("status"), env=env, capture_output=True, text=True)
        assert done.returncode == 1
        assert "different, " in done.stdout
        assert f"to {end}, 3 tables, 500 rows, 2.5 s" in done.stdout
        raw = json.loads(subprocess.run(tailrace("status", "--json"), env=env, capture_output=True).stdout)
        assert raw["recovery"]["last_backup"] == record.id
        assert raw["recovery"]["last_drill_verdict"] == "different"
        replace(drill, at=datetime.now(UTC), verdict="failed", lsn=None, error="no snapshot").save(store)
        (fault,) = [fault for fault in Overview(recovery=recovery_status(settings, store)).faults if "drill" in fault]
        assert fault == "the last drill failed: no snapshot"
        shown = subprocess.run(tailrace("status"), env=env, capture_output=True, text=True).stdout
        assert re.search(r"last drill +failed, .* ago: no snapshot", shown), "and no number that nobody knows"
    unreachable = recovery_status(settings, store)
    assert unreachable is not None
    assert unreachable.lag_bytes is None, "nobody knows, so it is not 0"
    assert unreachable.is_archiving is None


def test_metrics_show_the_archive_and_the_last_drill_and_nothing_that_is_unknown() -> None:
    at = datetime(2026, 11, 18, 12, tzinfo=UTC)
    status = RecoveryStatus("slot", 1, Lsn(1000), 2, at, Lsn(1500), True, 1, "id", "full", at)
    text = prometheus.render(Overview(recovery=status))
    assert "tailrace_recovery_lag_bytes 500\n" in text
    assert "tailrace_recovery_last_backup_timestamp_seconds 1795003200\n" in text
    assert "last_drill" not in text
    drilled = replace(status, last_drill_at=at, last_drill_verdict="equal", last_drill_rows=7, server_lsn=None)
    text = prometheus.render(Overview(recovery=drilled))
    assert "tailrace_recovery_last_drill_equal 1\n" in text
    assert "tailrace_recovery_last_drill_rows 7\n" in text
    assert "lag_bytes" not in text


def test_an_archive_that_stays_behind_is_a_fault_and_one_that_is_level_is_not() -> None:
    now = datetime(2026, 11, 18, 12, tzinfo=UTC)
    level = RecoveryStatus("slot", 1, Lsn(1000), covered_at=now, server_lsn=Lsn(1000), is_archiving=True)
    later = (now + timedelta(hours=1)).timestamp()
    assert level.faults(later) == [], "an idle server sends nothing to archive"
    behind = replace(level, server_lsn=Lsn(1001))
    assert behind.faults(now.timestamp() + 60) == []
    assert behind.faults(later) == ["the archive has been behind the server for 3600 s"]
    assert RecoveryStatus("slot", error="no answer").faults(later) == [
        "the status of archive and backups is unknown: no answer"
    ]
