"""Archives a segment of the given size, reads it back, and prints the digests and the peak of the process's memory."""

from __future__ import annotations

import hashlib
import random
import re
import sys
from pathlib import Path

from tailrace.change import Lsn
from tailrace.embedded.process import wait_until
from tailrace.recovery.wal_archive import System, WalArchive
from tailrace.recovery.wal_segment import WalSegment
from tailrace.recovery.wal_writer import ArchiveProgress, WalWriter
from tailrace.store import FileStore


def peak_mb() -> int:
    """Of this program alone; `getrusage` counts what the process was before it, too."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


directory = Path(sys.argv[1])
segment = WalSegment(1, 1, int(sys.argv[2]) << 20)
store = FileStore(directory / "store")
writer = WalWriter(store, segment, 1.0, ArchiveProgress(), lambda: None)
noise = random.Random(1)
digest = hashlib.sha256()
before = peak_mb()
at = segment.start
while at < segment.end:
    piece = b"".join(noise.randbytes(2048) + bytes(6144) for _ in range(16))  # compresses to a quarter
    digest.update(piece)
    writer.offer(at, memoryview(piece))
    at = Lsn(at + len(piece))
    writer.write_due_part()
    assert wait_until(lambda: not writer.is_full, 60)
assert wait_until(lambda: writer.durable_lsn == segment.end or writer.error is not None, 60), writer.durable_lsn
writer.close()
writer.abort()
assert writer.error is None, writer.error
assert [info.key for info in store.list("")] == [segment.key]
archived = peak_mb()
target = directory / "segment"
assert WalArchive(store, System("1", segment.bytes), ()).read_to(segment, target)
with target.open("rb") as file:
    assert hashlib.file_digest(file, "sha256").digest() == digest.digest()
read = peak_mb()
print(archived - before, read - before)
