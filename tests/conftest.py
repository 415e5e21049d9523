"""Fixtures are plugins: one module for each kind of real server."""

import pytest

pytest_plugins = [
    f"tests.fixtures.{name}" for name in ("nats", "postgres", "rest", "snapshot", "spark", "store", "tls")
]

_LONG = (
    *("contract/test_sinks", "cli/test_run", "faults/test_kill", "cli/test_demo", "contract/test_lake", "spark/"),
    *("faults/", "embedded/test_cluster", "sinks/test_postgres", "sinks/test_files", "e2e/", "query/", "cli/"),
)
"""By how long they take, measured."""


def _rank(path: str) -> int:
    return next((rank for rank, part in enumerate(_LONG) if f"tests/{part}" in path), len(_LONG))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: begun last, one of them would keep one worker busy while the others have nothing."""
    items.sort(key=lambda item: _rank(item.path.as_posix()))
