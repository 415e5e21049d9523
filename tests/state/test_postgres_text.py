"""The text of every value from a snapshot's typed columns is what PostgreSQL prints."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests import oracle, values
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.pgoutput import build
from tests.workload import Connection

from tailrace import types
from tailrace.capture.postgres import catalog
from tailrace.change import Column, Relation
from tailrace.embedded.postgres import Postgres
from tailrace.images import Images
from tailrace.log.snapshot import chunk_schema
from tailrace.pgoutput.decoder import decode_copy
from tailrace.state.postgres_text import snapshot_images, to_text

MANY = 3000


@pytest.fixture(scope="module")
def connection(postgres: Postgres) -> Iterator[Connection]:
    database: Database = make_database(postgres)
    with database.connect() as connection:
        oracle.pin(connection)
        connection.execute(values.DECLARATIONS)
        yield connection
    drop_database(database)


def printed_values(connection: Connection, query: str, *arguments: object) -> list[bytes | None]:
    """The first column, as PostgreSQL prints it."""
    result = connection.execute(query.encode(), arguments).pgresult
    assert result is not None
    return [None if (v := result.get_value(row, 0)) is None else bytes(v) for row in range(result.ntuples)]


def column_of(connection: Connection, type_: str) -> Column:
    connection.execute("DROP TABLE IF EXISTS one")
    connection.execute(f"CREATE TABLE one (c {type_})".encode())
    (oid,) = connection.execute("SELECT 'one'::regclass::oid").fetchone() or (0,)
    return catalog.describe(connection, [oid])[oid].columns[0]


def snapshot_batch(relation: Relation, rows: list[tuple[bytes | None, ...]]) -> pa.RecordBatch:
    """The rows in the form of a snapshot's chunk."""
    found: Images = decode_copy(relation, b"".join(build.copy_line(row) for row in rows))
    special = found.special if found.special is not None else pa.nulls(len(rows), types.SPECIALS)
    return pa.RecordBatch.from_arrays([*found.batch.columns, special], schema=chunk_schema(relation))


def texts(batch: pa.RecordBatch) -> list[tuple[bytes | None, ...]]:
    columns = [[None if v is None else v.encode() for v in column.to_pylist()] for column in batch.columns]
    return list(zip(*columns, strict=True))


def assert_printed_alike(column: Column, own: list[bytes | None]) -> None:
    relation = Relation(1, "public", "one", "d", (column,))
    images = snapshot_images(snapshot_batch(relation, [(text,) for text in own]), relation, as_text=True)
    assert images.batch.schema == types.schema(relation, as_text=True)
    images.batch.validate(full=True)
    assert [row[0] for row in texts(images.batch)] == own
    assert images.special is None


@pytest.mark.parametrize("type_", values.TYPES)
def test_value(connection: Connection, type_: str) -> None:
    rng = random.Random(type_)
    column = column_of(connection, type_)
    given = [values.value(rng, type_) for _ in range(200)]
    for value in given:
        connection.execute(f"INSERT INTO one VALUES (%s::{type_})".encode(), [value])
    assert_printed_alike(column, printed_values(connection, "SELECT c FROM one"))


def _floats(width: str, count: int) -> list[float]:
    """Random bits, powers of two and numbers with few digits, whose shortest text is hard to find."""
    rng = random.Random(width)
    size = 4 if width == "f" else 8
    found = [struct.unpack(width, rng.randbytes(size))[0] for _ in range(count)]
    exponents = range(-149, 128) if width == "f" else range(-1074, 1024)
    found += [sign * 2.0**k for k in exponents for sign in (1, -1)]
    tens = range(-45, 38) if width == "f" else range(-323, 308)
    found += [float(f"{digits}e{k}") for k in tens for digits in (1, 2, 3, 5, 7, 9, 15, 841)]
    # Near where floats are whole numbers, and midpoints between two have few digits.
    found += [rng.randint(1, 9999) * 10.0 ** rng.randint(0, 30) for _ in range(count)]
    found += [float(rng.getrandbits(rng.randint(20, 70))) for _ in range(count)]
    found += [rng.uniform(-(10**k), 10**k) for k in range(-8, 18) for _ in range(20)]
    return found


@pytest.mark.parametrize(("type_", "width"), [("float4", "f"), ("float8", "d")])
def test_floats(connection: Connection, type_: str, width: str) -> None:
    given = [f for f in _floats(width, MANY) if abs(f) < 3.4e38 or width == "d"]
    own = printed_values(connection, f"SELECT u::{type_} FROM unnest(%s::float8[]) u", given)
    assert len(own) == len(given)
    assert_printed_alike(column_of(connection, type_), own)


def _random(low: int, high: int) -> list[int]:
    rng = random.Random(low)
    return [low, high, *(rng.randint(low, high) for _ in range(MANY))]


@pytest.mark.parametrize("days", [(-2440588, 2145042904), (-719_400, -718_800), (2_932_500, 2_933_300)])
def test_dates(connection: Connection, days: tuple[int, int]) -> None:
    own = printed_values(connection, "SELECT '1970-01-01'::date + u FROM unnest(%s::int[]) u", _random(*days))
    assert_printed_alike(column_of(connection, "date"), own)


