"""The snapshot format: keys, what makes a snapshot visible, what damage is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.store import StoreAddress

from tailrace import types
from tailrace.change import Column, Lsn, Relation, Type
from tailrace.errors import CorruptError
from tailrace.log import snapshot as format_
from tailrace.log.segment import SourceIdentity
from tailrace.log.snapshot import META, ChunkWriter, SnapshotReader, TableSnapshot
from tailrace.store import Store

_INT = Type(23, "pg_catalog", "int4")
_NUMERIC = Type(1700, "pg_catalog", "numeric")
_SOURCE = SourceIdentity("7", 1, "shop", "tailrace", "tailrace")
_RELATION = Relation(
    16384, "public", "orders", "d", (Column("id", _INT, is_identity=True), Column("price", _NUMERIC, 786438)), ("id",)
)


def _rows(start: int, count: int) -> tuple[pa.RecordBatch, pa.MapArray]:
    """Every third price is NaN, which its decimal column cannot hold."""
    ids = range(start, start + count)
    prices = pa.array([None if i % 3 == 0 else i for i in ids], pa.decimal128(12, 2))
    special = pa.array([[("price", "NaN")] if i % 3 == 0 else None for i in ids], types.SPECIALS)
    batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int32()), prices], schema=types.schema(_RELATION))
    return batch, special


def _take_snapshot(
    store: Store, lsn: int, relation: Relation = _RELATION, chunks: int = 2, *, finish: bool = True
) -> TableSnapshot:
    id = format_.new_id(Lsn(lsn))
    manifest = []
    for number in range(chunks):
        writer = ChunkWriter(relation)
        writer.write(*_rows(number * 10, 6))
        writer.write(*_rows(number * 10 + 6, 4))
        chunk, data = writer.finish(f"chunk-{number + 1:05d}.parquet")
        assert store.create(f"{format_.prefix(relation, id)}/{chunk.name}", data)
        manifest.append(chunk)
    now = datetime(2024, 2, 29, 12, tzinfo=UTC)
    taken = TableSnapshot(id, relation, Lsn(lsn), _SOURCE, now, 10 * chunks, tuple(manifest), store)
    if finish:
        assert store.create(f"{taken.prefix}/{META}", taken.to_json().encode())
    return taken


@pytest.fixture
def store(store_address: StoreAddress) -> Store:
    return Store.open(*store_address)


@pytest.fixture
def file_store(file_address: StoreAddress) -> Store:
    return Store.open(*file_address)


def test_round_trip(store: Store) -> None:
    taken = _take_snapshot(store, 0x1_0000_0010)
    found = SnapshotReader(store).newest("public", "orders")
    assert found == taken
    assert found is not None
    rows = pa.Table.from_batches(found.chunks())
    assert rows.schema == format_.chunk_schema(_RELATION)
    assert rows.schema.field("price").metadata == {types.TYPE_METADATA: b"numeric(12,2)"}
    assert rows.column("id").to_pylist() == list(range(20))
    assert rows.column("_special").to_pylist()[:2] == [[("price", "NaN")], None]
    assert found.prefix.startswith("snapshots/16384-public.orders/0000000100000010-")


def test_a_snapshot_without_metadata_is_not_listed(store: Store) -> None:
    reader = SnapshotReader(store)
    assert reader.tables() == []
    unfinished = _take_snapshot(store, 100, finish=False)
    assert reader.list() == []
    assert reader.newest(oid=16384) is None
    assert reader.oids() == set()
    assert {key.rpartition("/")[0] for key in reader.orphans()} == {unfinished.prefix}
    _take_snapshot(store, 200)
    assert [s.lsn for s in reader.list()] == [200]
    assert len(reader.orphans()) == 2


def test_find_by_name_oid_and_lsn(file_store: Store) -> None:
    reader = SnapshotReader(file_store)
    other = replace(_RELATION, oid=9, name="orders2")
    renamed = replace(_RELATION, name="purchases")
    first, second = _take_snapshot(file_store, 0x20), _take_snapshot(file_store, 0x1_0000_0000)
    third, fourth = _take_snapshot(file_store, 0x2_0000_0000, renamed), _take_snapshot(file_store, 0x30, other)
    assert reader.list("public", "orders") == [first, second]
    assert reader.list(oid=16384) == [first, second, third]
    assert reader.newest("public", "orders") == second
    assert reader.newest("public", "orders", before=Lsn(0x1_0000_0000)) == second
    assert reader.newest("public", "orders", before=Lsn(0xFFFF_FFFF)) == first
    assert reader.newest("public", "orders", before=Lsn(0x1F)) is None
    assert reader.newest(oid=16384) == third
    assert reader.newest(oid=9) == fourth
    assert reader.newest("public", "order") is None
    assert reader.oids() == {9, 16384}
    assert reader.oids(since=Lsn(0x31)) == {16384}
    assert {relation.name for relation in reader.tables()} == {"purchases", "orders2"}


@pytest.mark.parametrize("damage", [lambda d, i: d[:i] + bytes([d[i] ^ 0x10]) + d[i + 1 :], lambda d, i: d[:i]])
def test_damage_is_detected(file_store: Store, damage: Callable[[bytes, int], bytes]) -> None:
    taken = _take_snapshot(file_store, 7, chunks=1)
    reader = SnapshotReader(file_store)
    for name in (META, "chunk-00001.parquet"):
        key = f"{taken.prefix}/{name}"
        whole = file_store.get(key)
        assert whole is not None
        for at in range(0, len(whole), 17):
            file_store.replace(key, damage(whole, at))
            with pytest.raises(CorruptError):
                list(reader.list()[0].chunks())
        file_store.replace(key, whole)
    file_store.delete(f"{taken.prefix}/chunk-00001.parquet")
    with pytest.raises(CorruptError, match="missing"):
        list(reader.list()[0].chunks())


def test_a_newer_format_is_rejected() -> None:
    taken = TableSnapshot("1-a", _RELATION, Lsn(1), _SOURCE, datetime.now(UTC), 0, ())
    changed = taken.to_json().replace('"version": 1', '"version": 2').encode()
    with pytest.raises(CorruptError, match="checksum"):
        TableSnapshot.from_json(changed, "meta.json")


def test_the_special_column_has_an_unused_name() -> None:
    relation = replace(_RELATION, columns=(Column("_special", _INT), Column("__special", _INT)))
    assert format_.chunk_schema(relation).names == ["_special", "__special", "___special"]


def test_rows_without_columns_are_counted(file_store: Store) -> None:
    writer = ChunkWriter(replace(_RELATION, columns=()))
    writer.write(pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([]))), None)
    chunk, data = writer.finish("chunk-00001.parquet")
    assert chunk.rows == 5
    assert pa.parquet.read_table(pa.BufferReader(data)).num_rows == 5


_NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=63)


@given(_NAMES, _NAMES, _NAMES, _NAMES)
def test_keys_are_injective_and_safe(schema: str, name: str, other_schema: str, other_name: str) -> None:
    def key(schema: str, name: str) -> str:
        return format_.relation_key(replace(_RELATION, schema=schema, name=name))

    ours = key(schema, name)
    assert ours.isascii()
    assert ours.isprintable()
    assert not set(ours) & set("/\\ ")
    assert ".." not in ours
    assert len(ours) <= 255
    assert (ours == key(other_schema, other_name)) == ((schema, name) == (other_schema, other_name))
    assert key("a.b", "c") != key("a", "b.c")
