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


@pytest.mark.parametrize("query", [*_queries("exact.sql"), *_queries("analyst.sql")])
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


_LARGE = (
    ("1e308", "1e308"), ("1e308", "1e308", "-1e308"), ("1e308", "-1e308", "1e308"), ("-1e308", "-1e308"),
    ("1e154", "-1e154"), ("1e155", "0"), ("1e160", "1e160"), ("1e200", "-1e200"), ("1e308",), ("1e308", "NULL"),
    ("1e153", "-1e153"), ("1e152", "3e152", "-2e152"), ("Infinity", "1e308", "1e308"), ("1e308", "1e308", "NaN"),
    ("Infinity", "-Infinity"), ("1", "Infinity"), ("1e-200", "1e-200", "3e-200"), ("3e38", "3e38"), ("3e38", "-3e38"),
    ("1", "2", "4"), ("5", "5"), ("1e60", "-1e60"), ("1e78", "2e78", "4e78"),
)  # fmt: skip
_STATISTICS = (
    "sum(x)", "sum(DISTINCT x)", "avg(x)", "avg(DISTINCT x)", "avg(x) FILTER (WHERE x > 0)", "stddev(x)", "var_pop(x)",
    "variance(x)", "corr(x, x)", "covar_pop(x, x)", "regr_slope(x, x)", "regr_r2(x, x)", "regr_intercept(x, x)",
    "regr_avgx(x, x)", "regr_count(x, x)", "regr_sxx(x, 1)", "max(x)", "sum(x::float4)", "avg(x::float4)",
    "stddev(x::float4)",
)  # fmt: skip


def test_statistics_of_large_floats_are_near_to_postgresql_or_an_error(both: Any) -> None:
    ours, theirs = both
    equal = 0
    differences: list[Any] = []
    for values in _LARGE:
        rows = ", ".join(f"({n}, {v if v == 'NULL' else repr(v)}::float8)" for n, v in enumerate(values))
        windows = [f"{call} OVER (ORDER BY n)" for call in _STATISTICS if "DISTINCT" not in call]
        for call in (*_STATISTICS, *windows):
            query = f"SELECT {call} FROM (VALUES {rows}) v(n, x)".encode()
            try:
                found = ours.execute(query).fetchall()
            except psycopg.Error as error:
                if error.sqlstate not in ("22003", "0A000"):
                    differences.append((query, error))
                continue
            expected = _rows_or_error(theirs, query)
            is_equal = len(found) == len(expected) and all(
                value == other or (None not in (value, other) and _are_near(str(value), str(other)))
                for (value,), (other,) in zip(found, expected, strict=True)
            )
            equal += is_equal
            if not is_equal:
                differences.append((query, found, expected))
    assert not differences
    assert equal > 200


def _rows_or_error(connection: psycopg.Connection[Any], query: bytes) -> list[Any]:
    try:
        return connection.execute(query).fetchall()
    except psycopg.Error as error:
        return [(error.sqlstate,)]


def _are_near(value: str, other: str) -> bool:
    a, b = float(value), float(other)
    return math.isclose(a, b, rel_tol=1e-14) or (math.isnan(a) and math.isnan(b))


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
