"""Every value comes back from MySQL and MariaDB as PostgreSQL printed it, or is refused: nothing changes silently."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import values
from tests.e2e.test_values import DECLARATIONS, SAMPLES
from tests.fixtures.postgres import drop_database, make_database
from tests.sinks import mysql_values
from tests.sinks.mysql_values import Texts

from tailrace import types
from tailrace.change import Column, Relation, Type
from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.embedded.postgres import Postgres
from tailrace.errors import PoisonError
from tailrace.sinks.database.staged_rows import Positions
from tailrace.sinks.mysql.column_mapping import ColumnMapping, map_relation
from tailrace.sinks.mysql.flavour import Flavour
from tailrace.sinks.mysql.loading_connection import LoadingConnection
from tailrace.sinks.mysql.number_conversion import DecimalConversion
from tailrace.sinks.mysql.unrepresentable import UnrepresentablePolicy
from tailrace.state.postgres_text import to_text

RANDOM_VALUES = 40
NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@pytest.fixture(scope="module")
def connection(any_mysql_server: MysqlFamilyServer) -> Iterator[LoadingConnection]:
    with mysql_values.connect(any_mysql_server) as connection:
        yield connection


@pytest.fixture(scope="module")
def every(postgres: Postgres) -> Iterator[tuple[Relation, list[Texts]]]:
    """A table with every type, and many values."""
    rng = random.Random(15)
    found: dict[str, list[str | None]] = {type_: list(samples) for type_, samples in SAMPLES.items()}
    for type_ in values.TYPES.keys() - {"mood", "spot", "spot[]", "net_price"}:  # which are declared otherwise here
        found.setdefault(type_, []).extend(values.value(rng, type_) for _ in range(RANDOM_VALUES))
    database = make_database(postgres)
    yield mysql_values.every_type(database, f"{DECLARATIONS}CREATE DOMAIN short AS varchar(40);", found)
    drop_database(database)


def is_beyond(column: Column, text: str) -> bool:
    """Whether MySQL's type cannot hold a value: the rule, written without its implementation."""
    type_, modifier = types.base(column.type, column.modifier)
    if type_.name in ("numeric", "float4", "float8") and text in NOT_FINITE:
        return True
    if type_.name == "numeric":
        exact = Fraction(text) * 10**30
        return exact.denominator != 1 or (modifier < 0 and abs(exact) >= 10**65)
    if type_.name in ("date", "timestamp", "timestamptz"):
        return "infinity" in text or "BC" in text or text.index("-") > 4
    return False


def arrays(columns: list[Texts]) -> list[pa.Array]:
    return [pa.array(column, pa.string()) for column in columns]


def refused_as_null(mapping: ColumnMapping, texts: pa.Array) -> Texts:
    """What the destination has to hold if values beyond its types become NULL."""
    wanted = mapping.type.conversion.comparable(texts).to_pylist()
    return [
        None if before is None or is_beyond(mapping.column, before) else after
        for before, after in zip(texts.to_pylist(), wanted, strict=True)
    ]


def returned(
    connection: LoadingConnection, mappings: tuple[ColumnMapping, ...], columns: list[pa.Array], how: str
) -> list[Texts]:
    encoded = [m.encode(column) for m, column in zip(mappings, columns, strict=True)]
    mysql_values.create(connection, mappings)
    (mysql_values.load if how == "load" else mysql_values.insert)(connection, mappings, encoded)
    return mysql_values.read(connection, mappings)


def table(*types_: str, key: int = 0, schema: str = "pg_catalog") -> Relation:
    """A table with columns c0, c1 …, of which the first `key` are its key. Types may have a modifier: `timestamp:3`."""
    columns = []
    for i, declared in enumerate(types_):
        name, _, modifier = declared.partition(":")
        columns.append(Column(f"c{i}", Type(0, schema, name), int(modifier or -1), nullable=i >= key))
    return Relation(1, "public", "things", "d", tuple(columns), tuple(f"c{i}" for i in range(key)))


def mapping_of(type_: str, policy: str | dict[str, str] = "stop", key: int = 0) -> ColumnMapping:
    found = map_relation(table(type_, key=key), Flavour("mysql", (8, 4, 0)), UnrepresentablePolicy.parse(policy))
    return found[0]


