"""The segment format: what is written is what is read, anything else is refused, and it is plain Parquet."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.log.stream import SOURCE, Server, read_frames, relation, split_randomly

from tailrace.change import Lsn, Position
from tailrace.errors import CorruptError
from tailrace.log import segment
from tailrace.log.segment import Header, SegmentContent
from tailrace.log_rows import LogRows
from tailrace.pgoutput.framing import OpenTransaction


def empty_header(id: int = 1) -> Header:
    return Header(
        id=id,
        source=SOURCE,
        rows=0,
        committed_rows=0,
        first=None,
        last=None,
        end_lsn=Lsn(0),
        first_committed_at_us=None,
        last_committed_at_us=None,
        payload_bytes=0,
        voids_tail=False,
        gap_from=None,
        relations=(),
        content="",
        previous=segment.NO_PREVIOUS,
    )


def seal_segment(seed: int = 0, transactions: int = 5) -> tuple[Header, LogRows, bytes]:
    batch = read_frames(Server(seed).work(transactions).frames())
    defined = [(row, relation) for row, relation in batch.defined if row < len(batch.rows)]
    header = replace(
        empty_header(),
        committed_rows=batch.committed_rows,
        end_lsn=Lsn(batch.end_lsn),
        relations=segment.relation_uses(batch.rows, defined),
    )
    header, data = segment.seal(header, batch.rows, {r.digest: r for _, r in defined})
    return header, batch.rows, data


def same(a: LogRows, b: LogRows) -> bool:
    columns = zip(a.columns(), b.columns(), strict=True)
    return all(np.array_equal(x, y) for x, y in columns) and a.payload.equals(b.payload)


@pytest.mark.parametrize("seed", range(4))
def test_round_trip(seed: int) -> None:
    header, rows, data = seal_segment(seed, transactions=30)
    (content,) = segment.unpack(data, "x")
    assert content.header == header
    assert same(content.rows, rows)
    assert segment.content_digest(content.rows) == header.content
    assert segment.unpack_headers(data, "x") == ([header], content.relations)
    assert Header.from_json(header.to_json()) == header
    assert all(content.relations[use.digest].digest == use.digest for use in header.relations)


def test_an_idle_segment_has_no_rows() -> None:
    header, data = segment.seal(replace(empty_header(), end_lsn=Lsn(5)), LogRows.empty(), {})
    (content,) = segment.unpack(data, "x")
    assert content.header == header
    assert (len(content.rows), header.rows, header.first, header.last, header.ends_at_commit) == (
        0,
        0,
        None,
        None,
        True,
    )
    assert header.content == "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"


def test_headers_are_read_from_the_end_of_an_object() -> None:
    header, _, data = seal_segment()
    needed = segment.unpack_headers(data[-50:], "x")
    assert isinstance(needed, int)
    assert segment.unpack_headers(data[-needed:], "x") == ([header], segment.unpack(data, "x")[0].relations)
    with pytest.raises(CorruptError):
        segment.unpack_headers(data[-needed:-1], "x")


def test_every_bit_flip_is_detected() -> None:
    _, _, data = seal_segment(transactions=3)
    flips = range(len(data) * 8) if len(data) < 6000 else random.Random(0).sample(range(len(data) * 8), 40_000)
    for bit in flips:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            segment.unpack(bytes(damaged), "x")


def test_every_truncation_is_detected() -> None:
    _, _, data = seal_segment(transactions=3)
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            segment.unpack(data[:length], "x")
    with pytest.raises(CorruptError):
        segment.unpack(data + b"\0", "x")


def test_any_parquet_reader_reads_a_segment(tmp_path: Path) -> None:
    header, rows, data = seal_segment(transactions=30)
    file = tmp_path / "segment.parquet"
    file.write_bytes(data)
    table = pq.read_table(io.BytesIO(data))
    assert table.schema.names == segment.SCHEMA.names
    assert table.column("payload").combine_chunks().cast("binary").equals(rows.payload)
    query = "SELECT count(*), min(commit_lsn), max(ordinal), sum(octet_length(payload)) FROM read_parquet(?)"
    assert header.first is not None
    expected = (len(rows), header.first.commit_lsn, int(rows.ordinal.max()), header.payload_bytes)
    assert duckdb.execute(query, [str(file)]).fetchone() == expected
    kinds = duckdb.execute("SELECT string_agg(kind, '') FROM read_parquet(?)", [str(file)]).fetchone()
    assert kinds == ("".join(map(chr, rows.kind)),)


def test_a_foreign_parquet_file_is_rejected() -> None:
    _, _, data = seal_segment()
    stranger = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(data)).replace_schema_metadata(None), stranger)
    with pytest.raises(CorruptError):
        segment.unpack(stranger.getvalue(), "x")
    with pytest.raises(CorruptError, match="without Tailrace's headers"):
        segment.unpack(segment._with_checksums(pa.py_buffer(stranger.getvalue())), "x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        empty_header().to_json().replace('"version":1', '"version":2'),
        empty_header().to_json().replace('"end_lsn":"0/0"', '"end_lsn":"zero"'),
        empty_header().to_json().replace('"id":1', '"id": 1'),
        json.dumps(json.loads(empty_header().to_json()) | {"more": 1}),
    ],
)
def test_an_invalid_header_is_rejected(text: str) -> None:
    data = segment.pack([text], LogRows.empty(), {})
    for read in (segment.unpack, segment.unpack_headers):
        with pytest.raises(CorruptError):
            read(data, "x")


def test_a_row_count_that_differs_from_the_headers_is_rejected() -> None:
    header, rows, _ = seal_segment()
    data = segment.pack([header.to_json()], rows.slice(1, len(rows)), {})
    with pytest.raises(CorruptError, match="but its headers say"):
        segment.unpack(data, "x")


def test_merged_segments_are_unpacked_separately() -> None:
    parts = [seal_segment(seed) for seed in range(4)]
    headers = [replace(h, id=i, relations=()) for i, (h, _, _) in enumerate(parts, 1)]
    data = segment.pack([h.to_json() for h in headers], LogRows.concat([rows for _, rows, _ in parts]), {})
    contents = segment.unpack(data, "x")
    assert [c.header for c in contents] == headers
    for content, (_, rows, _) in zip(contents, parts, strict=True):
        assert same(content.rows, rows)
        assert segment.content_digest(content.rows) == content.header.content


def test_relation_versions_apply_from_their_first_row() -> None:
    old, new = relation(100), relation(100, version=1)
    rows = read_frames(Server(1).work(10).frames()).rows
    used = (segment.RelationUse(100, 0, old.digest), segment.RelationUse(100, 3, new.digest))
    content = SegmentContent(replace(empty_header(), relations=used), rows, {old.digest: old, new.digest: new})
    assert [content.relation_at(row, 100) for row in (0, 2, 3, 9)] == [old, old, new, new]
    with pytest.raises(CorruptError, match="relation 5, which the segment does not define"):
        content.relation_at(0, 5)


def test_object_keys() -> None:
    assert segment.key(7) == "log/00000000000000000007.parquet"
    assert segment.ids(segment.key(7)) == (7, 7)
    assert segment.ids(segment.key(7, 12)) == (7, 12)
    for other in ("log/7.parquet", "log/trimmed.json", "x/00000000000000000007.parquet", "log/a/00000000000000000007"):
        assert segment.ids(other) is None


def test_the_digest_does_not_depend_on_frame_boundaries() -> None:
    frames = Server(5).work(20).frames()
    transaction = OpenTransaction()
    parts = [read_frames(part, transaction).rows for part in split_randomly(random.Random(1), frames)]
    whole = read_frames(frames).rows
    assert segment.content_digest(LogRows.concat(parts)) == segment.content_digest(whole)
    assert Position(Lsn(1), 2) < Position(Lsn(1), 3) < Position(Lsn(2), 0)
