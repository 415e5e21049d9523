"""Deletion vectors: the deleted rows of a data file, as a bitmap in a Puffin file. Pure.

One Puffin file holds the vectors of all data files that a commit touches. Iceberg's format 3 defines the layout of a
vector: a length, a magic number, a 64-bit Roaring bitmap in its portable form, a checksum.
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
"""Iceberg's reserved id for a row's position in its file."""


@dataclass(frozen=True)
class VectorBlob:
    """The place of one data file's vector in a Puffin file."""

    data_file: str
    offset: int
    length: int
    cardinality: int


def encode_puffin(vectors: Mapping[str, BitMap64]) -> tuple[bytes, list[VectorBlob]]:
    """The content of a Puffin file, and the place of each vector in it. `vectors`: data file → deleted rows."""
    content = bytearray(_PUFFIN)
    blobs = []
    for data_file, deleted in vectors.items():
        body = _VECTOR + deleted.serialize()
        blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        blobs.append(VectorBlob(data_file, len(content), len(blob), len(deleted)))
        content += blob
    footer = json.dumps({"blobs": [_blob_metadata(blob) for blob in blobs], "properties": {"created-by": "Tailrace"}})
    payload = footer.encode()
    content += _PUFFIN + payload + struct.pack("<I", len(payload)) + bytes(4) + _PUFFIN
    return bytes(content), blobs


def _blob_metadata(blob: VectorBlob) -> dict[str, object]:
    return {
        "type": "deletion-vector-v1",
        "fields": [_POSITION_FIELD],
        # Unknown before the commit; Iceberg fills them in.
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": blob.offset,
        "length": blob.length,
        "properties": {"referenced-data-file": blob.data_file, "cardinality": str(blob.cardinality)},
    }


def decode(blob: bytes, where: str) -> BitMap64:
    """The deleted rows of a vector, read from a Puffin file at `where`."""
    body, checksum = blob[4:-4], blob[-4:]
    if struct.pack(">I", len(body)) != blob[:4] or body[:4] != _VECTOR:
        raise CorruptError(f"{where} is not a deletion vector", "restore the file")
    if struct.pack(">I", zlib.crc32(body)) != checksum:
        raise CorruptError(f"{where}: wrong checksum", "restore the file")
    return BitMap64.deserialize(body[4:])
