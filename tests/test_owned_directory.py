"""Temporary directories of processes that were killed are removed, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tailrace.owned_directory import OwnedDirectory

_MAKE = """
import sys
from tailrace.owned_directory import OwnedDirectory
made = OwnedDirectory("test", sys.argv[1])
(made.path / "rows").write_text("spilled")
print(made.path, flush=True)
sys.stdin.read()
"""


def test_the_next_process_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    foreign = tmp_path / "tailrace-foreign"
    foreign.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / ".owner").touch()
    (tmp_path / "tailrace-link").symlink_to(target)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _MAKE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    made = []
    for process in processes:
        assert process.stdout is not None
        made.append(Path(process.stdout.readline().strip()))
    killed, ended, running = processes
    killed.kill()
    killed.communicate()
    assert (made[0] / "rows").exists()
    ended.communicate()
    assert ended.returncode == 0
    assert not made[1].exists(), "a process removes its own"
    own = OwnedDirectory("test", tmp_path)
    assert [made[0].exists(), made[2].exists(), own.path.exists()] == [False, True, True]
    assert own.path.stat().st_mode & 0o777 == 0o700
    assert foreign.exists()
    assert target.exists()
    own.remove()
    assert not own.path.exists()
    running.communicate()
