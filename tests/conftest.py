"""Loads the fixture plugins, one module for each kind of real server."""

import pytest

pytest_plugins = [
    f"tests.fixtures.{name}"
    for name in (
        # Before those that import it.
        "tls",
        "browser",
        "kafka",
        "debezium",
        "elasticsearch",
        "mariadb",
        "mysql",
        "nats",
        "opensearch",
        "postgres",
        "rabbitmq",
        "rest",
        "schema_registry",
        "snapshot",
        "spark",
        "store",
        "valkey",
    )
]

_LONG = (
    *(
        "contract/test_sinks",
        "contract/test_debezium",
        "cli/test_run",
        "faults/test_kill",
        "cli/test_demo",
        "contract/test_lake",
        "spark/",
        "recovery/",
    ),
    *("faults/", "embedded/test_cluster", "sinks/test_postgres", "sinks/test_files", "e2e/", "query/", "cli/"),
)
"""Test files with the longest measured duration."""


def _rank(path: str) -> int:
    return next((rank for rank, part in enumerate(_LONG) if f"tests/{part}" in path), len(_LONG))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first: started last, they would occupy one worker while the others are idle."""
    items.sort(key=lambda item: _rank(item.path.as_posix()))
