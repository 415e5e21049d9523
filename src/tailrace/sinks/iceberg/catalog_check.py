"""Checks whether a lake's catalog can be reached, without Java."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tailrace.errors import SinkError
from tailrace.finding import Finding, Severity
from tailrace.lake.options import IcebergOptions
from tailrace.postgres.connection import connect
from tailrace.settings import Secret
from tailrace.sinks.database.postgresql.destination_check import destination_findings
from tailrace.sinks.database.postgresql.destination_error import classify_errors

_TIMEOUT_S: Final = 10.0


def catalog_findings(options: IcebergOptions) -> Iterator[Finding]:
    match options.catalog_kind:
        case "postgresql":
            target = _CatalogDatabase(options.catalog, options.catalog_password)
            with classify_errors(), connect(target, {}) as connection:
                yield from destination_findings(connection, "public", ())
        case "rest":
            yield from _rest_findings(options)
        case "sqlite":
            directory = options.sqlite.parent
            while not directory.exists():
                directory = directory.parent
            if not os.access(directory, os.W_OK) or (
                options.sqlite.exists() and not os.access(options.sqlite, os.W_OK)
            ):
                yield Finding(Severity.ERROR, f"catalog {options.sqlite}", "cannot be written by this user")


@dataclass(frozen=True)
class _CatalogDatabase:
    url: str
    password: Secret | None
    sslmode: str | None = None
    sslrootcert: Path | None = None


def _rest_findings(options: IcebergOptions) -> Iterator[Finding]:
    """Ask for the catalog's configuration, with the token if there is one. With credentials, Iceberg itself logs in."""
    parts = urlsplit(options.catalog)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    token = options.catalog_options.get("token")
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", f"{parts.path.rstrip('/')}/v1/config", headers=headers)
        status = connection.getresponse().status
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise SinkError(f"catalog {parts.hostname}: {error}", "check its URL, and that it runs") from None
    if status in (401, 403) and "credential" not in options.catalog_options:
        message = (
            f"rejects the request for its configuration (HTTP {status}): set token or credential in catalog_options"
        )
        yield Finding(Severity.ERROR, f"catalog {parts.hostname}", message)
    elif status >= 400 and status not in (401, 403):
        message = f"answers HTTP {status} to the request for its configuration: is it the URL of an Iceberg catalog?"
        yield Finding(Severity.ERROR, f"catalog {parts.hostname}", message)
