"""A lake's settings: what they mean, which are refused, and that secrets stay secret."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tailrace import settings, sinks
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import ConfigError
from tailrace.lake.options import IcebergOptions
from tailrace.sinks.iceberg.properties import catalog_properties, packages

PLANTED = "hunter2"


def make_sink(**given: Any) -> ConfiguredSink:
    raw = {"type": "iceberg", "name": "lake", **given}
    (found,) = sinks.from_settings(settings.Settings(store=settings.StoreSettings("memory://log"), sinks=(raw,)), {})
    return found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "warehouse is missing"),
        ({"warehouse": "s3://bucket/lake"}, "catalog is missing: a warehouse on S3 cannot hold a SQLite catalog"),
        ({"warehouse": f"s3a://key:{PLANTED}@bucket"}, "scheme 's3a' is not supported: use file:// or s3://"),
        ({"warehouse": f"s3://key:{PLANTED}@bucket", "catalog": "https://x"}, "use s3://bucket/path"),
        ({"warehouse": "s3:///lake", "catalog": "https://x"}, "use s3://bucket/path"),
        ({"warehouse": "file://data/lake"}, "a file URL has no host"),
        ({"warehouse": "/x", "catalog": f"mysql://me:{PLANTED}@h/db"}, "unknown scheme 'mysql'"),
        ({"warehouse": "/x", "catalog": f"https://me:{PLANTED}@h"}, "put credentials into catalog_options"),
        ({"warehouse": "/x", "catalog": f"postgresql://me:{PLANTED}@h/%zz"}, "catalog is not a connection URL"),
        ({"warehouse": "/x", "catalog": f"postgresql://me:{PLANTED}@[h/db"}, "catalog is not a URL"),
        ({"warehouse": "/x", "catalog": "sqlite://lake.db"}, "use sqlite:///absolute/path"),
        ({"warehouse": "/x", "catalog": "sqlite:"}, "use sqlite:///absolute/path"),
        ({"warehouse": "/x", "catalog": "sqlite:///lake.db?mode=ro"}, "use sqlite:///absolute/path"),
        ({"warehouse": "file:///what%3F"}, "SQLite would read what follows the ?"),
    ],
)
def test_invalid_settings_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_sink(**given)
    assert message in str(raised.value)
    assert PLANTED not in repr(raised.value.args)


def test_the_file_of_a_sqlite_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = {
        "": "/lake/catalog.db",
        "sqlite:///else%20where/c.db": "/else where/c.db",
        "sqlite:c.db": f"{tmp_path}/c.db",
        "sqlite:some/c.db": f"{tmp_path}/some/c.db",
    }
    for catalog, file in places.items():
        assert catalog_properties(IcebergOptions("/lake", catalog=catalog))["uri"] == f"jdbc:sqlite:{file}"


def test_the_java_properties_of_a_postgresql_catalog() -> None:
    url = f"postgresql://me%40home:{PLANTED}@[::1]:5433,other/la%2Fke?sslmode=verify-full&connect_timeout=3"
    options = IcebergOptions("/lake", catalog=url)
    assert PLANTED not in repr(options)
    found = catalog_properties(options)
    assert found["uri"] == "jdbc:postgresql://[::1]:5433,other:5432/la%2Fke"
    assert (found["jdbc.user"], found["jdbc.password"]) == ("me@home", PLANTED)
    assert (found["jdbc.sslmode"], found["jdbc.connectTimeout"]) == ("verify-full", "3")
    overridden = IcebergOptions("/lake", catalog=url, catalog_options={"jdbc.connectTimeout": "4"})
    assert catalog_properties(overridden)["jdbc.connectTimeout"] == "4", "catalog_options have precedence"
    unknown = IcebergOptions("/lake", catalog="postgresql://me@h/db?target_session_attrs=any")
    with pytest.raises(ConfigError, match="target_session_attrs"):
        catalog_properties(unknown)


def test_the_java_properties_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    given = {"AWS_ACCESS_KEY_ID": "me", "aws_secret_access_key": PLANTED, "endpoint": "http://h"}
    found = catalog_properties(IcebergOptions("s3://b/lake/", given, catalog="https://c"))
    assert found["warehouse"] == "s3://b/lake"
    assert (found["s3.access-key-id"], found["s3.secret-access-key"]) == ("me", PLANTED)
    assert (found["s3.path-style-access"], found["client.region"]) == ("true", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert catalog_properties(IcebergOptions("s3://b", catalog="https://c"))["client.region"] == "eu-west-1"
    given = {"region": "here", "virtual_hosted_style_request": "true"}
    found = catalog_properties(IcebergOptions("s3://b", given, catalog="https://c"))
    assert found["client.region"] == "here"
    assert "s3.path-style-access" not in found


def test_packages_match_warehouse_and_catalog() -> None:
    def artifacts(warehouse: str, catalog: str) -> list[str]:
        return [package.split(":")[1] for package in packages(IcebergOptions(warehouse, catalog=catalog))][1:]

    assert artifacts("/lake", "") == ["sqlite-jdbc"]
    assert artifacts("/lake", "https://c") == []
    assert artifacts("s3://b", "postgresql://h/db") == ["postgresql", "iceberg-aws-bundle"]


def test_executors_get_no_secrets_of_the_catalog() -> None:
    secrets = {"catalog_options": {"token": PLANTED}, "catalog_password": PLANTED}
    sink = make_sink(warehouse="/lake", catalog=f"postgresql://me:{PLANTED}@h/db", **secrets).sink
    assert PLANTED.encode() not in pickle.dumps(sink)
