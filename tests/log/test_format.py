"""docs/log-format.md, implemented by a reader that shares no code with Tailrace."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.log.stream import Capture, Server, split_randomly

from tailrace.change import Lsn
from tailrace.log.compaction import compact
from tailrace.log.reader import LogReader
from tailrace.log.segment import Header, SourceIdentity
from tailrace.log.writer import LogWriter
from tailrace.store import Store

Row = dict[str, Any]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def segments_in(data: bytes) -> Iterator[tuple[dict[str, Any], str, list[Row], dict[str, str]]]:
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = len(data) - 8 - length
    assert data[:4] == data[-4:] == b"PAR1"
    assert data[footer - 32 : footer].hex() == sha256(data[footer:])
    assert data[footer - 64 : footer - 32].hex() == sha256(data[: footer - 64])
    table = pq.read_table(io.BytesIO(data))
    table = table.set_column(4, "commit_ts", table.column("commit_ts").cast("int64"))
    rows = table.to_pylist()
    metadata = pq.read_metadata(io.BytesIO(data)).metadata
    relations = json.loads(metadata[b"tailrace.relations"])
    at = 0
    for text in metadata[b"tailrace.headers"].decode().split("\n"):
        header = json.loads(text)
        yield header, sha256(text.encode()), rows[at : at + header["rows"]], relations
        at += header["rows"]
    assert at == len(rows)


def digest(rows: list[Row]) -> str:
    data = b""
    for name in ("commit_lsn", "ordinal", "lsn", "xid", "commit_ts"):
        data += struct.pack(f"<{len(rows)}q", *(row[name] for row in rows))
    data += "".join(row["kind"] for row in rows).encode()
    data += struct.pack(f"<{len(rows)}q", *(row["relation_id"] for row in rows))
    offset = 0
    data += struct.pack("<q", offset)
    for row in rows:
        offset += len(row["payload"])
        data += struct.pack("<q", offset)
    return sha256(data + b"".join(row["payload"] for row in rows))


def visible(store: Store) -> list[tuple[str, str, str | None]]:
    """Position, kind and table of every visible change."""
    found = {}
    for info in store.list("log"):
        for header, link, rows, relations in segments_in(store.get(info.key) or b""):
            assert digest(rows) == header["content"]
            for _, _, name in header["relations"]:
                assert sha256(relations[name].encode()) == name
            found[header["id"]] = header, link, rows, relations
    log = [found[id] for id in range(1, len(found) + 1)]
    link = "0" * 64
    for header, own_link, _, _ in log:
        assert header["previous"] == link
        link = own_link
    changes = []
    for index, (header, _, rows, relations) in enumerate(log):
        later = [h for h, _, _, _ in log[index + 1 :] if h["voids_tail"] or h["committed_rows"]]
        counts = len(rows) if later and not later[0]["voids_tail"] else header["committed_rows"]
        for number, row in enumerate(rows[:counts]):
            changes += list(changes_in(row, number, header, relations))
    return changes


def changes_in(
    row: Row, number: int, header: dict[str, Any], relations: dict[str, str]
) -> Iterator[tuple[str, str, str | None]]:
    def table(relation_id: int) -> str:
        digests = [d for i, first, d in header["relations"] if i == relation_id and first <= number]
        return str(json.loads(relations[digests[-1]])["name"])

    commit_lsn = row["commit_lsn"]
    if row["kind"] in "CO":
        return
    tables: list[str | None] = [table(row["relation_id"])] if row["kind"] in "IUD" else [None]
    if row["kind"] == "T":
        (count,) = struct.unpack_from(">I", row["payload"], 1)
        tables = [table(oid) for oid in struct.unpack_from(f">{count}I", row["payload"], 6)]
    for offset, name in enumerate(tables):
        position = f"{commit_lsn >> 32:X}/{commit_lsn & 0xFFFFFFFF:X}:{row['ordinal'] + offset}"
        yield position, row["kind"], name


@pytest.mark.parametrize("seed", range(3))
def test_the_specification_suffices(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    server = Server(seed).work(15, largest=12)
    for life in range(4):
        capture = Capture(store)
        parts = list(split_randomly(rng, server.frames(), 8))
        for part in parts[: len(parts) if life == 3 else rng.randint(1, len(parts))]:
            capture.add(part)
    expected = [(str(c.position), c.operation[0], c.table) for c in server.changes]
    assert visible(store) == expected
    compact(store, older_than=timedelta(0), target_bytes=2000)
    assert visible(store) == expected
    assert len(list(LogReader(store).changes())) == len(expected)


def test_logs_of_postgresql_stay_as_they_are(store: Store) -> None:
    """`data/postgresql.parquet` was written from the same stream before headers of version 2 existed (0668952)."""
    server = Server(4).work(15, largest=8)
    old = Path(__file__).with_name("data").joinpath("postgresql.parquet").read_bytes()
    key = "log/00000000000000000001.parquet"
    store.create(key, old)
    expected = [(str(c.position), c.operation[0], c.table) for c in server.changes]
    assert [(str(c.position), c.operation[0], c.table) for c in LogReader(store).changes()] == expected
    store.delete(key)
    Capture(store).add(server.frames())
    new = store.get(key)
    assert new is not None
    assert list(segments_in(new)) == list(segments_in(old))
    writers = [pq.read_metadata(io.BytesIO(data)).created_by for data in (old, new)]
    if writers[0] == writers[1]:
        assert new == old
    else:
        print(f"the bytes are not compared: {writers[1]} encodes, and {writers[0]} encoded")


def test_resume_token_makes_a_header_of_version_2(store: Store) -> None:
    source = SourceIdentity("file:///db", 0, "users", "", "", "slatedb")
    writer = LogWriter.open(store, source)
    writer.begin_at(Lsn(7), "token 1")
    writer.append_idle("token 2")
    header = LogReader(store).header(2)
    assert header is not None
    assert (header.version, header.resume, header.source) == (2, "token 2", source)
    assert Header.from_json(header.to_json()) == header
    assert LogWriter.open(store, source).resume == "token 2"
