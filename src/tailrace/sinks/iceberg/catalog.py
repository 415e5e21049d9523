"""Iceberg's own library, in the Java process of the Spark session: the catalog, and what it takes to commit to a table.

Spark's SQL is not used to write: a commit made here takes a tenth of a second, a MERGE some (docs/decisions.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from tailrace.errors import ConfigError, SinkError
from tailrace.sinks.iceberg.failure import classified
from tailrace.sinks.iceberg.options import IcebergOptions
from tailrace.sinks.iceberg.vector import Blob

ICEBERG: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_SQLITE: Final = "org.xerial:sqlite-jdbc:3.50.3.0"
_POSTGRES: Final = "org.postgresql:postgresql:42.7.8"
_AWS: Final = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"

_S3: Final[Mapping[str, str]] = {
    "endpoint": "s3.endpoint",
    "region": "client.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}
"""What the object store calls it → what Iceberg does."""


def packages(options: IcebergOptions) -> tuple[str, ...]:
    """The Java libraries that a session needs for this lake."""
    scheme = urlsplit(options.catalog).scheme
    found = [ICEBERG]
    if scheme in ("", "sqlite"):
        found.append(_SQLITE)
    if scheme in ("postgresql", "postgres"):
        found.append(_POSTGRES)
    if urlsplit(options.warehouse).scheme == "s3":
        found.append(_AWS)
    return tuple(found)


def properties(options: IcebergOptions) -> dict[str, str]:
    """Of the catalog, as Iceberg names them. They hold secrets: never a part of Spark's configuration."""
    found = {"warehouse": options.root} | _catalog(options)
    if urlsplit(options.warehouse).scheme == "s3":
        given = {key.removeprefix("aws_"): value for key, value in options.options.items()}
        found["io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
        found |= {_S3[key]: value for key, value in given.items() if key in _S3}
        if given.get("virtual_hosted_style_request", "false") != "true":
            found["s3.path-style-access"] = "true"
    return found | dict(options.catalog_options)


def _catalog(options: IcebergOptions) -> dict[str, str]:
    parts = urlsplit(options.catalog)
    match parts.scheme:
        case "" | "sqlite":
            path = unquote(parts.path) if options.catalog else f"{options.root}/catalog.db"
            # Readers may look while we write; neither needs to fail for that.
            uri = f"jdbc:sqlite:{path}?busy_timeout=30000&journal_mode=WAL"
            return {"type": "jdbc", "uri": uri, "jdbc.schema-version": "V1"}
        case "postgresql" | "postgres":
            uri = f"jdbc:postgresql://{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
            found = {"type": "jdbc", "uri": uri, "jdbc.schema-version": "V1"}
            if parts.username:
                found["jdbc.user"] = unquote(parts.username)
            password = options.catalog_password.reveal() if options.catalog_password else unquote(parts.password or "")
            return found | ({"jdbc.password": password} if password else {})
        case "http" | "https":
            return {"type": "rest", "uri": options.catalog}
    raise ConfigError(f"catalog {options.catalog}: unknown scheme {parts.scheme!r}", "sqlite, postgresql or https")


_CLASSES: Final = (
    *("CatalogUtil", "ContentFileParser", "DataFiles", "MetricsConfig", "SchemaParser"),
    *("catalog.Namespace", "catalog.TableIdentifier"),
    *("expressions.Expressions", "expressions.Literal", "parquet.ParquetUtil", "spark.actions.SparkActions"),
    "shaded.com.fasterxml.jackson.databind.ObjectMapper",
)


def _classes(jvm: Any) -> SimpleNamespace | None:
    """Iceberg's classes by their names, looked up once: each way to one is several calls to Java."""
    found = {}
    for path in _CLASSES:
        place = jvm.org.apache.iceberg
        for name in path.split("."):
            place = getattr(place, name)
        if not isinstance(place, JavaClass):
            return None
        found[path.rpartition(".")[2]] = place
    return SimpleNamespace(**found)


class Catalog:
    """Tables by namespace and name. Not for several threads at once."""

    def __init__(self, options: IcebergOptions) -> None:
        context = SparkContext._active_spark_context
        if context is None:
            raise SinkError("there is no Spark session", "start one with tailrace.spark.session")
        assert context._gateway is not None
        assert context._jvm is not None
        self._gateway = context._gateway
        self._jvm: Any = context._jvm
        self._identifiers: dict[tuple[str, str], Any] = {}
        if urlsplit(options.catalog).scheme in ("", "sqlite"):
            _directory(options)
        with classified("the catalog"):
            classes = _classes(self._jvm)
            if classes is None:
                raise ConfigError(
                    "the Spark session lacks Iceberg",
                    f"session(packages={packages(options)}), or let Tailrace start Spark",
                )
            self.java = classes
            self._json = classes.ObjectMapper()
            build = self.java.CatalogUtil.buildIcebergCatalog
            self._catalog = build("lake", self.map(properties(options)), context._jsc.hadoopConfiguration())

    def close(self) -> None:
        with classified("the catalog"):
            if hasattr(self._catalog, "close"):
                self._catalog.close()

    def actions(self) -> Any:
        """What Iceberg has for Spark to do."""
        return self.java.SparkActions.get()

    def map(self, entries: Mapping[str, str]) -> Any:
        found = self._jvm.java.util.HashMap()
        for key, value in entries.items():
            found.put(key, value)
        return found

    def list(self, values: Sequence[str]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for value in values:
            found.add(value)
        return found

    def strings(self, values: Sequence[str]) -> Any:
        found = self._gateway.new_array(self._jvm.java.lang.String, len(values))
        for index, value in enumerate(values):
            found[index] = value
        return found

    def load(self, target: tuple[str, str]) -> Any | None:
        """Iceberg's table, or None."""
        try:
            return self._catalog.loadTable(self._identifier(target))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() in ("NoSuchTableException", "NoSuchNamespaceException"):
                return None
            raise

    def create(self, target: tuple[str, str], schema: str, location: str, properties_: Mapping[str, str]) -> Any:
        """The table, not seen by anybody before its transaction is committed."""
        namespace = self._namespace(target[0])
        if not self._catalog.namespaceExists(namespace):
            self._catalog.createNamespace(namespace)
        builder = self._catalog.buildTable(self._identifier(target), self.java.SchemaParser.fromJson(schema))
        builder = builder.withLocation(location).withProperties(self.map(properties_))
        return builder.createTransaction()

    def delete_file(self, blob: Blob, location: str, size: int, spec: Any) -> Any:
        """Iceberg's object of a deletion vector. By way of JSON: a call for each of its fields would take longer than
        all the rest of a commit."""
        raw = {
            "spec-id": 0,
            "content": "POSITION_DELETES",
            "file-path": location,
            "file-format": "PUFFIN",
            "partition": {},
            "file-size-in-bytes": size,
            "record-count": blob.cardinality,
            "referenced-data-file": blob.data_file,
            "content-offset": blob.offset,
            "content-size-in-bytes": blob.length,
        }
        return self.java.ContentFileParser.fromJson(self._json.readTree(json.dumps(raw)), spec)

    def tables(self) -> Iterator[tuple[str, str]]:
        for namespace in self._catalog.listNamespaces():
            for identifier in self._catalog.listTables(namespace):
                yield str(identifier.namespace().toString()), str(identifier.name())

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        namespace = self._namespace(new[0])
        if not self._catalog.namespaceExists(namespace):
            self._catalog.createNamespace(namespace)
        self._catalog.renameTable(self._identifier(old), self._identifier(new))

    def _namespace(self, schema: str) -> Any:
        return self.java.Namespace.of(self.strings([schema]))

    def _identifier(self, target: tuple[str, str]) -> Any:
        if target not in self._identifiers:
            self._identifiers[target] = self.java.TableIdentifier.of(self._namespace(target[0]), target[1])
        return self._identifiers[target]


def _directory(options: IcebergOptions) -> None:
    path = unquote(urlsplit(options.catalog).path) if options.catalog else f"{options.root}/catalog.db"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
