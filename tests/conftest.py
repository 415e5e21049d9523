"""Fixtures are plugins: one module for each kind of real server."""

import re

import pytest

pytest_plugins = [f"tests.fixtures.{name}" for name in ("postgres", "rest", "snapshot", "spark", "store", "tls")]

_LONG = re.compile("tests/(contract|spark|faults)/|tests/cli/test_(run|demo)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: begun last, one of them would keep one worker busy while the others have nothing."""
    items.sort(key=lambda item: _LONG.search(item.path.as_posix()) is None)
