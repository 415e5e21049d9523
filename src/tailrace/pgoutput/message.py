"""Parses one pgoutput message (protocol version 1) to a small frozen value.

It is plain Python, for capture and for reading single changes; `decoder` reads the row messages of a whole segment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tailrace.change import UNCHANGED, Image, Lsn, Unchanged
from tailrace.errors import DecodeError

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Begin:
    commit_lsn: Lsn
    committed_at: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class OriginMessage:
    lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class ColumnMessage:
    name: str
    type_oid: int
    modifier: int
    is_identity: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """A relation as pgoutput describes it, with types as oids to look up in the catalogue."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[ColumnMessage, ...]


@dataclass(frozen=True, slots=True)
class TypeMessage:
    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    relation_oid: int
    new: Image


@dataclass(frozen=True, slots=True)
class Update:
    relation_oid: int
    old: Image | None
    old_is_key: bool
    new: Image


@dataclass(frozen=True, slots=True)
class Delete:
    relation_oid: int
    old: Image
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    relation_oids: tuple[int, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


Message = (
    Begin
    | Commit
    | OriginMessage
    | RelationMessage
    | TypeMessage
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
)


def parse(payload: bytes | memoryview) -> Message:
    reader = _Reader(bytes(payload))
    letter = reader.letter("message")
    read = _READERS.get(letter)
    if read is None:
        raise DecodeError(f"pgoutput message of unknown kind {letter!r}")
    message = read(reader)
    reader.end()
    return message


class _Reader:
    """Reads the fields of a message in order. If the bytes run out, the error names the field being read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int, what: str) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise DecodeError(f"pgoutput message {self.data[:1]!r} ends at byte {len(self.data)}, inside its {what}")
        self.at, start = end, self.at
        return self.data[start:end]

    def number(self, layout: str, what: str) -> int:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout), what))
        return int(value)

    def letter(self, what: str) -> str:
        return self.take(1, f"{what} kind").decode("latin-1")

    def lsn(self, what: str) -> Lsn:
        return Lsn(self.number(">Q", what))

    def time(self, what: str) -> datetime:
        try:
            return _EPOCH + timedelta(microseconds=self.number(">q", what))
        except OverflowError:
            raise DecodeError(f"pgoutput message {self.data[:1]!r} has an impossible {what}") from None

    def string(self, what: str) -> str:
        end = self.data.find(b"\0", self.at)
        raw = self.take(end - self.at if end >= 0 else len(self.data), what)
        self.at += 1
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise DecodeError(f"pgoutput message {self.data[:1]!r}: {what} is not valid UTF-8") from None

    def image(self) -> Image:
        return tuple([self.value() for _ in range(self.number(">H", "number of columns"))])

    def value(self) -> bytes | Unchanged | None:
        match self.letter("column"):
            case "t":
                return self.take(self.number(">i", "value's length"), "value")
            case "n":
                return None
            case "u":
                return UNCHANGED
            case "b":
                raise DecodeError("a column has binary format, which Tailrace never requests")
            case other:
                raise DecodeError(f"a column of unknown kind {other!r}")

    def end(self) -> None:
        if extra := len(self.data) - self.at:
            raise DecodeError(f"pgoutput message {self.data[:1]!r} has {extra} bytes too many")


def _begin(reader: _Reader) -> Begin:
    return Begin(reader.lsn("commit LSN"), reader.time("commit time"), reader.number(">I", "transaction id"))


def _commit(reader: _Reader) -> Commit:
    reader.number(">B", "flags")
    return Commit(reader.lsn("commit LSN"), reader.lsn("end LSN"), reader.time("commit time"))


def _origin(reader: _Reader) -> OriginMessage:
    return OriginMessage(reader.lsn("LSN"), reader.string("origin name"))


def _relation(reader: _Reader) -> RelationMessage:
    oid = reader.number(">I", "relation oid")
    # pgoutput sends pg_catalog as an empty string.
    schema, name = reader.string("schema") or "pg_catalog", reader.string("name")
    identity = reader.letter("identity")
    columns = []
    for _ in range(reader.number(">H", "number of columns")):
        is_identity = reader.number(">B", "column flags") & 1 == 1
        column = reader.string("column name")
        type_oid, modifier = reader.number(">I", "type oid"), reader.number(">i", "type modifier")
        columns.append(ColumnMessage(column, type_oid, modifier, is_identity))
    return RelationMessage(oid, schema, name, identity, tuple(columns))


def _type(reader: _Reader) -> TypeMessage:
    oid = reader.number(">I", "type oid")
    return TypeMessage(oid, reader.string("schema") or "pg_catalog", reader.string("name"))


def _insert(reader: _Reader) -> Insert:
    oid = reader.number(">I", "relation oid")
    _expect(reader, "N")
    return Insert(oid, reader.image())


def _update(reader: _Reader) -> Update:
    oid = reader.number(">I", "relation oid")
    kind = _expect(reader, "KON")
    if kind == "N":
        return Update(oid, None, False, reader.image())
    old = reader.image()
    _expect(reader, "N")
    return Update(oid, old, kind == "K", reader.image())


def _delete(reader: _Reader) -> Delete:
    oid = reader.number(">I", "relation oid")
    kind = _expect(reader, "KO")
    return Delete(oid, reader.image(), kind == "K")


def _expect(reader: _Reader, letters: str) -> str:
    letter = reader.letter("row")
    if letter not in letters:
        raise DecodeError(f"pgoutput message {reader.data[:1]!r} has a row of unexpected kind {letter!r}")
    return letter


def _truncate(reader: _Reader) -> Truncate:
    count, flags = reader.number(">I", "number of relations"), reader.number(">B", "flags")
    options = tuple(word for bit, word in ((1, "CASCADE"), (2, "RESTART IDENTITY")) if flags & bit)
    return Truncate(tuple([reader.number(">I", "relation oid") for _ in range(count)]), options)


def _logical_message(reader: _Reader) -> LogicalMessage:
    transactional = reader.number(">B", "flags") & 1 == 1
    lsn, prefix = reader.lsn("LSN"), reader.string("prefix")
    return LogicalMessage(transactional, lsn, prefix, reader.take(reader.number(">I", "content's length"), "content"))


_READERS: dict[str, Callable[[_Reader], Message]] = {
    "B": _begin,
    "C": _commit,
    "O": _origin,
    "R": _relation,
    "Y": _type,
    "I": _insert,
    "U": _update,
    "D": _delete,
    "T": _truncate,
    "M": _logical_message,
}
