"""The source and the engine on a newer Spark than the one that Tailrace installs: `make spark-4.3` fetches it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.capturing import CaptureThread, configured, current_lsn
from tests.fixtures.postgres import Database

from tailrace.change import Operation
from tailrace.log.reader import LogReader
from tailrace.store import Store

_ROOT = Path(__file__).parents[2]
_SPARK = _ROOT / ".spark-4.3"


@pytest.mark.skipif(not _SPARK.exists(), reason="pyspark 4.3 is not installed beside 4.1: `make spark-4.3` does it")
def test_the_source_and_a_sink_work_on_spark_4_3(database: Database, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "log"))
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    with (
        CaptureThread(configured(database, segment_bytes=4096), store) as captured,
        database.connect(autocommit=True) as connection,
    ):
        for id in range(60):
            connection.execute("INSERT INTO notes VALUES (%s, repeat('x', 500))", [id])
        connection.execute("UPDATE notes SET body = 'y' WHERE id < 5")
        captured.wait_for(current_lsn(connection))
    path = os.pathsep.join(map(str, (_SPARK, _ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.other_spark", store.url, "public.notes", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    changes = list(LogReader(store).changes())
    positions = [str(change.position) for change in changes]
    rows = [str(change.position) for change in changes if change.operation is not Operation.MESSAGE]
    assert found["version"].startswith("4.3.")
    assert len(rows) == 65
    assert found["batch"] == found["stream"] == positions
    assert sorted(found["typed"]) == sorted([*range(60), *range(5)])
    assert sorted(found["delivered"]) == sorted(rows)
