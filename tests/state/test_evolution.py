"""Matching columns of relations, and values of older rows in added columns: cases 39 to 43."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests import oracle
from tests.e2e.captured_database import captured, relation_of
from tests.fixtures.postgres import Database
from tests.pgoutput import build

from tailrace import types
from tailrace.change import Column, Relation, Type
from tailrace.images import Images
from tailrace.pgoutput.decoder import decode
from tailrace.state.evolution import ColumnOrigin, dropped_columns, origins, origins_along, project

INT, TEXT, NUMERIC, DATE = (
    Type(oid, "pg_catalog", name) for oid, name in [(23, "int4"), (25, "text"), (1700, "numeric"), (1082, "date")]
)
BC, DECIMAL = "0044-03-15 BC", build.numeric(5, 1)


def column(name: str, number: int | None = None, type_: Type = INT, **more: Any) -> Column:
    return Column(name, type_, number=number, **more)


def relation(*columns: Column, oid: int = 7) -> Relation:
    return Relation(oid, "public", "t", "d", columns, key=(columns[0].name,) if columns else ())


def places(old: Relation, new: Relation) -> list[int | None]:
    return [origin.index for origin in origins(old, new)]


A, B, C = column("a", 1), column("b", 2), column("c", 3)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param([A, B], [A, B], [0, 1], id="the same"),
        pytest.param([A, B], [A, column("x", 2)], [0, 1], id="renamed"),
        pytest.param([A, B], [column("b", 1), column("a", 2)], [0, 1], id="names swapped"),
        pytest.param([A, B], [A, column("b", 3)], [0, None], id="dropped and added again"),
        pytest.param([A, B, C], [A, C], [0, 2], id="dropped"),
        pytest.param([A, column("b")], [A, B], [0, 1], id="number unknown, same name"),
        pytest.param([A, column("b"), C], [A, column("x", 2), C], [0, 1, 2], id="renamed, number unknown"),
        pytest.param([A, column("b"), C], [A, C, column("x", 4)], [0, 2, None], id="dropped, another added behind"),
        pytest.param([A, column("b"), C], [A, C, column("b", 4)], [0, 2, None], id="dropped and again, number unknown"),
        pytest.param([A, column("b")], [A, column("x", 2, TEXT)], [0, None], id="unlike in everything"),
        pytest.param([A, column("b"), column("c")], [A, column("c"), column("x")], [0, 2, None], id="none is known"),
        pytest.param([A], [], [], id="no columns left"),
        pytest.param([], [A], [None], id="no columns before"),
    ],
)
def test_columns_are_matched(old: list[Column], new: list[Column], expected: list[int | None]) -> None:
    before, after = relation(*old), relation(*new)
    assert places(before, after) == expected
    assert dropped_columns(before, after) == tuple(i for i in range(len(old)) if i not in expected)


def test_another_table_matches_only_by_name() -> None:
    """Case 43: the numbers of a recreated table begin again, and its columns are all new."""
    old, new = relation(A, B), relation(column("b", 1), column("x", 2, missing="5"), oid=8)
    assert origins(old, new) == (ColumnOrigin(1), ColumnOrigin(None))


def test_the_missing_value_comes_from_the_step_that_added_the_column() -> None:
    """Case 39: a rewrite stores the values in the rows and removes the record that they were missing."""
    added, rewritten = (
        relation(A, column("n", 2, missing="5")),
        relation(A, column("n", 2, Type(20, "pg_catalog", "int8"))),
    )
    assert origins_along([relation(A), added, rewritten]) == (ColumnOrigin(0), ColumnOrigin(None, "5"))
    images = rows(relation(A), [(b"1",), (b"2",)])
    shown = project(images, relation(A), rewritten, via=[added])
    assert shown.batch.to_pylist() == [{"a": 1, "n": 5}, {"a": 2, "n": 5}]


def rows(relation: Relation, values: list[tuple[bytes | None, ...]], as_text: bool = False) -> Images:
    payloads = pa.array([build.insert(row, relation.oid) for row in values], pa.binary())
    return decode(relation, payloads, as_text=as_text).new


def test_project_rows_to_a_newer_relation() -> None:
    old = relation(A, column("gone", 2, TEXT), column("b", 3, TEXT))
    new = relation(
        A, column("renamed", 3, TEXT), column("n", 4, missing="1"), column("m", 5), column("d", 6, DATE, missing=BC)
    )
    images = rows(old, [(b"1", b"x", b"y"), (b"2", None, None)])
    shown = project(images, old, new)
    assert shown.batch.schema == types.schema(new)
    plain = [column.view(pa.int32()) if column.type == pa.date32() else column for column in shown.batch.columns]
    assert [c.to_pylist() for c in plain] == [[1, 2], ["y", None], [1, 1], [None, None], [-735_160, -735_160]]
    assert shown.special is None


def test_special_values_follow_their_columns() -> None:
    old = relation(A, column("n", 2, NUMERIC, modifier=DECIMAL), column("gone", 3, NUMERIC, modifier=DECIMAL))
    new = relation(
        A, column("m", 2, NUMERIC, modifier=DECIMAL), column("o", 4, NUMERIC, modifier=DECIMAL, missing="NaN")
    )
    shown = project(rows(old, [(b"1", b"NaN", b"NaN"), (b"2", b"1.5", b"NaN")]), old, new)
    assert shown.special is not None
    assert shown.special.to_pylist() == [[("m", "NaN"), ("o", "NaN")], [("o", "NaN")]]


def test_absent_and_partial_images_get_no_added_values() -> None:
    new = relation(A, column("n", 2, missing="5"))
    old = relation(A)
    images = rows(old, [(b"1",), (b"2",), (b"3",)])
    absent = Images(images.batch, np.array([True, False, True]), {}, None)
    shown = project(absent, old, new, whole=np.array([True, True, False]))
    assert shown.batch.column(1).to_pylist() == [5, None, None]
    assert shown.present.tolist() == [True, False, True]


def test_unchanged_values_stay_unchanged() -> None:
    images = rows(relation(A, B), [(b"1", None), (b"2", b"3")])
    mask = np.array([True, False])
    moved = project(
        Images(images.batch, images.present, {1: mask}, None), relation(A, B), relation(column("b", 2), column("c", 5))
    )
    assert {index: m.tolist() for index, m in moved.unchanged.items()} == {0: [True, False]}


@pytest.mark.parametrize(
    ("was", "is_", "given"),
    [
        ("int4", "int8", ["1", "-2147483648", None]),
        ("int8", "int4", ["1", "-7"]),
        ("int4", "numeric(6,2)", ["1", "-20"]),
        ("int4", "text", ["1"]),
        ("int4", "float8", ["16777217"]),
        ("numeric(8,3)", "int4", ["1.500", "2.500", "-2.500", "0.499"]),
        ("float8", "int4", ["1.5", "2.5", "-2.5"]),
        ("numeric(8,3)", "numeric(6,1)", ["1.250", "-1.350", "NaN"]),
        ("numeric", "numeric(6,1)", ["1.25", "99999.94"]),
        ("numeric(8,3)", "text", ["1.500", "NaN"]),
        ("numeric(30,20)", "text", ["0.00000000000000000001", "0"]),
        ("numeric(8,2)", "money", ["-1.50", "1234.00"]),
        ("money", "numeric(8,2)", ["-1.50", "1234.00"]),
        ("bool", "text", ["t", "f"]),
        ("bool", "int4", ["t", "f"]),
        ("text", "bool", ["true", "f", "on"]),
        ("text", "int4", ["7", "-8"]),
        ("text", "timestamp", ["2024-02-29 12:00:00.5"]),
        ("date", "timestamp", ["2024-02-29", "0044-03-15 BC", "infinity", "-infinity"]),
        ("date", "timestamptz", ["2024-02-29", "0044-03-15 BC", "infinity"]),
        ("timestamp", "timestamptz", ["2024-02-29 12:30:00.25", "infinity", "0044-03-15 01:00:00 BC"]),
        ("timestamptz", "timestamp", ["2024-02-29 12:30:00.25+00", "-infinity"]),
        ("timestamp", "date", ["2024-02-29 12:30:00.25", "infinity", "4713-01-02 00:00:00 BC"]),
        ("timestamp", "time", ["2024-02-29 12:30:00.25"]),
        ("timestamp", "text", ["2024-02-29 12:30:00.25", "294276-12-31 23:59:59.999999", "0001-01-01 00:00:00 BC"]),
        ("timestamptz", "text", ["2024-02-29 12:30:00+00", "infinity"]),
        ("date", "text", ["5874897-12-31", "4713-01-01 BC", "1582-10-10", "-infinity"]),
        ("time", "text", ["12:00:00.5", "24:00:00", "00:00:00"]),
        (
            "interval",
            "text",
            ["1 year 2 mons -3 days 04:05:06.789", "-00:00:00.000001", "00:00:00", "-13 mons", "1 day"],
        ),
        ("bytea", "text", ["\\x00ff", "\\x"]),
        ("float8", "text", ["NaN", "-Infinity", "0.1", "-0"]),
    ],
)
def test_changed_types_are_cast_as_postgres_casts(database: Database, was: str, is_: str, given: list[Any]) -> None:
    """The oracle is the server: `value::was::is_`."""
    with database.connect() as connection:
        oracle.pin(connection)
        before, after = (column_of_type(connection, type_) for type_ in (was, is_))
        query = f"SELECT v::{was}, v::{was}::{is_} FROM unnest(%s::text[]) WITH ORDINALITY AS u (v, n) ORDER BY n"
        result = connection.execute(query.encode(), [given]).pgresult
        assert result is not None
        pairs = [[result.get_value(row, c) for c in (0, 1)] for row in range(len(given))]
    old, new = relation(before), relation(after)
    expected = rows(new, [(None if cast is None else bytes(cast),) for _, cast in pairs])
    shown = project(rows(old, [(None if text is None else bytes(text),) for text, _ in pairs]), old, new)
    assert shown.batch == expected.batch
    assert (shown.special and shown.special.to_pylist()) == (expected.special and expected.special.to_pylist())


def column_of_type(connection: Any, type_: str) -> Column:
    name, _, modifier = type_.partition("(")
    query = "SELECT oid, typnamespace::regnamespace::text, typname FROM pg_type WHERE oid = %s::regtype"
    oid, schema, name = connection.execute(query, [name]).fetchone()
    digits = [int(part) for part in modifier.rstrip(")").split(",")] if modifier else []
    return Column("c", Type(oid, schema, name), build.numeric(*digits) if digits else -1, number=1)


def test_a_value_that_cannot_be_cast_is_null_with_its_text() -> None:
    old, new = relation(column("a", 1, TEXT)), relation(column("a", 1, INT))
    shown = project(rows(old, [(b"7",), (b"x",), (None,), (b"99999999999",), (b"x",)]), old, new)
    assert shown.batch.column(0).to_pylist() == [7, None, None, None, None]
    assert shown.special is not None
    assert shown.special.to_pylist() == [None, [("a", "x")], None, [("a", "99999999999")], [("a", "x")]]


def test_texts_are_not_changed() -> None:
    old, new = relation(column("a", 1, NUMERIC)), relation(column("a", 1, INT), column("b", 2, INT, missing="3"))
    shown = project(rows(old, [(b"1.50",), (None,)], as_text=True), old, new, as_text=True)
    assert shown.batch.to_pylist() == [{"a": "1.50", "b": "3"}, {"a": None, "b": "3"}]


def test_relations_of_a_real_table(database: Database, tmp_path: Any) -> None:
    """Columns are added with a default, renamed, retyped and dropped: older rows equal what SELECT returns."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text, n int)")
    with captured(database, tmp_path) as log:
        for statement in [
            "INSERT INTO t VALUES (1, 'x', 7)",
            "ALTER TABLE t ADD d numeric(5,2) DEFAULT 1.5",
            "INSERT INTO t VALUES (2, 'y', 8, 2)",
            "ALTER TABLE t RENAME a TO b",
            "INSERT INTO t VALUES (3, 'z', 9, 3)",
            "ALTER TABLE t ALTER n TYPE bigint",
            "INSERT INTO t VALUES (4, 'z', 5000000000, 4)",
            "ALTER TABLE t DROP b, ADD b text",
            "INSERT INTO t VALUES (5, 1, 5, 'new')",
        ]:
            log.execute(statement)
            log.catch_up()  # after the rewrite, the catalogue no longer has the missing value
        changes = log.changes("t")
        expected = oracle.rows(log.connection, "public", "t")
    chain = [relation_of(change) for change in changes]
    found = []
    for index, change in enumerate(changes):
        assert change.new is not None
        image = rows(chain[index], [change.new], as_text=True)  # type: ignore[list-item]
        shown = project(image, chain[index], chain[-1], as_text=True, via=chain[index + 1 : -1])
        found.append(tuple(None if v is None else v.encode() for v in shown.batch.to_pylist()[0].values()))
    assert sorted(found, key=str) == sorted(expected, key=str)
