"""Fetches files from Maven Central into the user's cache, each once, and checks their hashes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final

_ROOT: Final = "https://repo1.maven.org/maven2"
_CONNECTIONS: Final = 8


@dataclass(frozen=True)
class Jar:
    """A library, or another file of a package, of a fixed version and content."""

    package: str
    """`group:artifact:version`."""
    sha256: str
    suffix: str = ".jar"
    """What the file's name has after the version."""

    @property
    def name(self) -> str:
        _, artifact, version = self.package.split(":")
        return f"{artifact}-{version}{self.suffix}"

    @property
    def url(self) -> str:
        group, artifact, version = self.package.split(":")
        return f"{_ROOT}/{group.replace('.', '/')}/{artifact}/{version}/{self.name}"


def read_pins(file: Path) -> list[Jar]:
    """Read a list with one jar a line: `group:artifact:version sha256`. Lines that start with # are comments."""
    lines = (line.split() for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return [Jar(package, sha256) for package, sha256 in lines]


def fetch(jar: Jar, timeout_s: float) -> Path:
    """Return the path of the jar in the cache, and download it if necessary.

    `timeout_s` limits the wait for a connection and for each read. Raise OSError if the jar is not available.
    """
    try:
        path = cache_directory() / jar.name
        if not path.exists() or _digest(path) != jar.sha256:
            _download(jar, path, timeout_s)
    except (HTTPException, RuntimeError) as error:  # RuntimeError: there is no home directory
        raise OSError(str(error)) from error
    return path


def fetch_all(jars: Iterable[Jar], timeout_s: float) -> list[Path]:
    """Fetch all jars, several at a time, and return their paths in the same order."""
    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        return list(threads.map(lambda jar: fetch(jar, timeout_s), jars))


def _download(jar: Jar, target: Path, timeout_s: float) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        urllib.request.urlopen(jar.url, timeout=timeout_s) as response,  # noqa: S310 (always Maven over HTTPS)
        tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as draft,
    ):
        try:
            shutil.copyfileobj(response, draft)
            draft.flush()
            if _digest(Path(draft.name)) != jar.sha256:
                raise OSError(f"the checksum of {jar.url} does not match the published file")
            Path(draft.name).replace(target)
        except BaseException:
            Path(draft.name).unlink()
            raise


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def cache_directory() -> Path:
    """Return the directory of this user's jars and class archives. Raise RuntimeError without a home directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tailrace"
