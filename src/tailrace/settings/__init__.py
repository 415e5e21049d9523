"""All settings, each with its default and the reason for it, loaded from TOML and the environment.

`TAILRACE_<SECTION>_<KEY>` overrides the file: `TAILRACE_SOURCE_URL`, `TAILRACE_STORE_OPTIONS_ENDPOINT`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from tailrace.errors import ConfigError
from tailrace.settings.duration import parse_duration
from tailrace.settings.parser import Faults, read_section, read_toml
from tailrace.settings.pattern import TablePattern
from tailrace.settings.secret import Secret, split_password
from tailrace.settings.slatedb import SlateDbSettings, read_slatedb
from tailrace.settings.slot_name import database_of, default_slot

__all__ = [
    "ArchiveSettings",
    "CaptureSettings",
    "HttpSettings",
    "QuerySettings",
    "RetentionSettings",
    "Secret",
    "Settings",
    "SinkTable",
    "SlateDbSettings",
    "SnapshotSettings",
    "SourceSettings",
    "SparkSettings",
    "StoreSettings",
    "load",
]

MIB = 1024 * 1024

SinkTable = Mapping[str, Any]
"""One `[[sink]]` table as written in the file. The sink defines the meaning of its keys."""


@dataclass(frozen=True)
class SourceSettings:
    """A PostgreSQL database as the source."""

    type: str = field(default="postgresql", metadata={"choices": ("postgresql", "slatedb")})
    """With `slatedb`, the section has the settings of `SlateDbSettings`."""
    url: str = ""
    """A libpq URL. A password in it is moved to `password`."""
    password: Secret | None = None
    """Better set by `password_file` or PGPASSWORD than in a file that gets copied around."""
    password_file: Path | None = None
    slot: str = "tailrace"
    """`load` replaces this default by the slot that the log names, or by one that contains the database's name."""
    publication: str = "tailrace"
    tables: tuple[str, ...] = ("public.*",)
    """The tables to capture: those of a publication that capture creates, and new ones that it adds."""
    sslmode: str | None = field(
        default=None, metadata={"choices": ("disable", "prefer", "require", "verify-ca", "verify-full")}
    )
    """Unset: the URL's, else libpq's default, which encrypts if possible and verifies nothing."""
    sslrootcert: Path | None = None

    def __post_init__(self) -> None:
        url, password = split_password(self.url)
        object.__setattr__(self, "url", url)
        if self.password is None:
            object.__setattr__(self, "password", password)

    @cached_property
    def patterns(self) -> tuple[TablePattern, ...]:
        return tuple(TablePattern.parse(text) for text in self.tables)

    def covers(self, schema: str, table: str) -> bool:
        """Whether `tables` matches the table."""
        return any(pattern.matches(schema, table) for pattern in self.patterns)


@dataclass(frozen=True)
class StoreSettings:
    url: str = ""
    """`file://`, `s3://`, `gs://` or `az://`."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passed to obstore unchanged: endpoint, region, and credentials that the environment does not provide."""


@dataclass(frozen=True)
class CaptureSettings:
    seal_after_ms: int = field(default=50, metadata={"at_least": 1})
    """About a reader's polling interval, so that sealing never dominates latency; at most 20 PUTs per second."""
    segment_bytes: int = field(default=16 * MIB, metadata={"at_least": 64 * 1024})
    """Large enough to make a PUT's fixed cost negligible, small enough for an executor to read a segment whole."""
    status_interval_s: float = field(default=10.0, metadata={"at_least": 0.1})
    """A sixth of the server's default wal_sender_timeout of 60 s."""


@dataclass(frozen=True)
class SnapshotSettings:
    on_start: bool = True
    """A table cannot be rebuilt from a log that lacks the rows from before its start."""
    workers: int = field(default=2, metadata={"at_least": 1})
    """Two copying backends leave a small source usable. Raise it if the source has cores to spare."""
    chunk_rows: int = field(default=1_000_000, metadata={"at_least": 1})
    """A chunk ends at this many rows or at `chunk_bytes`, whichever comes first. This limit is for narrow tables."""
    chunk_bytes: int = field(default=64 * MIB, metadata={"at_least": 64 * 1024})
    """Counted in text as COPY sends it. Each worker holds one chunk, so memory use is this times `workers`."""


@dataclass(frozen=True)
class RetentionSettings:
    max_age_hours: float | None = field(default=None, metadata={"at_least": 0})
    """Unset retains everything, because only the operator knows what the history is worth."""
    max_bytes: int | None = field(default=None, metadata={"at_least": 0})


