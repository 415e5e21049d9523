"""Checks a server: its version and settings, and the privileges that the sink needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tailrace.finding import Finding, Severity
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.options import MysqlOptions
from tailrace.sinks.mysql.session import MysqlSession

_OLDEST: Final = {"mysql": (8, 4, 0), "mariadb": (10, 6, 0)}
_NAMES: Final = {"mysql": "MySQL", "mariadb": "MariaDB"}
_MIN_PACKET_BYTES: Final = 1 << 20
"""Statements and packets of the sink are at most half as large."""
_LARGE_PACKET_BYTES: Final = 16 << 20
_PAGE_BYTES: Final = 16 << 10
"""With smaller pages, a key has fewer than 3,072 bytes."""
_PRIVILEGES: Final = frozenset(
    {
        *("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "INDEX"),
        "CREATE TEMPORARY TABLES",
    }
)


class ServerCheck:
    """What keeps a sink from delivering, or may do so later."""

    def __init__(self, session: MysqlSession, options: MysqlOptions) -> None:
        self._session = session
        self._database = options.url_database
        self._is_per_schema = options.database == "per_schema"
        self._variables = {str(name): str(value) for name, value in session.rows("SHOW GLOBAL VARIABLES")}

    def findings(self) -> Iterator[Finding]:
        yield from self._version()
        yield from self._engine()
        yield from self._session_settings()
        yield from self._loading()
        yield from self._logging()
        yield from self._names()
        yield from self._privileges()

    def _version(self) -> Iterator[Finding]:
        flavour = self._session.flavour
        oldest = _OLDEST[flavour.product]
        if flavour.version < oldest:
            name = _NAMES[flavour.product]
            yield _error(
                f"{name} {_text(flavour.version)} is too old: the sink needs {name} {_text(oldest)} or newer",
                "upgrade it",
            )

    def _engine(self) -> Iterator[Finding]:
        support = self._session.value("SELECT support FROM information_schema.engines WHERE engine = 'InnoDB'")
        if support not in ("YES", "DEFAULT"):
            yield _error("has no InnoDB, whose transactions the sink needs", "enable InnoDB in the server's settings")
        query = "SELECT 1 FROM information_schema.collations WHERE collation_name LIKE %s"
        # MariaDB lists collations for several character sets without the name of one.
        name = self._session.collation
        if not any(self._session.value(query, [n]) for n in (name, name.removeprefix("utf8mb4_"))):
            yield _error(f"has no collation {name}", "use a server with all of its collations")
        page_bytes = int(self._variables.get("innodb_page_size", _PAGE_BYTES))
        if page_bytes < _PAGE_BYTES:
            yield Finding(
                Severity.WARNING,
                "server",
                f"has an innodb_page_size of {page_bytes:,} bytes: tables with long keys or many columns do not fit",
            )

    def _session_settings(self) -> Iterator[Finding]:
        modes = str(self._session.value("SELECT @@SESSION.sql_mode")).split(",")
        zone = self._session.value("SELECT @@SESSION.time_zone")
        if "STRICT_ALL_TABLES" not in modes or "NO_BACKSLASH_ESCAPES" in modes or zone != "+00:00":
            yield _error(
                "does not keep the session's sql_mode and time_zone",
                "connect directly to the server, not through a proxy that shares sessions",
            )

    def _loading(self) -> Iterator[Finding]:
        if self._variables.get("local_infile") != "ON":
            yield _error("does not accept LOAD DATA LOCAL, which writes large steps", "SET GLOBAL local_infile = 1;")
        packet_bytes = int(self._variables.get("max_allowed_packet", _LARGE_PACKET_BYTES))
        if packet_bytes < _LARGE_PACKET_BYTES:
            yield Finding(
                Severity.ERROR if packet_bytes < _MIN_PACKET_BYTES else Severity.WARNING,
                "server",
                f"has a max_allowed_packet of {packet_bytes:,} bytes: larger values cannot be delivered",
                "SET GLOBAL max_allowed_packet = 1073741824;",
            )
        if self._variables.get("sql_require_primary_key") == "ON":
            yield _error(
                "requires primary keys (sql_require_primary_key), which staging tables do not have",
                "SET GLOBAL sql_require_primary_key = OFF;",
            )

    def _logging(self) -> Iterator[Finding]:
        if self._variables.get("log_bin") == "ON" and self._variables.get("binlog_format") == "STATEMENT":
            yield _error(
                "writes statements to its binary log, which is not possible with READ COMMITTED",
                "SET GLOBAL binlog_format = 'ROW';",
            )
        if self._variables.get("read_only", "OFF") not in ("OFF", "0"):
            yield Finding(Severity.WARNING, "server", "is read-only: is it a replica?", "SET GLOBAL read_only = OFF;")
        if self._variables.get("innodb_flush_log_at_trx_commit", "1") != "1":
            yield Finding(
                Severity.NOTE,
                "server",
                "may lose its last commits in a crash: rows and cursor together, so the sink delivers them again",
            )

    def _names(self) -> Iterator[Finding]:
        if self._variables.get("lower_case_table_names", "0") != "0":
            yield Finding(
                Severity.WARNING,
                "server",
                "does not distinguish tables by case (lower_case_table_names): two such tables stop the sink",
            )

    def _privileges(self) -> Iterator[Finding]:
        grants = [str(row[0]) for row in self._session.rows("SHOW GRANTS")]
        if any(re.match(r"(GRANT|SET DEFAULT ROLE) [`'\"]", grant) for grant in grants):
            # What a role may do is not listed here.
            return
        database = None if self._is_per_schema else self._database
        if missing := sorted(_PRIVILEGES - granted(grants, database)):
            where = "*.*" if database is None else f"{quote(database)}.*"
            yield _error(
                f"does not grant the user what the sink needs: {', '.join(missing)}",
                f"GRANT {', '.join(sorted(_PRIVILEGES))} ON {where} TO …;",
            )


def granted(grants: list[str], database: str | None) -> set[str]:
    """The privileges on all tables of a database, or of all databases, among what SHOW GRANTS prints."""
    found: set[str] = set()
    for grant in grants:
        match = re.match(r"GRANT (.+?) ON (?:\*|[`'\"](.+?)[`'\"])\.\* TO ", grant)
        if match is None:
            continue
        pattern = match[2]
        if pattern is None or (database is not None and _matches(pattern, database)):
            names = {name.strip() for name in match[1].split(",")}
            found |= _PRIVILEGES if names & {"ALL PRIVILEGES", "ALL"} else names
    return found


def _matches(pattern: str, name: str) -> bool:
    """Whether a database's name matches a grant's pattern, in which % and _ are wildcards unless escaped."""
    parts = re.findall(r"\\.|.", pattern)
    wildcards = {"%": ".*", "_": "."}
    return re.fullmatch("".join(wildcards.get(p) or re.escape(p.removeprefix("\\")) for p in parts), name) is not None


def _error(message: str, fix: str) -> Finding:
    return Finding(Severity.ERROR, "server", message, fix)


def _text(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
