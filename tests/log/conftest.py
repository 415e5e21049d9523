"""Stores for tests of the log: in memory, and a directory."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tailrace.store import Store

_numbers = itertools.count(1)


@pytest.fixture
def store() -> Store:
    return Store.open(f"memory://log-{next(_numbers)}")


@pytest.fixture(params=["memory", "file"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Store:
    return store if request.param == "memory" else Store.open((tmp_path / "store").as_uri())
