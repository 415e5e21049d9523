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
from tests.capture.slatedb.database_writer import MERGE_OPERATOR, DatabaseWriter
from tests.capture.slatedb.test_capture import Scene, directory, scene  # noqa: F401 (fixtures)

from tailrace.capture.slatedb.wal_converter import ResumeToken
from tailrace.embedded.process import wait_until
from tailrace.log.reader import LogReader

_WRITER = """
import sys
from functools import partial
from pathlib import Path
from tests.capture.slatedb.database_writer import DatabaseWriter, RandomWrites

with DatabaseWriter(Path(sys.argv[1]), flush_interval="10ms") as writer:
    RandomWrites(int(sys.argv[2]), has_merges=sys.argv[3] == "True").run(writer, 10**6)
"""
_CAPTURE = """
from tailrace.capture.slatedb import merge_resolver

merge_resolver._MOVE_S = merge_resolver._LEAST_MOVE_S = 0.2
merge_resolver._COMPACT_BYTES = 4096

from tailrace.cli import main

main(["capture"])
"""
"""Moves to newer checkpoints, and drops overwritten rows, as often as it would in hours."""


@pytest.mark.soak
@pytest.mark.parametrize("has_merges", [False, True])
def test_kills_lose_and_repeat_nothing(scene: Scene, directory: Path, has_merges: bool) -> None:  # noqa: F811
    if has_merges:
        scene = scene.with_source(merge_operator=MERGE_OPERATOR)
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
        **({"TAILRACE_SOURCE_MERGE_OPERATOR": MERGE_OPERATOR} if has_merges else {}),
    }
    reader = LogReader(scene.store)
    for kill in range(int(os.environ.get("SLATEDB_KILLS", "6"))):
        before, checkpoints = reader.last(), _checkpoints(reader)
        capture = subprocess.Popen([sys.executable, "-c", _CAPTURE], env=environment)
        arguments = [str(directory), str(kill), str(has_merges)]
        writing = subprocess.Popen([sys.executable, "-c", _WRITER, *arguments], env=environment)
        try:
            wanted = before.id + 3 if before is not None else 3
            assert wait_until(partial(_has_segment, reader, wanted), 120), "capture writes nothing"
            if has_merges:
                known = max(len(checkpoints), 1)
                assert wait_until(partial(_has_checkpoints, reader, known + 1), 120), "capture keeps its checkpoint"
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
    assert has_merges or _checkpoints(reader) == {None}


def _checkpoints(reader: LogReader) -> set[str | None]:
    headers = [file.metadata() for file in reader.list()]
    return {ResumeToken.parse(h.resume).checkpoint for h in headers if h is not None and h.resume is not None}


def _has_checkpoints(reader: LogReader, count: int) -> bool:
    return len(_checkpoints(reader)) >= count


def _has_segment(reader: LogReader, id: int) -> bool:
    return bool(reader.list(id))