POSITIONS = Positions(np.array([0x1A2B3C4, 0x1A2B3C4, 0x1A2B3D0]), np.array([0, 1, 0]))


@pytest.mark.parametrize("how", ["load", "insert"])
def test_every_value_returns_or_is_refused(
    connection: LoadingConnection, every: tuple[Relation, list[Texts]], how: str
) -> None:
    relation, texts = every
    mappings = pickle.loads(pickle.dumps(mysql_values.mapped(connection, relation, "null")))
    columns = arrays(texts)
    found = returned(connection, mappings, columns, how)
    for mapping, column, own in zip(mappings, columns, found, strict=True):
        assert own == refused_as_null(mapping, column), mapping.sql_type
        for text in filter(None, column.to_pylist()):
            if is_beyond(mapping.column, text):
                with pytest.raises(PoisonError):
                    mysql_values.mapped(connection, relation)[relation.columns.index(mapping.column)].encode(
                        pa.array([text])
                    )


def test_text_holds_every_value(connection: LoadingConnection, every: tuple[Relation, list[Texts]]) -> None:
    relation, texts = every
    mappings = mysql_values.mapped(connection, relation, "text")
    assert returned(connection, mappings, arrays(texts), "load") == texts


def test_clamped_values_are_the_nearest(connection: LoadingConnection) -> None:
    """PostgreSQL's values of each type, and what the destination holds."""
    cases = {
        "numeric": {
            "Infinity": "9" * 35 + "." + "9" * 30,
            "-Infinity": "-" + "9" * 35 + "." + "9" * 30,
            "1" + "0" * 60: "9" * 35 + "." + "9" * 30,
            "0." + "0" * 30 + "5": "0." + "0" * 29 + "1",
            "-0." + "0" * 30 + "49": "0",
            "1.50": "1.5",
        },
        "float4": {"Infinity": "3.4028235e+38", "-Infinity": "-3.4028235e+38", "-0": "-0"},
        "float8": {"Infinity": "1.7976931348623157e+308", "-Infinity": "-1.7976931348623157e+308"},
        "date": {"infinity": "9999-12-31", "-infinity": "0001-01-01", "0044-03-15 BC": "0001-01-01"},
        "timestamp:3": {"infinity": "9999-12-31 23:59:59.999", "-infinity": "0001-01-01 00:00:00"},
        "timestamptz": {
            "10000-01-01 00:00:00+00": "9999-12-31 23:59:59.999999+00",
            "0001-12-31 23:59:59+00 BC": "0001-01-01 00:00:00+00",
        },
    }
    mappings = mysql_values.mapped(connection, table(*cases), "clamp")
    count = max(map(len, cases.values()))
    columns = [[*case, *[None] * (count - len(case))] for case in cases.values()]
    found = returned(connection, mappings, arrays(columns), "load")
    assert found == [[*case.values(), *[None] * (count - len(case))] for case in cases.values()]
    assert found == [m.comparable(c).to_pylist() for m, c in zip(mappings, arrays(columns), strict=True)]


@pytest.mark.parametrize("policy", ["stop", "clamp"])
def test_a_refused_value_is_reported_without_it(policy: str) -> None:
    """NaN has no nearest number."""
    with pytest.raises(PoisonError) as caught:
        mapping_of("numeric", policy).encode(pa.array(["12345678", "NaN", "NaN"]), POSITIONS)
    assert str(caught.value) == "public.things, column c0 at 0/1A2B3C4:1: DECIMAL(65,30) cannot hold the value"
    assert caught.value.positions == ("0/1A2B3C4:1", "0/1A2B3D0:0")
    assert "on_unrepresentable" in caught.value.hint


@pytest.mark.parametrize("policy", ["null", "clamp"])
def test_keys_are_never_changed(policy: str) -> None:
    """Two keys could become one."""
    with pytest.raises(PoisonError, match="cannot hold"):
        mapping_of("date", policy, key=1).encode(pa.array(["infinity"]))


def test_a_nullable_column_is_needed_for_null() -> None:
    relation = table("date", "text", key=0)
    strict = Relation(1, "public", "things", "d", tuple([replace(c, nullable=False) for c in relation.columns]))
    flavour = Flavour("mariadb", (11, 4, 5))
    assert [m.nullable for m in map_relation(strict, flavour, UnrepresentablePolicy.parse("null"))] == [True, False]
    assert [m.nullable for m in map_relation(strict, flavour, UnrepresentablePolicy())] == [False, False]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=12, min_value=-(10**20), max_value=10**20)


