"""The relation of a SlateDB database: its keys and values as a table."""

from __future__ import annotations

from typing import Final

from tailrace.change import OPERAND, UPSERT, Column, Relation, Type
from tailrace.settings.slatedb import COLUMN_TYPES, SlateDbSettings

OID: Final = 1
"""A log has one database, and the database is one relation, however it is named."""
SCHEMA: Final = "slatedb"


def _type(name: str) -> Type:
    return Type(COLUMN_TYPES[name], "pg_catalog", name)


EXPIRES_AT: Final = Column("expires_at", _type("timestamptz"))


def relation_of(settings: SlateDbSettings) -> Relation:
    """The relation as the settings describe it: key, value, expiry, and the columns that values are decoded to."""
    columns = [
        Column("key", _type("bytea"), is_identity=True, nullable=False),
        Column("value", _type("bytea")),
        EXPIRES_AT,
        *(Column(name, _type(type_)) for name, type_ in settings.value.columns.items()),
    ]
    if has_operand(settings):
        columns.append(Column(OPERAND, _type("bytea")))
    return Relation(OID, SCHEMA, settings.name, UPSERT, tuple(columns), key=("key",))


def has_operand(settings: SlateDbSettings) -> bool:
    """Whether operands of merges are logged."""
    return settings.merges == "operands" or settings.merge_operator is not None
