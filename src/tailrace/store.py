"""The object store: one interface to files, S3, GCS, Azure and memory.

obstore does the work (an absent object is its FileNotFoundError, on every backend). This module adds two things: on
`file://` a created object is durable (file and directory are fsynced; obstore does neither), and `create` distinguishes
a repeated PUT of the same bytes from another writer's object.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import io
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, MemoryStore, from_url

from tailrace.errors import ConfigError, StoreError, StoreRefused

_memory: dict[str, MemoryStore] = {}

_sync_file_range: Any = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_BLOCK_BYTES: Final = 4096
_ATTEMPTS: Final = 100
T = TypeVar("T")
# SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER.
_WRITE_AND_WAIT: Final = 1 | 2 | 4

# A PUT of one segment takes from milliseconds to a second; a request that takes longer than this never returns.
_TIMEOUT = timedelta(seconds=30)
# Short, because callers retry too, and log that they do.
_RETRY_FOR = timedelta(seconds=10)


_TRAP = "what names it is damaged, or leads out of the store on purpose"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size: int
    modified_at: datetime


class Store:
    """Objects under one root URL, named by `/`-separated keys."""

    is_quick: ClassVar[bool] = False
    """Whether writing a small object takes less time than handing it to another thread."""

    def __init__(self, url: str, backend: Any) -> None:
        self.url = url
        self._backend = backend

    @staticmethod
    def open(url: str, options: Mapping[str, str] | None = None, *, must_exist: bool = False) -> Store:
        """Open the store at a URL.

        `url` is `file:///path` (or a plain path), `s3://`, `gs://`, `az://` or `memory://name`. Credentials come from
        `options`, or from the environment variables that the cloud's own tools read. A directory that does not exist is
        created, or with `must_exist` refused: a reader of others' files would never see a wrong path otherwise.
        """
        parts = urlsplit(url)
        if parts.scheme in ("", "file"):
            if parts.netloc not in ("", "localhost"):
                raise ConfigError(f"store {url}: a file URL has no host", "write file:///absolute/path")
            root = Path(unquote(parts.path)).expanduser().absolute()
            if must_exist and not root.is_dir():
                raise StoreRefused(f"store {url}: no such directory", "correct the URL, or create the directory")
            return FileStore(root)
        if parts.scheme == "memory":
            return Store(url, _memory.setdefault(url, MemoryStore()))
        if parts.scheme not in ("s3", "gs", "az", "abfs", "abfss"):
            raise ConfigError(f"store {url}: unknown scheme {parts.scheme!r}", "use file://, s3://, gs:// or az://")
        is_http = str((options or {}).get("endpoint", "")).startswith("http://")
        try:
            backend = from_url(  # type: ignore[call-overload]
                url,
                config=dict(options or {}),
                client_options={"timeout": _TIMEOUT, "allow_http": is_http},
                retry_config={"max_retries": 5, "retry_timeout": _RETRY_FOR},
            )
        except (BaseError, ValueError) as error:
            hint = "correct the URL or [store.options]: docs/operating.md says which options there are"
            raise ConfigError(f"store {url}: {error}", hint) from error
        return Store(url, backend)

    def probe(self, prefix: str = "") -> None:
        """Write and remove an object, because a store that only lists is of no use. Raises Tailrace's errors."""
        key = f"{prefix}check-{uuid.uuid4().hex}"
        self.create(key, b"written by `tailrace check`")
        self.delete(key)

    def create(self, key: str, data: bytes) -> bool:
        """Create an object durably. Return False if the key already holds other bytes; the same bytes are a success."""
        with self._translate_errors(key):
            try:
                obstore.put(self._backend, key, data, mode="create")
            except AlreadyExistsError:
                return self.get(key) == data
        return True

    def prepare(self, prefix: str) -> None:
        """Do beforehand what takes time in `create` of the next object directly under `prefix`."""

    def replace(self, key: str, data: bytes) -> None:
        """Create or overwrite an object durably."""
        with self._translate_errors(key):
            obstore.put(self._backend, key, data)

    def get(self, key: str) -> bytes | None:
        with self._translate_errors(key):
            try:
                return obstore.get(self._backend, key).bytes().to_bytes()
            except FileNotFoundError:
                return None

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """An object and what the store says about it, in one request."""
        with self._translate_errors(key):
            try:
                found = obstore.get(self._backend, key)
                meta = found.meta
                return found.bytes().to_bytes(), ObjectInfo(key, meta["size"], meta["last_modified"])
            except FileNotFoundError:
                return None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        with self._translate_errors(key):
            try:
                return obstore.get_range(self._backend, key, start=start, length=length).to_bytes()
            except FileNotFoundError:
                return None

    def source(self, key: str) -> Any:
        """The object as a file that Arrow reads in ranges. Raises FileNotFoundError if there is none."""
        info = self.head(key)
        if info is None:
            raise FileNotFoundError(key)
        return pa.PythonFile(_RangeReader(self, info), mode="r")

    def head(self, key: str) -> ObjectInfo | None:
        with self._translate_errors(key):
            try:
                meta = obstore.head(self._backend, key)
            except FileNotFoundError:
                return None
        return ObjectInfo(key, meta["size"], meta["last_modified"])

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` (whole path segments) and follows `after`, in key order."""
        found: list[ObjectInfo] = []
        with self._translate_errors(prefix):
            try:
                for page in obstore.list(self._backend, prefix=prefix or None, offset=after):
                    found.extend(ObjectInfo(m["path"], m["size"], m["last_modified"]) for m in page)
            except FileNotFoundError:
                return iter(())
        # Files are listed in directory order. The clouds return sorted keys, which cost nothing to sort again.
        return iter(sorted(found, key=lambda info: info.key))

    def directories(self, prefix: str) -> Iterator[str]:
        """The names under `prefix` that have objects below them, in order. One request, however many these are."""
        with self._translate_errors(prefix):
            try:
                found = obstore.list_with_delimiter(self._backend, prefix=prefix or None)["common_prefixes"]
            except FileNotFoundError:
                return iter(())
        return iter(sorted(path.rstrip("/").rpartition("/")[2] for path in found))

    def delete(self, key: str) -> None:
        with self._translate_errors(key), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._backend, key)

    @contextlib.contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        where = f"store {self.url}: {key}"
        if ".." in key.split("/"):
            raise StoreRefused(f"{where}: this is not a key", _TRAP)
        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise StoreRefused(
                f"{where}: permission denied", "check the credentials and the bucket's policy"
            ) from error
        except (BaseError, FileNotFoundError) as error:
            text = str(error).splitlines()[0]
            if "NoSuchBucket" in str(error):
                raise StoreRefused(f"{where}: no such bucket", "create the bucket, or correct the URL") from error
            raise StoreError(f"{where}: {text}", "retrying automatically; check that the store is reachable") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreRefused(f"{where}: disk full", "free some space; nothing was lost") from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
                raise StoreRefused(f"{where}: {error.strerror}", "check the directory's permissions") from error
            raise StoreError(f"{where}: {error.strerror}", "retrying automatically") from error


class FileStore(Store):
    """Objects as files. Each is written without its name, then linked to its name.

    So no object is ever visible in part, and `create` never overwrites one. The content is on the disk before the name
    exists, so a power cut leaves an object whole or not at all.
    """

    is_quick: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = root.as_uri()
        with self._translate_errors(""):
            # It will hold rows. Files in it follow the umask, so that its owner opens them to others with one chmod.
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            super().__init__(self.url, LocalStore(root, automatic_cleanup=True))
        self._spare: _NamelessFile | None = None
        self._spare_lock = threading.Lock()

    def prepare(self, prefix: str) -> None:
        with self._spare_lock, contextlib.suppress(OSError):  # `create` meets the same error, and raises it
            if self._spare is None or not self._spare.is_in(self.root / prefix):
                self._drop_spare()
                self._spare = _NamelessFile.open(self.root / prefix)
                if self._spare is not None:
                    self._spare.reserve_block()

    def create(self, key: str, data: bytes) -> bool:
        with self._translate_errors(key):
            return _with_directory(lambda: self._create(key, data))

    def _create(self, key: str, data: bytes) -> bool:
        target = self._path(key)
        nameless = self._take_spare(target.parent) or _NamelessFile.open(target.parent)
        try:
            if nameless is not None:
                nameless.write(data, target.name)
                return True
            with self._temporary_file(key, data) as (temporary, _):
                os.link(temporary, target)
        except FileExistsError:
            if target.read_bytes() != data:
                return False
            _fsync(target)  # the attempt that wrote it may have failed before it was durable
        _fsync(target.parent)
        return True

    def _take_spare(self, directory: Path) -> _NamelessFile | None:
        with self._spare_lock:
            if self._spare is None or not self._spare.is_in(directory):
                return None
            taken, self._spare = self._spare, None
            return taken

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def replace(self, key: str, data: bytes) -> None:
        with self._translate_errors(key):
            _with_directory(lambda: self._replace(key, data))

    def _replace(self, key: str, data: bytes) -> None:
        with self._temporary_file(key, data) as (temporary, target):
            os.replace(temporary, target)
            _fsync(target.parent)

    def source(self, key: str) -> Any:
        return pa.memory_map(str(self._path(key)))

    def _path(self, key: str) -> Path:
        """The file of a key. Keys can come from what others wrote, such as the metadata of a table."""
        with self._translate_errors(key):
            if not key or key.startswith("/"):
                raise StoreRefused(f"store {self.url}: {key!r}: this is not a key", _TRAP)
            return self.root / key

    @contextlib.contextmanager
    def _temporary_file(self, key: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        target = self._path(key)
        _make_directories(target.parent)
        # obstore treats a name that ends in #<number> as an upload in progress and never lists it.
        temporary = target.with_name(f"{target.name}#{uuid.uuid4().int}")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                _write_durably(fd, data)
            finally:
                os.close(fd)
            yield temporary, target
        finally:
            temporary.unlink(missing_ok=True)


class _RangeReader(io.RawIOBase):
    """Reads an object range by range.

    obstore's own reader lacks the `closed` attribute that Arrow checks, and raises errors that are not Tailrace's.
    """

    def __init__(self, store: Store, info: ObjectInfo) -> None:
        self._store = store
        self._info = info
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(min(len(buffer), self._info.size - self._at), 0)
        if length:
            found = self._store.get_range(self._info.key, self._at, length)
            if found is None:
                raise FileNotFoundError(self._info.key)
            buffer[:length] = found
            self._at += length
        return length


class _NamelessFile:
    """A file in a directory that has no name yet.

    A file system's journal commits in order. So once the content and its place are written, one commit makes the file
    and its name durable together. Without `sync_file_range`, the file is fsynced before it is linked, and the
    directory's fsync is a second commit.
    """

    def __init__(self, directory: int, file: int) -> None:
        self._directory = directory
        self._file = file
        self._reserved_bytes = 0

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Create the file, and its directory if there is none. None if the file system has no such files."""
        if not hasattr(os, "O_TMPFILE"):
            return None
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            _make_directories(path)
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return cls(directory, os.open(f"/proc/self/fd/{directory}", os.O_WRONLY | os.O_TMPFILE, 0o644))
        except OSError as error:
            is_removed = os.fstat(directory).st_nlink == 0
            os.close(directory)
            if is_removed:  # ext4 says EPERM then
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
            if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):  # without support, or without /proc
                return None
            raise

    def is_in(self, path: Path) -> bool:
        """Whether the directory is still the one with this path."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self._directory))
        except FileNotFoundError:
            return False

    def reserve_block(self) -> None:
        """Write one block of zeros, so that a small content needs no place on the disk when it is written."""
        self._reserved_bytes = _BLOCK_BYTES
        os.pwrite(self._file, bytes(_BLOCK_BYTES), 0)
        _write_back(self._file)

    def write(self, data: bytes, name: str) -> None:
        """Give the file its content and its name, durably. Raises FileExistsError if the name is taken."""
        source = f"/proc/self/fd/{self._file}"
        try:
            _write(self._file, data)
            if len(data) < self._reserved_bytes:
                os.ftruncate(self._file, len(data))
            if not _write_back(self._file):
                os.fsync(self._file)
            os.link(source, name, src_dir_fd=self._directory, dst_dir_fd=self._directory, follow_symlinks=True)
            os.fsync(self._file)
            # Where the file's fsync has committed the name, another one would only flush the disk's cache again.
            if not _commits_names(os.fstat(self._directory).st_dev, os.fstatvfs(self._directory).f_fsid):
                os.fsync(self._directory)
        finally:
            self.close()

    def close(self) -> None:
        os.close(self._file)
        os.close(self._directory)


@functools.cache
def _commits_names(device: int, filesystem: int) -> bool:  # noqa: ARG001 (a device may get another file system)
    """Whether a file's fsync makes the name durable that the file was linked to. That of ext4 does.

    A link changes file and directory in one transaction of the journal, which the fsync commits. Without a journal,
    the fsync of a file with a new name writes the directory, too. A test cuts the power in both cases.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return False
    return any(mount.split()[2] == number and kind.startswith("ext4 ") for mount, _, kind in mounts)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_durably(fd: int, data: bytes) -> None:
    _write(fd, data)
    os.fsync(fd)


def _write_back(fd: int) -> bool:
    """Write a file's content to the disk, without a commit of the journal. Return False where this is not possible."""
    if _sync_file_range is None:
        return False
    if _sync_file_range(fd, 0, 0, _WRITE_AND_WAIT):
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EINVAL, errno.ESPIPE):
            return False
        raise OSError(number, os.strerror(number))
    return True


def _with_directory(action: Callable[[], T]) -> T:
    """Run what writes a file, and again if its directory is gone: it is removed with its last file."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return action()
    return action()


def _make_directories(path: Path) -> None:
    if path.is_dir():
        return
    _make_directories(path.parent)
    path.mkdir(exist_ok=True)
    _fsync(path.parent)


def _fsync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
