"""What the log is about: positions, relations, changes. Frozen values, no I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

from tailrace.errors import ConfigError, DecodeError


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


OWN: Final = "Tailrace:"
"""How the comment of a table begins that is Tailrace's own: a sink's cursor, say, in the database that is captured."""


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

    @property
    def is_own(self) -> bool:
        """One of Tailrace's own: it is not captured, else what a sink writes would be delivered to it again."""
        return self.comment is not None and self.comment.startswith(OWN)

    def to_json(self) -> str:
        """Canonical: equal relations have equal text."""
        return self._text

    @cached_property
    def _text(self) -> str:
        # Once: every segment carries it.
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

Value = bool | int | float | Decimal | bytes | str | None
"""A column's value in Python; what Python's own classes cannot hold exactly is PostgreSQL's text."""

Image = tuple[bytes | Unchanged | None, ...]
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

    @cached_property
    def before(self) -> dict[str, Value] | None:
        """The row that was there, by column; only the key's columns where no more was sent."""
        return _values(self.old_columns)

    @cached_property
    def after(self) -> dict[str, Value] | None:
        """The row that is there now, by column; those in `unchanged` are absent."""
        return _values(self.new_columns)

    @cached_property
    def key(self) -> dict[str, Value] | None:
        """What identified the row before the change; for an insert, what identifies it now. None without a key."""
        return _values(self.key_columns)

    @property
    def unchanged(self) -> tuple[str, ...]:
        """Columns that the update did not touch and whose values, being large, were not sent."""
        return tuple([c.name for c, v in self._sent(self.new) if isinstance(v, Unchanged)])

    @property
    def old_columns(self) -> list[tuple[Column, bytes | None]] | None:
        """The columns of `before`, each with its text."""
        sent = self._sent(self.old)
        columns = [(c, v) for c, v in sent if not isinstance(v, Unchanged) and (c.is_identity or not self.old_is_key)]
        return None if self.old is None else columns

    @property
    def new_columns(self) -> list[tuple[Column, bytes | None]] | None:
        columns = [(c, v) for c, v in self._sent(self.new) if not isinstance(v, Unchanged)]
        return None if self.new is None else columns

    @property
    def key_columns(self) -> list[tuple[Column, bytes | None]] | None:
        names = self.relation.key if self.relation else ()
        for columns in (self.old_columns, self.new_columns):
            found = {c.name: (c, v) for c, v in columns or () if c.name in names}
            if names and len(found) == len(names):
                return [found[name] for name in names]
        return None

    def _sent(self, image: Image | None) -> Iterator[tuple[Column, bytes | Unchanged | None]]:
        if image is None or self.relation is None:
            return iter(())
        if len(image) != len(self.relation.columns):
            raise DecodeError(
                f"{self.position}: {self.operation} of {self.relation.qualified_name} has {len(image)} columns "
                f"where the relation has {len(self.relation.columns)}"
            )
        return zip(self.relation.columns, image, strict=True)


def _values(columns: list[tuple[Column, bytes | None]] | None) -> dict[str, Value] | None:
    # Here, because types knows Arrow, and a position should not cost its import.
    from tailrace.types import mapping

    return None if columns is None else {c.name: mapping(c).python_value(v) for c, v in columns}
