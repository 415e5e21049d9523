"""Bytes that no server sends always raise DecodeError, without a crash or a read outside the message."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.fuzz.mutation import ROUNDS
from tests.pgoutput import build, read

from tailrace.change import UNCHANGED, Image, Relation
from tailrace.errors import DecodeError
from tailrace.pgoutput.decoder import decode, decode_copy

TEXTS: dict[tuple[str, int], list[str]] = {
    ("bool", -1): ["t", "f"],
    ("int2", -1): ["-32768", "32767"],
    ("int8", -1): ["-9223372036854775808", "9223372036854775807"],
    ("numeric", build.numeric(10, 2)): ["-12345678.90", "0.00", "NaN", "-Infinity"],
    ("numeric", build.numeric(38, 10)): ["1234567890123456789012345678.0123456789"],
    ("money", -1): ["-$92,233,720,368,547,758.08", "$0.00"],
    ("bytea", -1): ["\\x00ff"],
    ("date", -1): ["2026-01-02", "0044-03-15 BC", "5874897-12-31", "-infinity"],
    ("timestamp", -1): ["2026-01-02 03:04:05.678", "4714-11-24 00:00:00 BC"],
    ("timestamptz", -1): ["2026-01-02 03:04:05.678+00", "0044-03-15 12:00:00+00 BC", "infinity"],
    ("time", -1): ["23:59:59.999999", "24:00:00"],
    ("interval", -1): ["-1 years -2 mons +3 days -04:05:06.789", "1 mon", "2562047788:00:54.775807", "infinity"],
    ("text", -1): ["naïve 🐘"],
}


def single_message(message: bytes) -> pa.Array:
    """The message in memory of exactly its size, so that reading past its end leaves the buffer."""
    return pa.array([message], pa.binary())


def outcomes(relation: Relation, message: bytes) -> tuple[object, object]:
    """The results of the kernels and of the plain decoder for a message; None for DecodeError."""
    try:
        compiled: object = read.decoded_rows(decode(relation, single_message(message)))[0]
    except DecodeError:
        compiled = None
    try:
        plain: object = read.parse_row(relation, message)
    except DecodeError:
        plain = None
    return compiled, plain


def one_row() -> tuple[Relation, Image]:
    relation = build.relation(*TEXTS, "text", "int4")
    return relation, (*(texts[0].encode() for texts in TEXTS.values()), UNCHANGED, None)


def test_every_truncation_is_rejected() -> None:
    relation, row = one_row()
    old = tuple(None if value is UNCHANGED else value for value in row)
    for message in (build.insert(row), build.update(row, old), build.update(row), build.delete(old)):
        assert None not in outcomes(relation, message)
        for size in range(len(message)):
            with pytest.raises(DecodeError):
                decode(relation, single_message(message[:size]))
        with pytest.raises(DecodeError, match="too many"):
            decode(relation, single_message(message + b"\0"))


def test_decoders_agree_on_damaged_messages() -> None:
    relation, row = one_row()
    message = build.update(row, tuple(None if value is UNCHANGED else value for value in row))
    chance = random.Random(7)
    for _ in range(ROUNDS * 10):
        damaged = bytearray(message)
        for _ in range(chance.choice([1, 1, 2, 5])):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 45, 48, 57, 127, 128, 255, 116, 117])
        compiled, plain = outcomes(relation, bytes(damaged))
        assert compiled == plain


@pytest.mark.parametrize("kind", TEXTS, ids=lambda kind: f"{kind[0]}{kind[1]}")
def test_decoders_agree_on_damaged_text(kind: tuple[str, int]) -> None:
    relation = build.relation(kind)
    chance = random.Random(11)
    alphabet = b"0123456789-+:. ,$\\xBCNaInfityemonsdr\xc3"
    for text in TEXTS[kind]:
        for _ in range(ROUNDS * 2):
            damaged = bytearray(text.encode())
            for _ in range(chance.choice([1, 1, 2, 4])):
                at = chance.randrange(len(damaged) + 1)
                damaged[at : at + chance.choice([0, 1, 1, 3])] = bytes(
                    chance.choices(alphabet, k=chance.choice([0, 1, 1]))
                )
            compiled, plain = outcomes(relation, build.insert((bytes(damaged),)))
            assert compiled == plain, damaged


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "inside its message kind"),
        (b"X", "unknown kind 'X'"),
        (build.insert((b"1", b"2")), "does not have the relation's 1 columns"),
        (build.insert(()), "does not have the relation's 1 columns"),
        (build.insert((b"1",), oid=99), "belongs to relation 99, not 16384"),
        (build.insert((b"1",)).replace(b"t", b"b"), "binary format"),
        (build.insert((b"1",)).replace(b"t", b"?"), r"unknown kind '\?'"),
        (build.insert((b"1",)).replace(b"N", b"K"), "unexpected kind 'K'"),
        (build.delete((b"1",)).replace(b"K", b"N"), "unexpected kind 'N'"),
        (build.insert((b"1",)).replace(b"\0\0\0\x01", b"\xff\xff\xff\xff"), "inside its value"),
        (build.insert((b"1",)).replace(b"\0\0\0\x01", b"\x7f\xff\xff\xff"), "inside its value"),
        (b"T" + b"\0" * 5, "Truncate is not a row message"),
    ],
)
def test_the_error_names_the_problem(message: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode(build.relation("int4"), pa.array([build.insert((b"1",)), message], pa.binary()))


@pytest.mark.parametrize(
    "data",
    [b"1", b"1\t2", b"1\n", b"1\t2\t3\n", b"1\t2\n3", b"1\t\\\n", b"1\t\\q\n", b"1\t\\Nx\n", b"1\tx\\N\n", b"\n"],
)
def test_copy_data_without_whole_lines_is_rejected(data: bytes) -> None:
    with pytest.raises(DecodeError, match=r"public\.t: row . of COPY's data"):
        decode_copy(build.relation("text", "text"), data)


def test_a_missing_payload_is_rejected() -> None:
    with pytest.raises(DecodeError, match="without payload"):
        decode(build.relation("int4"), pa.array([None], pa.binary()))


@pytest.mark.soak
@pytest.mark.skipif("NUMBA_BOUNDSCHECK" in os.environ, reason="this is the run with bounds checks")
def test_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    """Run the tests above with bounds checks, so that a read outside an array raises IndexError."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
