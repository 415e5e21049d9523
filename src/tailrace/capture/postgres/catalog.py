"""Definitions of tables and types: pgoutput's descriptions, completed from the source's catalogue.

pgoutput describes a table as it was when the change was made; the catalogue describes it as it is now. pgoutput takes
precedence. The catalogue adds what still applies: a column is the same if its name and type are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, LiteralString, NamedTuple

import psycopg

from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import OWN, Column, Lsn, Relation, Type
from tailrace.pgoutput.message import ColumnMessage, RelationMessage, TypeMessage

Connection = psycopg.Connection[Any]

IS_OWN: Final[LiteralString] = f"""
EXISTS (SELECT FROM pg_catalog.pg_description own
        WHERE own.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND own.objoid = c.oid AND own.objsubid = 0
          AND pg_catalog.starts_with(own.description, '{OWN}'))
"""
"""A condition: whether row `c` of pg_class is one of Tailrace's own tables, like `Relation.is_own`."""


class _Attribute(NamedTuple):
    oid: int
    schema: str
    table: str
    identity: str
    table_comment: str | None
    identity_key: list[int]
    primary_key: list[int]
    name: str
    number: int
    type_oid: int
    modifier: int
    not_null: bool
    generated: str
    default: str | None
    missing: str | None
    comment: str | None


# A deferrable primary key identifies rows, but PostgreSQL does not accept it as the replica identity. Not-null
# constraints that are NOT VALID (since 18) do not apply to older rows. A table without columns gives one row.
_ATTRIBUTES: Final = """
SELECT c.oid, n.nspname, c.relname, c.relreplident::text,
       pg_catalog.obj_description(c.oid, 'pg_class'),
       coalesce((SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_catalog.pg_index i
                 WHERE i.indrelid = c.oid AND i.indisvalid
                   AND CASE c.relreplident WHEN 'i' THEN i.indisreplident
                                           WHEN 'd' THEN i.indisprimary AND i.indimmediate
                                           ELSE false END), '{}'),
       coalesce((SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_catalog.pg_index i
                 WHERE i.indrelid = c.oid AND i.indisprimary), '{}'),
       coalesce(a.attname, ''), coalesce(a.attnum, 0), coalesce(a.atttypid, 0), coalesce(a.atttypmod, -1),
       a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k
                                    WHERE k.conrelid = c.oid AND k.contype = 'n' AND NOT k.convalidated
                                      AND k.conkey = ARRAY[a.attnum]),
       coalesce(a.attgenerated::text, ''),
       CASE WHEN a.attgenerated = '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END,
       CASE WHEN a.atthasmissing THEN pg_catalog.array_to_string(a.attmissingval, '') END,
       pg_catalog.col_description(c.oid, a.attnum)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.oid = ANY (%s::pg_catalog.oid[])
ORDER BY c.oid, a.attnum
"""

# An array type is one that its element type names: int2vector has elements too, but another text format.
_TYPES: Final = """
WITH RECURSIVE wanted AS (
    SELECT pg_catalog.unnest(%s::pg_catalog.oid[]) AS oid
    UNION
    SELECT inner_oid.oid
    FROM wanted w
    JOIN pg_catalog.pg_type t ON t.oid = w.oid
    CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem)) AS inner_oid (oid)
    WHERE inner_oid.oid <> 0
)
SELECT t.oid, n.nspname, t.typname, t.typtype::text, t.typbasetype, t.typtypmod, coalesce(e.oid, 0),
       coalesce((SELECT pg_catalog.array_agg(l.enumlabel::text ORDER BY l.enumsortorder)
                 FROM pg_catalog.pg_enum l WHERE l.enumtypid = t.oid), '{}')
FROM wanted w
JOIN pg_catalog.pg_type t ON t.oid = w.oid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
"""


def relation(
    connection: Connection, message: RelationMessage, type_messages: Mapping[int, TypeMessage] | None = None
) -> Relation:
    """The relation that pgoutput described, with what the catalogue can still add.

    It works even if the table, a column or a type was dropped meanwhile. `type_messages` are the 'Y' messages received
    so far, which name dropped types.
    """
    with source_errors():
        attributes = _attributes(connection, [message.oid])
        types = _types(connection, {c.type_oid for c in message.columns}, type_messages or {})
    return _assemble(message, attributes.get(message.oid, []), types)


def describe(
    connection: Connection, oids: Iterable[int], columns: Mapping[int, Sequence[str]] | None = None
) -> dict[int, Relation]:
    """The tables as pgoutput would describe them now.

    `columns` maps an oid to the names of the columns to include; without an entry, all but generated columns are
    included. A table that does not exist is absent from the result.
    """
    with source_errors():
        attributes = _attributes(connection, oids)
        types = _types(connection, {a.type_oid for group in attributes.values() for a in group}, {})
    return {
        oid: _assemble(_as_message(group, (columns or {}).get(oid)), group, types) for oid, group in attributes.items()
    }


@dataclass(frozen=True)
class PublishedTable:
    oid: int
    schema: str
    name: str
    is_partitioned: bool
    columns: tuple[str, ...]
    """The published columns, in the table's order."""
    row_filter: str | None
    estimated_rows: int | None
    """The sum over all partitions; None if the table was never analysed."""
    bytes: int


