"""Temporary directories that do not outlive their process for long, even if it is killed.

The process holds a lock on a file in each. Whoever makes the next such directory removes those beside it that nobody
holds: what a killed process had spilled would otherwise stay until the machine, or the pod, starts anew.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

_PREFIX: Final = "tailrace-"
_LOCK: Final = ".owner"


class OwnedDirectory:
    """A new directory with mode 0700, which exists until its context or this process ends, or until `remove`.

    Args:
        purpose: A part of its name.
        parent: Where it is. None: where temporary files are.
    """

    def __init__(self, purpose: str = "", parent: Path | str | None = None) -> None:
        # A short path: the path of a socket in it has about 100 characters.
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-" if purpose else _PREFIX, dir=parent))
        self.lock = _hold(self.path)
        """The descriptor that holds it. A child process that inherits it holds the directory too."""
        self._remove = weakref.finalize(self, _remove, self.path, self.lock)
        remove_abandoned(self.path.parent)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        self._remove()


def remove_abandoned(parent: Path) -> None:
    """Remove this user's directories of processes that were killed."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it has no lock, is in use, or somebody else removes it
            if path.is_symlink():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _hold(path: Path) -> int:
    """Lock the directory. It has its lock's name only once that is held."""
    draft = path / f"{_LOCK}.draft"
    lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    draft.rename(path / _LOCK)
    return lock


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
