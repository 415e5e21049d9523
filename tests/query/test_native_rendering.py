"""What DuckDB's own functions compute in place of Python's is the same, for random numerics and documents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from tailrace.query import macro
from tailrace.query.scalar import json_value, registry
from tailrace.query.scalar.json_value import Number

_TEXTS = ("", "a", "x\ny", 'q"q', "\\", "é/☃", "\x01", '"a": 7.5', "a text of more than twelve bytes", "1.50", "null")
_NUMBERS = ("0", "-5", "1.50", "0.1", "-2.0", "1.0", "18446744073709551615", "18446744073709551616",
            "-9223372036854775809", "1" + "0" * 400, "0." + "0" * 400 + "1", "12345678901234567890.50")  # fmt: skip
_KEYS = ("a", "b", "A", "a b", "0", "a-b", "", "é", "a/b", "~", 'x"a')


@pytest.fixture(scope="module")
def cursor() -> Iterator[Any]:
    with duckdb.connect() as connection:
        connection.execute("ATTACH ':memory:' AS pg")
        registry.register(connection)
        connection.execute("USE pg")
        for statement in macro.STATEMENTS:
            connection.execute(statement)
        yield connection


def _numeric(rng: random.Random) -> str:
    whole = "".join(rng.choices("0001239", k=rng.choice((1, 1, 2, 5, 20, 60)))).lstrip("0") or "0"
    fraction = "".join(rng.choices("000129", k=rng.choice((0, 0, 1, 3, 10, 50))))
    text = f"{whole}.{fraction}" if fraction else whole
    return f"-{text}" if rng.random() < 0.4 and text.strip("0.") else text


def _document(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(6 if depth < 3 else 4)
    if depth == 0 and rng.random() < 0.9:
        return {key: _document(rng, 1) for key in rng.sample(_KEYS, 3)}
    match kind:
        case 0:
            return rng.choice(_TEXTS)
        case 1:
            return Number(rng.choice(_NUMBERS))
        case 2:
            return None
        case 3:
            return rng.random() < 0.5
        case 4:
            return [_document(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {key: _document(rng, depth + 1) for key in rng.sample(_KEYS, rng.randrange(4))}


def test_keys_of_numerics(cursor: Any) -> None:
    rng = random.Random(1)
    values = ["NaN", "Infinity", "-Infinity", "0.000", *(_numeric(rng) for _ in range(3000))]
    query = "SELECT v, pg_numeric_key(v), pg_numeric_full_key(v) FROM (SELECT unnest(?::VARCHAR[]) AS v)"
    rows = cursor.execute(query, [values]).fetchall()
    assert len(rows) == len(values)
    assert [row for row in rows if row[1] != row[2]] == []


@pytest.mark.parametrize("path", [("a",), ("a b",), ("b", "a"), ("A", "a-b")])
def test_members_of_documents(cursor: Any, path: tuple[str, ...]) -> None:
    rng = random.Random(2)
    documents = [json_value.dump(_document(rng)) for _ in range(3000)]
    at = f"[{', '.join(map(repr, path))}]"
    native = f"{at}, '/{'/'.join(path)}', '\"{path[-1]}\": '"
    query = (
        f"SELECT v, pg_jsonb_at_text(v, {native}), pg_jsonb_path_text(v, {at}), pg_jsonb_at(v, {native}),"
        f" pg_jsonb_path(v, {at}), pg_jsonb_key(v), pg_jsonb_full_key(v) FROM (SELECT unnest(?::VARCHAR[]) AS v)"
    )
    rows = cursor.execute(query, [documents]).fetchall()
    assert sum(row[2] is not None for row in rows) > 3
    assert [row for row in rows if row[1::2] != row[2::2]] == []
