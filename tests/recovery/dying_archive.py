"""Runs a synchronous archive that dies before its n-th PUT of WAL, after a pause.

The pause gives an archive that acknowledges too early the time to do so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace

from tailrace import settings
from tailrace.recovery.archive import Archive
from tailrace.recovery.wal_segment import ArchiveKey
from tailrace.store import FileStore, Store


class DyingStore(FileStore):
    left = int(sys.argv[1])
    lock = threading.Lock()

    def create(self, key: str, data: bytes) -> bool:
        with self.lock:
            self.left -= ArchiveKey.parse(key, 16 << 20) is not None
        if self.left <= 0:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().create(key, data)


loaded = settings.load(None, os.environ)
opened = Store.open(loaded.store.url)
assert isinstance(opened, FileStore)
synchronous = replace(loaded, archive=replace(loaded.archive, synchronous=True))
Archive(synchronous, DyingStore(opened.root)).run()
