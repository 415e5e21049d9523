"""The demo, as a newcomer runs it: on a terminal and into a pipe."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess

from tests.capturing import tailrace

from tailrace.log.verify import verify
from tailrace.store import FileStore, Store


def test_demo_prints_lines_and_compares_row_for_row() -> None:
    done = subprocess.run(tailrace("demo", "--seconds", "3"), capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal, row for row") == 3
    assert "DIFFERENT" not in done.stdout
    assert re.search(r"[1-9][\d,]* changes, [\d,]+/s, commit → reader", done.stdout)
    stores = set(re.findall(r"log verify --store (file://\S+)", done.stdout))
    assert len(stores) == 1
    store = Store.open(stores.pop())
    assert isinstance(store, FileStore)
    assert not list(verify(store))
    shutil.rmtree(store.root.parent)


def test_demo_is_live_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(tailrace("demo", "--seconds", "3"), stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # how a terminal says that the other side is gone
        pass
    os.close(ours)
    assert process.wait(30) == 0
    text = shown.decode()
    assert "newest changes" in text
    assert "commit → reader" in text
    assert text.count("equal, row for row") == 3
