"""Fingerprints of rows are SipHash-2-4 with 128 bits. The expected ones are OpenSSL's: `openssl mac SIPHASH`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest

from tailrace.sinks.iceberg.fingerprint import HashKey, fingerprints

_KEY: Final[HashKey] = (0x0706050403020100, 0x0F0E0D0C0B0A0908)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        pytest.param([], "A3817F04BA25A8E66DF67214C7550293", id="no columns"),
        pytest.param([pa.array([0x7766554433221100])], "75E170969EB57953E3CC43A0D5781E65", id="a number"),
        pytest.param([pa.array([None], pa.int64())], "D60D3284A18EBD5AF3D0F02A078007CD", id="NULL"),
        pytest.param(
            [pa.array([7]), pa.array([b"a key of twenty bytes"], pa.large_binary())],
            "7F9AA6E01FD9A527BBF9AA30F2D76A97",
            id="a number and bytes",
        ),
    ],
)
def test_fingerprints_are_those_of_openssl(columns: list[pa.Array], expected: str) -> None:
    assert fingerprints(columns, 1, _KEY).tobytes().hex().upper() == expected


def test_the_borders_of_values_count() -> None:
    """Two rows whose bytes, put one after the other, are equal."""
    first = pa.array(["ab", "a", "", None, "ab\0"])
    second = pa.array(["c", "bc", "abc", "abc", "c"])
    found = fingerprints([first, second], 5, _KEY)
    assert len({row.tobytes() for row in found}) == 5


def test_another_key_gives_other_fingerprints() -> None:
    column = pa.array([1])
    assert fingerprints([column], 1, _KEY).tobytes() != fingerprints([column], 1, (1, 2)).tobytes()