# Before 15 there were neither column lists nor row filters; before 18 generated columns were never published.
_PUBLISHED: Final = """
SELECT c.oid, n.nspname, c.relname, c.relkind = 'p',
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {columns} ORDER BY a.attnum),
       {row_filter}, size.rows, size.bytes
FROM pg_catalog.pg_publication_tables p
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
CROSS JOIN LATERAL (
    SELECT CASE WHEN pg_catalog.min(leaf.reltuples) >= 0 THEN pg_catalog.sum(leaf.reltuples)::bigint END AS rows,
           coalesce(pg_catalog.sum(pg_catalog.pg_table_size(leaf.oid)), 0)::bigint AS bytes
    FROM pg_catalog.pg_class leaf
    WHERE leaf.relkind = 'r'
      AND (leaf.oid = c.oid OR leaf.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t))
) AS size
WHERE p.pubname = %s AND {is_own} = %s
ORDER BY n.nspname, c.relname
"""


def published_tables(connection: Connection, publication: str, *, own: bool = False) -> list[PublishedTable]:
    """The tables of a publication; whether partitions or their roots depends on the publication.

    Tailrace's own tables are excluded, because they are not captured. With `own`, only they are returned.
    """
    version = connection.info.server_version
    generated: LiteralString = "" if version >= 180000 else "a.attgenerated = '' AND "
    columns: LiteralString = generated + ("a.attname = ANY (p.attnames)" if version >= 150000 else "true")
    filters: LiteralString = "p.rowfilter" if version >= 150000 else "NULL"
    query = _PUBLISHED.replace("{columns}", columns).replace("{row_filter}", filters).replace("{is_own}", IS_OWN)
    with source_errors():
        found = connection.execute(query, [publication, own]).fetchall()
    return [
        PublishedTable(oid, schema, name, is_partitioned, tuple(names), row_filter, rows, size)
        for oid, schema, name, is_partitioned, names, row_filter, rows, size in found
    ]


_PUBLISHED_OIDS: Final = f"""
SELECT coalesce(pg_catalog.array_agg(c.oid), '{{}}'),
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_lsn() END::text
FROM pg_catalog.pg_publication_tables p
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = %s AND NOT {IS_OWN}
"""  # noqa: S608 (a literal of ours)


def published_oids(connection: Connection, publication: str) -> tuple[set[int], Lsn]:
    """The oids of the tables that `published_tables` returns, and the source's current LSN. Cheap enough to poll."""
    with source_errors():
        row = connection.execute(_PUBLISHED_OIDS, [publication]).fetchone()
    assert row is not None
    return set(row[0]), Lsn.parse(row[1])


def _attributes(connection: Connection, oids: Iterable[int]) -> dict[int, list[_Attribute]]:
    rows = map(_Attribute._make, connection.execute(_ATTRIBUTES, [list(oids)]).fetchall())
    return {oid: list(group) for oid, group in groupby(rows, lambda row: row.oid)}


def _types(connection: Connection, oids: Iterable[int], type_messages: Mapping[int, TypeMessage]) -> dict[int, Type]:
    wanted = set(oids)
    rows = {row[0]: row[1:] for row in connection.execute(_TYPES, [list(wanted)]).fetchall()}

    def resolve(oid: int) -> Type:
        if oid in rows:
            schema, name, kind, base, modifier, element, labels = rows[oid]
            return Type(
                oid,
                schema,
                name,
                kind,
                resolve(base) if base else None,
                modifier if base else -1,
                resolve(element) if element else None,
                tuple(labels),
            )
        if message := type_messages.get(oid):
            return Type(oid, message.schema, message.name)
        return Type(oid, "", "unknown")

    return {oid: resolve(oid) for oid in wanted}


def _as_message(attributes: Sequence[_Attribute], names: Sequence[str] | None) -> RelationMessage:
    table = attributes[0]
    columns = tuple(
        ColumnMessage(a.name, a.type_oid, a.modifier, table.identity == "f" or a.number in table.identity_key)
        for a in attributes
        if a.number and (not a.generated if names is None else a.name in names)
    )
    return RelationMessage(table.oid, table.schema, table.table, table.identity, columns)


def _assemble(message: RelationMessage, attributes: Sequence[_Attribute], types: Mapping[int, Type]) -> Relation:
    known = _match(message.columns, attributes)
    columns = []
    for sent in message.columns:
        column = Column(sent.name, types[sent.type_oid], sent.modifier, sent.is_identity)
        if a := known.get(sent.name):
            column = Column(
                sent.name,
                column.type,
                sent.modifier,
                sent.is_identity,
                a.number,
                not a.not_null,
                a.default,
                a.missing,
                a.comment,
            )
        columns.append(column)
    return Relation(
        message.oid,
        message.schema,
        message.name,
        message.identity,
        tuple(columns),
        _key(message, attributes, known),
        tuple(a.name for a in attributes if a.generated and a.name not in {c.name for c in message.columns}),
        attributes[0].table_comment if attributes else None,
    )


def _match(columns: Sequence[ColumnMessage], attributes: Sequence[_Attribute]) -> dict[str, _Attribute]:
    """Match columns to attributes. pgoutput sends columns in the order of attnum, so a column out of order was dropped
    since, and another one took its name."""
    now = {(a.name, a.type_oid): a for a in attributes}
    matched: dict[str, _Attribute] = {}
    following = 1 << 16
    for column in reversed(columns):
        a = now.get((column.name, column.type_oid))
        if a and a.number < following:
            matched[column.name] = a
            following = a.number
    return matched


def _key(
    message: RelationMessage, attributes: Sequence[_Attribute], known: Mapping[str, _Attribute]
) -> tuple[str, ...]:
    names = {a.number: name for name, a in known.items()}
    table = attributes[0] if attributes else None
    if message.identity in "fn":
        key = [names.get(number) for number in table.primary_key] if table else []
        return tuple(name for name in key if name) if all(key) else ()
    flagged = [c.name for c in message.columns if c.is_identity]
    ordered = [names.get(number) for number in table.identity_key] if table else []
    return tuple(name for name in ordered if name) if set(ordered) == set(flagged) else tuple(flagged)
