"""PostgreSQL's own answers are the server's: names of columns and texts of values, for every query here.

Where a column is no exact decimal in DuckDB (averages, quotients) values are compared as numbers.
"""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from tests.query.conftest import Served


def _queries(file: str) -> list[str]:
    """One a line."""
    return Path(__file__).with_name(file).read_text("utf-8").splitlines()


def _answer(connection: psycopg.Connection[Any], query: str) -> tuple[list[str], list[list[str | None]]]:
    """Both protocols, which must agree; values as texts."""
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
def both(served: Served) -> Any:
    with served.connect() as ours, served.database.connect(autocommit=True) as theirs:
        theirs.execute("SET timezone = 'UTC'")
        yield ours, theirs


@pytest.mark.parametrize("query", _queries("exact.sql"))
def test_the_same_answer(both: Any, query: str) -> None:
    ours, theirs = both
    assert _answer(ours, query) == _answer(theirs, query)


@pytest.mark.parametrize("query", _queries("numbers.sql"))
def test_the_same_numbers(both: Any, query: str) -> None:
    ours, theirs = both
    (names, rows), (expected_names, expected_rows) = _answer(ours, query), _answer(theirs, query)
    assert names == expected_names
    for row, expected in zip(rows, expected_rows, strict=True):
        for value, other in zip(row, expected, strict=True):
            assert value == other or (value and other and _are_near(value, other)), (row, expected)


def _are_near(value: str, other: str) -> bool:
    """The same decimal, or as near as doubles are; ten decimals of a numeric without a precision."""
    exact = Decimal(value) == Decimal(other) if len(other) < 17 else False
    return exact or math.isclose(float(value), float(other), rel_tol=1e-14, abs_tol=5e-11)


@pytest.mark.parametrize("table", ["customers", "orders", "items", "kinds"])
def test_binary_results_are_those_of_postgresql(served: Served, table: str) -> None:
    columns = {
        "orders": "id, customer, placed_at, amount, note",
        "kinds": "id, b, i4, i8, f4, f8, n2, t, bin, u, ti, iv, j, arr, tarr",
    }
    query = f"SELECT {columns.get(table, '*')} FROM {table} ORDER BY 1, 2".encode()
    with (
        served.connect() as ours,
        served.database.connect() as theirs,
        ours.cursor(binary=True) as our,
        theirs.cursor(binary=True) as their,
    ):
        # By what is printed: NaN is not equal to itself.
        assert repr(our.execute(query).fetchall()) == repr(their.execute(query).fetchall())
