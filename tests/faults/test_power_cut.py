"""After a power cut, a store of files has each object that it confirmed, and no object in part.

The power cut is ext4's own: `EXT4_IOC_SHUTDOWN` throws away whatever its journal has not committed. Without a journal,
it is a copy of the disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.embedded.process import wait_until
from tailrace.errors import TailraceError
from tailrace.store import FileStore

_SHUTDOWN = 0x8004587D
_WITHOUT_JOURNAL = (2).to_bytes(4, "little")
CUTS = int(os.environ.get("KILLS", "20"))

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mkfs.ext4") is None, reason="needs root and mkfs.ext4"),
]


@contextmanager
def _mounted(image: Path, directory: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "loop", image, directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_confirmed_objects_survive_and_none_is_torn(tmp_path: Path, is_prepared: bool) -> None:
    image, directory = tmp_path / "image", tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["truncate", "-s", "64M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    rng = random.Random(1)
    confirmed: dict[str, str] = {}
    for number in range(CUTS):
        with _mounted(image, directory):
            _check(FileStore(directory / "store"), confirmed)
            _write_until_cut(directory, number, confirmed, rng.randrange(1, 60), is_prepared)
    with _mounted(image, directory):
        found = _check(FileStore(directory / "store"), confirmed)
    assert len(confirmed) > CUTS
    print(f"{CUTS} power cuts, {len(confirmed)} objects confirmed, {found} found")


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("options", [[], ["-O", "^has_journal"]], ids=["journal", "no journal"])
def test_the_disk_has_an_object_when_it_is_confirmed(tmp_path: Path, options: list[str], is_prepared: bool) -> None:
    image, copy, directory = tmp_path / "image", tmp_path / "copy", tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["truncate", "-s", "16M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", *options, image], check=True)
    rng = random.Random(2)
    with _mounted(image, directory):
        store = FileStore(directory / "store")
        for number in range(CUTS):
            content = rng.randbytes(rng.choice((1, 300, 5000, 70_000)))
            key = f"wal/{number % 3}/{number}"
            if is_prepared:
                store.prepare(f"wal/{number % 3}")
            assert store.create(key, content)
            shutil.copyfile(image, copy)
            checked = subprocess.run(["e2fsck", "-fy", copy], capture_output=True, text=True)
            assert checked.returncode < 4, checked.stdout
            done = subprocess.run(["debugfs", "-R", f"cat /store/{key}", copy], capture_output=True)
            assert done.stdout == content, f"{key} of {len(content)} bytes: {done.stderr.decode()}"
            if number % 10 == 9:
                store.delete(key)


def _write_until_cut(directory: Path, number: int, confirmed: dict[str, str], after: int, is_prepared: bool) -> None:
    """Create objects, while another thread has the journal committed now and then; cut the power after some."""
    before, is_cut = len(confirmed), threading.Event()

    def write() -> None:
        store = FileStore(directory / "store")
        rng = random.Random(number)
        try:
            for at in range(100_000):
                content = rng.randbytes(rng.choice((1, 300, 5000, 70_000)))
                name = hashlib.sha256(content).hexdigest()
                key = f"wal/{number}/{at % 3}/{at:06}-{name}"
                if is_prepared:
                    store.prepare(f"wal/{number}/{at % 3}")
                assert store.create(key, content)
                confirmed[key] = name
        except (TailraceError, OSError):
            assert is_cut.is_set()

    def commit() -> None:
        try:
            with (directory / "other").open("wb") as file:
                while not is_cut.is_set():
                    file.write(b"x")
                    file.flush()
                    os.fsync(file)
        except OSError:
            assert is_cut.is_set()

    threads = [threading.Thread(target=write), threading.Thread(target=commit)]
    root = os.open(directory, os.O_RDONLY)
    try:
        for thread in threads:
            thread.start()
        assert wait_until(lambda: len(confirmed) >= before + after, 60)
        is_cut.set()
        fcntl.ioctl(root, _SHUTDOWN, _WITHOUT_JOURNAL)
    finally:
        is_cut.set()
        os.close(root)
        for thread in threads:
            thread.join()


def _check(store: FileStore, confirmed: dict[str, str]) -> int:
    found = {info.key for info in store.list("wal")}
    assert not set(confirmed) - found, "an object was lost that had been confirmed"
    for key in found:
        content = store.get(key)
        assert content is not None
        assert key.endswith(hashlib.sha256(content).hexdigest()), f"{key} is torn: {len(content)} bytes"
    return len(found)
