"""Reads full definitions of tables from a catalogue, as PostgreSQL itself prints their parts.

`search_path` is empty on Tailrace's connections, so all names in expressions are qualified.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, LiteralString

import psycopg

from tailrace.capture.postgres.source_error import source_errors
from tailrace.log.schema_record import RecordedTable, RecordedType, table_from_json

Connection = psycopg.Connection[Any]

# A catalogue without a constraint's columns in conkey has them in pg_depend: expressions of exclusion constraints.
_CONSTRAINTS: Final[LiteralString] = """
(SELECT coalesce(json_agg(json_build_object(
        'name', k.conname, 'kind', k.contype, 'definition', pg_catalog.pg_get_constraintdef(k.oid),
        'columns', ARRAY(SELECT DISTINCT used.n FROM (
            SELECT unnest(k.conkey)::int AS n
            UNION SELECT p.refobjsubid FROM pg_catalog.pg_depend p
            WHERE p.classid = 'pg_constraint'::regclass AND p.objid = k.oid AND p.refobjid = k.conrelid
        ) AS used WHERE used.n > 0 ORDER BY 1),
        'comment', pg_catalog.obj_description(k.oid, 'pg_constraint'),
        'parent', CASE WHEN k.contype = 'f' THEN ARRAY[fn.nspname, f.relname] END,
        'parent_oid', k.confrelid::int8)
    ORDER BY k.contype, k.conname), '[]')
 FROM pg_catalog.pg_constraint k
 LEFT JOIN pg_catalog.pg_class f ON f.oid = k.confrelid
 LEFT JOIN pg_catalog.pg_namespace fn ON fn.oid = f.relnamespace
 WHERE k.conrelid = {table} AND (k.contype IN ('p', 'u', 'x', 'c', 'f') OR (k.contype = 'n' AND NOT k.convalidated))
   AND {is_own})
"""

_INDEXES: Final[LiteralString] = """
(SELECT coalesce(json_agg(json_build_object(
        'name', x.relname, 'is_unique', i.indisunique, 'definition', pg_catalog.pg_get_indexdef(x.oid),
        'heads', ARRAY(SELECT format('CREATE %%s %%I ON %%s%%s ',
                                     CASE WHEN i.indisunique THEN 'UNIQUE INDEX' ELSE 'INDEX' END,
                                     x.relname, word, i.indrelid::regclass) FROM unnest(ARRAY['', 'ONLY ']) AS word),
        'columns', ARRAY(SELECT DISTINCT p.refobjsubid FROM pg_catalog.pg_depend p
                         WHERE p.classid = 'pg_class'::regclass AND p.objid = x.oid AND p.refobjid = i.indrelid
                           AND p.refobjsubid > 0 ORDER BY 1),
        'comment', pg_catalog.obj_description(x.oid, 'pg_class'))
    ORDER BY x.relname), '[]')
 FROM pg_catalog.pg_index i
 JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
 WHERE i.indrelid = {table} AND i.indisvalid
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conindid = x.oid AND k.contype IN ('p', 'u', 'x'))
   AND {is_own})
