"""One reader in a separate process: drains a slot up to an LSN and prints time, CPU and memory as JSON.

`capture` writes a log; `discard` receives the same frames in the same way, counts the changes and drops them.

The clock runs from the start of streaming until the last byte is durable. CPU and memory are the whole process's.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time

import numpy as np

from tailrace import settings
from tailrace.capture.capture import Capture
from tailrace.capture.postgres.replication import ReplicationStream
from tailrace.capture.postgres.source_connection import connect_replication
from tailrace.change import Lsn
from tailrace.embedded.process import wait_until
from tailrace.pgoutput.framing import HEADER
from tailrace.store import Store


def main(url: str, slot: str, publication: str, store_url: str, until: str, how: str) -> None:
    source = settings.SourceSettings(url=url, slot=slot, publication=publication)
    store = Store.open(store_url)
    read = {"capture": _capture, "discard": _discard}[how]
    seconds, changes = read(source, store, Lsn.parse(until))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "changes": changes,
                "log_bytes": sum(info.size for info in store.list("log")),
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "rss_bytes": usage.ru_maxrss * 1024,
            }
        )
    )


def _capture(source: settings.SourceSettings, store: Store, until: Lsn) -> tuple[float, int]:
    capture = Capture(settings.Settings(source=source), store, until=until)
    thread = threading.Thread(target=capture.run)
    thread.start()
    wait_until(lambda: capture.is_streaming or not thread.is_alive(), 60)
    began = time.monotonic()
    thread.join()
    return time.monotonic() - began, capture.progress.changes


def _discard(source: settings.SourceSettings, _store: Store, until: Lsn) -> tuple[float, int]:
    stream = ReplicationStream(connect_replication(source), source.slot, source.publication, Lsn(0))
    never, _ = os.pipe()
    changes = 0
    began = time.monotonic()
    while True:
        received = stream.receive()
        if received.frames:
            data, lengths = received.frames.data, received.frames.lengths
            kinds = np.frombuffer(data, np.uint8)[np.cumsum(lengths) - lengths + HEADER]
            changes += int(np.isin(kinds, np.frombuffer(b"IUDTM", np.uint8)).sum())
        elif received.wal_end is not None and received.wal_end >= until:
            break
        else:
            stream.wait(never, 5)
    seconds = time.monotonic() - began
    stream.close()
    return seconds, changes


if __name__ == "__main__":
    main(*sys.argv[1:])
