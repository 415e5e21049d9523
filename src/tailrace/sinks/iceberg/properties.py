"""A lake's settings in Iceberg's words: the properties of its catalog, and the Java libraries that these take."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from tailrace.errors import ConfigError
from tailrace.sinks.iceberg.options import CatalogKind, IcebergOptions

ICEBERG: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_JDBC: Final[Mapping[CatalogKind, str]] = {
    "sqlite": "org.xerial:sqlite-jdbc:3.50.3.0",
    "postgresql": "org.postgresql:postgresql:42.7.8",
}
_AWS: Final = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
WITNESSES: Final[Mapping[str, str]] = {
    _JDBC["sqlite"]: "org.sqlite.JDBC",
    _JDBC["postgresql"]: "org.postgresql.Driver",
    _AWS: "software.amazon.awssdk.services.s3.S3Client",
}
"""A class of each library: a session that has the one has the other."""

_S3: Final[Mapping[str, str]] = {
    "endpoint": "s3.endpoint",
    "endpoint_url": "s3.endpoint",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "token": "s3.session-token",
}
"""What the object store calls it → what Iceberg does."""

_LIBPQ: Final[Mapping[str, str]] = {
    **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "options")},
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
}
"""Parameters of a PostgreSQL URL → what the driver calls them."""

# To connect, and to answer: a catalog's requests take milliseconds; without a limit one that hangs would hang us too.
_PATIENCE_S: Final = (10, 60)


def packages(options: IcebergOptions) -> tuple[str, ...]:
    """The Java libraries that a session needs for this lake."""
    found = [ICEBERG, _JDBC.get(options.catalog_kind), _AWS if options.is_remote else None]
    return tuple(package for package in found if package)


def properties(options: IcebergOptions) -> dict[str, str]:
    """Of the catalog, as Iceberg names them. They hold secrets: never a part of Spark's configuration."""
    found = {"warehouse": options.root} | _KINDS[options.catalog_kind](options)
    if options.is_remote:
        found |= _s3({key.lower().removeprefix("aws_"): value for key, value in options.options.items()})
    return found | dict(options.catalog_options)


def _sqlite(options: IcebergOptions) -> dict[str, str]:
    # Readers may look while we write; neither needs to fail for that.
    parameters = {"jdbc.busy_timeout": "30000", "jdbc.journal_mode": "WAL"}
    return _jdbc(f"jdbc:sqlite:{options.sqlite}") | parameters


def _postgresql(options: IcebergOptions) -> dict[str, str]:
    given = {key: str(value) for key, value in conninfo_to_dict(options.catalog).items()}
    hosts, ports = given.pop("host", "localhost").split(","), given.pop("port", "").split(",")
    pairs = zip(hosts, ports if len(ports) == len(hosts) else ports * len(hosts), strict=True)
    address = ",".join((f"[{host}]" if ":" in host else host) + f":{port or 5432}" for host, port in pairs)
    user = given.pop("user", "")
    found = _jdbc(f"jdbc:postgresql://{address}/{quote(given.pop('dbname', user), safe='')}")
    connect_s, answer_s = _PATIENCE_S
    found |= {"jdbc.connectTimeout": str(connect_s), "jdbc.socketTimeout": str(answer_s)}
    if user:
        found["jdbc.user"] = user
    if options.catalog_password:
        found["jdbc.password"] = options.catalog_password.reveal()
    if unknown := sorted(given.keys() - _LIBPQ.keys()):
        raise ConfigError(
            f"catalog: {', '.join(unknown)} is nothing that Java's driver knows",
            "what it knows instead goes into catalog_options, as `jdbc.<its name>`",
        )
    return found | {f"jdbc.{_LIBPQ[key]}": value for key, value in given.items()}


def _jdbc(uri: str) -> dict[str, str]:
    return {"type": "jdbc", "uri": uri, "jdbc.schema-version": "V1"}


def _rest(options: IcebergOptions) -> dict[str, str]:
    connect_s, answer_s = _PATIENCE_S
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


def _s3(given: Mapping[str, str]) -> dict[str, str]:
    found = {_S3[key]: value for key, value in given.items() if key in _S3}
    # As the object store looks for it, which Java would not.
    places = (
        given.get("region"),
        given.get("default_region"),
        *map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION")),
    )
    found["client.region"] = next(filter(None, places), "us-east-1")
    if given.get("virtual_hosted_style_request", "false").lower() != "true":
        found["s3.path-style-access"] = "true"
    return found | {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
