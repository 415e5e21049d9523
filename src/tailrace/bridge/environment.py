"""The environment and the flags that the bridge is run with, as settings: same names, same defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tailrace.settings import Secret, Settings, Source, Store, check_source
from tailrace.settings.environment import LOG, check_port, postgres_url
from tailrace.settings.reading import Faults

STREAMS: Final = ("CDC", "INIT", "KV_schemas")
_KEPT_S: Final = 60
"""How long `CDC` keeps messages, if it is made here: as long as the bridge would. At 60,000 a second an hour is a
disk's worth of them, and who was away for longer asks for a snapshot."""


def read(environ: Mapping[str, str], slot: str, publication: str, *, is_json: bool, is_zstd: bool) -> Settings:
    """Every fault of it in one ConfigError."""
    faults = Faults()
    given = {name: value for name, value in environ.items() if value != ""}
    port = given.get("PG_PORT", "5432")
    check_port("PG_PORT", port, faults)
    host, database = given.get("PG_HOST", "127.0.0.1"), given.get("PG_DB", "postgres")
    user = given.get("POSTGRES_BRIDGE_USER") or given.get("PG_USER", "postgres")
    password = given.get("POSTGRES_BRIDGE_PASSWORD") or given.get("PG_PASSWORD") or given.get("PGPASSWORD")
    values: dict[str, Any] = {
        "url": postgres_url(host, port, user, database),
        "password": Secret(password) if password else None,
        "slot": slot,
        "publication": publication,
        "tables": ("*.*",),
    }
    check_source(values, faults)
    name, secret = given.get("NATS_BRIDGE_USER"), given.get("NATS_BRIDGE_PASSWORD")
    if (name is None) != (secret is None):
        faults.add("NATS_BRIDGE_USER and NATS_BRIDGE_PASSWORD", "are of use only together")
    sink = {
        "type": "nats",
        "name": f"slot.{slot}" if slot.startswith("_") else slot,  # a sink's name begins otherwise
        "url": _server(given.get("NATS_HOST", "127.0.0.1")),
        "encoding": "json" if is_json else "msgpack",
        "zstd": is_zstd,
        "max_age_s": _KEPT_S,
        # Bridges on other slots publish into the same stream.
        "shared": True,
        **({"user": name, "password": secret} if name and secret else {}),
    }
    faults.raise_if_any("the environment")
    # One log for each slot: bridges side by side have the same environment.
    base = given.get("TAILRACE_STORE_URL") or Path(LOG).absolute().as_uri()
    return Settings(Source(**values), Store(url=f"{base.rstrip('/')}/{slot}"), sinks=(sink,))


def _server(host: str) -> str:
    return (
        host if "://" in host else f"nats://[{host}]" if host.count(":") > 1 and "[" not in host else f"nats://{host}"
    )
