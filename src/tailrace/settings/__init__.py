"""Every setting with its default and the reason for it; reading them from TOML and the environment.

`TAILRACE_<SECTION>_<KEY>` overrides the file: `TAILRACE_SOURCE_URL`, `TAILRACE_STORE_OPTIONS_ENDPOINT`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tailrace.errors import ConfigError
from tailrace.settings.pattern import TablePattern
from tailrace.settings.reading import Faults, read_section, read_toml
from tailrace.settings.secret import Secret, without_password

__all__ = ["Capture", "Http", "Query", "Retention", "Secret", "Settings", "Sink", "Snapshot", "Source", "Store", "load"]

MIB = 1024 * 1024

Sink = Mapping[str, Any]
"""One `[[sink]]` table as written: what its keys mean is the sink's own affair."""


@dataclass(frozen=True)
class Source:
    url: str = ""
    """A libpq URL. A password inside it is moved into `password`."""
    password: Secret | None = None
    """Better from `password_file` or PGPASSWORD than from the file that everybody copies."""
    password_file: Path | None = None
    slot: str = "tailrace"
    publication: str = "tailrace"
    tables: tuple[str, ...] = ("public.*",)
    """What a publication made by capture covers, and what `check` looks at."""
    sslmode: str | None = field(
        default=None, metadata={"choices": ("disable", "prefer", "require", "verify-ca", "verify-full")}
    )
    """Unset: what the URL says, else libpq's default, which encrypts when it can and verifies nothing."""
    sslrootcert: Path | None = None

    def __post_init__(self) -> None:
        url, password = without_password(self.url)
        object.__setattr__(self, "url", url)
        if self.password is None:
            object.__setattr__(self, "password", password)

    @cached_property
    def patterns(self) -> tuple[TablePattern, ...]:
        return tuple(TablePattern.parse(text) for text in self.tables)

    def covers(self, schema: str, table: str) -> bool:
        return any(pattern.matches(schema, table) for pattern in self.patterns)


@dataclass(frozen=True)
class Store:
    url: str = ""
    """`file://`, `s3://`, `gs://` or `az://`."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Handed to obstore as they are: endpoint, region, credentials where the environment has none."""


@dataclass(frozen=True)
class Capture:
    seal_after_ms: int = field(default=50, metadata={"at_least": 1})
    """About what a reader's tick takes, so that sealing never dominates latency; 20 PUTs a second at most."""
    segment_bytes: int = field(default=16 * MIB, metadata={"at_least": 64 * 1024})
    """Large enough that a PUT's fixed cost vanishes, small enough for an executor to read one whole."""
    status_interval_s: float = field(default=10.0, metadata={"at_least": 0.1})
    """A sixth of the server's default wal_sender_timeout of 60 s."""


@dataclass(frozen=True)
class Snapshot:
    on_start: bool = True
    """A log without the rows that were there before it cannot be turned into a table."""
    workers: int = field(default=2, metadata={"at_least": 1})
    """Two backends copying leave a small source usable; raise it where the source has cores to spare."""
    chunk_rows: int = field(default=1_000_000, metadata={"at_least": 1})
    """A chunk ends at this many rows or at `chunk_bytes`, whichever comes first: bounds narrow tables."""
    chunk_bytes: int = field(default=64 * MIB, metadata={"at_least": 64 * 1024})
    """Text as COPY sends it; a worker holds one chunk in memory, so this times `workers` is what it costs."""


@dataclass(frozen=True)
class Retention:
    max_age_hours: float | None = field(default=None, metadata={"at_least": 0})
    """Unset keeps everything: only the operator can say what history is worth."""
    max_bytes: int | None = field(default=None, metadata={"at_least": 0})


@dataclass(frozen=True)
class Http:
    host: str = "127.0.0.1"
    """Nobody else's machine may ask, unless somebody says so; elsewhere than on loopback a token is needed."""
    port: int | None = field(default=None, metadata={"at_least": 0, "at_most": 65535})
    """Unset: `run` listens on 9464, the port that exporters of metrics are looked for on; `capture` and `deliver`, of
    which several may share a machine, do not. 0: nobody does."""
    token: Secret | None = None
    """Whoever shows it may pause, resume and shut down. Unset: whoever is on this machine may."""


