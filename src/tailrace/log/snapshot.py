"""The format of snapshots (one table's rows at one LSN), and their reader.

    snapshots/<relation key>/<snapshot id>/chunk-00001.parquet …   rows, in any order
    snapshots/<relation key>/<snapshot id>/meta.json               written last: a snapshot without it is unfinished

A snapshot includes all transactions that commit below its LSN, and none that commit at or above it. The table at any
later position is therefore the snapshot plus all changes with `commit_lsn >= lsn`: PostgreSQL's consistent point is the
start of the next record, which may itself be a commit.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace import stored_json, types
from tailrace.change import Lsn, Relation
from tailrace.column_name import unused_name
from tailrace.errors import CorruptError
from tailrace.log import checked_json
from tailrace.log.segment import SourceIdentity
from tailrace.store import Store

VERSION: Final = 1
PREFIX: Final = "snapshots"
META: Final = "meta.json"
ANNOUNCEMENT: Final = "snapshot.json"
"""The key of the object that names the snapshot finished last."""
MARKER_PREFIX: Final = "tailrace.snapshot"
"""The prefix of a logical message that announced a finished snapshot in logs of earlier versions. It is Tailrace's own:
sinks do not deliver it."""

# File systems allow names of 255 bytes. Two identifiers of 63 bytes take 378 if each byte is written as %XX.
_MAX_NAME_BYTES: Final = 200
_READ_ROWS: Final = 65_536
_HINT: Final = "take a new snapshot of the table, or restore the object from a copy of the store"


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TableSnapshot:
    """One finished snapshot: the contents of `meta.json`, and access to the rows."""

    id: str
    relation: Relation
    lsn: Lsn
    source: SourceIdentity
    taken_at: datetime
    rows: int
    manifest: tuple[SnapshotChunk, ...]
    store: Store | None = field(default=None, repr=False, compare=False)

    @property
    def prefix(self) -> str:
        return prefix(self.relation, self.id)

    def chunks(self) -> Iterator[pa.RecordBatch]:
        """All rows. Columns are the table's with their mapped types, then a map of values that these cannot hold."""
        for chunk in self.manifest:
            yield from self.chunk(chunk)

    def chunk(self, chunk: SnapshotChunk) -> Iterator[pa.RecordBatch]:
        """The rows of one chunk."""
        assert self.store is not None
        name = f"{self.prefix}/{chunk.name}"
        data = self.store.get(name)
        if data is None:
            raise CorruptError(f"{name} is missing, but {META} lists it", _HINT)
        if len(data) != chunk.bytes or hashlib.sha256(data).hexdigest() != chunk.sha256:
            raise CorruptError(f"{name}: checksum does not match", _HINT)
        yield from pq.ParquetFile(pa.BufferReader(data)).iter_batches(_READ_ROWS)

    def to_json(self) -> str:
        raw = {
            "version": VERSION,
            "id": self.id,
            "relation": json.loads(self.relation.to_json()),
            "lsn": str(self.lsn),
            "source": self.source.to_raw(),
            "taken_at": self.taken_at.isoformat(),
            "rows": self.rows,
            "chunks": [asdict(chunk) for chunk in self.manifest],
        }
        return checked_json.dump(raw)

    @classmethod
    def from_json(cls, text: bytes, name: str, store: Store | None = None) -> TableSnapshot:
        raw = checked_json.parse(text, name, VERSION, not_one="does not describe a snapshot", hint=_HINT)
        try:
            found = cls(
                raw["id"],
                Relation.from_json(json.dumps(raw["relation"])),
                Lsn.parse(raw["lsn"]),
                SourceIdentity.from_raw(raw["source"]),
                datetime.fromisoformat(raw["taken_at"]),
                raw["rows"],
                tuple(SnapshotChunk(**chunk) for chunk in raw["chunks"]),
                store,
            )
            return stored_json.typed(found)
        except stored_json.ERRORS as error:
            raise CorruptError(f"{name} does not describe a snapshot", _HINT) from error


def announce(store: Store, snapshot: TableSnapshot) -> None:
    """Tell readers that a snapshot is finished, so that they need not list all snapshots to find a new one."""
    raw = {"id": snapshot.id, "oid": snapshot.relation.oid, "lsn": str(snapshot.lsn)}
    store.replace(ANNOUNCEMENT, json.dumps(raw).encode())


def announcement(store: Store) -> bytes | None:
    """What was announced last, to be compared with what was announced before."""
    return store.get(ANNOUNCEMENT)


def new_id(lsn: Lsn) -> str:
    """A new id. Ids sort by LSN; a random suffix makes them unique."""
    return f"{lsn:016X}-{secrets.token_hex(4)}"


def relation_key(relation: Relation) -> str:
    return f"{relation.oid}-{encoded_names(relation.schema, relation.name)}"


def prefix(relation: Relation, id: str) -> str:
    return f"{PREFIX}/{relation_key(relation)}/{id}"