@given(
    st.lists(
        st.tuples(
            TEXTS,
            st.binary(max_size=40).map(lambda data: f"\\x{data.hex()}"),
            NUMBERS.map(lambda number: format(number, "f")),
            st.floats(allow_nan=False, allow_infinity=False),
            st.datetimes(),
        ),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=25, deadline=None)
def test_generated_values_return(
    connection: LoadingConnection, rows: list[tuple[str, str, str, float, datetime]]
) -> None:
    relation = table("text", "bytea", "numeric", "float8", "timestamp")
    mappings = mysql_values.mapped(connection, relation)
    texts, binaries, numbers, floats, moments = map(list, zip(*rows, strict=True))
    columns = [
        *(pa.array(column, pa.string()) for column in (texts, binaries, numbers)),
        to_text(pa.array(floats, pa.float64()), relation.columns[3]),
        to_text(pa.array(moments, pa.timestamp("us")), relation.columns[4]),
    ]
    wanted = [m.comparable(column).to_pylist() for m, column in zip(mappings, columns, strict=True)]
    assert returned(connection, mappings, columns, "load") == wanted
    assert returned(connection, mappings, columns, "insert") == wanted


DIGITS = st.text("0123456789", min_size=1, max_size=70).map(lambda digits: digits.lstrip("0") or "0")


@given(
    st.integers(1, 1000),
    st.integers(-40, 80),
    st.lists(st.tuples(st.sampled_from(["", "-"]), DIGITS, st.text("09", max_size=60)), min_size=1),
)
def test_decimals_hold_what_has_no_more_digits(precision: int, scale: int, parts: list[tuple[str, str, str]]) -> None:
    """Whatever was declared; a text that PostgreSQL's type does not have is no case."""
    mapping = mapping_of(f"numeric:{(precision << 16 | scale & 0x7FF) + 4}", "clamp")
    conversion = mapping.type.conversion
    assert isinstance(conversion, DecimalConversion)
    largest = Fraction(10**conversion.precision - 1, 10**conversion.scale)
    texts = [f"{sign}{whole}{f'.{fraction}' if fraction else ''}" for sign, whole, fraction in parts]
    texts = [t for t in texts if (Fraction(t) * Fraction(10) ** scale).denominator == 1]
    texts = [t for t in texts if abs(Fraction(t)) * Fraction(10) ** scale < 10**precision]
    is_held = [abs(Fraction(t)) <= largest and (Fraction(t) * 10**conversion.scale).denominator == 1 for t in texts]
    found = conversion.unrepresentable(pa.array(texts, pa.string())).tolist()
    assert found == [row for row, held in enumerate(is_held) if not held]
    encoded = [Fraction(text) for text in mapping.encode(pa.array(texts, pa.string())).to_pylist()]
    for text, held, value in zip(texts, is_held, encoded, strict=True):
        assert value == Fraction(text) if held else abs(value) <= largest
        assert (value * 10**conversion.scale).denominator == 1
        if abs(Fraction(text)) <= largest:
            assert abs(value - Fraction(text)) <= Fraction(1, 2 * 10**conversion.scale)


def test_slices_and_empty_columns_are_encoded() -> None:
    """Arrays with an offset, with NULL only, and without rows."""
    for type_, text, other in (
        ("timestamptz", "2026-01-31 12:00:00+00", "2026-01-31 12:00:00"),
        ("numeric", "1.5", "1.5"),
        ("date", "2026-01-31", "2026-01-31"),
        ("bool", "t", "1"),
        ("float8", "0.1", "0.1"),
        ("money", "-$1,234.50", "-1234.50"),
    ):
        mapping = mapping_of(type_)
        whole = pa.array(["infinity", None, text, "NaN"])
        assert mapping.encode(whole.slice(1, 2)).to_pylist() == [None, other]
        assert mapping.encode(pa.nulls(2, pa.string())).to_pylist() == [None, None]
        assert mapping.encode(pa.array([], pa.string())).to_pylist() == []
    assert mapping_of("bytea").encode(pa.array(["x", None, "\\x00ff"]).slice(1)).to_pylist() == [None, b"\0\xff"]