@dataclass(frozen=True)
class Query:
    host: str = "127.0.0.1"
    """Elsewhere than on loopback, users and TLS are needed."""
    port: int = field(default=5439, metadata={"at_least": 0, "at_most": 65535})
    """Near PostgreSQL's own, and not it. 0: any that is free."""
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name → password, or better a SCRAM verifier as `pg_authid` keeps it. None: whoever is on this machine may."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    """Unset: the certificate's file holds it too."""
    max_connections: int = field(default=64, metadata={"at_least": 1})
    """The pools of a few BI tools. One that waits for its client costs a thread and no more."""
    memory_bytes: int | None = field(default=None, metadata={"at_least": 64 * MIB})
    """Of all queries together. Unset: half of the machine's, as Spark or PostgreSQL may run beside it."""
    threads: int | None = field(default=None, metadata={"at_least": 1})
    """Unset: as many as there are processors."""
    temp_directory: Path | None = None
    """Where sorts and joins go that do not fit into memory. Unset: where the system keeps temporary files."""
    temp_bytes: int = field(default=10 * 1024 * MIB, metadata={"at_least": 0})
    """Large enough for a join of a hundred million rows, small enough that one query does not fill the disk."""
    statement_timeout_s: float = field(default=300.0, metadata={"at_least": 0.1})
    """A dashboard has long given up. A session may set less, not more."""


@dataclass(frozen=True)
class Settings:
    source: Source = field(default_factory=Source)
    store: Store = field(default_factory=Store)
    capture: Capture = field(default_factory=Capture)
    snapshot: Snapshot = field(default_factory=Snapshot)
    retention: Retention = field(default_factory=Retention)
    http: Http = field(default_factory=Http)
    query: Query = field(default_factory=Query)
    sinks: tuple[Sink, ...] = field(default=(), repr=False)


def load(path: Path | None, environ: Mapping[str, str], requires: Collection[str] = ("source", "store")) -> Settings:
    """Settings from the file (None: from the environment alone), with every fault in one ConfigError.

    `requires` names the sections whose `url` the caller cannot do without.
    """
    raw = read_toml(path) if path else {}
    faults = Faults()
    sections = {
        "source": Source,
        "store": Store,
        "capture": Capture,
        "snapshot": Snapshot,
        "retention": Retention,
        "http": Http,
        "query": Query,
    }
    faults.unknown(raw, [*sections, "sink"], "")
    values = {name: read_section(name, kind, raw.get(name, {}), environ, faults) for name, kind in sections.items()}
    sinks = _sinks(raw.get("sink", []), faults)
    for name in requires:
        if not values[name].get("url") and f"{name}.url" not in faults:
            faults.add(f"{name}.url", f"is missing: set it, or TAILRACE_{name.upper()}_URL")
    source = _source(values.pop("source"), path, environ, faults)
    faults.raise_if_any(path)
    return Settings(source=source, sinks=sinks, **{name: sections[name](**v) for name, v in values.items()})


def check_source(values: Mapping[str, Any], faults: Faults) -> None:
    slot = values.get("slot", "tailrace")
    if not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        faults.add("source.slot", f"{slot!r} is no slot name: up to 63 lower-case letters, digits and _")
    if not 1 <= len(values.get("publication", "tailrace").encode()) <= 63:
        faults.add("source.publication", "is no name: PostgreSQL allows 1 to 63 bytes")
    for text in values.get("tables", ()):
        try:
            TablePattern.parse(text)
        except ConfigError as error:
            faults.add("source.tables", f"{error}: {error.hint}")
    if not values.get("tables", True):
        faults.add("source.tables", "is empty: name at least one pattern, such as public.*")


def _source(values: dict[str, Any], path: Path | None, environ: Mapping[str, str], faults: Faults) -> Source:
    check_source(values, faults)
    try:
        source = Source(**values)
    except ConfigError as error:
        faults.add("source.url", str(error))
        return Source()
    if source.password_file and "password" not in values:
        file = source.password_file if path is None else path.parent / source.password_file
        try:
            source = replace(source, password=Secret(file.read_text().rstrip("\r\n")))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            faults.add("source.password_file", f"{file} cannot be read: {reason}")
    if source.password is None and "PGPASSWORD" in environ:
        source = replace(source, password=Secret(environ["PGPASSWORD"]))
    return source


def _sinks(raw: object, faults: Faults) -> tuple[Sink, ...]:
    if not isinstance(raw, list) or not all(isinstance(sink, dict) for sink in raw):
        faults.add("sink", "is a list of tables: write [[sink]]")
        return ()
    seen: set[str] = set()
    for number, sink in enumerate(raw, 1):
        for key in ("type", "name"):
            if not isinstance(sink.get(key), str) or not sink[key]:
                faults.add(f"sink {number}", f"has no {key}")
        name = str(sink.get("name", ""))
        if name and name in seen:
            faults.add(f"sink {number}", f"has the name {name!r}, which another sink has already")
        seen.add(name)
    return tuple(raw)
