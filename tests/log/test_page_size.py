"""Objects that would take more memory than they say are refused before they are unpacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.log.test_segment import empty_header, seal_segment

from tailrace.errors import CorruptError
from tailrace.log import page_size, segment
from tailrace.log.page_size import ColumnSize
from tailrace.log.segment import Header
from tailrace.log_rows import LogRows

MIB = 1 << 20


def _repeated(count: int, payload: bytes) -> LogRows:
    """One row again and again: it compresses to nearly nothing."""
    row = seal_segment()[1].slice(0, 1)
    return replace(LogRows.concat([row] * count), payload=pa.array([payload] * count, pa.binary()))


def _packed(rows: LogRows, headers: Sequence[Header], **options: object) -> bytes:
    data = segment.pack([header.to_json() for header in headers], rows, {})
    if not options:
        return data
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, segment.SCHEMA, store_schema=False, **options) as writer:
        file = pq.ParquetFile(pa.BufferReader(data))
        writer.write_table(file.read().cast(segment.SCHEMA))
        writer.add_key_value_metadata(file.metadata.metadata)
    return segment._with_checksums(sink.getvalue())


def _sizes(data: bytes) -> Mapping[str, ColumnSize]:
    footer = segment._footer_offset(data, "log/1")
    return page_size.file_size(data, footer, footer).columns


def test_the_sizes_are_those_that_are_written() -> None:
    _, rows, data = seal_segment(transactions=300)
    sizes = _sizes(data)
    assert list(sizes) == segment.SCHEMA.names
    payloads = sum(len(payload) for payload in rows.payload.to_pylist())
    assert sizes["payload"].values == payloads + 4 * len(rows)
    assert [name for name, size in sizes.items() if size.dictionary] == ["kind"]


def test_an_object_that_unpacks_to_more_than_it_says_is_refused() -> None:
    rows = _repeated(64, bytes(MIB))
    honest = segment.with_row_facts(replace(seal_segment()[0], relations=()), rows)
    data = _packed(rows, [honest])
    assert len(data) < MIB // 16
    assert len(segment.unpack(data, "log/1")[0].rows) == 64
    for header, reason in (
        (replace(honest, payload_bytes=MIB), "payload unpacks to more"),
        (replace(honest, rows=63), "has 64 rows, but its headers say 63"),
        (replace(honest, payload_bytes=63), "63 bytes for 64 rows"),
    ):
        with pytest.raises(CorruptError, match=reason):
            segment.unpack(_packed(rows, [header]), "log/1")


def test_one_value_does_not_stand_for_many() -> None:
    """With a dictionary, a page of a few bytes would repeat a large value."""
    rows = _repeated(64, bytes(MIB))
    honest = segment.with_row_facts(replace(seal_segment()[0], relations=()), rows)
    with pytest.raises(CorruptError, match="payload unpacks to more"):
        segment.unpack(_packed(rows, [honest], use_dictionary=["kind", "payload"]), "log/1")


def test_an_idle_segment_has_no_pages() -> None:
    data = _packed(LogRows.empty(), [segment.with_row_facts(empty_header(), LogRows.empty())])
    sizes = _sizes(data)
    assert {size.values for size in sizes.values()} == {0}
    assert segment.unpack(data, "log/1")[0].header.rows == 0


def test_numbers_may_be_in_a_dictionary() -> None:
    header, rows, data = seal_segment(transactions=50)
    file = pq.ParquetFile(pa.BufferReader(data))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, segment.SCHEMA, store_schema=False, use_dictionary=segment.SCHEMA.names[:-1]) as writer:
        writer.write_table(file.read().cast(segment.SCHEMA))
        writer.add_key_value_metadata(file.metadata.metadata)
    (found,) = segment.unpack(segment._with_checksums(sink.getvalue()), "log/1")
    assert found.header == header
    assert segment.content_digest(found.rows) == segment.content_digest(rows)


def test_pages_that_are_not_where_the_footer_says_are_refused() -> None:
    _, _, data = seal_segment()
    footer = segment._footer_offset(data, "log/1")
    for end in (4, 100):
        with pytest.raises(ValueError, match="column"):
            page_size.file_size(data, footer, end)
    for at in range(4, 60):
        for byte in (0, 0x0C, 0x19, 0x1D, 0x80, 0xFF):
            damaged = data[:at] + bytes([byte]) * 3 + data[at + 3 :]
            try:
                page_size.file_size(damaged, footer, len(damaged))
            except ValueError:
                continue
