"""A lake's settings as properties of an Iceberg catalog, and the Java libraries that they require."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from tailrace.errors import ConfigError
from tailrace.lake.options import CatalogKind, IcebergOptions

CATALOG: Final = "lake"
"""The catalog's name, which is part of a table's identity in a catalog in SQL."""
ICEBERG: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_JDBC: Final[Mapping[CatalogKind, str]] = {
    "sqlite": "org.xerial:sqlite-jdbc:3.50.3.0",
    "postgresql": "org.postgresql:postgresql:42.7.8",
}
_AWS: Final = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
PROBE_CLASSES: Final[Mapping[str, str]] = {
    _JDBC["sqlite"]: "org.sqlite.JDBC",
    _JDBC["postgresql"]: "org.postgresql.Driver",
    _AWS: "software.amazon.awssdk.services.s3.S3Client",
}
"""A class of each library, to check whether a session has that library."""

_S3: Final[Mapping[str, str]] = {
    "endpoint": "s3.endpoint",
    "endpoint_url": "s3.endpoint",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "token": "s3.session-token",
}
"""Option of the object store → Iceberg's property."""

_LIBPQ: Final[Mapping[str, str]] = {
    **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "options")},
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
}
"""Parameter of a PostgreSQL URL → parameter of the Java driver."""

# To connect, and to answer. A catalog answers in milliseconds; without a timeout one that hangs would block the sink.
_TIMEOUTS_S: Final = (10, 60)


def packages(options: IcebergOptions) -> tuple[str, ...]:
    """The Java libraries that a Spark session needs for this lake."""
    found = [ICEBERG, _JDBC.get(options.catalog_kind), _AWS if options.is_remote else None]
    return tuple(package for package in found if package)


def catalog_properties(options: IcebergOptions) -> dict[str, str]:
    """The catalog's properties, as Iceberg names them. They contain secrets: keep them out of Spark's configuration."""
    found = {"warehouse": options.root} | _KINDS[options.catalog_kind](options)
    if options.is_remote:
        found |= _s3({key.lower().removeprefix("aws_"): value for key, value in options.options.items()})
    return found | dict(options.catalog_options)


def _sqlite(options: IcebergOptions) -> dict[str, str]:
    # Readers and the writer do not block each other.
    parameters = {"jdbc.busy_timeout": "30000", "jdbc.journal_mode": "WAL"}
    return _jdbc(f"jdbc:sqlite:{options.sqlite}") | parameters


def _postgresql(options: IcebergOptions) -> dict[str, str]:
    parameters = {key: str(value) for key, value in conninfo_to_dict(options.catalog).items()}
    hosts, ports = parameters.pop("host", "localhost").split(","), parameters.pop("port", "").split(",")
    pairs = zip(hosts, ports if len(ports) == len(hosts) else ports * len(hosts), strict=True)
    address = ",".join((f"[{host}]" if ":" in host else host) + f":{port or 5432}" for host, port in pairs)
    user = parameters.pop("user", "")
    found = _jdbc(f"jdbc:postgresql://{address}/{quote(parameters.pop('dbname', user), safe='')}")
    connect_s, answer_s = _TIMEOUTS_S
    found |= {"jdbc.connectTimeout": str(connect_s), "jdbc.socketTimeout": str(answer_s)}
    if user:
        found["jdbc.user"] = user
    if options.catalog_password:
        found["jdbc.password"] = options.catalog_password.reveal()
    if unknown := sorted(parameters.keys() - _LIBPQ.keys()):
        raise ConfigError(
            f"catalog: the Java driver has no parameter {', '.join(unknown)}",
            "set the driver's own parameters in catalog_options, as `jdbc.<name>`",
        )
    return found | {f"jdbc.{_LIBPQ[key]}": value for key, value in parameters.items()}


def _jdbc(uri: str) -> dict[str, str]:
    return {"type": "jdbc", "uri": uri, "jdbc.schema-version": "V1"}


def _rest(options: IcebergOptions) -> dict[str, str]:
    connect_s, answer_s = _TIMEOUTS_S
    return {
        "type": "rest",
        "uri": options.catalog,
        "rest.client.connection-timeout-ms": str(connect_s * 1000),
        "rest.client.socket-timeout-ms": str(answer_s * 1000),
    }


_KINDS: Final[Mapping[CatalogKind, Callable[[IcebergOptions], dict[str, str]]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "rest": _rest,
}


def _s3(options: Mapping[str, str]) -> dict[str, str]:
    found = {_S3[key]: value for key, value in options.items() if key in _S3}
    # The object store finds the region in these places; Java would not.
    regions = (
        options.get("region"),
        options.get("default_region"),
        *map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION")),
    )
    found["client.region"] = next(filter(None, regions), "us-east-1")
    if options.get("virtual_hosted_style_request", "false").lower() != "true":
        found["s3.path-style-access"] = "true"
    return found | {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
