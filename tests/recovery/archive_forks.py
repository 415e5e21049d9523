"""Runs an archive for each line of the input, in a fork of this process, which has loaded everything.

A line is 1 for a synchronous archive and 0 for another. Prints the fork's process id, and once it has ended, the signal
that ended it. So a kill does not cost a start of Python.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from tailrace import settings
from tailrace.recovery.archive import Archive
from tailrace.store import Store

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        loaded = settings.load(None, os.environ)
        chosen = replace(loaded, archive=replace(loaded.archive, synchronous=line.strip() == "1"))
        Archive(chosen, Store.open(loaded.store.url)).run()
        os._exit(0)
    print(pid, flush=True)
    _, status = os.waitpid(pid, 0)
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)
