"""Fixtures are plugins: one module for each kind of real server."""

import pytest

pytest_plugins = [f"tests.fixtures.{name}" for name in ("postgres", "snapshot", "spark", "store", "tls")]

_LONG = ("contract/test_sinks.py", "cli/test_run.py", "faults/test_kill.py", "spark/test_source.py", "cli/test_demo.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: begun last, one of them would keep one worker busy while the others have nothing."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(_LONG))