def encoded_names(schema: str, name: str) -> str:
    """Schema and table for a file name: every byte but letters, digits, - and _ is %XX. Long names are shortened."""
    whole = ".".join(quote(part, safe="").replace(".", "%2E").replace("~", "%7E") for part in (schema, name))
    if len(whole) <= _MAX_NAME_BYTES:
        return whole
    return f"{whole[: _MAX_NAME_BYTES - 33]}~{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def special_column(relation: Relation) -> str:
    """The name of a chunk's last column, the map of values that their columns cannot hold."""
    return unused_name("_special", relation, ignore_case=False)


def chunk_schema(relation: Relation) -> pa.Schema:
    return types.schema(relation).append(pa.field(special_column(relation), types.SPECIALS))


class ChunkWriter:
    """Writes batches of rows as one chunk. Each batch becomes a row group, so that none is held in memory."""

    def __init__(self, relation: Relation) -> None:
        self._schema = chunk_schema(relation)
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            # As in segments: CPU time is what limits a snapshot.
            compression_level=1,
            # A larger dictionary costs time and saves nothing: chunks are 24 % smaller than with the default limit.
            dictionary_pagesize_limit=64 * 1024,
        )
        self.rows = 0

    def write(self, batch: pa.RecordBatch, special: pa.MapArray | None) -> None:
        if special is None:
            special = pa.nulls(len(batch), types.SPECIALS)
        batch = pa.RecordBatch.from_arrays([*batch.columns, special], schema=self._schema)
        self._writer.write_batch(batch, row_group_size=max(len(batch), 1))
        self.rows += len(batch)

    def finish(self, name: str) -> tuple[SnapshotChunk, bytes]:
        self._writer.close()
        data = self._sink.getvalue().to_pybytes()
        return SnapshotChunk(name, self.rows, len(data), hashlib.sha256(data).hexdigest()), data


@dataclass(frozen=True, slots=True)
class _SnapshotKey:
    """The facts about a snapshot that are in its key."""

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
    """Reads the finished snapshots in a store.

    Args:
        store: The store, or its URL: `file:///path` or `s3://bucket/prefix`.
        options: Options of the store, as in `[store.options]`. Only used with a URL.
    """

    def __init__(self, store: Store | str, options: Mapping[str, str] | None = None) -> None:
        self.store = Store.open(store, options) if isinstance(store, str) else store
        self._snapshots: dict[str, TableSnapshot] = {}

    def tables(self) -> list[Relation]:
        """All tables with a snapshot, as the newest one describes them."""
        return [snapshot.relation for snapshot in self.newest_of_each()]

    def list(
        self, schema: str | None = None, table: str | None = None, *, oid: int | None = None
    ) -> list[TableSnapshot]:
        """Snapshots of one table, or of all, oldest first.

        Args:
            schema: With `table`, selects snapshots of tables that had this name when the snapshot was taken.
            table: See `schema`.
            oid: Selects snapshots of the table with this oid.
        """
        return [self._read(key) for key in self._keys(schema, table, oid)]

    def newest(
        self,
        schema: str | None = None,
        table: str | None = None,
        *,
        oid: int | None = None,
        before: Lsn | None = None,
    ) -> TableSnapshot | None:
        """The newest snapshot of a table, selected as in `list`; with `before`, the newest one up to that LSN."""
        found = [key for key in self._keys(schema, table, oid) if before is None or key.lsn <= before]
        return self._read(found[-1]) if found else None

    def newest_of_each(self, since: Lsn = Lsn(0), before: Lsn | None = None) -> Sequence[TableSnapshot]:  # noqa: B008
        """The newest snapshot of each table up to the LSN `before`, if it is not older than the LSN `since`."""
        newest = {key.oid: key for key in self._keys() if before is None or key.lsn <= before}
        return [self._read(key) for key in newest.values() if key.lsn >= since]

    def oids(self, since: Lsn = Lsn(0)) -> set[int]:  # noqa: B008 (an immutable value)
        """The oids of tables with a snapshot at or after an LSN."""
        return {key.oid for key in self._keys() if key.lsn >= since}

    def orphans(self) -> Sequence[str]:
        """Keys of objects of unfinished snapshots, which are either in progress or were interrupted."""
        keys = [info.key for info in self.store.list(PREFIX)]
        finished = {key.rpartition("/")[0] for key in keys if key.endswith(f"/{META}")}
        return [key for key in keys if key.rpartition("/")[0] not in finished]

    def _keys(
        self, schema: str | None = None, table: str | None = None, oid: int | None = None
    ) -> Sequence[_SnapshotKey]:
        parts = (info.key.split("/") for info in self.store.list(PREFIX))
        keys = [_SnapshotKey(p[1], p[2]) for p in parts if len(p) == 4 and p[3] == META]
        if schema is not None and table is not None:
            keys = [k for k in keys if k.names == encoded_names(schema, table)]
        return sorted((k for k in keys if oid in (None, k.oid)), key=lambda k: k.id)

    def _read(self, snapshot_key: _SnapshotKey) -> TableSnapshot:
        key = snapshot_key.key
        # Cached, because a finished snapshot never changes, and delivery reads all of them every few seconds.
        if key not in self._snapshots:
            data = self.store.get(key)
            if data is None:
                raise CorruptError(f"{key} disappeared", "retention may have removed it")
            self._snapshots[key] = TableSnapshot.from_json(data, key, self.store)
        return self._snapshots[key]
