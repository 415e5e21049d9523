"""The vectorised decoder agrees with the plain one on every value, and snapshot with stream."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pgoutput import build, read, values

from tailrace.change import UNCHANGED, Column, Image, Relation, Type
from tailrace.errors import DecodeError
from tailrace.pgoutput import kernel
from tailrace.pgoutput.decoder import decode, decode_copy
from tailrace.types import TYPE_METADATA

fixed = settings(derandomize=True, deadline=None, max_examples=150)


def payloads(*messages: bytes) -> pa.Array:
    return pa.array(messages, pa.binary())


def random_messages(rows: list[Image], seed: int) -> list[bytes]:
    chance = random.Random(seed)
    messages = []
    for row in rows:
        old = tuple(None if value is UNCHANGED else value for value in chance.choice(rows))
        letter = chance.choice([b"K", b"O"])
        sent = [build.insert(row), build.update(row), build.update(row, old, letter), build.delete(old, letter)]
        messages.append(chance.choice(sent))
    return messages


@fixed
@given(values.tables(), st.integers(0, 2**32))
def test_kernels_agree_with_the_plain_decoder(table: tuple[Relation, list[Image]], seed: int) -> None:
    relation, rows = table
    messages = random_messages(rows, seed)
    for array in (payloads(*messages), pa.array(messages, pa.large_binary())):
        expected = [read.parse_row(relation, message) for message in messages]
        assert read.decoded_rows(decode(relation, array)) == expected
    middle = decode(relation, payloads(*messages).slice(1, 3))
    assert read.decoded_rows(middle) == expected[1:4]


@fixed
@given(values.tables())
def test_a_snapshot_agrees_with_the_stream(table: tuple[Relation, list[Image]]) -> None:
    relation, rows = table
    rows = [tuple(None if value is UNCHANGED else value for value in row) for row in rows]
    streamed = decode(relation, payloads(*map(build.insert, rows))).new
    copied = decode_copy(relation, b"".join(map(build.copy_line, rows)))
    assert copied.batch.schema.equals(streamed.batch.schema, check_metadata=True)
    assert read.image_rows(copied) == read.image_rows(streamed)
    assert len(copied) == len(rows)


def test_old_and_new_images() -> None:
    relation = build.relation("int4", "text")
    decoded = decode(
        relation,
        payloads(
            build.insert((b"1", b"a")),
            build.update((b"2", UNCHANGED)),
            build.update((b"3", b"c"), (b"1", None), b"K"),
            build.update((b"4", b"d"), (b"1", b"a"), b"O"),
            build.delete((b"5", None), b"K"),
            build.delete((b"6", b"f"), b"O"),
        ),
    )
    assert decoded.new.present.tolist() == [True, True, True, True, False, False]
    assert decoded.old.present.tolist() == [False, False, True, True, True, True]
    assert decoded.old_is_key.tolist() == [False, False, True, False, True, False]
    assert decoded.new.batch.to_pydict() == {"c0": [1, 2, 3, 4, None, None], "c1": ["a", None, "c", "d", None, None]}
    assert decoded.old.batch.to_pydict() == {"c0": [None, None, 1, 1, 5, 6], "c1": [None, None, None, "a", None, "f"]}
    assert list(decoded.new.unchanged) == [1]
    assert decoded.new.unchanged[1].tolist() == [False, True, False, False, False, False]
    assert decoded.old.unchanged == {}
    assert decoded.new.special is None


def test_special_values_are_beside_the_row() -> None:
    relation = build.relation(("numeric", build.numeric(5, 2)), "time")
    rows = [(b"NaN", b"24:00:00"), (b"1.50", None), (b"-Infinity", b"12:00:00")]
    new = decode(relation, payloads(*map(build.insert, rows))).new
    assert new.special is not None
    assert new.special.to_pylist() == [[("c0", "NaN"), ("c1", "24:00:00")], None, [("c0", "-Infinity")]]
    assert new.batch.column(0).null_count == 2


@pytest.mark.parametrize("width", [0, 1, 1600])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_widths(width: int, count: int) -> None:
    """Case 50."""
    relation = build.relation(*["int4"] * width)
    row = tuple(str(n).encode() for n in range(width))
    for rows in (
        decode(relation, payloads(*[build.insert(row)] * count)).new,
        decode_copy(relation, build.copy_line(row) * count),
    ):
        assert (len(rows), rows.batch.num_rows, rows.batch.num_columns) == (count, count, width)
        assert rows.batch.to_pylist() == [{f"c{n}": n for n in range(width)}] * count


def test_fields_name_the_postgres_type() -> None:
    mood = Column("m", Type(1, "public", "Mood", "e", labels=("ok",)))
    batch = decode(build.relation(("numeric", build.numeric(10, 2)), mood), payloads()).new.batch
    named = [field.metadata[TYPE_METADATA] for field in batch.schema]
    assert named == [b"numeric(10,2)", b'public."Mood"']


@pytest.mark.parametrize(("kind", "text"), [("text", b"caf\xe9"), ("int4", b"\xb2"), ("json", b'"\xff"')])
def test_invalid_utf8_is_an_error(kind: str, text: bytes) -> None:
    """Case 91."""
    relation = build.relation("text", kind)
    with pytest.raises(DecodeError, match=r"public\.t, column c1"):
        decode(relation, payloads(build.insert((b"x", text))))
    with pytest.raises(DecodeError, match=r"public\.t, column c1"):
        decode_copy(relation, b"x\t" + text + b"\n")


def test_errors_do_not_show_values() -> None:
    for kind in ("int4", "float8", "bool", "date", "interval", "bytea", "money", "time", "timestamptz"):
        with pytest.raises(DecodeError) as caught:
            decode(build.relation(kind), payloads(build.insert((b"secret",))))
        assert "secret" not in repr(caught.value)
        assert caught.value.__suppress_context__


def test_kernels_compile_without_a_writable_cache() -> None:
    """numba has no directory for the cache of a function without a file, as in a read-only installation."""
    namespace: dict[str, Any] = {}
    exec("def twice(n): return n + n", namespace)
    compiled = kernel.compiled(kernel.LONG(kernel.LONG))(namespace["twice"])
    assert compiled(21) == 42


def test_large_values_are_exact() -> None:
    relation = build.relation("text", "bytea")
    text, raw = "é" * 3_000_000, np.random.default_rng(1).bytes(2_000_000)
    rows = [(text.encode(), b"\\x" + raw.hex().encode()), (b"", b"\\x")]
    new = decode(relation, payloads(*map(build.insert, rows))).new
    assert new.batch.to_pydict() == {"c0": [text, ""], "c1": [raw, b""]}