"""

_TABLES: Final[LiteralString] = """
SELECT json_build_object(
    'oid', c.oid::int8, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
    'columns', (
        SELECT coalesce(json_agg(json_build_object(
            'name', a.attname, 'number', a.attnum, 'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
            'type_oid', a.atttypid::int8,
            'not_null', a.attnotnull AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_constraint k
                WHERE k.conrelid = c.oid AND k.contype = 'n' AND NOT k.convalidated AND k.conkey = ARRAY[a.attnum]),
            'not_null_name', (SELECT k.conname FROM pg_catalog.pg_constraint k
                              WHERE k.conrelid = c.oid AND k.contype = 'n' AND k.conkey = ARRAY[a.attnum]),
            'default', pg_catalog.pg_get_expr(d.adbin, d.adrelid),
            'identity', a.attidentity, 'generated', a.attgenerated,
            'missing', CASE WHEN a.atthasmissing THEN pg_catalog.array_to_string(a.attmissingval, '') END,
            'collation', CASE WHEN a.attcollation <> t.typcollation THEN
                (SELECT format('%%I.%%I', cn.nspname, l.collname) FROM pg_catalog.pg_collation l
                 JOIN pg_catalog.pg_namespace cn ON cn.oid = l.collnamespace WHERE l.oid = a.attcollation) END,
            'storage', CASE WHEN a.attstorage <> t.typstorage THEN
                CASE a.attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN'
                                  ELSE 'EXTENDED' END END,
            'comment', pg_catalog.col_description(c.oid, a.attnum),
            'uses', CASE WHEN a.attgenerated = '' THEN '{}' ELSE
                ARRAY(SELECT DISTINCT p.refobjsubid FROM pg_catalog.pg_depend p
                      WHERE (p.classid, p.objid) IN (('pg_attrdef'::regclass, d.oid), ('pg_class'::regclass, c.oid))
                        AND (p.classid <> 'pg_class'::regclass OR p.objsubid = a.attnum)
                        AND p.refclassid = 'pg_class'::regclass AND p.refobjid = c.oid
                        AND p.refobjsubid > 0 AND p.refobjsubid <> a.attnum) END)
            ORDER BY a.attnum), '[]')
        FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    'constraints', {table_constraints},
    'indexes', {table_indexes},
    'sequences', (
        SELECT coalesce(json_agg(json_build_object(
            'schema', sn.nspname, 'name', s.relname, 'column', use.number, 'is_identity', use.kind = 'i',
            'is_owned', use.kind IN ('a', 'i'), 'increment', q.seqincrement,
            'options', format('AS %%s INCREMENT BY %%s MINVALUE %%s MAXVALUE %%s START WITH %%s CACHE %%s %%s',
                pg_catalog.format_type(q.seqtypid, NULL), q.seqincrement, q.seqmin, q.seqmax, q.seqstart, q.seqcache,
                CASE WHEN q.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END),
            'last_value', CASE WHEN pg_catalog.has_sequence_privilege(s.oid, 'SELECT, USAGE')
                               THEN pg_catalog.pg_sequence_last_value(s.oid) END)
            ORDER BY use.number, s.relname), '[]')
        FROM (
            SELECT DISTINCT ON (found.oid) found.* FROM (
                SELECT p.objid AS oid, p.refobjsubid AS number, p.deptype::text AS kind FROM pg_catalog.pg_depend p
                WHERE p.classid = 'pg_class'::regclass AND p.refclassid = 'pg_class'::regclass AND p.refobjid = c.oid
                  AND p.refobjsubid > 0 AND p.deptype IN ('a', 'i')
                UNION ALL
                SELECT p.refobjid, d.adnum::int, 'n' FROM pg_catalog.pg_attrdef d
                JOIN pg_catalog.pg_depend p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
                 AND p.refclassid = 'pg_class'::regclass AND p.refobjid <> c.oid
                WHERE d.adrelid = c.oid
            ) AS found ORDER BY found.oid, found.kind
        ) AS use
        JOIN pg_catalog.pg_class s ON s.oid = use.oid AND s.relkind = 'S'
        JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
        JOIN pg_catalog.pg_sequence q ON q.seqrelid = s.oid),
    'types', '{}'::text[],
    'partition_key', CASE WHEN c.relkind = 'p' THEN pg_catalog.pg_get_partkeydef(c.oid) END,
    'partitions', CASE WHEN c.relkind = 'p' THEN (
        SELECT coalesce(json_agg(json_build_object(
            'schema', ln.nspname, 'name', l.relname, 'parent', ARRAY[pn.nspname, p.relname],
            'bound', pg_catalog.pg_get_expr(l.relpartbound, l.oid),
            'key', CASE WHEN l.relkind = 'p' THEN pg_catalog.pg_get_partkeydef(l.oid) END,
            'constraints', {partition_constraints},
            'indexes', {partition_indexes})
            ORDER BY tree.level, ln.nspname, l.relname), '[]')
        FROM pg_catalog.pg_partition_tree(c.oid) AS tree
        JOIN pg_catalog.pg_class l ON l.oid = tree.relid AND l.relkind IN ('r', 'p')
        JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace
        JOIN pg_catalog.pg_class p ON p.oid = tree.parentrelid
        JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
        WHERE tree.level > 0) ELSE '[]' END,
    'options', coalesce(c.reloptions, '{}'),
    'identity', c.relreplident,
    'identity_index', (SELECT x.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
                       WHERE i.indrelid = c.oid AND i.indisreplident),
    'comment', pg_catalog.obj_description(c.oid, 'pg_class'),
    'not_restored', ARRAY(
        SELECT 'trigger ' || g.tgname FROM pg_catalog.pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal
        UNION ALL SELECT 'policy ' || p.polname FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid
        UNION ALL SELECT 'row level security' WHERE c.relrowsecurity
        ORDER BY 1))
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::pg_catalog.oid[]) AND c.relkind IN ('r', 'p')
ORDER BY n.nspname, c.relname
"""

_TYPES: Final[LiteralString] = """
WITH RECURSIVE used (oid, part) AS (
    SELECT unnest(%s::pg_catalog.oid[]), NULL::pg_catalog.oid
    UNION
    SELECT inside.oid, u.oid
    FROM used u
    JOIN pg_catalog.pg_type t ON t.oid = u.oid
    CROSS JOIN LATERAL (
        SELECT t.typbasetype AS oid
        UNION ALL SELECT t.typelem
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE t.oid = r.rngmultitypid
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
    ) AS inside
    WHERE inside.oid <> 0
)
SELECT u.oid::int8, coalesce(u.part, 0)::int8, t.typnamespace = 'pg_catalog'::regnamespace,
       t.typarray = 0 AND t.typelem <> 0, json_build_object(
    'schema', n.nspname, 'name', t.typname,
    -- The type of a table's rows cannot be created alone.
    'kind', CASE WHEN t.typtype = 'c' AND row_of.relkind <> 'c' THEN 'b' ELSE t.typtype END,
    'extension', e.extname, 'extension_schema', en.nspname,
    'labels', ARRAY(SELECT l.enumlabel FROM pg_catalog.pg_enum l WHERE l.enumtypid = t.oid ORDER BY l.enumsortorder),
    'body', CASE t.typtype
        WHEN 'd' THEN
            'AS ' || pg_catalog.format_type(t.typbasetype, t.typtypmod)
            || CASE WHEN t.typcollation <> b.typcollation THEN
                   (SELECT format(' COLLATE %%I.%%I', cn.nspname, l.collname) FROM pg_catalog.pg_collation l
                    JOIN pg_catalog.pg_namespace cn ON cn.oid = l.collnamespace WHERE l.oid = t.typcollation)
               ELSE '' END
            || coalesce(' DEFAULT ' || pg_catalog.pg_get_expr(t.typdefaultbin, 0), '')
            || CASE WHEN t.typnotnull THEN ' NOT NULL' ELSE '' END
            || coalesce((SELECT string_agg(format(' CONSTRAINT %%I ', k.conname)
                                           || pg_catalog.pg_get_constraintdef(k.oid), '' ORDER BY k.conname)
                         FROM pg_catalog.pg_constraint k WHERE k.contypid = t.oid AND k.contype = 'c'), '')
        WHEN 'c' THEN
            'AS (' || coalesce((
                SELECT string_agg(format('%%I %%s', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod))
                    || CASE WHEN a.attcollation <> at.typcollation THEN
                        (SELECT format(' COLLATE %%I.%%I', cn.nspname, l.collname) FROM pg_catalog.pg_collation l
                         JOIN pg_catalog.pg_namespace cn ON cn.oid = l.collnamespace WHERE l.oid = a.attcollation)
                        ELSE '' END, ', ' ORDER BY a.attnum)
                FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type at ON at.oid = a.atttypid
                WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped), '') || ')'
        WHEN 'r' THEN (
            SELECT format('AS RANGE (SUBTYPE = %%s, SUBTYPE_OPCLASS = %%I.%%I',
                          pg_catalog.format_type(r.rngsubtype, NULL), opn.nspname, op.opcname)
                || coalesce((SELECT format(', COLLATION = %%I.%%I', cn.nspname, l.collname)
                             FROM pg_catalog.pg_collation l JOIN pg_catalog.pg_namespace cn ON cn.oid = l.collnamespace
                             WHERE l.oid = r.rngcollation), '')
                || CASE WHEN r.rngsubdiff <> 0 THEN format(', SUBTYPE_DIFF = %%s', r.rngsubdiff::regproc) ELSE '' END
                || format(', MULTIRANGE_TYPE_NAME = %%s)', pg_catalog.format_type(r.rngmultitypid, NULL))
            FROM pg_catalog.pg_range r JOIN pg_catalog.pg_opclass op ON op.oid = r.rngsubopc
            JOIN pg_catalog.pg_namespace opn ON opn.oid = op.opcnamespace WHERE r.rngtypid = t.oid)
        ELSE '' END)
