"""Draining a slot: capture and pg_recvlogical into /dev/null, on the same WAL, in turns.

A third reader only receives frames and drops them. It is slower than capture here although it does less, so a ratio
above 1 does not mean that capture is faster than C. docs/decisions.md says what is known about the cause.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench.report import Report
from tailrace.embedded.postgres import Postgres

PUBLICATION = "bench"
TABLE = """
CREATE TABLE {name} (id bigint PRIMARY KEY, customer int, amount numeric(12,2), placed_at timestamptz,
                     is_paid bool, status text, note text)
"""
ROW = (
    "g, (g % 1000)::int, round((g::bigint * 7919 % 1000000) / 100.0, 2), now() - g * interval '1 second',"
    " g % 2 = 0, (ARRAY['new','paid','sent','done'])[1 + g % 4], md5(g::text)"
)
_LOADS = {
    "1M rows in one transaction": "INSERT INTO {name} SELECT " + ROW + " FROM generate_series(1, 1000000) g",
    "1M rows, 10 a transaction": """
        DO $$ BEGIN FOR i IN 0..99999 LOOP
            INSERT INTO {name} SELECT """
    + ROW
    + """ FROM generate_series(i * 10 + 1, i * 10 + 10) g; COMMIT;
        END LOOP; END $$""",
    "mixed: inserts, updates, deletes": """
        DO $$ BEGIN FOR i IN 0..29999 LOOP
            INSERT INTO {name} SELECT """
    + ROW
    + """ FROM generate_series(i * 10 + 1, i * 10 + 10) g;
            UPDATE {name} SET status = 'sent', amount = amount + 1 WHERE id BETWEEN i * 10 - 40 AND i * 10 - 31;
            DELETE FROM {name} WHERE id BETWEEN i * 10 - 80 AND i * 10 - 76; COMMIT;
        END LOOP; END $$""",
    "2 GB in one transaction": "INSERT INTO {name} SELECT g, 0, 0, now(), true, 'new',"
    " (SELECT string_agg(md5(g::text || n), '') FROM generate_series(1, 32) n) FROM generate_series(1, 2000000) g",
}
_WANT = (0.9, 0.8, 0.8, None)


def run(report: Report, rounds: int = 3) -> None:
    report.title("Throughput: a slot drained into a local store, compared with pg_recvlogical into /dev/null")
    with (
        Postgres(max_wal_size="8GB", checkpoint_timeout="1h", logical_decoding_work_mem="256MB") as server,
        server.connect(autocommit=True) as connection,
    ):
        connection.execute("CREATE PUBLICATION bench FOR ALL TABLES")
        for number, (name, load) in enumerate(_LOADS.items()):
            table = f"load{number}"
            connection.execute(TABLE.format(name=table))
            connection.execute("SELECT pg_create_logical_replication_slot('before', 'pgoutput')")
            connection.execute(load.format(name=table))
            row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
            assert row is not None
            _measure(report, server, connection, name, str(row[0]), 1 if "GB" in name else rounds, _WANT[number])
            connection.execute("SELECT pg_drop_replication_slot('before')")
            connection.execute(f"DROP TABLE {table}")


def _measure(
    report: Report, server: Postgres, connection: Any, name: str, until: str, rounds: int, want: float | None
) -> None:
    ratios, captures, baselines, discarding = [], [], [], []
    for _ in range(rounds):
        baseline = receive(server, connection, until)
        capture = _drain(server, connection, until)
        discarding.append(_drain(server, connection, until, "discard"))
        baselines.append(baseline)
        captures.append(capture)
        ratios.append(baseline / capture["seconds"])
        assert capture["changes"] == discarding[-1]["changes"], "a reader missed changes"
    best = min(captures, key=lambda c: c["seconds"])
    changes = best["changes"]
    report.section(name)
    report.line("pg_recvlogical", f"{changes / min(baselines):,.0f} changes/s")
    report.line("capture", f"{changes / best['seconds']:,.0f} changes/s")
    alone = min(f["seconds"] for f in discarding)
    report.line("receive and discard, in Python", f"{changes / alone:,.0f} changes/s", "for comparison")
    ratio = statistics.median(ratios)
    report.line("ratio", f"{ratio:.2f}", f"want ≥ {want}" if want else "", ok=None if want is None else ratio >= want)
    report.line("bytes in the log per change", f"{best['log_bytes'] / changes:.1f}")
    report.line("CPU seconds per million", f"{best['cpu_seconds'] / changes * 1e6:.2f}")
    rss = max(c["rss_bytes"] for c in captures) / 1e6
    report.line("peak RSS", f"{rss:.0f} MB", "want ≤ 300", ok=rss <= 300)


def receive(
    server: Postgres, connection: Any, until: str, publication: str = PUBLICATION, database: str = "postgres"
) -> float:
    """Return the seconds that pg_recvlogical takes to write the changes to /dev/null."""
    connection.execute("SELECT pg_copy_logical_replication_slot('before', 'baseline')")
    command = [
        *(
            str(server.bin("pg_recvlogical")),
            "-d",
            server.url_of(database),
            "--slot",
            "baseline",
            "--start",
            "--no-loop",
        ),
        *("-o", "proto_version=1", "-o", f"publication_names={publication}", "-o", "messages=true"),
        *("--endpos", until, "-f", "/dev/null"),
    ]
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.monotonic() - began
    connection.execute("SELECT pg_drop_replication_slot('baseline')")
    return seconds


def _drain(server: Postgres, connection: Any, until: str, how: str = "capture") -> dict[str, float]:
    connection.execute("SELECT pg_copy_logical_replication_slot('before', 'measured')")
    store = tempfile.mkdtemp(prefix="tailrace-bench-")
    command = [sys.executable, "-m", "bench.drain", server.url, "measured", PUBLICATION, store, until, how]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(store)
    connection.execute("SELECT pg_drop_replication_slot('measured')")
    result: dict[str, float] = json.loads(done.stdout)
    return result