@dataclass(frozen=True)
class HttpSettings:
    host: str = "127.0.0.1"
    """By default only this machine can connect. Any host other than loopback requires a token."""
    port: int | None = field(default=None, metadata={"at_least": 0, "at_most": 65535})
    """Unset: `run` listens on 9464, the usual port of metrics exporters; `capture` and `deliver` do not listen, because
    several of them may share a machine. 0: no command listens."""
    token: Secret | None = None
    """Clients that send it may read rows, pause, resume, replay and shut down. Unset: all clients on this machine
    may."""
    explorer: bool = True
    """Whether clients may read rows of the log: an operator looks for them when something is wrong. Turn it off where
    operators must not see data."""


@dataclass(frozen=True)
class QuerySettings:
    host: str = "127.0.0.1"
    """Any host other than loopback requires users and TLS."""
    port: int = field(default=5439, metadata={"at_least": 0, "at_most": 65535})
    """Close to PostgreSQL's port without clashing with it. 0: any free port."""
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name → password, or better a SCRAM verifier as in `pg_authid`. Empty: all clients on this machine may connect."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    """Unset: the key is in the certificate's file."""
    max_connections: int = field(default=64, metadata={"at_least": 1})
    """Enough for the pools of a few BI tools. An idle connection costs only a thread."""
    memory_bytes: int | None = field(default=None, metadata={"at_least": 64 * MIB})
    """For all queries together. Unset: half of the machine's memory, as Spark or PostgreSQL may run beside it."""
    threads: int | None = field(default=None, metadata={"at_least": 1})
    """Unset: one per processor."""
    temp_directory: Path | None = None
    """Where sorts and joins spill that do not fit into memory. Unset: the system's directory for temporary files."""
    temp_bytes: int = field(default=10 * 1024 * MIB, metadata={"at_least": 0})
    """Large enough for a join of a hundred million rows, small enough that one query does not fill the disk."""
    statement_timeout_s: float = field(default=300.0, metadata={"at_least": 0.1})
    """By then a dashboard has given up. A session may set a shorter timeout, not a longer one."""


@dataclass(frozen=True)
class ArchiveSettings:
    enabled: bool = False
    """Whether `run` archives the WAL too. Off by default: it doubles what is read from the source, and many managed
    services do not allow it."""
    slot: str = "tailrace_archive"
    """The physical slot, and the name under which the archive can be a synchronous standby."""
    synchronous: bool = False
    """Write WAL as soon as it arrives. Off by default: it costs a PUT for almost every commit."""
    part_after_s: float = field(default=10.0, metadata={"at_least": 0.1})
    """How old WAL may get before it is written although its segment is incomplete: what a lost server can cost.
    Ten seconds are at most six PUTs a minute."""
    keep: str | None = None
    """Such as `14d`: `backup expire` keeps what is needed to restore any moment of the last 14 days."""

    @property
    def keep_for(self) -> timedelta | None:
        return None if self.keep is None else parse_duration(self.keep)


@dataclass(frozen=True)
class VerifySettings:
    enabled: bool = False
    """Whether `run` verifies the sinks in the background. Off by default: it reads all rows of source and
    destinations."""
    interval_s: float = field(default=86_400.0, metadata={"at_least": 1})
    """How often each sink is verified. Once a day finds what somebody wrote to a replica, and costs little."""
    rows_per_second: float = field(default=50_000.0, metadata={"at_least": 1})
    """After each table, verification rests until its average is not above this: a fraction of what a server reads."""


@dataclass(frozen=True)
class SparkSettings:
    ui: bool = False
    """Serve Spark's own pages about batches, jobs and tasks. Off by default: they take a port and memory."""


