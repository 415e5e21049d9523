"""Builds relations, pgoutput messages and COPY lines by hand."""

from __future__ import annotations

import struct
from typing import Any

from tailrace.change import UNCHANGED, Column, Image, Relation, Type, Unchanged

OID = 16384


def type_(name: str, **more: Any) -> Type:
    return Type(0, "pg_catalog", name, **more)


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def relation(*columns: tuple[str, int] | str | Column) -> Relation:
    """A relation with one column per type, given as a name, a name with a modifier, or a whole column."""
    made = []
    for number, column in enumerate(columns):
        if not isinstance(column, Column):
            name, modifier = (column, -1) if isinstance(column, str) else column
            column = Column(f"c{number}", type_(name), modifier)
        made.append(column)
    return Relation(OID, "public", "t", "d", tuple(made))


def cell(value: bytes | Unchanged | None) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, Unchanged):
        return b"u"
    return b"t" + struct.pack(">i", len(value)) + value


def image(letter: bytes, values: Image) -> bytes:
    return letter + struct.pack(">H", len(values)) + b"".join(map(cell, values))


def insert(new: Image, oid: int = OID) -> bytes:
    return b"I" + struct.pack(">I", oid) + image(b"N", new)


def update(new: Image, old: Image | None = None, letter: bytes = b"O", oid: int = OID) -> bytes:
    before = b"" if old is None else image(letter, old)
    return b"U" + struct.pack(">I", oid) + before + image(b"N", new)


def delete(old: Image, letter: bytes = b"K", oid: int = OID) -> bytes:
    return b"D" + struct.pack(">I", oid) + image(letter, old)


_ESCAPES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\"}


def copy_line(values: Image) -> bytes:
    table = str.maketrans(_ESCAPES)
    assert UNCHANGED not in values
    texts = (r"\N" if value is None else str(value, "utf-8").translate(table) for value in values)  # type: ignore[arg-type]
    return ("\t".join(texts) + "\n").encode()
