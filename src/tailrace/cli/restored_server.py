"""What a restored server needs on this machine: PostgreSQL's programs, and directories for its tablespaces."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import click

from tailrace.embedded.installation import installation
from tailrace.errors import ConfigError
from tailrace.recovery.backup_record import list_backups
from tailrace.recovery.restore_plan import RestorePlan
from tailrace.recovery.wal_archive import WalArchive
from tailrace.store import Store


def find_programs(store: Store, given: Path | None) -> Path:
    """The directory with the programs of the version that the newest backup was taken from."""
    records = list_backups(store)
    if not records:
        raise ConfigError(f"{store.url} has no backup", "take one with `tailrace backup`")
    return _find_version(records[-1].server_version // 10000, given)


def find_pg_waldump(store: Store, given: Path | None) -> Path:
    """The directory with pg_waldump of the version that wrote the archived WAL. No backup is needed."""
    return _find_version(WalArchive.require(store).server_version(), given)


def _find_version(version: int, given: Path | None) -> Path:
    on_path = shutil.which("postgres")
    candidates = [given] if given else [Path(on_path).resolve().parent] if on_path else []
    for directory in candidates:
        if (found := _version(directory / "postgres")) == version:
            return directory
        if given:
            raise ConfigError(f"{directory} has PostgreSQL {found}, the source is {version}", "correct --bin")
    try:
        return installation(version) / "bin"
    except ConfigError:
        raise ConfigError(
            f"PostgreSQL {version} is not on PATH", "give the directory with its programs: --bin DIR"
        ) from None


def _version(program: Path) -> int | None:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True)
    except OSError:
        return None
    match = re.search(r"(\d+)", done.stdout)
    return int(match[1]) if match else None


def parse_settings(given: tuple[str, ...]) -> dict[str, str]:
    """The settings of the server that `--set` names."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[a-z][a-z0-9_.]*", name):
            raise ConfigError(f"--set {text}: not a setting", "write NAME=VALUE, such as shared_buffers=1GB")
        found[name] = value
    return found


SET_OPTION: Final = click.option(
    "--set",
    "server_settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the server, over those of its files, such as shared_buffers=1GB. May be repeated.",
)


def place_tablespaces(directory: Path, plan: RestorePlan, given: tuple[str, ...]) -> dict[int, Path]:
    """The new directory of each tablespace: beside the copy, or where `OID=DIR` says."""
    beside = directory.with_name(f"{directory.name}-tablespaces")
    found = {each.oid: beside / str(each.oid) for each in plan.backup.tablespaces}
    for text in given:
        oid, _, path = text.partition("=")
        if not oid.isdecimal() or not path or int(oid) not in found:
            known = ", ".join(f"{each.oid} was {each.location}" for each in plan.backup.tablespaces) or "there are none"
            raise ConfigError(f"--tablespace {text}: not a tablespace of the backup", f"write OID=DIR; {known}")
        found[int(oid)] = Path(path).absolute()
    return found
