"""The snapshot format: one table's rows at one LSN, and the reader of it.

    snapshots/<relation key>/<snapshot id>/chunk-00001.parquet …   rows, in no order
    snapshots/<relation key>/<snapshot id>/meta.json               written last: without it there is no snapshot

A snapshot holds every transaction that commits below its LSN, and none that commits at or above it. The table at any
later position is therefore the snapshot, then every change with `commit_lsn >= lsn`: PostgreSQL's consistent point is
where the next record starts, and that record may itself be a commit.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace import types
from tailrace.change import Lsn, Relation
from tailrace.errors import CorruptError
from tailrace.log.segment import SourceIdentity
from tailrace.store import Store

VERSION: Final = 1
PREFIX: Final = "snapshots"
META: Final = "meta.json"
MARKER_PREFIX: Final = "tailrace.snapshot"
"""Of the logical message that tells the log that a snapshot is finished."""

# File systems allow 255 bytes for a name; two names of 63 bytes are 378 when each byte is written as %XX.
_LONGEST_NAMES: Final = 200
_READ_ROWS: Final = 65_536
_AGAIN: Final = "take a new snapshot of the table, or restore the object from a copy of the store"


@dataclass(frozen=True, slots=True)
class Chunk:
    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Snapshot:
    """One finished snapshot: what `meta.json` says, and a way to the rows."""

    id: str
    relation: Relation
    lsn: Lsn
    source: SourceIdentity
    taken_at: datetime
    rows: int
    manifest: tuple[Chunk, ...]
    store: Store | None = field(default=None, repr=False, compare=False)

    @property
    def prefix(self) -> str:
        return prefix(self.relation, self.id)

    def chunks(self) -> Iterator[pa.RecordBatch]:
        """All rows: the table's columns with their mapped types, then a map of the values those cannot hold."""
        for chunk in self.manifest:
            yield from self.chunk(chunk)

    def chunk(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        assert self.store is not None
        name = f"{self.prefix}/{chunk.name}"
        data = self.store.get(name)
        if data is None:
            raise CorruptError(f"{name} is missing, though {META} names it", _AGAIN)
        if len(data) != chunk.bytes or hashlib.sha256(data).hexdigest() != chunk.sha256:
            raise CorruptError(f"{name}: checksum does not match", _AGAIN)
        yield from pq.ParquetFile(pa.BufferReader(data)).iter_batches(_READ_ROWS)

    def to_json(self) -> str:
        raw = {
            "version": VERSION,
            "id": self.id,
            "relation": json.loads(self.relation.to_json()),
            "lsn": str(self.lsn),
            "source": asdict(self.source),
            "taken_at": self.taken_at.isoformat(),
            "rows": self.rows,
            "chunks": [asdict(chunk) for chunk in self.manifest],
        }
        return json.dumps(raw | {"sha256": _digest(raw)}, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: bytes, name: str, store: Store | None = None) -> Snapshot:
        try:
            raw: dict[str, Any] = json.loads(text)
            digest = raw.pop("sha256")
        except (ValueError, KeyError, AttributeError):
            raise CorruptError(f"{name}: not a snapshot's description", _AGAIN) from None
        if digest != _digest(raw):
            raise CorruptError(f"{name}: checksum does not match", _AGAIN)
        if raw["version"] != VERSION:
            raise CorruptError(f"{name} has format version {raw['version']}", "read it with a newer Tailrace")
        return cls(
            raw["id"],
            Relation.from_json(json.dumps(raw["relation"])),
            Lsn.parse(raw["lsn"]),
            SourceIdentity(**raw["source"]),
            datetime.fromisoformat(raw["taken_at"]),
            raw["rows"],
            tuple(Chunk(**chunk) for chunk in raw["chunks"]),
            store,
        )


def _digest(raw: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def new_id(lsn: Lsn) -> str:
    """Ids sort by LSN; two snapshots at one LSN differ all the same."""
    return f"{lsn:016X}-{secrets.token_hex(4)}"


def relation_key(relation: Relation) -> str:
    return f"{relation.oid}-{encoded_names(relation.schema, relation.name)}"


def prefix(relation: Relation, id: str) -> str:
    return f"{PREFIX}/{relation_key(relation)}/{id}"


def encoded_names(schema: str, name: str) -> str:
    """Both names with every byte but letters, digits, - and _ as %XX; shortened where that is too long for a file."""
    whole = ".".join(quote(part, safe="").replace(".", "%2E").replace("~", "%7E") for part in (schema, name))
    if len(whole) <= _LONGEST_NAMES:
        return whole
    return f"{whole[: _LONGEST_NAMES - 33]}~{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def special_column(relation: Relation) -> str:
    """The map of values that their columns cannot hold: always the last column of a chunk."""
    name = "_special"
    while any(column.name == name for column in relation.columns):
        name = f"_{name}"
    return name


def chunk_schema(relation: Relation) -> pa.Schema:
    return types.schema(relation).append(pa.field(special_column(relation), types.SPECIALS))


class ChunkWriter:
    """The bytes of one chunk, given as batches; each becomes a row group, so that none has to wait in memory."""

    def __init__(self, relation: Relation) -> None:
        self._schema = chunk_schema(relation)
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            # As in segments: the processor's time is what limits a snapshot.
            compression_level=1,
            # A dictionary that grows beyond this costs time and saves nothing: 24 % smaller than with the default.
            dictionary_pagesize_limit=64 * 1024,
        )
        self.rows = 0

    def write(self, batch: pa.RecordBatch, special: pa.MapArray | None) -> None:
        if special is None:
            special = pa.nulls(len(batch), types.SPECIALS)
        batch = pa.RecordBatch.from_arrays([*batch.columns, special], schema=self._schema)
        self._writer.write_batch(batch, row_group_size=max(len(batch), 1))
        self.rows += len(batch)

    def finish(self, name: str) -> tuple[Chunk, bytes]:
        self._writer.close()
        data = self._sink.getvalue().to_pybytes()
        return Chunk(name, self.rows, len(data), hashlib.sha256(data).hexdigest()), data


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a snapshot lies, as its key says without reading it."""

    relation_key: str
    id: str

    @property
    def oid(self) -> int:
        return int(self.relation_key.partition("-")[0])

    @property
    def names(self) -> str:
        return self.relation_key.partition("-")[2]

    @property
    def lsn(self) -> Lsn:
        return Lsn(int(self.id.partition("-")[0], 16))

    @property
    def key(self) -> str:
        return f"{PREFIX}/{self.relation_key}/{self.id}/{META}"


class SnapshotReader:
    """The finished snapshots in a store, given as a `Store` or its URL."""

    def __init__(self, store: Store | str, options: Mapping[str, str] | None = None) -> None:
        self.store = Store.open(store, options) if isinstance(store, str) else store
        self._known: dict[str, Snapshot] = {}

    def tables(self) -> list[Relation]:
        """Every table that has a snapshot, as its newest describes it."""
        return [snapshot.relation for snapshot in self.newest_of_each()]

    def list(self, schema: str | None = None, table: str | None = None, *, oid: int | None = None) -> list[Snapshot]:
        """Oldest first: of one table by name or oid, or all. A name means whatever tables had it when copied."""
        return [self._read(place) for place in self._places(schema, table, oid)]

    def newest(
        self,
        schema: str | None = None,
        table: str | None = None,
        *,
        oid: int | None = None,
        before: Lsn | None = None,
    ) -> Snapshot | None:
        """The one to start from; with `before`, the newest that holds nothing committed at or above it."""
        found = [p for p in self._places(schema, table, oid) if before is None or p.lsn <= before]
        return self._read(found[-1]) if found else None

    def newest_of_each(self, since: Lsn = Lsn(0), before: Lsn | None = None) -> Sequence[Snapshot]:  # noqa: B008
        """Each table's newest at or before an LSN, of those that are at or after another."""
        newest = {place.oid: place for place in self._places() if before is None or place.lsn <= before}
        return [self._read(place) for place in newest.values() if place.lsn >= since]

    def oids(self, since: Lsn = Lsn(0)) -> set[int]:  # noqa: B008 (an immutable value)
        """Tables that have a snapshot at or after an LSN."""
        return {place.oid for place in self._places() if place.lsn >= since}

    def orphans(self) -> Sequence[str]:
        """Objects of snapshots that were never finished: of one under way, or of one that was interrupted."""
        keys = [info.key for info in self.store.list(PREFIX)]
        finished = {key.rpartition("/")[0] for key in keys if key.endswith(f"/{META}")}
        return [key for key in keys if key.rpartition("/")[0] not in finished]

    def _places(self, schema: str | None = None, table: str | None = None, oid: int | None = None) -> Sequence[_Place]:
        parts = (info.key.split("/") for info in self.store.list(PREFIX))
        places = [_Place(p[1], p[2]) for p in parts if len(p) == 4 and p[3] == META]
        if schema is not None and table is not None:
            places = [p for p in places if p.names == encoded_names(schema, table)]
        return sorted((p for p in places if oid in (None, p.oid)), key=lambda p: p.id)

    def _read(self, place: _Place) -> Snapshot:
        # A finished snapshot never changes, and whoever delivers asks for all of them every few seconds.
        if place.key not in self._known:
            data = self.store.get(place.key)
            if data is None:
                raise CorruptError(f"{place.key} went away", "retention may have removed it")
            self._known[place.key] = Snapshot.from_json(data, place.key, self.store)
        return self._known[place.key]
