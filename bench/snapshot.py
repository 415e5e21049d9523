"""Copying a table of a million rows into the store, compared with COPY TO STDOUT into /dev/null."""

from __future__ import annotations

import subprocess
import tempfile
import time

from bench.report import Report
from bench.throughput import ROW, TABLE
from tailrace import settings
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.embedded.postgres import Postgres

_ROWS = 1_000_000


def run(report: Report) -> None:
    report.title("Snapshot: 1M rows into a local store, compared with COPY TO STDOUT alone")
    with Postgres(max_wal_size="8GB") as server, server.connect(autocommit=True) as connection:
        connection.execute(TABLE.format(name="t"))
        connection.execute(f"INSERT INTO t SELECT {ROW} FROM generate_series(1, {_ROWS}) g")
        connection.execute("VACUUM ANALYZE t")
        connection.execute("CREATE PUBLICATION tailrace FOR TABLE t")
        for round_ in ("first, kernels compiled or loaded", "second"):
            began = time.monotonic()
            copy = [str(server.bin("psql")), server.url, "-qc", "COPY t TO STDOUT"]
            subprocess.run(copy, check=True, stdout=subprocess.DEVNULL)
            alone = time.monotonic() - began
            with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
                configured = settings.Settings(
                    source=settings.SourceSettings(url=server.url), store=settings.StoreSettings(url=directory)
                )
                job = SnapshotJob(configured)
                began = time.monotonic()
                job.start()
                job.wait()
                seconds = time.monotonic() - began
            report.section(round_)
            report.line("COPY TO STDOUT, one backend", f"{_ROWS / alone:,.0f} rows/s")
            report.line(f"snapshot, {configured.snapshot.workers} workers", f"{_ROWS / seconds:,.0f} rows/s")
            report.line("ratio", f"{alone / seconds:.2f}")
