"""What a backup's objects say about it: the record that completes it, and the index of its files.

The contents of all files follow each other without gaps. This stream is cut into objects of equal size, so a file is
an offset and a size in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final, Literal, Self

from tailrace import stored_json
from tailrace.change import Lsn
from tailrace.errors import ConfigError, CorruptError
from tailrace.log import checked_json
from tailrace.recovery import compressed_object
from tailrace.store import Store

PREFIX: Final = "backups"
INCREMENTAL: Final = "INCREMENTAL."
"""PostgreSQL's prefix for the name of a file of which an incremental backup holds only the changed blocks."""
_META: Final = "meta.json"
_VERIFIED: Final = "verified.json"
CHOOSE_ANOTHER: Final = (
    "restore it from a copy of the store, or choose another backup with `tailrace restore --backup ID`; "
    "`tailrace backup ls` lists them"
)


@dataclass(frozen=True, slots=True)
class Tablespace:
    oid: int
    location: str
    """The directory on the source."""


@dataclass(frozen=True, slots=True)
class BackupRecord:
    """`meta.json`, written last: its presence completes the backup."""

    id: str
    system_id: str
    server_version: int
    timeline: int
    start_lsn: Lsn
    """Recovery needs all WAL from here on."""
    end_lsn: Lsn
    """Recovery cannot stop before this."""
    started_at: datetime
    """By the server's clock, as `ended_at`."""
    ended_at: datetime
    parent: str | None
    """The backup that an incremental one builds on; None for a full one."""
    chunk_bytes: int
    block_bytes: int
    size: int
    """Bytes of all files."""
    stored_bytes: int
    files: int
    role: str
    """The role that took the backup, with which a restore can log in."""
    tablespaces: tuple[Tablespace, ...] = ()

    @property
    def kind(self) -> Literal["full", "incremental"]:
        return "full" if self.parent is None else "incremental"

    @property
    def prefix(self) -> str:
        return f"{PREFIX}/{self.id}"

    @property
    def chunks(self) -> int:
        return -(-self.size // self.chunk_bytes)

    def to_json(self) -> bytes:
        times = {"started_at": self.started_at.isoformat(), "ended_at": self.ended_at.isoformat()}
        return checked_json.dump({"version": 1} | asdict(self) | times).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        what = "is not a backup's record"
        hint = "restore it from a copy of the store; if you remove it, the backup no longer counts, and others do"
        raw = checked_json.parse(data, where, 1, not_one=what, hint=hint)
        try:
            del raw["version"]
            lsns = {key: Lsn(raw[key]) for key in ("start_lsn", "end_lsn")}
            times = {key: datetime.fromisoformat(raw[key]) for key in ("started_at", "ended_at")}
            tablespaces = tuple(Tablespace(**each) for each in raw["tablespaces"])
            return stored_json.typed(cls(**raw | lsns | times | {"tablespaces": tablespaces}))
        except stored_json.ERRORS as error:
            raise CorruptError(f"{where} {what}", hint) from error

    def create(self, store: Store) -> None:
        if not store.create(f"{self.prefix}/{_META}", self.to_json()):
            raise CorruptError(f"{store.url}: backup {self.id} exists already", "take the backup again")

    def verified_at(self, store: Store) -> datetime | None:
        """When `backup verify` last found the backup intact."""
        key = f"{self.prefix}/{_VERIFIED}"
        data = store.get(key)
        try:
            return None if data is None else datetime.fromisoformat(stored_json.parse(data)["at"])
        except stored_json.ERRORS as error:
            raise CorruptError(f"{store.url}: {key} was not written by `backup verify`", "verify again") from error

    def mark_verified(self, store: Store, at: datetime) -> None:
        store.replace(f"{self.prefix}/{_VERIFIED}", json.dumps({"at": at.isoformat()}).encode())

    def mark_damaged(self, store: Store) -> None:
        """Forget that the backup was verified."""
        store.delete(f"{self.prefix}/{_VERIFIED}")


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One entry of the index."""

    path: str
    """Relative to the data directory; a tablespace's files are under pg_tblspc/<oid>."""
    kind: Literal["file", "directory"]
    size: int
    mode: int
    modified_at: int
    offset: int
    """In the stream of all contents."""

    @property
    def is_incremental(self) -> bool:
        return self.path.rpartition("/")[2].startswith(INCREMENTAL)

    @property
    def target(self) -> str:
        """The path of the file that this one is, or changes."""
        directory, slash, name = self.path.rpartition("/")
        return f"{directory}{slash}{name.removeprefix(INCREMENTAL)}"


def data_key(id: str, number: int) -> str:
    return f"{PREFIX}/{id}/data/{number:08d}.zst"


def index_key(id: str) -> str:
    return f"{PREFIX}/{id}/files.zst"


def manifest_key(id: str) -> str:
    return f"{PREFIX}/{id}/backup_manifest.zst"


def encode_index(files: Sequence[BackupFile]) -> bytes:
    return "".join(json.dumps(asdict(file)) + "\n" for file in files).encode()


def read_index(store: Store, id: str) -> list[BackupFile]:
    lines = read_object(store, index_key(id)).splitlines()
    try:
        return [stored_json.typed(BackupFile(**stored_json.parse(line))) for line in lines]
    except stored_json.ERRORS as error:
        raise CorruptError(f"{store.url}: {index_key(id)} is not a backup's index", CHOOSE_ANOTHER) from error


def read_manifest(store: Store, id: str) -> bytes:
    return read_object(store, manifest_key(id))


def read_object(store: Store, key: str) -> bytes:
    """The content of one of a backup's objects. Raises CorruptError if it is missing or damaged."""
    try:
        content = compressed_object.read(store, key)
    except CorruptError as error:
        raise CorruptError(str(error), CHOOSE_ANOTHER) from error
    if content is None:
        raise CorruptError(f"{store.url}: {key} is missing", CHOOSE_ANOTHER)
    return content


def find_backup(records: Sequence[BackupRecord], id: str) -> BackupRecord:
    record = next((r for r in records if r.id == id), None)
    if record is None:
        raise ConfigError(f"there is no backup {id}", "`tailrace backup ls` lists them")
    return record


def list_ids(store: Store) -> dict[str, list[str]]:
    """The keys of each backup, complete or not, the oldest first."""
    found: dict[str, list[str]] = {}
    for info in store.list(PREFIX):
        parts = info.key.split("/")
        if len(parts) >= 3:
            found.setdefault(parts[1], []).append(info.key)
    return found


def list_backups(store: Store) -> list[BackupRecord]:
    """All complete backups, the oldest first."""
    return sorted(_records(store), key=lambda record: (record.start_lsn, record.id))


def _records(store: Store) -> Iterator[BackupRecord]:
    for id in store.directories(PREFIX):
        key = f"{PREFIX}/{id}/{_META}"
        if (data := store.get(key)) is not None:
            yield BackupRecord.from_json(data, f"{store.url}: {key}")


def chain(record: BackupRecord, records: Sequence[BackupRecord]) -> list[BackupRecord]:
    """The full backup that `record` builds on, and each one up to it. Raises CorruptError if one is missing."""
    by_id = {each.id: each for each in records}
    found = [record]
    while found[0].parent is not None:
        parent = by_id.get(found[0].parent)
        if parent is None:
            raise CorruptError(f"backup {record.id} builds on {found[0].parent}, which is missing", CHOOSE_ANOTHER)
        found.insert(0, parent)
    return found
