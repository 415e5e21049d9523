"""The processes that a command has started, of which some may end at any moment."""

from __future__ import annotations

from contextlib import suppress

import psutil


def children(pid: int) -> list[psutil.Process]:
    """All child processes, without those that make the class archive after the first start on a machine: they go on
    when the command ends."""
    found = psutil.Process(pid).children(recursive=True)
    apart = set()
    for process in found:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "tailrace.spark.class_training" in process.cmdline():
                apart |= {process.pid, *(child.pid for child in process.children(recursive=True))}
    return [process for process in found if process.pid not in apart]


def arguments(pid: int) -> list[str]:
    """The command lines of a process and of all its children."""
    found = []
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # also of zombies
            found += process.cmdline()
    assert found
    return found
