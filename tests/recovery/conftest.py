"""Directories that the server's user may enter, which pytest's own are not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.postgres import roomy_directory


@pytest.fixture
def workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tailrace-test-", dir=roomy_directory()) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)
