"""The settings of a lake: its warehouse, its catalog, its maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError
from tailrace.settings import Secret
from tailrace.settings.secret import split_password

CatalogKind = Literal["sqlite", "postgresql", "rest"]

_KINDS: Final[Mapping[str, CatalogKind]] = {
    "": "sqlite",
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "http": "rest",
    "https": "rest",
}


@dataclass(frozen=True)
class IcebergOptions:
    warehouse: str = ""
    """The tables' location: `file://` or `s3://`."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the object store, as in `[store.options]`: endpoint, region, credentials."""
    catalog: str = ""
    """`sqlite:///path` (or `sqlite:path`, relative to the working directory), `postgresql://…`, or the URL of a REST
    catalog. Default: SQLite in a local warehouse. A password in the URL is moved to `catalog_password`."""
    catalog_password: Secret | None = None
    catalog_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the Iceberg catalog, such as `token` or `scope` of a REST catalog."""
    mode: str = field(default="mirror", metadata={"choices": ("mirror", "changelog", "both")})
    """`mirror`: the current rows. `changelog`: every change, appended to `<table>__changelog`. `both`: both."""

    history_minutes: int = field(default=60, metadata={"at_least": 0})
    """How far back a query can go. Each step adds a snapshot to a table's metadata, and each commit writes all of
    them."""
    compact_bytes: int = field(default=256 * 1024 * 1024, metadata={"at_least": 0})
    """How much one compaction rewrites. The next step waits for it: a few seconds. 0 disables compaction."""

    def __post_init__(self) -> None:
        for name in ("warehouse", "catalog"):
            try:
                urlsplit(getattr(self, name))
            except ValueError:
                raise ConfigError(f"{name} is not a URL") from None
        if _KINDS.get(urlsplit(self.catalog).scheme) != "postgresql":
            return
        try:
            url, password = split_password(self.catalog)
        except ConfigError as error:
            raise ConfigError(f"catalog {error}") from None
        object.__setattr__(self, "catalog", url)
        if self.catalog_password is None:
            object.__setattr__(self, "catalog_password", password)

    def check(self) -> None:
        self._check_warehouse()
        # Messages do not repeat what cannot be parsed: it may contain a password.
        parts = urlsplit(self.catalog)
        if parts.scheme not in _KINDS:
            raise ConfigError(
                f"catalog: unknown scheme {parts.scheme!r}: sqlite, postgresql or https", "or omit it to use SQLite"
            )
        if not self.catalog and self.is_remote:
            raise ConfigError(
                "catalog is missing: a warehouse on S3 cannot hold a SQLite catalog; "
                "use a PostgreSQL database (postgresql://…) or a REST catalog (https://…)",
            )
        if self.catalog and self.catalog_kind == "sqlite" and (parts.netloc or parts.query or not parts.path):
            raise ConfigError("catalog: use sqlite:///absolute/path, or sqlite:path relative to the working directory")
        if self.catalog_kind == "sqlite" and "?" in str(self.sqlite):
            raise ConfigError(f"catalog: SQLite would read what follows the ? in {self.sqlite} as parameters")
        if self.catalog_kind == "rest" and "@" in parts.netloc:
            raise ConfigError("catalog: put credentials into catalog_options, as `token` or `credential`")

    def _check_warehouse(self) -> None:
        if not self.warehouse:
            raise ConfigError("warehouse is missing: set the location of the tables", "for example file:///data/lake")
        parts = urlsplit(self.warehouse)
        if parts.scheme not in ("", "file", "s3"):
            raise ConfigError(f"warehouse: scheme {parts.scheme!r} is not supported: use file:// or s3://")
        if self.is_remote and (not parts.netloc or "@" in parts.netloc):
            raise ConfigError("warehouse: use s3://bucket/path, and put endpoint and credentials into `options`")
        if not self.is_remote and parts.netloc not in ("", "localhost"):
            raise ConfigError(f"warehouse {self.warehouse}: a file URL has no host: use file:///absolute/path")

    def without_catalog(self) -> IcebergOptions:
        """A copy for executors, which write data files and need no access to the catalog."""
        return replace(self, catalog="", catalog_password=None, catalog_options={})

    @property
    def is_remote(self) -> bool:
        """Whether the warehouse is on S3."""
        return urlsplit(self.warehouse).scheme == "s3"

    @property
    def root(self) -> str:
        """The prefix of Iceberg's locations: a plain path or an S3 URL, without a trailing slash."""
        if self.is_remote:
            return self.warehouse.rstrip("/")
        return str(_path(self.warehouse))

    @property
    def catalog_kind(self) -> CatalogKind:
        return _KINDS[urlsplit(self.catalog).scheme]

    @property
    def sqlite(self) -> Path:
        """The file of a SQLite catalog."""
        return _path(self.catalog) if self.catalog else Path(self.root) / "catalog.db"


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path)).expanduser().absolute()