@dataclass(frozen=True)
class Settings:
    source: SourceSettings = field(default_factory=SourceSettings)
    """Without a URL if the source is a SlateDB database."""
    store: StoreSettings = field(default_factory=StoreSettings)
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    query: QuerySettings = field(default_factory=QuerySettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    sinks: tuple[SinkTable, ...] = field(default=(), repr=False)
    slatedb: SlateDbSettings | None = None
    """The source, if its type is `slatedb`."""

    @property
    def has_source(self) -> bool:
        return bool(self.source.url) or self.slatedb is not None


def load(
    path: Path | None,
    environ: Mapping[str, str],
    requires: Collection[str] = ("source", "store"),
    find_slot: Callable[[StoreSettings], str | None] = lambda _: None,
) -> Settings:
    """Load settings, and report all faults in one ConfigError.

    `path` is the TOML file; None loads from the environment alone. `environ` overrides the file. `requires` names the
    sections whose `url` the caller needs. `find_slot` returns the slot that the log in a store was captured from, if
    there is a log: it is used if the settings name no slot.
    """
    raw = read_toml(path) if path else {}
    faults = Faults()
    sections = {
        "source": SourceSettings,
        "store": StoreSettings,
        "capture": CaptureSettings,
        "snapshot": SnapshotSettings,
        "retention": RetentionSettings,
        "http": HttpSettings,
        "query": QuerySettings,
        "archive": ArchiveSettings,
        "verify": VerifySettings,
        "spark": SparkSettings,
    }
    faults.add_unknown(raw, [*sections, "sink"], "")
    slatedb = None
    if _source_type(raw, environ) == "slatedb":
        slatedb = read_slatedb(raw.pop("source", {}), path, environ, requires, faults)
        environ = {name: value for name, value in environ.items() if not name.startswith("TAILRACE_SOURCE_")}
        requires = [name for name in requires if name != "source"]
    values = {name: read_section(name, kind, raw.get(name, {}), environ, faults) for name, kind in sections.items()}
    sinks = _sinks(raw.get("sink", []), faults)
    for name in requires:
        if not values[name].get("url") and f"{name}.url" not in faults:
            faults.add(f"{name}.url", f"is missing: set it, or TAILRACE_{name.upper()}_URL")
    is_slot_given = "slot" in values["source"]
    source = _source(values.pop("source"), path, environ, faults)
    _check_archive(values["archive"], faults)
    faults.raise_if_any(path)
    if not is_slot_given:
        found = find_slot(StoreSettings(**values["store"])) if values["store"].get("url") else None
        database = database_of(source.url, environ)
        source = replace(source, slot=found or (source.slot if database is None else default_slot(database)))
    others = {name: sections[name](**v) for name, v in values.items()}
    return Settings(source=source, slatedb=slatedb, sinks=sinks, **others)


def _source_type(raw: Mapping[str, Any], environ: Mapping[str, str]) -> object:
    table = raw.get("source", {})
    given = table.get("type") if isinstance(table, dict) else None
    return environ.get("TAILRACE_SOURCE_TYPE", given)


def check_source(values: Mapping[str, Any], faults: Faults) -> None:
    _check_slot("source.slot", values.get("slot", "tailrace"), faults)
    if not 1 <= len(values.get("publication", "tailrace").encode()) <= 63:
        faults.add("source.publication", "is not a valid name: PostgreSQL allows 1 to 63 bytes")
    for text in values.get("tables", ()):
        try:
            TablePattern.parse(text)
        except ConfigError as error:
            faults.add("source.tables", f"{error}: {error.hint}")
    if not values.get("tables", True):
        faults.add("source.tables", "is empty: name at least one pattern, such as public.*")


def _check_archive(values: Mapping[str, Any], faults: Faults) -> None:
    _check_slot("archive.slot", values.get("slot", "tailrace_archive"), faults)
    if "keep" in values:
        try:
            parse_duration(values["keep"])
        except ConfigError as error:
            faults.add("archive.keep", f"{error}: {error.hint}")


def _check_slot(where: str, name: str, faults: Faults) -> None:
    if not re.fullmatch(r"[a-z0-9_]{1,63}", name):
        faults.add(where, f"{name!r} is not a slot name: use up to 63 lower-case letters, digits and _")


def _source(values: dict[str, Any], path: Path | None, environ: Mapping[str, str], faults: Faults) -> SourceSettings:
    check_source(values, faults)
    try:
        source = SourceSettings(**values)
    except ConfigError as error:
        faults.add("source.url", str(error))
        return SourceSettings()
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


def _sinks(raw: object, faults: Faults) -> tuple[SinkTable, ...]:
    if not isinstance(raw, list) or not all(isinstance(sink, dict) for sink in raw):
        faults.add("sink", "must be a list of tables: write [[sink]]")
        return ()
    seen: set[str] = set()
    for number, sink in enumerate(raw, 1):
        for key in ("type", "name"):
            if not isinstance(sink.get(key), str) or not sink[key]:
                faults.add(f"sink {number}", f"has no {key}")
        name = str(sink.get("name", ""))
        if name and name in seen:
            faults.add(f"sink {number}", f"has the name {name!r} of another sink")
        seen.add(name)
    return tuple(raw)
