"""The decoder returns the entries that were encoded, whatever they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from tests.slatedb import build, random_file

from tailrace.slatedb.decoder import decode
from tailrace.slatedb.row_entry import SCHEMA, EntryKind, RowEntry

fixed = settings(derandomize=True, deadline=None, max_examples=150)


def decoded(data: bytes) -> list[RowEntry]:
    rows = decode(data, "test")
    rows.validate(full=True)
    assert rows.schema.equals(SCHEMA)
    return list(RowEntry.all(rows))


@fixed
@given(random_file.files())
def test_entries_survive_a_round_trip(file: tuple[list[RowEntry], bytes]) -> None:
    entries, data = file
    # The order in which they were written: files in the order of keys are sorted.
    assert decoded(data) == sorted(entries, key=lambda entry: entry.seq)


@pytest.mark.parametrize("version", [1, 2])
def test_keys_and_values_of_any_size_are_read(version: int) -> None:
    sizes = [1, 127, 128, 16383, 16384, 65535]
    values = [b"", b"x" * 2**21, os.urandom(5_000_000)]
    entries = [RowEntry(EntryKind.PUT, b"k" * size, values[n % 3], 7, None, None) for n, size in enumerate(sizes)]
    for codec in build.COMPRESS:
        assert decoded(build.sst(entries, version=version, codec=codec)) == entries


def test_files_without_entries_have_no_rows() -> None:
    assert decoded(b"") == []
    assert decoded(build.sst([])) == []
    assert decoded(build.sst([], version=1)) == []


@pytest.mark.soak
@pytest.mark.skipif("NUMBA_BOUNDSCHECK" in os.environ, reason="this is the run with bounds checks")
def test_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    """Run these tests and those of damage with bounds checks, so that a read outside an array raises IndexError."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    files = [__file__, str(Path(__file__).with_name("test_damage.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
