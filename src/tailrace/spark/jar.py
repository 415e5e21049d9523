"""The one jar that Tailrace itself asks for: a local file system for Java that starts no process to write a file.

Spark's own resolver could fetch it, but would look at every start, and a start that cannot resolve it fails. So it is
fetched once, known by its hash, and done without where it cannot be had (docs/decisions.md).
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

_log = logging.getLogger("tailrace.spark")

FILE_SYSTEM = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"

_NAME = "hadoop-bare-naked-local-fs-0.1.0.jar"
_URL = f"https://repo1.maven.org/maven2/com/globalmentor/hadoop-bare-naked-local-fs/0.1.0/{_NAME}"
_SHA256 = "e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62"
# It is 9 KB: what does not answer by then would only make the start late.
_PATIENCE_S = 3.0


def local_file_system() -> Path | None:
    """Where the jar lies; fetched if it never was. None: it cannot be had here, and ticks are slower."""
    try:
        kept = _directory() / _NAME
        if kept.exists() and _is_genuine(kept.read_bytes()):
            return kept
        with urllib.request.urlopen(_URL, timeout=_PATIENCE_S) as answer:
            content = answer.read(1 << 20)
        if not _is_genuine(content):
            raise OSError("its bytes are not those that were published")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as draft:
            draft.write(content)
        Path(draft.name).replace(kept)
    except (OSError, HTTPException, RuntimeError) as error:  # the last: there is no home directory
        _log.info("checkpoints are slower without %s (%s); it belongs into ~/.cache/tailrace", _URL, error)
        return None
    return kept


def _directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tailrace"


def _is_genuine(content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == _SHA256