FROM used u
JOIN pg_catalog.pg_type t ON t.oid = u.oid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype
LEFT JOIN pg_catalog.pg_class row_of ON row_of.oid = t.typrelid
LEFT JOIN pg_catalog.pg_depend x ON x.classid = 'pg_type'::regclass AND x.objid = t.oid AND x.deptype = 'e'
LEFT JOIN pg_catalog.pg_extension e ON e.oid = x.refobjid
LEFT JOIN pg_catalog.pg_namespace en ON en.oid = e.extnamespace
"""


def _query() -> LiteralString:
    own_constraint: LiteralString = "k.conislocal AND k.coninhcount = 0"
    own_index: LiteralString = "NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = x.oid)"
    return (
        _TABLES.replace("{table_constraints}", _CONSTRAINTS.replace("{table}", "c.oid").replace("{is_own}", "true"))
        .replace("{table_indexes}", _INDEXES.replace("{table}", "c.oid").replace("{is_own}", "true"))
        .replace(
            "{partition_constraints}", _CONSTRAINTS.replace("{table}", "l.oid").replace("{is_own}", own_constraint)
        )
        .replace("{partition_indexes}", _INDEXES.replace("{table}", "l.oid").replace("{is_own}", own_index))
    )


def read_tables(
    connection: Connection, oids: Collection[int], published: Mapping[int, Collection[str]] | None = None
) -> dict[int, RecordedTable]:
    """The definitions of tables, by oid. A table that does not exist is absent.

    `published` maps an oid to the names of the published columns; without an entry, all of them are.
    """
    with source_errors():
        found = [row[0] for row in connection.execute(_query(), [list(oids)])]
        types = _Types.read(connection, {column["type_oid"] for table in found for column in table["columns"]})
    return {table["oid"]: _table(table, types, (published or {}).get(table["oid"])) for table in found}


def read_types(connection: Connection, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], RecordedType]:
    """The types with these names, as far as they exist."""
    with source_errors():
        oids = connection.execute(
            "SELECT t.oid::int8 FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)"
            " JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema"
            " JOIN pg_catalog.pg_type t ON t.typnamespace = n.oid AND t.typname = wanted.name",
            [[schema for schema, _ in names], [name for _, name in names]],
        ).fetchall()
        types = _Types.read(connection, {oid for (oid,) in oids})
    return {(each.schema, each.name): each for each in types.of({oid for (oid,) in oids})}


def _table(raw: dict[str, Any], types: _Types, published: Collection[str] | None) -> RecordedTable:
    for column in raw["columns"]:
        column["is_published"] = published is None or column["name"] in published
    for holder in (raw, *raw["partitions"]):
        holder["indexes"] = [_index(each) for each in holder["indexes"]]
    table = table_from_json(raw)
    used = types.of({column.type_oid for column in table.columns})
    return replace(table, types=tuple(used))


def _index(raw: dict[str, Any]) -> dict[str, Any]:
    """The index with the part of its definition that does not name the table."""
    definition = raw.pop("definition")
    for head in raw.pop("heads"):
        if definition.startswith(head):
            return raw | {"body": definition.removeprefix(head)}
    raise AssertionError(f"not the definition of an index: {definition}")


class _Types:
    """User-defined types by oid, with the types that each is made of."""

    def __init__(self, rows: Sequence[tuple[int, int, bool, bool, dict[str, Any]]]) -> None:
        self._types = {oid: (is_builtin, is_array, raw) for oid, _, is_builtin, is_array, raw in rows}
        self._parts: dict[int, set[int]] = {}
        for oid, outer, *_ in rows:
            if outer:
                self._parts.setdefault(outer, set()).add(oid)

    @classmethod
    def read(cls, connection: Connection, oids: Collection[int]) -> _Types:
        return cls(connection.execute(_TYPES, [list(oids)]).fetchall())

    def of(self, oids: Collection[int]) -> list[RecordedType]:
        """The types that have to exist for columns of these types, each after those that it is made of."""
        found: dict[int, RecordedType] = {}
        for oid in sorted(oids):
            for each, raw in self._visit(oid, set()):
                found.setdefault(each, RecordedType(**(raw | {"labels": tuple(raw["labels"])})))
        return list(found.values())

    def _visit(self, oid: int, seen: set[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        if oid in seen or oid not in self._types:
            return
        seen.add(oid)
        is_builtin, is_array, raw = self._types[oid]
        if raw["extension"] is None:
            for part in sorted(self._parts.get(oid, ())):
                yield from self._visit(part, seen)
        # Arrays and multiranges come with their types.
        if not is_builtin and not is_array and raw["kind"] != "m":
            yield oid, raw
