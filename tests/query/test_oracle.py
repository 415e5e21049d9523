"""The server's results equal PostgreSQL's: column names and text of values, for every query in the .sql files.

Statistics of floats may differ in the last digit, as they do in PostgreSQL between two plans.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from tests.query.conftest import QueryStack


def _queries(file: str) -> list[str]:
    """One query per line."""
    return Path(__file__).with_name(file).read_text("utf-8").splitlines()


def _answer(connection: psycopg.Connection[Any], query: str) -> tuple[list[str], list[list[str | None]]]:
    """Column names and values as text. Both protocols must agree."""
    found = []
    for parameters in cast(tuple[list[Any] | None, ...], (None, [])):
        with psycopg.RawCursor(connection) as cursor:
            cursor.execute(query.encode(), parameters)
            assert cursor.pgresult is not None
            result = cursor.pgresult
            rows = [[result.get_value(r, c) for c in range(result.nfields)] for r in range(result.ntuples)]
            names = [column.name for column in cursor.description or ()]
            found.append((names, [[None if v is None else v.decode() for v in row] for row in rows]))
    assert found[0] == found[1]
    return found[0]


@pytest.fixture(scope="module")
def both(stack: QueryStack) -> Any:
    with stack.connect() as ours, stack.database.connect(autocommit=True) as theirs:
        theirs.execute("SET timezone = 'UTC'")
        yield ours, theirs


@pytest.mark.parametrize("query", _queries("exact.sql"))
def test_result_equals_postgresql(both: Any, query: str) -> None:
    ours, theirs = both
    assert _answer(ours, query) == _answer(theirs, query)


@pytest.mark.parametrize("query", _queries("numbers.sql"))
def test_statistics_of_floats_are_close_to_postgresql(both: Any, query: str) -> None:
    ours, theirs = both
    (names, rows), (expected_names, expected_rows) = _answer(ours, query), _answer(theirs, query)
    assert names == expected_names
    for row, expected in zip(rows, expected_rows, strict=True):
        for value, other in zip(row, expected, strict=True):
            assert value == other or (value and other and _are_near(value, other)), (row, expected)


def _are_near(value: str, other: str) -> bool:
    return math.isclose(float(value), float(other), rel_tol=1e-14)


@pytest.mark.parametrize("table", ["customers", "orders", "items", "kinds"])
def test_binary_result_equals_postgresql(stack: QueryStack, table: str) -> None:
    columns = {
        "orders": "id, customer, placed_at, amount, note",
        "kinds": "id, b, i4, i8, f4, f8, n2, t, bin, u, ti, iv, j, arr, tarr",
    }
    query = f"SELECT {columns.get(table, '*')} FROM {table} ORDER BY 1, 2".encode()
    with (
        stack.connect() as ours,
        stack.database.connect() as theirs,
        ours.cursor(binary=True) as our,
        theirs.cursor(binary=True) as their,
    ):
        # Compared by repr, as NaN is not equal to itself.
        assert repr(our.execute(query).fetchall()) == repr(their.execute(query).fetchall())
