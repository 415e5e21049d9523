"""The segment format: converts rows and relations to the bytes of one immutable object, and back. Pure.

`docs/log-format.md` specifies it. In short: an object is a Parquet file whose footer has one header for each segment in
it (one segment; several after compaction). Each header has the SHA-256 of its rows and of the header before it. Just
before the footer are two checksums, one of the bytes before them and one of the footer, so that readers can verify a
whole object, or a footer alone.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace import stored_json
from tailrace.change import Lsn, Position, Relation
from tailrace.errors import CorruptError
from tailrace.log import page_size
from tailrace.log.page_size import FileSize
from tailrace.log_rows import LogRows
from tailrace.pgoutput import message

VERSION = 1
RESUME_VERSION = 2
"""The version of headers that say where their source's stream continues. Logs of PostgreSQL have version 1."""
POSTGRESQL = "postgresql"
PREFIX = "log"
NO_PREVIOUS = "0" * 64

_HEADERS = b"tailrace.headers"
_RELATIONS = b"tailrace.relations"
# What encodings of a column add to its values, and more than the dictionary of all kinds takes.
_ENCODING_BYTES = 64 * 1024
_DICTIONARY_BYTES = 64
_DIGEST = hashlib.sha256().digest_size
_CHECKSUMS = 2 * _DIGEST
_RESTORE = "restore the object from a copy of the store; `tailrace log verify` lists all damaged objects"

