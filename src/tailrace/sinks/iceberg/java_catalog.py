"""The Iceberg catalog, through Iceberg's Java library in the JVM of the Spark session.

Writes do not go through Spark SQL: a commit here takes a tenth of a second, a MERGE longer (docs/decisions.md).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tailrace.errors import ConfigError, SinkError, SinkRefused
from tailrace.lake.options import IcebergOptions
from tailrace.sinks.iceberg.deletion_vector import VectorBlob
from tailrace.sinks.iceberg.java_error import translate_java_errors
from tailrace.sinks.iceberg.properties import CATALOG, PROBE_CLASSES, catalog_properties, packages

_CLASSES: Final = (
    *("CatalogUtil", "ContentFileParser", "DataFiles", "MetricsConfig", "SchemaParser"),
    *("catalog.Namespace", "catalog.TableIdentifier"),
    *("expressions.Expressions", "expressions.Literal", "parquet.ParquetUtil", "spark.actions.SparkActions"),
    "shaded.com.fasterxml.jackson.databind.ObjectMapper",
)


class JavaCatalog:
    """Loads, creates and renames tables, which `(namespace, name)` identifies."""

    def __init__(self, options: IcebergOptions) -> None:
        context = SparkContext._active_spark_context
        if context is None:
            raise SinkError("no Spark session is running", "start one with tailrace.spark.session")
        assert context._gateway is not None
        assert context._jvm is not None
        self._gateway = context._gateway
        self._jvm: Any = context._jvm
        self._session: Any = SparkSession(context)._jsparkSession
        self._identifiers: dict[tuple[str, str], Any] = {}
        if options.catalog_kind == "sqlite":
            _make_directory(options)
        with translate_java_errors("the catalog"):
            self.java = self._classes(packages(options))
            self._check_names(options)
            self._json = self.java.ObjectMapper()
            with _without_py4j_log():
                java_properties = self.map(catalog_properties(options))
            hadoop = context._jsc.hadoopConfiguration()
            # Beside each local file Hadoop writes one with checksums, which nobody else reads: half of a lake's files.
            self._jvm.org.apache.hadoop.fs.FileSystem.getLocal(hadoop).setWriteChecksum(False)
            self._catalog = self.java.CatalogUtil.buildIcebergCatalog(CATALOG, java_properties, hadoop)

    def close(self) -> None:
        with translate_java_errors("the catalog"):
            self._catalog.close()

    def actions(self) -> Any:
        """Iceberg's Spark actions, such as compaction."""
        # The Java thread may remember a stopped session, and Iceberg's threads take the active session from it.
        session = self._jvm.org.apache.spark.sql.classic.SparkSession
        session.setActiveSession(self._session)
        return self.java.SparkActions.get(self._session)

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
        """Iceberg's table object; None if there is no such table."""
        try:
            return self._catalog.loadTable(self._identifier(target))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() in ("NoSuchTableException", "NoSuchNamespaceException"):
                return None
            raise

    def create(self, target: tuple[str, str], schema: str, location: str, properties_: Mapping[str, str]) -> Any:
        """A transaction that creates the table. The table is visible once it is committed."""
        namespace = self._namespace(target[0])
        if not self._catalog.namespaceExists(namespace):
            self._catalog.createNamespace(namespace)
        builder = self._catalog.buildTable(self._identifier(target), self.java.SchemaParser.fromJson(schema))
        builder = builder.withLocation(location).withProperties(self.map(properties_))
        return builder.createTransaction()

    def delete_file(self, blob: VectorBlob, location: str, size: int, spec: Any) -> Any:
        """Iceberg's object for a deletion vector. It is parsed from JSON: one Java call per field would take longer
        than the rest of the commit."""
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

    def _classes(self, needed: Sequence[str]) -> SimpleNamespace:
        """Iceberg's classes by simple name, looked up once: each lookup takes several calls to Java."""
        found = {path.rpartition(".")[2]: self._class(f"org.apache.iceberg.{path}") for path in _CLASSES}
        libraries = [
            package for package in needed if package in PROBE_CLASSES and self._class(PROBE_CLASSES[package]) is None
        ]
        if libraries or None in found.values():
            raise ConfigError(
                f"the Spark session lacks {', '.join(libraries) or 'Iceberg'}",
                f"start it with session(packages={list(needed)}), or let Tailrace start Spark",
            )
        return SimpleNamespace(**found)

    def _check_names(self, options: IcebergOptions) -> None:
        """Java encodes file names in the locale's encoding and cannot open others."""
        paths = [] if options.is_remote else [options.root]
        paths += [str(options.sqlite)] if options.catalog_kind == "sqlite" else []
        encoding = str(self._jvm.java.lang.System.getProperty("sun.jnu.encoding"))
        for path in paths:
            if not path.isascii() and encoding.upper() not in ("UTF-8", "UTF8"):
                raise ConfigError(
                    f"{path}: Java cannot encode this path in its locale ({encoding})", "set LC_ALL to C.UTF-8"
                )

    def _class(self, path: str) -> JavaClass | None:
        found = self._jvm
        for name in path.split("."):
            found = getattr(found, name)
        return found if isinstance(found, JavaClass) else None

    def _namespace(self, schema: str) -> Any:
        return self.java.Namespace.of(self.strings([schema]))

    def _identifier(self, target: tuple[str, str]) -> Any:
        if target not in self._identifiers:
            self._identifiers[target] = self.java.TableIdentifier.of(self._namespace(target[0]), target[1])
        return self._identifiers[target]


@contextmanager
def _without_py4j_log() -> Iterator[None]:
    """py4j logs everything that is passed to Java at debug level; here that would include passwords."""
    loggers = [logging.getLogger(f"py4j.{name}") for name in ("clientserver", "java_gateway")]
    for logger in loggers:
        logger.addFilter(_drop_record)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_drop_record)


def _drop_record(record: logging.LogRecord) -> bool:  # noqa: ARG001 (drops every record)
    return False


def _make_directory(options: IcebergOptions) -> None:
    directory = options.sqlite.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SinkRefused(
            f"the catalog: {directory}: {error.strerror}", "choose a directory that this user can create"
        ) from error
