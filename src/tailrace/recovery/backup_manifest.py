"""PostgreSQL's manifest of a backup: each file's size and checksum. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from tailrace import stored_json
from tailrace.errors import CorruptError
from tailrace.recovery.backup_record import CHOOSE_ANOTHER, BackupFile

_ALGORITHM = "SHA256"


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    size: int
    checksum: bytes
    """SHA-256, which every backup asks for."""


def parse(data: bytes, where: str) -> Mapping[str, ManifestEntry]:
    """The files of a manifest by path. Raises CorruptError if it does not match its own checksum."""
    try:
        raw = stored_json.parse(data)
        body = data[: data.rindex(b'"Manifest-Checksum"')]
        if hashlib.sha256(body).hexdigest() != raw["Manifest-Checksum"]:
            raise ValueError
        return {_path(file): _entry(file) for file in raw["Files"]}
    except stored_json.ERRORS as error:
        raise CorruptError(f"{where}: the manifest is damaged", CHOOSE_ANOTHER) from error


def check_files(manifest: Mapping[str, ManifestEntry], files: list[BackupFile], where: str) -> None:
    """Check that a backup has the files of its manifest, no more and no less."""
    present = {file.path for file in files if file.kind == "file"}
    if missing := sorted(manifest.keys() - present):
        raise CorruptError(f"{where}: {len(missing)} files are missing, such as {missing[0]}", CHOOSE_ANOTHER)
    if extra := sorted(present - manifest.keys()):
        raise CorruptError(
            f"{where}: the manifest does not name {len(extra)} files, such as {extra[0]}", CHOOSE_ANOTHER
        )


def check_file(manifest: Mapping[str, ManifestEntry], file: BackupFile, digest: bytes, where: str) -> None:
    entry = manifest[file.path]
    if (file.size, digest) != (entry.size, entry.checksum):
        raise CorruptError(f"{where}: {file.path} differs from the manifest", CHOOSE_ANOTHER)


def _path(file: Mapping[str, str]) -> str:
    if "Path" in file:
        return file["Path"]
    return bytes.fromhex(file["Encoded-Path"]).decode(errors="surrogateescape")


def _entry(file: Mapping[str, str]) -> ManifestEntry:
    if file["Checksum-Algorithm"] != _ALGORITHM:
        raise ValueError
    return ManifestEntry(int(file["Size"]), bytes.fromhex(file["Checksum"]))
