"""json and jsonb in MessagePack are exact, if need be as strings."""

from __future__ import annotations

from typing import Any

import msgpack
import pyarrow as pa
import pytest

from tailrace.sinks.messages import messagepack

_DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, "x", null, true]}', {"a": [1, "x", None, True]}),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", "18446744073709551616"),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", "-9223372036854775809"),
        ("9" * 5000, "9" * 5000),
        ("1.10", 1.1),
        ("5e-324", 5e-324),
        ("0.1234567890123456789", "0.1234567890123456789"),
        ("1e400", "1e400"),
        ("1e-400", "1e-400"),
        (r'"\ud83d\ude00"', "😀"),
        (r'["\ud800"]', r'["\ud800"]'),
        (_DEEP, _DEEP),
        (None, None),
    ],
)
def test_nested(text: str | None, value: Any) -> None:
    (packed,) = messagepack.nested_values(pa.array([text], pa.string())).to_pylist()
    assert msgpack.unpackb(packed) == value
