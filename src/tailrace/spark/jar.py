"""The Java libraries that Tailrace asks for, each fetched once and known by its hash.

Spark's own resolver could fetch them, but would look at every start, print a page about it, and fail where it cannot
look. Libraries that are not listed here are left to it, and so are those that cannot be had (docs/decisions.md).
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Final

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
_MAVEN: Final = "https://repo1.maven.org/maven2"
# To connect, and between one piece and the next: whoever does not answer by then would only make the start late.
_PATIENCE_S: Final = 3.0


def local_file_system() -> Path | None:
    """Where the file system's jar lies. None: it cannot be had here, and ticks are slower."""
    return fetched(_BARE)


def fetched(package: str) -> Path | None:
    """Where the jar of `group:artifact:version` lies; fetched if it never was. None: not known, or not to be had."""
    if package not in _SHA256:
        return None
    group, artifact, version = package.split(":")
    name = f"{artifact}-{version}.jar"
    url = f"{_MAVEN}/{group.replace('.', '/')}/{artifact}/{version}/{name}"
    try:
        kept = _directory() / name
        if not kept.exists() or _digest(kept) != _SHA256[package]:
            _fetch(url, kept, _SHA256[package])
    except (OSError, HTTPException, RuntimeError) as error:  # the last: there is no home directory
        _log.info("%s cannot be had (%s); it belongs into ~/.cache/tailrace", url, error)
        return None
    return kept


def _fetch(url: str, target: Path, digest: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer,  # noqa: S310 (always Maven's, by HTTPS)
        tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as draft,
    ):
        shutil.copyfileobj(answer, draft)
    if _digest(Path(draft.name)) != digest:
        Path(draft.name).unlink()
        raise OSError("its bytes are not those that were published")
    Path(draft.name).replace(target)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tailrace"
