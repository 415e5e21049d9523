"""Damaged files raise CorruptError or DecodeError. They never crash, and never give other rows."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.slatedb import build
from tests.slatedb.make_data import DATA

from tailrace.errors import CorruptError, DecodeError
from tailrace.slatedb import kernel
from tailrace.slatedb.decoder import decode
from tailrace.slatedb.row_entry import EntryKind, RowEntry

ENTRIES = [
    RowEntry(kind, b"key:%03d" % n, None if kind is EntryKind.DELETE else b"v" * (n % 9), n // 3 + 1, n, n * 9)
    for n in range(40)
    for kind in [list(EntryKind)[n % 3]]
]


def largest_files() -> Iterator[Path]:
    """The file with the most entries of each folder of `data`."""
    for folder in sorted(DATA.iterdir()):
        yield max((folder / "wal").iterdir(), key=lambda file: file.stat().st_size)


FILES = list(largest_files())
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.parents[1].name)


def assert_equal_or_refused(data: bytes, expected: pa.RecordBatch) -> None:
    try:
        rows = decode(data, "damaged")
    except (CorruptError, DecodeError):
        return
    assert rows.equals(expected)


@each_file
def test_flipped_bits_are_noticed(file: Path) -> None:
    data = file.read_bytes()
    expected = decode(data, "whole")
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert_equal_or_refused(bytes(damaged), expected)


@each_file
def test_truncated_files_are_refused(file: Path) -> None:
    data = file.read_bytes()
    for size in range(1, len(data)):  # an empty file is a fence
        with pytest.raises((CorruptError, DecodeError)):
            decode(data[:size], "truncated")


@each_file
def test_spliced_files_are_noticed(file: Path) -> None:
    """Bytes of this or another file are put over others or between them, or are left out."""
    data = file.read_bytes()
    expected = decode(data, "whole")
    chance = random.Random(2)
    for _ in range(1500):
        source = chance.choice([data, chance.choice(FILES).read_bytes()])
        size = chance.choice([1, 2, 8, 40, 500])
        start, at = chance.randrange(len(source)), chance.randrange(len(data))
        replaced = chance.choice([0, size, size, size])
        piece = source[start : start + size] if chance.random() < 0.8 else b""
        assert_equal_or_refused(data[:at] + piece + data[at + replaced :], expected)


def test_block_in_the_wrong_place_is_noticed() -> None:
    """Blocks of equal size are swapped, each with its right checksum."""
    entries = [RowEntry(EntryKind.PUT, b"%04d" % n, b"v" * 30, n + 1, None, None) for n in range(60)]
    data = build.sst(entries, block_size=600, restart_interval=1)
    size = len(build.checked(build.block_2(entries[:8], 1)))
    assert data[:size] == build.checked(build.block_2(entries[:8], 1))
    with pytest.raises(CorruptError, match="not the one that the index names"):
        decode(data[size : 2 * size] + data[:size] + data[2 * size :], "swapped")


def encryption(key: int) -> build.Transform:
    def encrypt(data: bytes) -> bytes:
        return bytes(byte ^ key for byte in data)

    return encrypt


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("codec", list(build.COMPRESS))
def test_encrypted_files_are_refused(version: int, codec: str) -> None:
    for key in (1, 0x5A, 0xFF):
        data = build.sst(ENTRIES, version=version, codec=codec, transform=encryption(key))
        with pytest.raises(DecodeError, match="not damaged") as refused:
            decode(data, "encrypted")
        assert "encryption" in refused.value.hint


def test_error_names_what_is_not_supported() -> None:
    data = build.sst(ENTRIES)
    with pytest.raises(DecodeError, match="format version 3; only versions 1 and 2") as refused:
        decode(data[:-2] + struct.pack(">H", 3), "newer")
    assert "update Tailrace" in refused.value.hint
    info = build.flatbuffer([None, *[("<Q", 0)] * 4, ("<b", 9), ("<b", 1)])
    newer = build.checked(info) + struct.pack(">QH", 0, 2)
    with pytest.raises(DecodeError, match="compression 9 is not known"):
        decode(newer, "newer")
    for size in (1, 9, 10, len(data) - 1):
        with pytest.raises(CorruptError, match="truncated"):
            decode(data[:size], "truncated")
    with pytest.raises(CorruptError, match="info is damaged"):
        decode(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], "damaged")


BLOCKS = {
    kernel.CUT: [b"\0\x01\0k", b"\0\x01\x7fkv" + bytes(9), b"\0\x01\0k" + bytes(8) + b"\x02", b"\x80"],
    kernel.SIZE: [b"\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x10"],
    kernel.PREFIX: [b"\x01\x01\0k" + bytes(9), b"\0\x01\0k" + bytes(9) + b"\x02\x01\0k" + bytes(9)],
    kernel.FLAGS: [b"\0\x01\0k" + bytes(8) + b"\x10", b"\0\x01\0k" + bytes(8) + b"\x09"],
    kernel.TOMBSTONE: [b"\0\x01\x01kv" + bytes(8) + b"\x01"],
    kernel.EMPTY: [b"\0\0\0" + bytes(9)],
}
"""Entries of format version 2, by the reason why they cannot be read."""


@pytest.mark.parametrize("reason", BLOCKS, ids=kernel.REASONS.get)
def test_malformed_entries_are_refused(reason: int) -> None:
    for block in BLOCKS[reason]:
        with pytest.raises(DecodeError, match=kernel.REASONS[reason]):
            decode(single_block(block + b"\0\0\0\x01", 2), "malformed")


@pytest.mark.parametrize("offsets", [b"", b"\0", b"\0\0", b"\0\x01\0\x01", b"\xff\xff", b"\0\0\0\x05\0\x02"])
@pytest.mark.parametrize("version", [1, 2])
def test_malformed_offsets_are_refused(offsets: bytes, version: int) -> None:
    block = (build.block_1 if version == 1 else build.block_2)(ENTRIES[:1])[:-4]
    with pytest.raises(DecodeError, match=r"do not point to its entries|continues after the end"):
        decode(single_block(block + offsets, version), "malformed")


def single_block(block: bytes, version: int, seq: int = 0) -> bytes:
    """A file of one block whose checksum is right."""
    first = struct.pack(">Q", seq)
    index = build.flatbuffer([[[("<Q", 0), first]]])
    return build.file([build.checked(block)], build.checked(index), first, version, "none")


@pytest.mark.parametrize("version", [1, 2])
def test_malformed_blocks_with_right_checksums_do_not_crash(version: int) -> None:
    """What remains readable is a valid batch: a writer may have written it."""
    block = build.block_1(ENTRIES) if version == 1 else build.block_2(ENTRIES)
    chance = random.Random(3)
    refused = 0
    for _ in range(6000):
        damaged = bytearray(block)
        for _ in range(chance.choice([1, 1, 2, 5])):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 9, 127, 128, 255, chance.randrange(256)])
        cut = bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged) + 1)])])
        try:
            decode(single_block(cut, version, seq=1), "malformed").validate(full=True)
        except (CorruptError, DecodeError):
            refused += 1
    assert refused > 3000


@pytest.mark.parametrize("part", ["info", "index"])
def test_malformed_tables_with_right_checksums_do_not_crash(part: str) -> None:
    first = struct.pack(">Q", 1)
    block = build.checked(build.block_2(ENTRIES))
    index = build.flatbuffer([[[("<Q", 0), first]]])
    info = build.flatbuffer([first, *(("<Q", n) for n in (len(block), len(index) + 4, 0, 0)), ("<b", 0), ("<b", 1)])
    expected = list(RowEntry.all(decode(build.file([block], build.checked(index), first, 2, "none"), "whole")))
    assert expected == ENTRIES
    chance = random.Random(4)
    for _ in range(6000):
        tables = {"info": bytearray(info), "index": bytearray(index)}
        table = tables[part]
        for _ in range(chance.choice([1, 1, 2, 5])):
            table[chance.randrange(len(table))] = chance.choice([0, 1, 4, 127, 128, 255, chance.randrange(256)])
        data = block + build.checked(bytes(tables["index"]))
        data += build.checked(bytes(tables["info"])) + struct.pack(">QH", len(data), 2)
        try:
            rows = list(RowEntry.all(decode(data, "malformed")))
        except (CorruptError, DecodeError):
            continue
        assert rows == ENTRIES


@pytest.mark.parametrize("codec", [codec for codec in build.COMPRESS if codec != "none"])
def test_malformed_compression_with_right_checksums_does_not_crash(codec: str) -> None:
    compressed = build.COMPRESS[codec](build.block_2(ENTRIES))
    index = build.checked(build.COMPRESS[codec](build.flatbuffer([[[("<Q", 0), struct.pack(">Q", 1)]]])))
    chance = random.Random(5)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(compressed)
        for _ in range(chance.choice([1, 1, 2, 5])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        cut = bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged) + 1)])])
        try:
            decode(build.file([build.checked(cut)], index, None, 2, codec), "malformed").validate(full=True)
        except (CorruptError, DecodeError):
            refused += 1
    assert refused > 700
