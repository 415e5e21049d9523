"""One capture in a process of its own: drains a slot up to an LSN and prints what it took, as JSON.

The clock runs from the start of streaming to the last byte durable; CPU and memory are the whole process's.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time

from tailrace import settings
from tailrace.change import Lsn
from tailrace.embedded.process import wait_until
from tailrace.log.reader import LogReader
from tailrace.source.capture import Capture
from tailrace.store import Store


def main(url: str, slot: str, publication: str, store_url: str, until: str) -> None:
    configured = settings.Settings(source=settings.Source(url=url, slot=slot, publication=publication))
    store = Store.open(store_url)
    capture = Capture(configured, store, until=Lsn.parse(until))
    thread = threading.Thread(target=capture.run)
    thread.start()
    wait_until(lambda: capture.is_streaming or not thread.is_alive(), 60)
    began = time.monotonic()
    thread.join()
    seconds = time.monotonic() - began
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "changes": capture.progress.changes,
                "log_bytes": sum(info.size for info in store.list("log")),
                "segments": len(LogReader(store).list()),
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "rss_bytes": usage.ru_maxrss * 1024,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