@pytest.mark.parametrize("type_", ["timestamp", "timestamptz"])
@pytest.mark.parametrize("seconds", [(-210_866_803_200, 9_223_372_036_850), (-62_136_000_000, -62_135_000_000), (0, 9)])
def test_timestamps(connection: Connection, type_: str, seconds: tuple[int, int]) -> None:
    rng = random.Random(3)
    given = _random(*seconds)
    fractions = [rng.choice([0, 5, 10, 500_000, 999_999, rng.randint(0, 999_999)]) for _ in given]
    own = printed_values(
        connection,
        "SELECT (to_timestamp(0) + s * interval '1 second' + f * interval '1 microsecond')::" + type_
        + " FROM unnest(%s::int8[], %s::int[]) u(s, f)",
        given,
        fractions,
    )  # fmt: skip
    assert_printed_alike(column_of(connection, type_), own)


def test_times(connection: Connection) -> None:
    moments = [0, 1, 86_399_999_999, 86_400_000_000, 60_000_000, *_random(0, 86_399_999_999)]
    own = printed_values(
        connection, "SELECT ('00:00'::time + u * interval '1 microsecond') FROM unnest(%s::int8[]) u", moments
    )
    assert_printed_alike(column_of(connection, "time"), [*own, b"24:00:00", None])


def test_intervals(connection: Connection) -> None:
    rng = random.Random(5)

    def some(limit: int) -> list[int]:
        return [rng.choice([0, 1, -1, 12, -13, limit, rng.randint(-limit, limit)]) for _ in range(MANY)]

    own = printed_values(
        connection,
        "SELECT make_interval(months => m, days => d) + t * interval '1 microsecond'"
        " FROM unnest(%s::int[], %s::int[], %s::int8[]) u(m, d, t)",
        some(2**31 - 2),
        some(2**31 - 2),
        some(2**52),
    )
    assert_printed_alike(column_of(connection, "interval"), own)


@pytest.mark.parametrize("type_", ["numeric(38,20)", "numeric(20,8)", "numeric(10,0)", "numeric(2,2)", "money"])
def test_decimals(connection: Connection, type_: str) -> None:
    rng = random.Random(type_)
    fraction = {"numeric(38,20)": 20, "numeric(20,8)": 8, "numeric(10,0)": 0, "numeric(2,2)": 2, "money": 2}[type_]
    whole = {"numeric(38,20)": 18, "numeric(20,8)": 12, "numeric(10,0)": 9, "numeric(2,2)": 0, "money": 16}[type_]
    given = []
    for _ in range(MANY):
        number = rng.randint(0, 10 ** rng.randint(0, whole + fraction) - 1)
        digits = str(number).rjust(fraction + 1, "0")
        point = len(digits) - fraction
        given.append(f"{rng.choice(['', '-'])}{digits[:point]}.{digits[point:]}0")
    own = printed_values(connection, f"SELECT u::{type_} FROM unnest(%s::text[]) u", given)
    assert_printed_alike(column_of(connection, type_), own)


def test_special_values_are_in_their_columns(connection: Connection) -> None:
    connection.execute("DROP TABLE IF EXISTS odd")
    connection.execute('CREATE TABLE odd ("_special" numeric(5,2), a time, b numeric(5,2), c bytea)')
    (oid,) = connection.execute("SELECT 'odd'::regclass::oid").fetchone() or (0,)
    relation = catalog.describe(connection, [oid])[oid]
    rows: list[tuple[bytes | None, ...]] = [
        (b"NaN", b"24:00:00", b"1.50", b"\\x"),
        (b"0.00", None, b"NaN", None),
        (None, b"00:00:00", None, b"\\x00ff"),
        (b"-1.00", b"24:00:00", b"NaN", b"\\x0a"),
    ]
    batch = snapshot_batch(relation, rows)
    for start, stop in ((0, 4), (1, 4), (2, 3), (1, 2), (0, 0)):
        piece = batch.slice(start, stop - start)
        assert texts(snapshot_images(piece, relation, as_text=True).batch) == rows[start:stop]
        typed = snapshot_images(piece, relation, as_text=False)
        assert typed.batch.schema == types.schema(relation)
        assert typed.batch.columns == piece.columns[:-1]
        has_special = any(b"NaN" in row or b"24:00:00" in row for row in rows[start:stop])
        assert (typed.special is not None) == has_special


def test_a_table_without_columns() -> None:
    relation = Relation(1, "public", "empty", "d", ())
    batch = pa.RecordBatch.from_arrays([pa.nulls(3, types.SPECIALS)], schema=chunk_schema(relation))
    images = snapshot_images(batch, relation, as_text=True)
    assert (len(images), len(images.batch), images.batch.num_columns) == (3, 3, 0)


def test_columns_of_nulls_and_empty_columns() -> None:
    for name in types._TABLE:
        column = Column("c", build.type_(name))
        kind = types.mapping(column).arrow
        assert to_text(pa.nulls(3, kind), column).to_pylist() == [None] * 3
        assert to_text(pa.nulls(0, kind), column).to_pylist() == []
        assert to_text(pa.nulls(0, kind), column).type == pa.string()


def test_sliced_binary_columns() -> None:
    column = Column("c", build.type_("bytea"))
    array = pa.array([b"\x01\x02", None, b"", b"\xff", b"\x00"])
    for start in range(5):
        expected = [None if v is None else "\\x" + v.hex() for v in array.to_pylist()[start:]]
        assert to_text(array.slice(start), column).to_pylist() == expected
    assert to_text(array.slice(3, 1), column).to_pylist() == ["\\xff"]
