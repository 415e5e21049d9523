"""The embedded Spark cluster: work spreads over it, and continues when a worker dies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.embedded.cluster import Cluster
from tailrace.embedded.process import wait_until

_PROGRAM = """
import json, os, sys, time
from pathlib import Path
from pyspark import TaskContext
from tailrace.spark import session

signs = Path(sys.argv[2])
spark = session(master=sys.argv[1])
context = spark.sparkContext


def place(number):
    import tailrace.delivery.contract  # executors have it

    return os.getcwd()


def wait(number):
    (signs / f"{number}.{TaskContext.get().attemptNumber()}").touch()
    while not (signs / "go on").exists():
        time.sleep(0.01)
    return number


deadline = time.monotonic() + 120
while len(places := set(context.parallelize(range(8), 8).map(place).collect())) < 2 and time.monotonic() < deadline:
    pass
print(json.dumps(sorted(Path(place).parents[1].name for place in places)), flush=True)
print(json.dumps(context.parallelize([1, 2], 2).map(wait).collect()), flush=True)

rows = (signs / "rows").as_uri()
spark.range(100).write.parquet(rows)
print(json.dumps(spark.read.parquet(rows).count()), flush=True)
spark.stop()
"""


@pytest.mark.soak
def test_work_spreads_and_survives_the_loss_of_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    first, second = cluster.workers
    command = [sys.executable, "-c", _PROGRAM, cluster.url, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        try:
            assert json.loads(driver.stdout.readline()) == [f"worker{first}", f"worker{second}"]
            assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 60)
            cluster.kill_worker(first)
            assert cluster.workers == [second]
            (tmp_path / "go on").touch()
            assert json.loads(driver.stdout.readline()) == [1, 2]
            assert len(list(tmp_path.glob("[12].*"))) == 3, "the other worker ran one task again"
            assert json.loads(driver.stdout.readline()) == 100
            assert driver.wait(60) == 0
        finally:
            driver.kill()
