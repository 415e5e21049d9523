"""The settings of a lake: where it lies, which catalog knows its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError
from tailrace.settings import Secret
from tailrace.settings.secret import without_password

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
    """`file://` or `s3://`: where the tables lie."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Handed to the object store as those of `[store.options]` are: endpoint, region, credentials."""
    catalog: str = ""
    """`sqlite:///path` (or `sqlite:path`, from the working directory), `postgresql://…`, or the URL of a REST catalog.
    Unset: SQLite beside a local warehouse. A password inside it is moved into `catalog_password`."""
    catalog_password: Secret | None = None
    catalog_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the Iceberg catalog, such as `token` or `scope` of a REST catalog."""
    mode: str = field(default="mirror", metadata={"choices": ("mirror", "changelog", "both")})
    """`mirror`: the tables as they are. `changelog`: every change, appended to `<table>__changelog`. Or both."""

    history_minutes: int = field(default=60, metadata={"at_least": 0})
    """How far back a query can go. Each step adds a snapshot to a table's metadata, and each commit writes them all."""
    compact_bytes: int = field(default=256 * 1024 * 1024, metadata={"at_least": 0})
    """How much is rewritten at once, between two steps, which wait for it: some seconds' work. 0: nothing is."""

    def __post_init__(self) -> None:
        for name in ("warehouse", "catalog"):
            try:
                urlsplit(getattr(self, name))
            except ValueError:
                raise ConfigError(f"{name} is not a URL") from None
        if _KINDS.get(urlsplit(self.catalog).scheme) != "postgresql":
            return
        try:
            url, password = without_password(self.catalog)
        except ConfigError as error:
            raise ConfigError(f"catalog {error}") from None
        object.__setattr__(self, "catalog", url)
        if self.catalog_password is None:
            object.__setattr__(self, "catalog_password", password)

    def check(self) -> None:
        self._check_warehouse()
        # What is not understood is not repeated: there may be a password in it.
        parts = urlsplit(self.catalog)
        if parts.scheme not in _KINDS:
            raise ConfigError(
                f"catalog: unknown scheme {parts.scheme!r}: sqlite, postgresql or https", "or leave it out: SQLite"
            )
        if not self.catalog and self.is_remote:
            raise ConfigError(
                "catalog is missing: a warehouse on S3 has no place for SQLite; "
                "name a PostgreSQL database (postgresql://…) or a REST catalog (https://…)",
            )
        if self.catalog and self.catalog_kind == "sqlite" and (parts.netloc or parts.query or not parts.path):
            raise ConfigError("catalog: write sqlite:///absolute/path, or sqlite:path from the working directory")
        if self.catalog_kind == "sqlite" and "?" in str(self.sqlite):
            raise ConfigError(f"catalog: SQLite takes what follows the ? in {self.sqlite} for parameters")
        if self.catalog_kind == "rest" and "@" in parts.netloc:
            raise ConfigError("catalog: credentials belong into catalog_options, as `token` or `credential`")

    def _check_warehouse(self) -> None:
        if not self.warehouse:
            raise ConfigError("warehouse is missing: where should the tables lie?", "such as file:///data/lake")
        parts = urlsplit(self.warehouse)
        if parts.scheme not in ("", "file", "s3"):
            raise ConfigError(f"warehouse: {parts.scheme!r} is no place for a lake: use file:// or s3://")
        if self.is_remote and (not parts.netloc or "@" in parts.netloc):
            raise ConfigError("warehouse: write s3://bucket/path, and what it takes to get there into `options`")
        if not self.is_remote and parts.netloc not in ("", "localhost"):
            raise ConfigError(f"warehouse {self.warehouse}: a file URL has no host: write file:///absolute/path")

    def carried(self) -> IcebergOptions:
        """For executors, which write data files: without what only the catalog needs."""
        return replace(self, catalog="", catalog_password=None, catalog_options={})

    @property
    def is_remote(self) -> bool:
        """The warehouse is on S3."""
        return urlsplit(self.warehouse).scheme == "s3"

    @property
    def root(self) -> str:
        """The warehouse as Iceberg's locations begin: a plain path, or an S3 URL, without a slash at the end."""
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
