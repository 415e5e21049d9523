"""Writes a backup, or a chain of them, as a data directory. Incremental backups are laid directly over the full one."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tailrace.errors import ConfigError, CorruptError
from tailrace.recovery.backup_reader import BackupReader, FileSink
from tailrace.recovery.backup_record import CHOOSE_ANOTHER, BackupFile, BackupRecord
from tailrace.recovery.incremental_file import BlockOverlay
from tailrace.store import Store

_LABEL = "backup_label"
# PostgreSQL gives its files 0600 or 0640. The index of a backup must not make a file that runs as its owner.
_MOST_RIGHTS: Final = stat.S_IRWXU | stat.S_IRWXG


@dataclass(frozen=True)
class _Sources:
    """From which backups of a chain each file comes."""

    plain: Sequence[set[str]]
    """For each backup the paths that are written from it."""
    overlays: Sequence[Mapping[str, bool]]
    """For each backup the paths that are laid over what is there, and whether they are a file's newest."""

    @classmethod
    def of(cls, indexes: Sequence[Sequence[BackupFile]], where: str) -> _Sources:
        by_path = [{file.path: file for file in index if file.kind == "file"} for index in indexes]
        plain: list[set[str]] = [set() for _ in indexes]
        overlays: list[dict[str, bool]] = [{} for _ in indexes]
        last = len(indexes) - 1
        for file in by_path[-1].values():
            number, current = last, file
            while current.is_incremental:
                overlays[number][current.path] = number == last
                number -= 1
                candidates = (file.target, file.path) if number >= 0 else ()
                found = next((by_path[number][path] for path in candidates if path in by_path[number]), None)
                if found is None:
                    raise CorruptError(f"{where}: no backup of the chain holds {file.target}", CHOOSE_ANOTHER)
                current = found
            plain[number].add(current.path)
        return cls(plain, overlays)


@dataclass
class DataDirectory:
    """A directory that becomes a server's data directory.

    Its files belong to the owner of the directory if it exists, and else to the current user.
    """

    path: Path
    tablespaces: Mapping[int, Path] = field(default_factory=dict)
    """The new directory of each tablespace, by oid. Never the original one, where the source may still run."""

    def prepare(self) -> None:
        """Create the directories. Raises ConfigError if one of them is not empty."""
        for path in (self.path, *self.tablespaces.values()):
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise ConfigError(f"{path} is not an empty directory", "choose another one, or empty it")
            path.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0 and self.owner[0] == 0:
                raise ConfigError(
                    f"{self.path} belongs to root, and PostgreSQL refuses to run as root",
                    "create it for the user that runs PostgreSQL (install -d -o postgres DIR), or restore as that user",
                )
            path.chmod(0o700)
            self.own(path)

    def clear(self) -> None:
        """Remove all that was written since `prepare`."""
        for path in (self.path, *self.tablespaces.values()):
            for each in path.iterdir():
                if each.is_dir() and not each.is_symlink():
                    shutil.rmtree(each)
                else:
                    each.unlink()

    @property
    def owner(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_uid, found.st_gid

    def own(self, path: Path) -> None:
        """Give a path to the directory's owner."""
        if os.geteuid() == 0:
            os.chown(path, *self.owner, follow_symlinks=False)

    def write(
        self, store: Store, chain: Sequence[BackupRecord], on_file: Callable[[BackupFile], None] = lambda _: None
    ) -> None:
        """Write the state of the last backup of a chain, which begins with a full one."""
        readers = [BackupReader(store, record) for record in chain]
        sources = _Sources.of([reader.files for reader in readers], f"{store.url}: backup {chain[-1].id}")
        self._make_directories(readers[-1].files)
        for number, reader in enumerate(readers):
            self._write_files(reader, chain[number], sources.plain[number], sources.overlays[number], on_file)
        self._edit_label()
        os.sync()

    def _make_directories(self, files: Sequence[BackupFile]) -> None:
        for oid, location in self.tablespaces.items():
            link = self.path / "pg_tblspc" / str(oid)
            link.parent.mkdir(mode=0o700, exist_ok=True)
            link.symlink_to(location)
            self.own(link.parent)
            self.own(link)
        for file in files:
            if file.kind == "directory":
                path = self._resolve(file.path)
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.own(path)

    def _write_files(
        self,
        reader: BackupReader,
        record: BackupRecord,
        plain: set[str],
        overlays: Mapping[str, bool],
        on_file: Callable[[BackupFile], None],
    ) -> None:
        opened: list[tuple[int, BlockOverlay | None, Path]] = []

        def open_sink(file: BackupFile) -> FileSink:
            path = self._resolve(file.target)
            if file.path in plain:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                opened.append((fd, None, path))
                return lambda piece: _write_all(fd, piece)
            fd = os.open(path, os.O_RDWR)
            where = f"backup {record.id}: {file.path}"
            overlay = BlockOverlay(fd, record.block_bytes, is_newest=overlays[file.path], where=where)
            opened.append((fd, overlay, path))
            return overlay.write

        def close(file: BackupFile) -> None:
            fd, overlay, path = opened.pop()
            try:
                if overlay is not None:
                    overlay.finish()
                os.fchmod(fd, file.mode & _MOST_RIGHTS)
            finally:
                os.close(fd)
            self.own(path)
            os.utime(path, (file.modified_at, file.modified_at))
            on_file(file)

        try:
            reader.read(plain | overlays.keys(), open_sink, close)
        finally:
            for fd, _, _ in opened:
                with suppress(OSError):
                    os.close(fd)

    def _resolve(self, path: str) -> Path:
        """A path of the index in this directory. Raises CorruptError if it points out of it."""
        parts = path.split("/")
        if path.startswith("/") or ".." in parts:
            raise CorruptError(f"the backup's index names {path}", CHOOSE_ANOTHER)
        return self.path / path

    def _edit_label(self) -> None:
        """Remove what says that the backup is incremental, since it no longer is."""
        label = self.path / _LABEL
        lines = label.read_text().splitlines(keepends=True)
        label.write_text("".join(line for line in lines if not line.startswith("INCREMENTAL FROM ")))


def _write_all(fd: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(fd, piece) :]
