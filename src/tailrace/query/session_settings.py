"""A session's settings: those that PostgreSQL clients set and read. Few of them have an effect."""

from __future__ import annotations

import re
from typing import Final

from tailrace.query.as_of import AsOf
from tailrace.query.query_error import UNSUPPORTED, QueryError

VERSION: Final = "18.0"

# Name in lower case → (display name, default, allowed values; None: any).
_FIXED: Final = ("on", "true", "1", "yes")
_KNOWN: Final[dict[str, tuple[str, str, tuple[str, ...] | None]]] = {
    "application_name": ("application_name", "", None),
    "client_encoding": ("client_encoding", "UTF8", ("utf8", "utf-8", "unicode", "sql_ascii")),
    "client_min_messages": ("client_min_messages", "notice", None),
    "datestyle": ("DateStyle", "ISO, MDY", ("iso", "iso, mdy", "iso, dmy", "iso, ymd", "mdy", "dmy", "ymd")),
    "default_table_access_method": ("default_table_access_method", "heap", None),
    "default_transaction_isolation": ("default_transaction_isolation", "repeatable read", None),
    "default_transaction_read_only": ("default_transaction_read_only", "on", None),
    "extra_float_digits": ("extra_float_digits", "1", ("1", "2", "3")),
    "idle_in_transaction_session_timeout": ("idle_in_transaction_session_timeout", "0", None),
    "in_hot_standby": ("in_hot_standby", "on", ("on",)),
    "integer_datetimes": ("integer_datetimes", "on", ("on",)),
    "intervalstyle": ("IntervalStyle", "postgres", ("postgres",)),
    "is_superuser": ("is_superuser", "off", ("off",)),
    "bytea_output": ("bytea_output", "hex", ("hex",)),
    "lc_collate": ("lc_collate", "C", None),
    "lc_messages": ("lc_messages", "C", None),
    "lc_monetary": ("lc_monetary", "C", None),
    "lock_timeout": ("lock_timeout", "0", None),
    "max_identifier_length": ("max_identifier_length", "63", ("63",)),
    "row_security": ("row_security", "on", None),
    "search_path": ("search_path", '"$user", public', None),
    "server_encoding": ("server_encoding", "UTF8", ("utf8",)),
    "server_version": ("server_version", VERSION, (VERSION,)),
    "server_version_num": ("server_version_num", "180000", ("180000",)),
    "session_authorization": ("session_authorization", "", None),
    "standard_conforming_strings": ("standard_conforming_strings", "on", _FIXED),
    "statement_timeout": ("statement_timeout", "0", None),
    "synchronize_seqscans": ("synchronize_seqscans", "on", None),
    "tailrace.as_of": ("tailrace.as_of", "", None),
    "timezone": ("TimeZone", "UTC", ("utc", "etc/utc", "gmt", "zulu", "0", "+00", "+00:00", "universal", "default")),
    "transaction_isolation": ("transaction_isolation", "repeatable read", None),
    "transaction_read_only": ("transaction_read_only", "on", None),
    "xmloption": ("xmloption", "content", None),
}
# Reported when a session starts and whenever they change.
REPORTED: Final = (
    "application_name", "client_encoding", "datestyle", "default_transaction_read_only", "in_hot_standby",
    "integer_datetimes", "intervalstyle", "is_superuser", "search_path", "server_encoding", "server_version",
    "session_authorization", "standard_conforming_strings", "timezone",
)  # fmt: skip
_ALIASES: Final = {"time zone": "timezone", "schema": "search_path", "session_user": "session_authorization"}
_HINTS: Final = {
    "timezone": "Sessions use UTC. Write x AT TIME ZONE 'Europe/Berlin'.",
    "client_encoding": "The lake's text is UTF-8.",
    "extra_float_digits": "Floats have the shortest digits that reproduce them, as with 1, 2 or 3.",
}
_UNITS: Final = {"": 1, "ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "us": 0.001}


class SessionSettings:
    """Settings of the session, of the current transaction, and defaults."""

    def __init__(self, user: str, max_seconds: float) -> None:
        self._set: dict[str, str] = {}
        self._local: dict[str, str] = {}
        self._defaults = {"session_authorization": user, "statement_timeout": f"{max_seconds * 1000:.0f}ms"}
        self._max_seconds = max_seconds

    def get(self, name: str) -> str | None:
        key = _key(name)
        if key in self._local:
            return self._local[key]
        if key in self._set:
            return self._set[key]
        return self._defaults.get(key) or (_KNOWN[key][1] if key in _KNOWN else None)

    def change(self, name: str, value: str | None, is_local: bool = False) -> None:
        key = _key(name)
        if key == "all" and value is None:
            self._set.clear()
            self._local.clear()
            return
        if key not in _KNOWN and ("." not in key or key.startswith("tailrace.")):
            raise QueryError("42704", f'unrecognized configuration parameter "{name}"')
        if value is None or (key == "tailrace.as_of" and not value.strip()):
            self._set.pop(key, None)
            self._local.pop(key, None)
            return
        self._check(key, name, value)
        (self._local if is_local else self._set)[key] = value

    def _check(self, key: str, name: str, value: str) -> None:
        allowed = _KNOWN[key][2] if key in _KNOWN else None
        if allowed is not None and value.lower().strip().strip("\"'") not in allowed:
            text = f'parameter "{_KNOWN[key][0]}" cannot be set to "{value}"'
            raise QueryError(UNSUPPORTED, text, _HINTS.get(key, f"The only supported value is {_KNOWN[key][1]}."))
        if key == "statement_timeout":
            _milliseconds(name, value)
        if key == "tailrace.as_of":
            AsOf.parse(value)

    def end_transaction(self) -> None:
        self._local.clear()

    def display_name(self, name: str) -> str:
        """The name as PostgreSQL reports it, such as TimeZone for timezone."""
        return _KNOWN[name][0]

    def all(self) -> list[tuple[str, str]]:
        return [(shown, self.get(key) or "") for key, (shown, _, _) in _KNOWN.items()]

    @property
    def as_of(self) -> AsOf | None:
        text = self.get("tailrace.as_of")
        return AsOf.parse(text) if text else None

    @property
    def search_path(self) -> list[str]:
        text = self.get("search_path") or ""
        parts = re.findall(r'"((?:[^"]|"")+)"|([^\s,"\']+)|\'([^\']*)\'', text)
        names = [quoted.replace('""', '"') or plain.lower() or single for quoted, plain, single in parts]
        user = self._defaults["session_authorization"]
        return [user if name == "$user" else name for name in names]

    @property
    def timeout_s(self) -> float:
        milliseconds = _milliseconds("statement_timeout", self.get("statement_timeout") or "0")
        return min(milliseconds / 1000, self._max_seconds) if milliseconds else self._max_seconds


def _key(name: str) -> str:
    key = name.lower()
    return _ALIASES.get(key, key)


def _milliseconds(name: str, value: str) -> float:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", value)
    if match is None or match[2] not in _UNITS:
        raise QueryError("22023", f'invalid value for parameter "{name}": "{value}"')
    return float(match[1]) * _UNITS[match[2]]
