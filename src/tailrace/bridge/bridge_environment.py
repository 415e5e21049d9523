"""Settings from the bridge's own environment variables and flags, with the same names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tailrace.settings import Secret, Settings, SourceSettings, StoreSettings, check_source
from tailrace.settings.environment import LOG, check_port, postgres_url
from tailrace.settings.parser import Faults

STREAMS: Final = ("CDC", "INIT", "KV_schemas")
_RETENTION_S: Final = 60
"""How long the stream `CDC` retains messages if it is created here; the bridge's own default. At 60,000 messages a
second, an hour of them would fill a disk. A consumer that was disconnected for longer requests a snapshot."""


def read(environ: Mapping[str, str], slot: str, publication: str, *, is_json: bool, is_zstd: bool) -> Settings:
    """Return the settings. All faults are reported in one ConfigError."""
    faults = Faults()
    variables = {name: value for name, value in environ.items() if value != ""}
    port = variables.get("PG_PORT", "5432")
    check_port("PG_PORT", port, faults)
    host, database = variables.get("PG_HOST", "127.0.0.1"), variables.get("PG_DB", "postgres")
    user = variables.get("POSTGRES_BRIDGE_USER") or variables.get("PG_USER", "postgres")
    password = variables.get("POSTGRES_BRIDGE_PASSWORD") or variables.get("PG_PASSWORD") or variables.get("PGPASSWORD")
    values: dict[str, Any] = {
        "url": postgres_url(host, port, user, database),
        "password": Secret(password) if password else None,
        "slot": slot,
        "publication": publication,
        "tables": ("*.*",),
    }
    check_source(values, faults)
    name, secret = variables.get("NATS_BRIDGE_USER"), variables.get("NATS_BRIDGE_PASSWORD")
    if (name is None) != (secret is None):
        faults.add("NATS_BRIDGE_USER and NATS_BRIDGE_PASSWORD", "must be set together")
    sink = {
        "type": "nats",
        "name": f"slot.{slot}" if slot.startswith("_") else slot,  # a sink's name cannot begin with _
        "url": _server(variables.get("NATS_HOST", "127.0.0.1")),
        "encoding": "json" if is_json else "msgpack",
        "zstd": is_zstd,
        "max_age_s": _RETENTION_S,
        # Bridges on other slots publish to the same stream.
        "shared": True,
        **({"user": name, "password": secret} if name and secret else {}),
    }
    faults.raise_if_any("the environment")
    # One log per slot, because bridges that run side by side share their environment.
    base = variables.get("TAILRACE_STORE_URL") or Path(LOG).absolute().as_uri()
    return Settings(SourceSettings(**values), StoreSettings(url=f"{base.rstrip('/')}/{slot}"), sinks=(sink,))


def _server(host: str) -> str:
    return (
        host if "://" in host else f"nats://[{host}]" if host.count(":") > 1 and "[" not in host else f"nats://{host}"
    )
