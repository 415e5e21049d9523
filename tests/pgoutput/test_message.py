"""Single messages, byte by byte."""

from __future__ import annotations

import struct
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from tests.pgoutput import build

from tailrace.change import UNCHANGED, Lsn
from tailrace.errors import DecodeError
from tailrace.pgoutput import message

AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
MICROSECONDS = (AT - datetime(2000, 1, 1, tzinfo=UTC)).days * 86_400_000_000 + 11_045_000_678

RELATION = b"R" + struct.pack(">I", 7) + b"\0orders\0f" + struct.pack(">H", 2)
RELATION += b"\x01id\0" + struct.pack(">Ii", 20, -1) + "\0größe\0".encode() + struct.pack(">Ii", 1700, 655366)

MESSAGES: list[tuple[bytes, message.Message]] = [
    (b"B" + struct.pack(">QqI", 0x1_0000_00AB, MICROSECONDS, 9), message.Begin(Lsn(0x1_0000_00AB), AT, 9)),
    (b"C\0" + struct.pack(">QQq", 1, 2, MICROSECONDS), message.Commit(Lsn(1), Lsn(2), AT)),
    (b"O" + struct.pack(">Q", 5) + b"north\0", message.OriginMessage(Lsn(5), "north")),
    (
        RELATION,
        message.RelationMessage(
            7,
            "pg_catalog",
            "orders",
            "f",
            (message.ColumnMessage("id", 20, -1, True), message.ColumnMessage("größe", 1700, 655366, False)),
        ),
    ),
    (b"Y" + struct.pack(">I", 77) + b"public\0mood\0", message.TypeMessage(77, "public", "mood")),
    (build.insert((b"1", None, b"")), message.Insert(build.OID, (b"1", None, b""))),
    (build.update((UNCHANGED,)), message.Update(build.OID, None, False, (UNCHANGED,))),
    (build.update((b"2",), (b"1",), b"K"), message.Update(build.OID, (b"1",), True, (b"2",))),
    (build.update((b"2",), (b"1",), b"O"), message.Update(build.OID, (b"1",), False, (b"2",))),
    (build.delete((b"1",), b"O"), message.Delete(build.OID, (b"1",), False)),
    (b"T" + struct.pack(">IBII", 2, 3, 7, 8), message.Truncate((7, 8), ("CASCADE", "RESTART IDENTITY"))),
    (b"T" + struct.pack(">IBI", 1, 0, 7), message.Truncate((7,), ())),
    (
        b"M\x01" + struct.pack(">Q", 3) + b"_bemi\0" + struct.pack(">I", 2) + b"\0\xff",
        message.LogicalMessage(True, Lsn(3), "_bemi", b"\0\xff"),
    ),
]


@pytest.mark.parametrize(("payload", "expected"), MESSAGES, ids=[type(m).__name__ for _, m in MESSAGES])
def test_message(payload: bytes, expected: message.Message) -> None:
    assert message.parse(payload) == expected
    assert message.parse(memoryview(payload)) == expected
    for size in range(len(payload)):
        with pytest.raises(DecodeError, match=r"inside its|has an"):
            message.parse(payload[:size])
    with pytest.raises(DecodeError, match="1 bytes too many"):
        message.parse(payload + b"\0")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"S" + b"\0" * 20, "unknown kind 'S'"),
        (b"B" + struct.pack(">QqI", 1, 2**63 - 1, 9), "impossible commit time"),
        (b"O" + struct.pack(">Q", 5) + b"\xff\0", "origin name is not valid UTF-8"),
        (build.insert((b"1",)).replace(b"t", b"b"), "binary format"),
        (b"T" + struct.pack(">IB", 2**32 - 1, 0), "inside its relation oid"),
    ],
)
def test_malformed(payload: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        message.parse(payload)


def test_unchanged_is_a_singleton() -> None:
    parsed = message.parse(build.update((UNCHANGED,)))
    assert isinstance(parsed, message.Update)
    assert parsed.new[0] is UNCHANGED


def test_capture_needs_no_compiler() -> None:
    """Parsing single messages imports neither numpy nor pyarrow nor numba, and types do not import numba."""
    script = (
        "import sys, tailrace.pgoutput.message; assert not {'numpy', 'pyarrow', 'numba'} & set(sys.modules)\n"
        "import tailrace.types; assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
