"""kill -9 of the writer and of capture, again and again: the log equals the database's scan."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from tests.capture.slatedb.database_writer import DatabaseWriter
from tests.capture.slatedb.test_capture import Scene, directory, scene  # noqa: F401 (fixtures)

from tailrace.embedded.process import wait_until
from tailrace.log.reader import LogReader

_WRITER = """
import sys
from functools import partial
from pathlib import Path
from tests.capture.slatedb.database_writer import DatabaseWriter, RandomWrites

with DatabaseWriter(Path(sys.argv[1]), flush_interval="10ms") as writer:
    RandomWrites(int(sys.argv[2])).run(writer, 10**6)
"""


@pytest.mark.soak
def test_kills_lose_and_repeat_nothing(scene: Scene, directory: Path) -> None:  # noqa: F811
    chance = random.Random(31)
    with DatabaseWriter(directory) as writer:
        writer.put(b"first", b"1")
        writer.flush()
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "TAILRACE_SOURCE_TYPE": "slatedb",
        "TAILRACE_SOURCE_URL": directory.as_uri(),
        "TAILRACE_SOURCE_NAME": "users",
        "TAILRACE_STORE_URL": scene.store.url,
    }
    reader = LogReader(scene.store)
    for kill in range(int(os.environ.get("SLATEDB_KILLS", "6"))):
        before = reader.last()
        capture = subprocess.Popen([sys.executable, "-m", "tailrace", "capture"], env=environment)
        writing = subprocess.Popen([sys.executable, "-c", _WRITER, str(directory), str(kill)], env=environment)
        try:
            wanted = before.id + 3 if before is not None else 3
            assert wait_until(partial(_has_segment, reader, wanted), 120), "capture writes nothing"
            time.sleep(chance.uniform(0, 0.5))
        finally:
            for process in chance.sample([capture, writing], 2):
                process.send_signal(signal.SIGKILL)
                process.wait()
    with DatabaseWriter(directory) as writer:
        writer.flush()
        scene.capture()
        assert scene.state() == writer.scan()
    positions = [change.position for change in reader.changes()]
    assert len(set(positions)) == len(positions)
    scene.assert_sound()


def _has_segment(reader: LogReader, id: int) -> bool:
    return bool(reader.list(id))
