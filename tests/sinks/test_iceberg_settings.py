"""What a lake's settings mean, which are refused, and that nothing they keep secret is told."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tailrace import settings, sinks
from tailrace.errors import ConfigError
from tailrace.sinks.iceberg.options import IcebergOptions
from tailrace.sinks.iceberg.properties import packages, properties

PLANTED = "hunter2"


def configured(**given: Any) -> sinks.Configured:
    raw = {"type": "iceberg", "name": "lake", **given}
    (found,) = sinks.configured(settings.Settings(store=settings.Store("memory://log"), sinks=(raw,)), {})
    return found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "warehouse is missing"),
        ({"warehouse": "s3://bucket/lake"}, "catalog is missing: a warehouse on S3 has no place for SQLite"),
        ({"warehouse": f"s3a://key:{PLANTED}@bucket"}, "'s3a' is no place for a lake: use file:// or s3://"),
        ({"warehouse": f"s3://key:{PLANTED}@bucket", "catalog": "https://x"}, "write s3://bucket/path"),
        ({"warehouse": "s3:///lake", "catalog": "https://x"}, "write s3://bucket/path"),
        ({"warehouse": "file://data/lake"}, "a file URL has no host"),
        ({"warehouse": "/x", "catalog": f"mysql://me:{PLANTED}@h/db"}, "unknown scheme 'mysql'"),
        ({"warehouse": "/x", "catalog": f"https://me:{PLANTED}@h"}, "credentials belong into catalog_options"),
        ({"warehouse": "/x", "catalog": f"postgresql://me:{PLANTED}@h/%zz"}, "catalog is not a connection URL"),
        ({"warehouse": "/x", "catalog": f"postgresql://me:{PLANTED}@[h/db"}, "catalog is not a URL"),
        ({"warehouse": "/x", "catalog": "sqlite://lake.db"}, "write sqlite:///absolute/path"),
        ({"warehouse": "/x", "catalog": "sqlite:"}, "write sqlite:///absolute/path"),
        ({"warehouse": "/x", "catalog": "sqlite:///lake.db?mode=ro"}, "write sqlite:///absolute/path"),
        ({"warehouse": "file:///what%3F"}, "SQLite takes what follows the ?"),
    ],
)
def test_settings_that_are_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(**given)
    assert told in str(raised.value)
    assert PLANTED not in repr(raised.value.args)


def test_where_a_sqlite_catalog_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = {
        "": "/lake/catalog.db",
        "sqlite:///else%20where/c.db": "/else where/c.db",
        "sqlite:c.db": f"{tmp_path}/c.db",
        "sqlite:some/c.db": f"{tmp_path}/some/c.db",
    }
    for catalog, file in places.items():
        assert properties(IcebergOptions("/lake", catalog=catalog))["uri"] == f"jdbc:sqlite:{file}"


def test_a_postgresql_catalog_as_java_is_told() -> None:
    url = f"postgresql://me%40home:{PLANTED}@[::1]:5433,other/la%2Fke?sslmode=verify-full&connect_timeout=3"
    options = IcebergOptions("/lake", catalog=url)
    assert PLANTED not in repr(options)
    found = properties(options)
    assert found["uri"] == "jdbc:postgresql://[::1]:5433,other:5432/la%2Fke"
    assert (found["jdbc.user"], found["jdbc.password"]) == ("me@home", PLANTED)
    assert (found["jdbc.sslmode"], found["jdbc.connectTimeout"]) == ("verify-full", "3")
    given = IcebergOptions("/lake", catalog=url, catalog_options={"jdbc.connectTimeout": "4"})
    assert properties(given)["jdbc.connectTimeout"] == "4", "whoever says it in Iceberg's words has the last"
    unknown = IcebergOptions("/lake", catalog="postgresql://me@h/db?target_session_attrs=any")
    with pytest.raises(ConfigError, match="target_session_attrs"):
        properties(unknown)


def test_s3_as_java_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    given = {"AWS_ACCESS_KEY_ID": "me", "aws_secret_access_key": PLANTED, "endpoint": "http://h"}
    found = properties(IcebergOptions("s3://b/lake/", given, catalog="https://c"))
    assert found["warehouse"] == "s3://b/lake"
    assert (found["s3.access-key-id"], found["s3.secret-access-key"]) == ("me", PLANTED)
    assert (found["s3.path-style-access"], found["client.region"]) == ("true", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert properties(IcebergOptions("s3://b", catalog="https://c"))["client.region"] == "eu-west-1"
    given = {"region": "here", "virtual_hosted_style_request": "true"}
    found = properties(IcebergOptions("s3://b", given, catalog="https://c"))
    assert found["client.region"] == "here"
    assert "s3.path-style-access" not in found


def test_packages_are_what_the_lake_needs() -> None:
    def artifacts(warehouse: str, catalog: str) -> list[str]:
        return [package.split(":")[1] for package in packages(IcebergOptions(warehouse, catalog=catalog))][1:]

    assert artifacts("/lake", "") == ["sqlite-jdbc"]
    assert artifacts("/lake", "https://c") == []
    assert artifacts("s3://b", "postgresql://h/db") == ["postgresql", "iceberg-aws-bundle"]


def test_executors_get_nothing_of_the_catalog() -> None:
    secrets = {"catalog_options": {"token": PLANTED}, "catalog_password": PLANTED}
    sink = configured(warehouse="/lake", catalog=f"postgresql://me:{PLANTED}@h/db", **secrets).sink
    assert PLANTED.encode() not in pickle.dumps(sink)
