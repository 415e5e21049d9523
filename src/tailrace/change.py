"""What the log is about: positions, relations, changes. Frozen values, no I/O."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

from tailrace.errors import ConfigError


class Lsn(int):
    """A position in the write-ahead log, printed the way PostgreSQL prints it."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        high, slash, low = text.partition("/")
        try:
            if not slash or len(high) > 8 or len(low) > 8:
                raise ValueError
            return cls((int(high, 16) << 32) | int(low, 16))
        except ValueError:
            raise ConfigError(f"{text!r} is not an LSN", "an LSN looks like 0/1A2B3C4") from None

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"


class Position(NamedTuple):
    """Where a change stands: total order, unique, the same at every re-read."""

    commit_lsn: Lsn
    ordinal: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """`0/1A2B3C4:17`, or an LSN alone for the first change of that commit."""
        lsn, colon, ordinal = text.partition(":")
        if colon and not ordinal.isdecimal():
            raise ConfigError(f"{text!r} is not a position", "a position looks like 0/1A2B3C4:17")
        return cls(Lsn.parse(lsn), int(ordinal) if colon else 0)

    def __str__(self) -> str:
        return f"{self.commit_lsn}:{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Type:
    """A PostgreSQL type, with everything needed to read its text without asking the server."""

    oid: int
    schema: str
    name: str
    kind: str = "b"
    """`pg_type.typtype`: b base, c composite, d domain, e enum, r range, m multirange."""
    base: Type | None = None
    """A domain's base type; itself a domain where domains are stacked."""
    base_modifier: int = -1
    element: Type | None = None
    """An array's element type."""
    labels: tuple[str, ...] = ()
    """An enum's labels when the relation was described; later ones may appear in rows."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: Type
    modifier: int = -1
    is_identity: bool = False
    """Part of the replica identity, as pgoutput flags it."""
    number: int | None = None
    """`attnum`: tells a re-added column from the one dropped. None when the catalogue had moved on already."""
    nullable: bool = True
    default: str | None = None
    """The default's expression, as PostgreSQL prints it."""
    missing: str | None = None
    """What rows older than this column show for it (`attmissingval`), as text."""
    comment: str | None = None


@dataclass(frozen=True)
class Relation:
    """One version of one table's shape."""

    oid: int
    schema: str
    name: str
    identity: str
    """`relreplident`: d default, n nothing, f full, i index."""
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """Columns that identify a row: the replica identity's, or the primary key where the identity is full."""
    generated: tuple[str, ...] = ()
    """Generated columns that pgoutput does not send."""
    comment: str | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def to_json(self) -> str:
        """Canonical: equal relations have equal text."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Relation:
        raw = json.loads(text)
        columns = tuple(Column(**(c | {"type": _type(c["type"])})) for c in raw.pop("columns"))
        return cls(columns=columns, key=tuple(raw.pop("key")), generated=tuple(raw.pop("generated")), **raw)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _type(raw: dict[str, Any]) -> Type:
    nested = {k: _type(raw[k]) if raw[k] else None for k in ("base", "element")}
    return Type(**(raw | nested | {"labels": tuple(raw["labels"])}))


class Operation(StrEnum):
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    TRUNCATE = "TRUNCATE"
    MESSAGE = "MESSAGE"


class Unchanged:
    """The one value `UNCHANGED`: a TOASTed value that the update did not touch and PostgreSQL did not send."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()

Image = tuple[bytes | None | Unchanged, ...]
"""A row as sent: one entry for each column of the relation, PostgreSQL's own text, UTF-8."""


@dataclass(frozen=True)
class Change:
    """One row-level event or logical message."""

    position: Position
    lsn: Lsn
    xid: int
    committed_at: datetime
    operation: Operation
    relation: Relation | None = None
    old: Image | None = None
    old_is_key: bool = False
    """`old` holds only the identity's columns (the others are None in it, and say nothing)."""
    new: Image | None = None
    truncate_options: tuple[str, ...] = ()
    """CASCADE, RESTART IDENTITY."""
    prefix: str | None = None
    content: bytes | None = None
    transactional: bool = True

    @property
    def schema(self) -> str | None:
        return self.relation.schema if self.relation else None

    @property
    def table(self) -> str | None:
        return self.relation.name if self.relation else None
