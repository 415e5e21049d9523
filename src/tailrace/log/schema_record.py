"""The format of `schema/<lsn>-<digest>.json`: the full definitions of published tables, as capture read them.

The log's relations have what decoding needs. These records have the rest, so that a dropped table can be created again:
keys, indexes, checks, foreign keys, sequences, types, partitions. A record has the tables whose definition changed
since the records before it. It is never changed and never removed, because any later moment may need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from tailrace import stored_json
from tailrace.change import Lsn
from tailrace.errors import CorruptError
from tailrace.log import checked_json
from tailrace.store import Store

VERSION: Final = 1
PREFIX: Final = "schema"
_HINT: Final = "restore the object from a copy of the store"


@dataclass(frozen=True)
class RecordedColumn:
    name: str
    number: int
    type: str
    """As PostgreSQL declares it, with its modifier."""
    type_oid: int
    not_null: bool
    not_null_name: str | None
    """The name of the constraint (since PostgreSQL 18)."""
    default: str | None
    """The default's expression; of a generated column, the expression that it is generated from."""
    identity: str
    """`a` GENERATED ALWAYS AS IDENTITY, `d` BY DEFAULT, empty otherwise."""
    generated: str
    """`s` stored, `v` virtual, empty otherwise."""
    missing: str | None
    """The value in rows that are older than the column."""
    collation: str | None
    """Only if it is not the type's own."""
    storage: str | None
    """Only if it is not the type's own."""
    comment: str | None
    uses: tuple[int, ...] = ()
    """Numbers of the columns that a generated column is computed from."""
    is_published: bool = True


@dataclass(frozen=True)
class RecordedConstraint:
    name: str
    kind: str
    """`contype`: p, u, x, c, f, and n for a NOT NULL that older rows may violate."""
    definition: str
    columns: tuple[int, ...]
    comment: str | None
    parent: tuple[str, str] | None = None
    """The table that a foreign key refers to."""
    parent_oid: int = 0


@dataclass(frozen=True)
class RecordedIndex:
    """An index that does not belong to a constraint."""

    name: str
    is_unique: bool
    body: str
    """The definition from USING on."""
    columns: tuple[int, ...]
    comment: str | None


@dataclass(frozen=True)
class RecordedSequence:
    """A sequence that a column owns, or that its default uses."""

    schema: str
    name: str
    column: int
    is_identity: bool
    is_owned: bool
    options: str
    increment: int
    last_value: int | None = field(compare=False)
    """When the definition was read. None if it was not used yet, or not readable. It changes without a new record."""


@dataclass(frozen=True)
class RecordedPartition:
    schema: str
    name: str
    parent: tuple[str, str]
    bound: str
    key: str | None
    """What the partition itself is partitioned by."""
    constraints: tuple[RecordedConstraint, ...]
    indexes: tuple[RecordedIndex, ...]
    """Those that are not the root's."""


@dataclass(frozen=True)
class RecordedType:
    """A type outside pg_catalog that a column uses, directly or through another type."""

    schema: str
    name: str
    kind: str
    """`typtype`: e enum, d domain, c composite, r range, b base."""
    extension: str | None
    """The extension that owns the type, which then creates it."""
    extension_schema: str | None
    labels: tuple[str, ...]
    body: str
    """What follows the name in CREATE TYPE or CREATE DOMAIN; empty for an enum, which has labels."""


@dataclass(frozen=True)
class RecordedTable:
    oid: int
    schema: str
    name: str
    kind: str
    """`relkind`: r table, p partitioned table."""
    columns: tuple[RecordedColumn, ...]
    constraints: tuple[RecordedConstraint, ...]
    indexes: tuple[RecordedIndex, ...]
    sequences: tuple[RecordedSequence, ...]
    types: tuple[RecordedType, ...]
    """Each one after those that it is made of."""
    partition_key: str | None
    partitions: tuple[RecordedPartition, ...]
    """Each one after its parent."""
    options: tuple[str, ...]
    identity: str
    identity_index: str | None
    comment: str | None
    not_restored: tuple[str, ...]
    """What the table has and a restore does not create: triggers, policies."""
    changed_at: str | None = field(default=None, compare=False)
    """The commit LSN of the first change that the log has with the new shape, if that caused the read."""

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class SchemaRecord:
    """Definitions from one read of the catalogue, which began at `lsn`."""

    lsn: Lsn
    read_at: datetime
    database_oid: int
    tables: tuple[RecordedTable, ...]

    def to_json(self) -> str:
        raw = {
            "version": VERSION,
            "lsn": str(self.lsn),
            "read_at": self.read_at.isoformat(),
            "database_oid": self.database_oid,
            "tables": [asdict(table) for table in self.tables],
        }
        return checked_json.dump(raw)

    @classmethod
    def from_json(cls, text: bytes, name: str) -> SchemaRecord:
        raw = checked_json.parse(text, name, VERSION, not_one="is not a record of definitions", hint=_HINT)
        try:
            tables = tuple([table_from_json(table) for table in raw["tables"]])
            read_at = datetime.fromisoformat(raw["read_at"])
            return stored_json.typed(cls(Lsn.parse(raw["lsn"]), read_at, raw["database_oid"], tables))
        except stored_json.ERRORS as error:
            raise CorruptError(f"{name} is not a record of definitions", _HINT) from error


def table_from_json(raw: Mapping[str, Any]) -> RecordedTable:
    parts: dict[str, list[Any]] = {
        "columns": [RecordedColumn(**_tuples(each)) for each in raw["columns"]],
        "constraints": [_constraint(each) for each in raw["constraints"]],
        "indexes": [RecordedIndex(**_tuples(each)) for each in raw["indexes"]],
        "sequences": [RecordedSequence(**each) for each in raw["sequences"]],
        "types": [RecordedType(**_tuples(each)) for each in raw["types"]],
        "partitions": [_partition(each) for each in raw["partitions"]],
    }
    return RecordedTable(**(_tuples(raw) | {name: tuple(each) for name, each in parts.items()}))


def _constraint(raw: Mapping[str, Any]) -> RecordedConstraint:
    return RecordedConstraint(**_tuples(raw))


def _partition(raw: Mapping[str, Any]) -> RecordedPartition:
    parts = {
        "constraints": tuple([_constraint(each) for each in raw["constraints"]]),
        "indexes": tuple([RecordedIndex(**_tuples(each)) for each in raw["indexes"]]),
    }
    return RecordedPartition(**(_tuples(raw) | parts))


def _tuples(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}


def save(store: Store, record: SchemaRecord) -> str:
    """Write a record, and return its key. Writing it again changes nothing."""
    text = record.to_json().encode()
    # Two reads may begin at the same LSN.
    key = f"{PREFIX}/{record.lsn:016X}-{hashlib.sha256(text).hexdigest()[:8]}.json"
    if not store.create(key, text):
        raise CorruptError(f"{key} exists with other content", _HINT)
    return key


def load_all(store: Store) -> Iterator[SchemaRecord]:
    """All records, the oldest first."""
    for key in sorted(info.key for info in store.list(PREFIX) if info.key.endswith(".json")):
        if (data := store.get(key)) is not None:
            yield SchemaRecord.from_json(data, key)


def newest_of_each(store: Store) -> dict[int, RecordedTable]:
    """The newest definition of each table, by oid."""
    return {table.oid: table for record in load_all(store) for table in record.tables}


def definitions_of(store: Store, oid: int) -> Sequence[tuple[Lsn, RecordedTable]]:
    """A table's definitions with the LSNs at which they were read, the oldest first."""
    return [(record.lsn, table) for record in load_all(store) for table in record.tables if table.oid == oid]
