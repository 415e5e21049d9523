"""Deletion vectors: which rows of a data file are gone, as a bitmap in a Puffin file. Pure.

One Puffin file holds those of all data files that a commit touches. Its layout and that of the bitmap are Iceberg's
(format 3): a length, a magic number, a 64-bit Roaring bitmap in its portable form, a checksum.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap64

from tailrace.errors import CorruptError

_PUFFIN: Final = b"PFA1"
_VECTOR: Final = b"\xd1\xd3\x39\x64"
_POSITION_FIELD: Final = 2147483645
"""Iceberg's reserved id of a row's place in its file."""


@dataclass(frozen=True)
class Blob:
    """Where in a Puffin file the vector of one data file stands."""

    data_file: str
    offset: int
    length: int
    cardinality: int


def puffin(vectors: Mapping[str, BitMap64]) -> tuple[bytes, list[Blob]]:
    """The file, and where each vector is in it."""
    content = bytearray(_PUFFIN)
    blobs = []
    for data_file, deleted in vectors.items():
        body = _VECTOR + deleted.serialize()
        blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        blobs.append(Blob(data_file, len(content), len(blob), len(deleted)))
        content += blob
    footer = json.dumps({"blobs": [_described(blob) for blob in blobs], "properties": {"created-by": "Tailrace"}})
    payload = footer.encode()
    content += _PUFFIN + payload + struct.pack("<I", len(payload)) + bytes(4) + _PUFFIN
    return bytes(content), blobs


def _described(blob: Blob) -> dict[str, object]:
    return {
        "type": "deletion-vector-v1",
        "fields": [_POSITION_FIELD],
        # Not known before the commit; Iceberg inherits them.
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": blob.offset,
        "length": blob.length,
        "properties": {"referenced-data-file": blob.data_file, "cardinality": str(blob.cardinality)},
    }


def parse(blob: bytes, where: str) -> BitMap64:
    """A vector as it stands in a Puffin file."""
    body, checksum = blob[4:-4], blob[-4:]
    if struct.pack(">I", len(body)) != blob[:4] or body[:4] != _VECTOR:
        raise CorruptError(f"{where} is no deletion vector", "restore the file")
    if struct.pack(">I", zlib.crc32(body)) != checksum:
        raise CorruptError(f"{where}: its checksum is wrong", "restore the file")
    return BitMap64.deserialize(body[4:])
