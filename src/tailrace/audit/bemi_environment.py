"""Settings from the environment variables of Bemi and Zemi, with the same names and defaults."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tailrace.errors import TailraceError
from tailrace.log import source_record
from tailrace.settings import Secret, Settings, SnapshotSettings, SourceSettings, StoreSettings, check_source
from tailrace.settings.environment import LOG, check_port, postgres_url
from tailrace.settings.parser import Faults
from tailrace.settings.slot_name import default_slot
from tailrace.store import Store

_SINK: Final = "audit"
_MODES: Final = ("disable", "require", "verify-ca", "verify-full")
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True)
class BemiEnvironment:
    """What the environment variables set."""

    settings: Settings
    log_level: int = logging.INFO
    health_port: int | None = None
    metrics_port: int | None = None
    shutdown_timeout_s: float = 30.0
    cleans_up: bool = False
    """Whether slot and publication are dropped at shutdown."""


def read(environ: Mapping[str, str]) -> BemiEnvironment:
    """Read the environment; ConfigError lists everything that is wrong with it."""
    faults = Faults()
    given = {name: value for name, value in environ.items() if value != ""}
    source = _server(given, "DB_", {}, faults)
    destination = _server(given, "DEST_DB_", source, faults)
    names = [name.strip() for name in given.get("TABLES", "").split(",") if name.strip()]
    tables = tuple([_quote_name(name) if "." in name else f"public.{_quote_name(name)}" for name in names])
    slot, store = _slot_and_store(given, source["name"])
    values: dict[str, Any] = {
        "url": source["url"],
        "password": Secret(source["password"]),
        "sslmode": source["sslmode"],
        "slot": slot,
        "publication": given.get("PUBLICATION_NAME", "tailrace"),
        "tables": tables or ("*.*",),
    }
    if source["sslrootcert"]:
        values["sslrootcert"] = Path(source["sslrootcert"])
    check_source(values, faults)
    sink = {
        "type": "audit",
        "name": _SINK,
        "url": destination["url"],
        "password": destination["password"],
        "sslmode": destination["sslmode"],
        **({"sslrootcert": destination["sslrootcert"]} if destination["sslrootcert"] else {}),
        **({"tables": list(tables)} if tables else {}),
    }
    level = given.get("LOG_LEVEL", "info").lower()
    if level not in _LEVELS:
        faults.add("LOG_LEVEL", f"is {level!r}: one of {', '.join(_LEVELS)}")
    timeout = given.get("SHUTDOWN_TIMEOUT", "30").removesuffix("s")
    if not timeout.isdecimal():
        faults.add("SHUTDOWN_TIMEOUT", f"is {timeout!r}: a number of seconds")
    ports = {name: _port(given, name, faults) for name in ("HEALTH_PORT", "METRICS_PORT")}
    faults.raise_if_any("the environment")
    # The trail begins now: no snapshot is needed.
    settings = Settings(
        SourceSettings(**values), StoreSettings(url=store), snapshot=SnapshotSettings(on_start=False), sinks=(sink,)
    )
    return BemiEnvironment(
        settings,
        _LEVELS[level],
        ports["HEALTH_PORT"],
        ports["METRICS_PORT"],
        float(timeout),
        given.get("CLEANUP_ON_SHUTDOWN", "").lower() in ("true", "1", "yes"),
    )


def _slot_and_store(given: Mapping[str, str], database: str) -> tuple[str, str]:
    """The slot, and the URL of its log: a folder for each slot, because audits of several databases may run side by
    side. A log that an earlier version stored directly in the folder stays there, and names its slot."""
    name = given.get("SLOT_NAME")
    if url := given.get("TAILRACE_STORE_URL"):
        return name or _recorded_slot(url) or default_slot(database), url
    common = Path(LOG).absolute()
    earlier = _recorded_slot(common.as_uri()) if (common / source_record.KEY).exists() else None
    if earlier is not None and name in (None, earlier):
        return earlier, common.as_uri()
    slot = name or default_slot(database)
    return slot, (common / slot).as_uri()


def _recorded_slot(url: str) -> str | None:
    try:
        return source_record.slot(Store.open(url, {}, must_exist=True))
    except TailraceError:
        return None  # capture meets it too


def is_given(environ: Mapping[str, str]) -> bool:
    """Whether the environment names a source."""
    return any(environ.get(f"DB_{name}") for name in ("HOST", "PORT", "NAME", "USER", "PASSWORD"))


def _server(given: Mapping[str, str], prefix: str, defaults: Mapping[str, str], faults: Faults) -> dict[str, str]:
    own = {
        "host": given.get(f"{prefix}HOST", defaults.get("host", "127.0.0.1")),
        "port": given.get(f"{prefix}PORT", defaults.get("port", "5432")),
        "name": given.get(f"{prefix}NAME", defaults.get("name", "postgres")),
        "user": given.get(f"{prefix}USER", defaults.get("user", "postgres")),
        "password": given.get(f"{prefix}PASSWORD", defaults.get("password", "postgres")),
        "sslmode": given.get(f"{prefix}SSL_MODE", defaults.get("sslmode", "disable")),
        "sslrootcert": given.get(f"{prefix}SSL_ROOT_CERT", defaults.get("sslrootcert", "")),
    }
    if own["sslmode"] not in _MODES:
        faults.add(f"{prefix}SSL_MODE", f"is {own['sslmode']!r}: one of {', '.join(_MODES)}")
    check_port(f"{prefix}PORT", own["port"], faults)
    return own | {"url": postgres_url(own["host"], own["port"], own["user"], own["name"])}


def _quote_name(name: str) -> str:
    """Names are case-sensitive there; quoted names and patterns are as in Tailrace's settings."""
    return name if set(name) & set('"*?') else ".".join(f'"{part}"' for part in name.split("."))


def _port(given: Mapping[str, str], name: str, faults: Faults) -> int | None:
    text = given.get(name)
    return int(text) if text is not None and check_port(name, text, faults) else None