SCHEMA = pa.schema(
    [
        pa.field("commit_lsn", pa.int64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("xid", pa.int64(), nullable=False),
        pa.field("commit_ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("relation_id", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
_KINDS = "ICUDTMO"
_CODE = np.full(256, -1, dtype=np.int8)
_CODE[[ord(k) for k in _KINDS]] = np.arange(len(_KINDS), dtype=np.int8)


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The source of a log. A source that is not PostgreSQL has neither timeline, slot nor publication."""

    system_id: str
    timeline: int
    database: str
    slot: str
    publication: str
    kind: str = POSTGRESQL

    @property
    def has_wal_lsns(self) -> bool:
        """Whether LSNs count bytes of WAL."""
        return self.kind == POSTGRESQL

    def to_raw(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        if self.kind != POSTGRESQL:
            return {"kind": self.kind, "system_id": self.system_id, "database": self.database}
        return {f: getattr(self, f) for f in SourceIdentity.__slots__ if f != "kind"}

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> SourceIdentity:
        if raw.get("kind", POSTGRESQL) == POSTGRESQL:
            return cls(**raw)
        return cls(raw["system_id"], 0, raw["database"], "", "", raw["kind"])


@dataclass(frozen=True, slots=True)
class RelationUse:
    """The definition that rows with a relation id have, from a row of the segment on."""

    relation_id: int
    first_row: int
    digest: str


@dataclass(frozen=True)
class Header:
    """A segment's metadata. The next segment's `previous` is the SHA-256 of its JSON text."""

    id: int
    source: SourceIdentity
    rows: int
    committed_rows: int
    """The number of leading rows whose transactions are complete. The other rows begin one that continues."""
    first: Position | None
    last: Position | None
    end_lsn: Lsn
    """All transactions that commit below this LSN are in the log up to this segment."""
    first_committed_at_us: int | None
    last_committed_at_us: int | None
    payload_bytes: int
    voids_tail: bool
    """The transaction that the previous segment left open is void: capture restarted and receives it again."""
    gap_from: Lsn | None
    """Changes between this LSN and the segment were lost with the slot, and an operator accepted the loss."""
    relations: tuple[RelationUse, ...]
    content: str
    previous: str
    version: int = VERSION
    resume: str | None = None
    """Where the source's stream continues after this segment. Only the source reads it. Only in version 2."""

    @property
    def ends_at_commit(self) -> bool:
        return self.committed_rows == self.rows

    def to_json(self) -> str:
        raw = {
            "version": self.version,
            "id": self.id,
            "source": self.source.to_raw(),
            "rows": self.rows,
            "committed_rows": self.committed_rows,
            "first": str(self.first) if self.first else None,
            "last": str(self.last) if self.last else None,
            "end_lsn": str(self.end_lsn),
            "first_committed_at_us": self.first_committed_at_us,
            "last_committed_at_us": self.last_committed_at_us,
            "payload_bytes": self.payload_bytes,
            "voids_tail": self.voids_tail,
            "gap_from": str(self.gap_from) if self.gap_from is not None else None,
            "relations": [[u.relation_id, u.first_row, u.digest] for u in self.relations],
            "content": self.content,
            "previous": self.previous,
        }
        if self.version == RESUME_VERSION:
            raw["resume"] = self.resume
        return json.dumps(raw, ensure_ascii=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Header:
        raw: dict[str, Any] = stored_json.parse(text)
        if raw["version"] not in (VERSION, RESUME_VERSION):
            raise CorruptError(
                f"segment {raw['id']} has format version {raw['version']}", "read it with a newer Tailrace"
            )
        parsed = {
            "source": SourceIdentity.from_raw(raw["source"]),
            "first": Position.parse(raw["first"]) if raw["first"] else None,
            "last": Position.parse(raw["last"]) if raw["last"] else None,
            "end_lsn": Lsn.parse(raw["end_lsn"]),
            "gap_from": Lsn.parse(raw["gap_from"]) if raw["gap_from"] else None,
            "relations": tuple(RelationUse(*u) for u in raw["relations"]),
        }
        return stored_json.typed(cls(**raw | parsed))

    @cached_property
    def link(self) -> str:
        """The SHA-256 of the header's text, which the next segment's `previous` must equal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


class DecodedCache:
    """Decoded changes of a whole segment."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.whole: dict[bool, Any] = {}
        """By `as_text`: whether values are texts."""


@dataclass(frozen=True)
class SegmentContent:
    """A segment's header, its rows, and the relations that the rows use."""

    header: Header
    rows: LogRows
    relations: Mapping[str, Relation]
    """By digest."""

    def relation_at(self, row: int, relation_id: int) -> Relation:
        """The definition of a relation id at a row."""
        found = None
        for use in self._uses.get(relation_id, ()):
            if use.first_row <= row:
                found = self.relations.get(use.digest)
        if found is None:
            raise CorruptError(
                f"segment {self.header.id} row {row} uses relation {relation_id}, which the segment does not define"
            )
        return found

    @cached_property
    def decoded(self) -> DecodedCache:
        """Decoded changes that consumers of the same segment share."""
        return DecodedCache()

    @cached_property
    def _uses(self) -> Mapping[int, Sequence[RelationUse]]:
        by_id: dict[int, list[RelationUse]] = {}
        for use in self.header.relations:
            by_id.setdefault(use.relation_id, []).append(use)
        return by_id


def key(first: int, last: int | None = None) -> str:
    """The key of the object with one segment, or of the merged object with a range of segments."""
    return f"{PREFIX}/{first:020d}.parquet" if last is None else f"{PREFIX}/{first:020d}-{last:020d}.parquet"


def ids(object_key: str) -> tuple[int, int] | None:
    """The first and last segment id in an object, from its key; None if the key is not a segment's."""
    directory, _, name = object_key.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    first, dash, last = stem.partition("-")
    if directory != PREFIX or suffix != "parquet" or not dot:
        return None
    if not all(len(n) == 20 and n.isdecimal() for n in ((first, last) if dash else (first,))):
        return None
    return int(first), int(last or first)


def content_digest(rows: LogRows) -> str:
    """SHA-256 of the rows, column by column in a fixed binary form: independent of the Parquet encoding."""
    digest = hashlib.sha256()
    for column in rows.columns():
        digest.update(np.ascontiguousarray(column).data)
    offsets, data = payload_buffers(rows.payload)
    digest.update(offsets.astype("<i8").data)
    digest.update(data)
    return digest.hexdigest()


def payload_buffers(payload: pa.BinaryArray) -> tuple[np.ndarray[Any, np.dtype[np.int32]], memoryview]:
    """Offsets, starting at 0, and the bytes that they refer to."""
    _, offsets_buffer, data = payload.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32, count=len(payload) + 1, offset=4 * payload.offset)
    view = memoryview(data)[int(offsets[0]) : int(offsets[-1])] if data is not None else memoryview(b"")
    return offsets - offsets[0], view


def seal(header: Header, rows: LogRows, relations: Mapping[str, Relation]) -> tuple[Header, bytes]:
    """The finished header and the object's bytes. Sets the header's fields that follow from the rows."""
    finished = with_row_facts(header, rows)
    used = {u.digest: relations[u.digest] for u in finished.relations}
    return finished, pack([finished.to_json()], rows, used)


def with_row_facts(header: Header, rows: LogRows) -> Header:
    """The header with all fields set that follow from the rows."""
    return replace(
        header,
        rows=len(rows),
        first=_position(rows, 0) if len(rows) else None,
        last=_position(rows, len(rows) - 1) if len(rows) else None,
        first_committed_at_us=int(rows.commit_ts.min()) if len(rows) else None,
        last_committed_at_us=int(rows.commit_ts.max()) if len(rows) else None,
        payload_bytes=len(payload_buffers(rows.payload)[1]),
        content=content_digest(rows),
    )


def pack(headers: Sequence[str], rows: LogRows, relations: Mapping[str, Relation]) -> bytes:
    """The bytes of an object with these segments, given by their headers' texts and all their rows."""
    codes = pa.array(_CODE[rows.kind])
    table = pa.Table.from_arrays(
        [
            pa.array(rows.commit_lsn),
            pa.array(rows.ordinal),
            pa.array(rows.lsn),
            pa.array(rows.xid),
            pa.array(rows.commit_ts).cast(SCHEMA.field("commit_ts").type),
            pa.DictionaryArray.from_arrays(codes, pa.array(list(_KINDS))),
            pa.array(rows.relation_id),
            rows.payload,
        ],
        schema=SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        # At level 1 sealing keeps up with the stream on one core. Level 3 saves 5 % and takes half as long again.
        compression_level=1,
        use_dictionary=["kind"],
        column_encoding={
            **dict.fromkeys(("commit_lsn", "ordinal", "lsn", "xid", "commit_ts", "relation_id"), "DELTA_BINARY_PACKED"),
            "payload": "PLAIN",
        },
        write_statistics=["commit_lsn", "commit_ts", "relation_id"],
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=max(len(rows), 1))
        texts = {digest: relation.to_json() for digest, relation in relations.items()}
        writer.add_key_value_metadata({_HEADERS: "\n".join(headers).encode(), _RELATIONS: json.dumps(texts).encode()})
    return _with_checksums(sink.getvalue())


def unpack(data: bytes, name: str) -> list[SegmentContent]:
    """The segments in an object's bytes, after checking the checksums."""
    footer = _footer_offset(data, name)
    if hashlib.sha256(memoryview(data)[: footer - _CHECKSUMS]).digest() != data[footer - _CHECKSUMS : footer - _DIGEST]:
        raise _checksum_error(name)
    with _raise_corrupt_errors(name):
        size = page_size.file_size(data, footer, footer - _CHECKSUMS)
        file = pq.ParquetFile(pa.BufferReader(data))
        headers, relations = _metadata(file.metadata, name)
        _check_size(headers, size)
        rows = _rows(file.read())
    contents = []
    at = 0
    for header in headers:
        contents.append(SegmentContent(header, rows.slice(at, at + header.rows), relations))
        at += header.rows
    return contents


def unpack_headers(tail: bytes, name: str) -> tuple[list[Header], dict[str, Relation]] | int:
    """Headers, and relations by digest, from the last bytes of an object; or the number of bytes needed, if more."""
    needed = 8 + int.from_bytes(tail[-8:-4], "little") + _CHECKSUMS
    if len(tail) < needed and tail[-4:] == b"PAR1":
        return needed
    footer = _footer_offset(tail, name)
    # Arrow requires a file that begins with PAR1. Reading metadata does not follow offsets in the footer.
    with _raise_corrupt_errors(name):
        return _metadata(pq.read_metadata(pa.BufferReader(b"PAR1" + tail[footer:])), name)


def _with_checksums(buffer: pa.Buffer) -> bytes:
    """Insert the checksums before the footer. Parquet readers ignore them, because offsets count from the start."""
    view = memoryview(buffer)
    footer = len(view) - 8 - int.from_bytes(view[-8:-4], "little")
    body, rest = view[:footer], view[footer:]
    return b"".join((body, hashlib.sha256(body).digest(), hashlib.sha256(rest).digest(), rest))


def _footer_offset(data: bytes, name: str) -> int:
    """The offset of the footer, after checking its checksum."""
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if data[-4:] != b"PAR1" or footer < _CHECKSUMS:
        raise CorruptError(f"{name}: not a whole segment ({len(data)} bytes)", _RESTORE)
    if hashlib.sha256(memoryview(data)[footer:]).digest() != data[footer - _DIGEST : footer]:
        raise _checksum_error(name)
    return footer


@contextmanager
def _raise_corrupt_errors(name: str) -> Iterator[None]:
    """Raise CorruptError for objects in another format: checksums do not prove that Tailrace wrote an object."""
    try:
        yield
    except (*stored_json.ERRORS, pa.ArrowException, OSError) as error:
        raise CorruptError(f"{name}: not a segment of this format ({error})", _RESTORE) from error


def _checksum_error(name: str) -> CorruptError:
    return CorruptError(f"{name}: checksum does not match", _RESTORE)


def _metadata(footer: pq.FileMetaData, name: str) -> tuple[list[Header], dict[str, Relation]]:
    raw = footer.metadata or {}
    if _HEADERS not in raw or _RELATIONS not in raw:
        raise CorruptError(f"{name}: a Parquet file without Tailrace's headers", _RESTORE)
    texts = raw[_HEADERS].decode().split("\n")
    headers = [Header.from_json(text) for text in texts]
    for header, text in zip(headers, texts, strict=True):
        # Links are digests of the text, so another text with the same meaning would break the chain.
        if header.to_json() != text:
            raise CorruptError(f"{name}: the header of segment {header.id} is not in its canonical form", _RESTORE)
    return headers, {digest: Relation.from_json(text) for digest, text in stored_json.parse(raw[_RELATIONS]).items()}


def _check_size(headers: Sequence[Header], found: FileSize) -> None:
    """Raise unless the rows need the memory that the headers say, which is what readers plan with."""
    rows, payload = found.rows, sum(header.payload_bytes for header in headers)
    if rows != (known := sum(header.rows for header in headers)):
        raise ValueError(f"has {rows} rows, but its headers say {known}")
    if payload < rows:
        raise ValueError(f"its headers say {payload} bytes for {rows} rows")
    for name, size in found.columns.items():
        # A payload has its length before it. Numbers take at most what they would unencoded, and the blocks' headers.
        most = payload + 4 * rows if name == "payload" else 16 * rows + _ENCODING_BYTES
        # A value in a dictionary can stand for many of its size, unless it is a number.
        dictionary = {"payload": 0, "kind": _DICTIONARY_BYTES}.get(name, most)
        if size.values > most or size.dictionary > dictionary:
            raise ValueError(f"{name} unpacks to more than its headers say")


def _rows(table: pa.Table) -> LogRows:
    columns = {name: table.column(name).combine_chunks() for name in SCHEMA.names}
    commit_lsn, ordinal, lsn, xid = (columns[n].to_numpy() for n in ("commit_lsn", "ordinal", "lsn", "xid"))
    commit_ts = columns["commit_ts"].cast(pa.int64()).to_numpy()
    kind = columns["kind"].cast(pa.binary())
    letters = np.frombuffer(payload_buffers(kind)[1], dtype=np.uint8)
    if len(letters) != len(table):
        raise ValueError("a kind is not one letter")
    relation_id = columns["relation_id"].to_numpy()
    return LogRows(commit_lsn, ordinal, lsn, xid, commit_ts, letters, relation_id, columns["payload"])


def _position(rows: LogRows, row: int) -> Position:
    return Position(Lsn(rows.commit_lsn[row]), int(rows.ordinal[row]))


def relation_uses(rows: LogRows, defined: Iterable[tuple[int, Relation]]) -> tuple[RelationUse, ...]:
    """The definitions that these rows use.

    `defined` has (first row, relation) in order, with first row 0 for definitions of earlier segments.
    """
    used = {int(i) for i in np.unique(rows.relation_id)} - {0}
    for row in np.flatnonzero(rows.kind == ord("T")):
        truncate = message.parse(rows.payload[int(row)].as_py())
        assert isinstance(truncate, message.Truncate)
        used.update(truncate.relation_oids)
    return tuple(RelationUse(r.oid, first, r.digest) for first, r in defined if r.oid in used)
