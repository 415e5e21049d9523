"""The log's vocabulary: positions, relations and changes, as frozen values without I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

from tailrace import stored_json
from tailrace.errors import ConfigError, DecodeError

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_ORDINAL: Final = re.compile(r"[0-9]{1,18}")


class Lsn(int):
    """A position in the write-ahead log, printed as PostgreSQL prints it."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        found = _LSN.fullmatch(text)
        if found is None:
            raise ConfigError(f"{text!r} is not an LSN", "an LSN looks like 0/1A2B3C4")
        return cls((int(found[1], 16) << 32) | int(found[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"


class Position(NamedTuple):
    """The position of a change in the log: unique, totally ordered, and the same on every read."""

    commit_lsn: Lsn
    ordinal: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse `0/1A2B3C4:17`; an LSN alone is the position of that commit's first change."""
        lsn, colon, ordinal = text.partition(":")
        if colon and not _ORDINAL.fullmatch(ordinal):
            raise ConfigError(f"{text!r} is not a position", "a position looks like 0/1A2B3C4:17")
        return cls(Lsn.parse(lsn), int(ordinal) if colon else 0)

    def __str__(self) -> str:
        return f"{self.commit_lsn}:{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Type:
    """A PostgreSQL type, with everything needed to parse its text without querying the server."""

    oid: int
    schema: str
    name: str
    kind: str = "b"
    """`pg_type.typtype`: b base, c composite, d domain, e enum, r range, m multirange."""
    base: Type | None = None
    """A domain's base type, which may be a domain itself."""
    base_modifier: int = -1
    element: Type | None = None
    """An array's element type."""
    labels: tuple[str, ...] = ()
    """An enum's labels when the relation was described. Rows may contain labels that were added later."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: Type
    modifier: int = -1
    is_identity: bool = False
    """Whether pgoutput flags the column as part of the replica identity."""
    number: int | None = None
    """`attnum`, which differs between a dropped column and one re-added under its name. None if the catalogue had
    already changed when the relation was described."""
    nullable: bool = True
    default: str | None = None
    """The default expression, as PostgreSQL prints it."""
    missing: str | None = None
    """The value that rows older than this column have in it (`attmissingval`), as text."""
    comment: str | None = None


UPSERT: Final = "u"
"""The identity of relations whose source does not say whether a row existed: an UPDATE may create its row, and a DELETE
may find none. PostgreSQL has no such relations."""

OPERAND: Final = "operand"
"""The column of an `UPSERT` relation that has the operand of a merge."""
MERGED: Final = "value"
"""The column of an `UPSERT` relation that has the value after a merge. It is NULL if that is not known."""

OWN: Final = "Tailrace:"
"""The start of the comment on each of Tailrace's own tables, such as a sink's cursor in the captured database."""


@dataclass(frozen=True)
class Relation:
    """One version of a table's definition."""

    oid: int
    schema: str
    name: str
    identity: str
    """`relreplident`: d default, n nothing, f full, i index; or `UPSERT`."""
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """Columns that identify a row: those of the replica identity, or the primary key if the identity is full."""
    generated: tuple[str, ...] = ()
    """Generated columns that pgoutput does not send."""
    comment: str | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def is_upsert(self) -> bool:
        """Whether changes do not say if their row existed before."""
        return self.identity == UPSERT

    @property
    def is_own(self) -> bool:
        """Whether this is one of Tailrace's own tables.

        They are not captured. Otherwise a sink would receive its own writes.
        """
        return self.comment is not None and self.comment.startswith(OWN)

    def to_json(self) -> str:
        """The canonical JSON: equal relations have equal text."""
        return self._text

    @cached_property
    def _text(self) -> str:
        # Cached, because every segment carries it.
        return json.dumps(self, default=_fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Relation:
        return _parse_relation(text)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _fields(instance: Any) -> dict[str, Any]:
    """A dataclass as JSON has it. `dataclasses.asdict` copies every value, which takes three times as long."""
    return {name: getattr(instance, name) for name in instance.__dataclass_fields__}


@lru_cache(maxsize=10_000)
def _parse_relation(text: str) -> Relation:
    """Cached, because segments, snapshots and steps have the same relations over and over."""
    raw = stored_json.parse(text)
    columns = tuple(Column(**(c | {"type": _type(c["type"])})) for c in raw.pop("columns"))
    key, generated = tuple(raw.pop("key")), tuple(raw.pop("generated"))
    return stored_json.typed(Relation(columns=columns, key=key, generated=generated, **raw))


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
    """The class of `UNCHANGED`: a TOASTed value that the update did not touch and PostgreSQL did not send."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()

Value = bool | int | float | Decimal | bytes | str | None
"""A column's value in Python. A value that no Python class holds exactly is a `str` with PostgreSQL's text."""

Image = tuple[bytes | Unchanged | None, ...]
"""A row as it was sent: for each column of the relation, PostgreSQL's text in UTF-8."""


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
    """Whether `old` holds only the replica identity's columns; its other entries are None and carry no information."""
    new: Image | None = None
    truncate_options: tuple[str, ...] = ()
    """Any of CASCADE and RESTART IDENTITY."""
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
        """The row before the change, by column name; only the key's columns if PostgreSQL sent no others."""
        return _values(self.old_columns)

    @cached_property
    def after(self) -> dict[str, Value] | None:
        """The row after the change, by column name, without the columns in `unchanged`."""
        return _values(self.new_columns)

    @cached_property
    def key(self) -> dict[str, Value] | None:
        """The row's key before the change; for an insert, its key now. None if the table has no key."""
        return _values(self.key_columns)

    @property
    def unchanged(self) -> tuple[str, ...]:
        """Columns whose large values PostgreSQL did not send, because the update did not touch them."""
        return tuple([c.name for c, v in self._sent_columns(self.new) if isinstance(v, Unchanged)])

    @property
    def old_columns(self) -> list[tuple[Column, bytes | None]] | None:
        """The columns of `before`, each with PostgreSQL's text."""
        sent = self._sent_columns(self.old)
        columns = [(c, v) for c, v in sent if not isinstance(v, Unchanged) and (c.is_identity or not self.old_is_key)]
        return None if self.old is None else columns

    @property
    def new_columns(self) -> list[tuple[Column, bytes | None]] | None:
        columns = [(c, v) for c, v in self._sent_columns(self.new) if not isinstance(v, Unchanged)]
        return None if self.new is None else columns

    @property
    def key_columns(self) -> list[tuple[Column, bytes | None]] | None:
        names = self.relation.key if self.relation else ()
        for columns in (self.old_columns, self.new_columns):
            found = {c.name: (c, v) for c, v in columns or () if c.name in names}
            if names and len(found) == len(names):
                return [found[name] for name in names]
        return None

    def _sent_columns(self, image: Image | None) -> Iterator[tuple[Column, bytes | Unchanged | None]]:
        if image is None or self.relation is None:
            return iter(())
        if len(image) != len(self.relation.columns):
            raise DecodeError(
                f"{self.position}: {self.operation} of {self.relation.qualified_name} has {len(image)} columns "
                f"where the relation has {len(self.relation.columns)}"
            )
        return zip(self.relation.columns, image, strict=True)


def _values(columns: list[tuple[Column, bytes | None]] | None) -> dict[str, Value] | None:
    # Imported here, because types imports Arrow, which users of positions do not need.
    from tailrace.types import mapping

    return None if columns is None else {c.name: mapping(c).python_value(v) for c, v in columns}
