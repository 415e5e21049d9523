"""The settings of a lake: where it lies, which catalog knows its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError
from tailrace.settings import Secret


@dataclass(frozen=True)
class IcebergOptions:
    warehouse: str = ""
    """`file://` or `s3://`: where the tables lie."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Handed to the object store as those of `[store.options]` are: endpoint, region, credentials."""
    catalog: str = ""
    """`sqlite:///path`, `postgresql://…`, or the URL of a REST catalog. Unset: SQLite beside a local warehouse."""
    catalog_password: Secret | None = None
    catalog_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the Iceberg catalog, such as `token` or `scope` of a REST catalog."""
    mode: str = field(default="mirror", metadata={"choices": ("mirror", "changelog", "both")})
    """`mirror`: the tables as they are. `changelog`: every change, appended to `<table>__changelog`. Or both."""

    history_minutes: int = field(default=60, metadata={"at_least": 0})
    """How far back a query can go. Each step adds a snapshot to a table's metadata, and each commit writes them all."""
    compact_bytes: int = field(default=256 * 1024 * 1024, metadata={"at_least": 0})
    """How much is rewritten at once, between two steps, which wait for it: some seconds' work. 0: nothing is."""

    def check(self) -> None:
        if not self.warehouse:
            raise ConfigError("warehouse is missing: where should the tables lie?", "such as file:///data/lake")
        scheme = urlsplit(self.warehouse).scheme
        if scheme not in ("", "file", "s3"):
            raise ConfigError(f"warehouse {self.warehouse}: not a place for a lake", "use file:// or s3://")
        if not self.catalog and scheme == "s3":
            raise ConfigError(
                "catalog is missing: a warehouse on S3 has no place for SQLite",
                "name a PostgreSQL database (postgresql://…) or a REST catalog (https://…)",
            )

    def carried(self) -> IcebergOptions:
        """For executors, which write data files: without what only the catalog needs."""
        return replace(self, catalog_password=None, catalog_options={})

    @property
    def root(self) -> str:
        """The warehouse as Iceberg's locations begin: a plain path, or an S3 URL, without a slash at the end."""
        parts = urlsplit(self.warehouse)
        if parts.scheme in ("", "file"):
            return str(Path(unquote(parts.path)).expanduser().absolute())
        return self.warehouse.rstrip("/")
