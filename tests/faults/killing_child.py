"""Runs capture with a store that kills the process before or after its n-th PUT."""

from __future__ import annotations

import itertools
import os
import signal
import sys

from tailrace import settings
from tailrace.capture.capture import Capture
from tailrace.store import FileStore, Store


class KillingStore(FileStore):
    step, when = int(sys.argv[1]), sys.argv[2]
    numbers = itertools.count(1)
    """Shared by two threads: the sealer's, and the one that records definitions."""

    def create(self, key: str, data: bytes) -> bool:
        number = next(self.numbers)
        if number == self.step and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        created = super().create(key, data)
        if number == self.step:
            os.kill(os.getpid(), signal.SIGKILL)
        return created


loaded = settings.load(None, os.environ)
opened = Store.open(loaded.store.url)
assert isinstance(opened, FileStore)
Capture(loaded, KillingStore(opened.root), until="current").run()
