"""The Java libraries that Tailrace needs in Spark, fetched from Maven Central once.

Spark's own resolver could fetch them, but it would check at every start, print a page about it, and fail without a
network. It handles libraries that are not listed here and those that cannot be fetched (docs/decisions.md).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tailrace import maven
from tailrace.maven import Jar

_log = logging.getLogger("tailrace.spark")

FILE_SYSTEM: Final = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
_BARE: Final = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"
"""A local file system that starts no process to write a file: checkpoints are written with it."""

_SHA256: Final = {
    _BARE: "e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0": (
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"
    ),
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0": "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    "org.postgresql:postgresql:42.7.8": "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
    "org.xerial:sqlite-jdbc:3.50.3.0": "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
}
# A server that takes longer would only delay the start.
_TIMEOUT_S: Final = 3.0


def local_file_system() -> Path | None:
    """Return the path of the file system's jar. None: it is not available, and batches are slower."""
    return fetch(_BARE)


def fetch(package: str) -> Path | None:
    """Fetch the jar of `group:artifact:version` if necessary, and return its path. None: unknown, or not available."""
    if package not in _SHA256:
        return None
    jar = Jar(package, _SHA256[package])
    try:
        return maven.fetch(jar, _TIMEOUT_S)
    except OSError as error:
        _log.info("cannot fetch %s (%s); it belongs in ~/.cache/tailrace", jar.url, error)
        return None
