"""Spark's Python daemon, from which workers are forked, with what tasks need already imported.

A worker is then ready as soon as it is forked, and workers share the memory of what they all import. The launcher
(`launcher/bin/python`) runs this module instead of pyspark's. Spark also uses such daemons to plan Python data sources,
with the name of a module as argument; those need nothing more.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from zipimport import zipimporter

from pyspark import daemon

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Work until Java hangs up. At the end of a session it does so at any time, which is not worth a traceback."""
    try:
        return int(_work(sock, authenticated))  # type: ignore[no-untyped-call]
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


def forget_zips() -> None:
    """Remove the zips and the jar that Spark puts on the import path: what they hold is installed.

    Before each task, Spark invalidates Python's import caches. For a zip that means to read its whole directory again,
    which takes 70 ms of each task (measured with Python 3.11).
    """
    for path in [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)]:
        del sys.path_importer_cache[path]
    sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]


if __name__ == "__main__":
    daemon.worker = worker
    forget_zips()
    if sys.argv[1:] in ([], ["pyspark.worker"]):
        importlib.import_module("tailrace.delivery.task")
        importlib.import_module("tailrace.spark.step_source")
    # Spark collects garbage after each task, which takes 15 to 20 ms of processor time with pyarrow loaded.
    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]
