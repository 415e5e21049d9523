"""A MySQL that is installed on this machine, started on a free port of 127.0.0.1, for tests and benchmarks.

There is no wheel and no jar of MySQL.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.errors import ConfigError

_PROGRAM: Final = "mysqld"
_DIRECTORIES: Final = "/usr/sbin:/usr/local/sbin:/usr/local/mysql/bin"


class MySqlServer(MysqlFamilyServer):
    product: ClassVar[str] = "MySQL"

    def __init__(self, options: Mapping[str, object] | None = None, *, certificate: Path | None = None) -> None:
        """Configure a server.

        Args:
            options: The server's options, such as `max_allowed_packet`.
            certificate: A PEM file with a key and its certificates. With it clients may use TLS.
        """
        super().__init__(options, certificate=certificate, installation=find_program())

    def _program(self) -> Sequence[str]:
        return [str(self._installation)]

    def _default_options(self) -> Mapping[str, object]:
        return {
            "mysqlx": "OFF",
            "performance_schema": "OFF",
            "auto_generate_certs": "OFF",
            "secure_file_priv": "NULL",
        }

    def _initialization(self) -> tuple[Sequence[str], bytes]:
        return ["--initialize-insecure"], b""


def find_program() -> Path:
    """Return the machine's `mysqld`. MariaDB has a program of that name, too, which is not accepted."""
    found = shutil.which(_PROGRAM) or shutil.which(_PROGRAM, path=_DIRECTORIES)
    if found is None:
        raise ConfigError("MySQL is not installed on this machine", "install MySQL 8.4 or newer, or use MariaDB")
    version = subprocess.run([found, "--no-defaults", "--version"], capture_output=True, text=True, timeout=30).stdout
    if "MariaDB" in version:
        raise ConfigError(f"{found} is MariaDB's", "install MySQL 8.4 or newer, or use MariaDB")
    return Path(found)
