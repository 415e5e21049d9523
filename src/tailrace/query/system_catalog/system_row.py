"""The rows of the system catalogs for a version's tables, derived from their relations alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace import types
from tailrace.change import Column, Relation, Type
from tailrace.query.lake_view import LakeVersion, TableVersion
from tailrace.query.system_catalog.keyword import quote_ident

OWNER: Final = 10
DATABASE: Final = 5
"""The OID of the only database."""
PG_CATALOG, INFORMATION_SCHEMA, PUBLIC = 11, 13_000, 2_200
_CLASS, _HEAP, _BTREE = 1_259, 2, 403
ARRAY_RECV: Final = 2_400
"""The OID of the function array_recv, by which Npgsql recognizes arrays: it joins `pg_proc`."""
# OIDs for objects without one in the source. Real sources do not reach this range.
_OWN_OIDS: Final = 4_000_000_000

Row = dict[str, Any]


@dataclass(frozen=True)
class CatalogTable:
    """A table as the system catalogs show it."""

    table: TableVersion
    relation: Relation
    columns: Sequence[Column]
    oid: int

    @property
    def key(self) -> list[int]:
        """The `attnum` of each key column."""
        if self.table.kind != "mirror":
            return []
        numbers = {name: number for number, name in enumerate([c.name for c in self.columns], 1)}
        return [numbers[name] for name in self.relation.key if name in numbers]


class SystemRows:
    """Builds `rows`: relation → rows. Columns not given take the default of their type."""

    def __init__(self, version: LakeVersion, tables: Sequence[CatalogTable], users: Sequence[str]) -> None:
        self.rows: dict[str, list[Row]] = defaultdict(list)
        self._database = version.database
        self._own = _OWN_OIDS
        schemas = sorted({t.table.schema for t in tables} | {"public"})
        self._schemas = {"pg_catalog": PG_CATALOG, "information_schema": INFORMATION_SCHEMA, "public": PUBLIC}
        for schema in schemas:
            self._schemas.setdefault(schema, self._next())
        self._server(users)
        for entry in tables:
            self._table(entry)
        self._types(tables)
        self._relations()

    def _next(self) -> int:
        self._own += 1
        return self._own

    def _add(self, relation: str, **values: Any) -> None:
        self.rows[relation].append(values)

    def _server(self, users: Sequence[str]) -> None:
        for schema, oid in self._schemas.items():
            self._add("pg_namespace", oid=oid, nspname=schema, nspowner=OWNER)
            self._add("_schemas", _oid=oid, _text=quote_ident(schema))
            self._add("schemata", catalog_name=self._database, schema_name=schema, schema_owner="tailrace")
        text = {"datcollate": "C.UTF-8", "datctype": "C.UTF-8", "datlocprovider": "c"}
        self._add(
            "pg_database", oid=DATABASE, datname=self._database, datdba=OWNER, encoding=6, datallowconn=True,
            datconnlimit=-1, dattablespace=1_663, **text,
        )  # fmt: skip
        self._add("information_schema_catalog_name", catalog_name=self._database)
        self._add("character_sets", character_set_name="UTF8", character_repertoire="UCS", form_of_use="UTF8")
        self._add("pg_proc", oid=ARRAY_RECV, proname="array_recv", pronamespace=PG_CATALOG, proowner=OWNER, prokind="f")
        for oid, space in ((1_663, "pg_default"), (1_664, "pg_global")):
            self._add("pg_tablespace", oid=oid, spcname=space, spcowner=OWNER)
        for oid, name, kind in ((_HEAP, "heap", "t"), (_BTREE, "btree", "i")):
            self._add("pg_am", oid=oid, amname=name, amtype=kind)
        for number, name in enumerate(dict.fromkeys(("tailrace", *users))):
            role = {"oid": OWNER if number == 0 else self._next(), "rolname": name}
            for relation in ("pg_roles", "pg_authid"):
                self._add(relation, rolinherit=True, rolcanlogin=True, rolconnlimit=-1, **role)
            self._add("pg_user", usename=name, usesysid=role["oid"])
            self._add("_roles", _oid=role["oid"], _text=name)

    def _table(self, entry: CatalogTable) -> None:
        table, relation, key = entry.table, entry.relation, entry.key
        namespace = self._schemas[table.schema]
        self._add(
            "pg_class", oid=entry.oid, relname=table.name, relnamespace=namespace, relowner=OWNER, relam=_HEAP,
            relkind="r", relpersistence="p", relnatts=len(entry.columns), relhasindex=bool(key),
            relispopulated=True, relreplident=relation.identity,
        )  # fmt: skip
        self._add(
            "pg_tables", schemaname=table.schema, tablename=table.name, tableowner="tailrace", hasindexes=bool(key)
        )
        for view in ("pg_stat_all_tables", "pg_stat_user_tables"):
            self._add(view, relid=entry.oid, schemaname=table.schema, relname=table.name)
        place = {"table_catalog": self._database, "table_schema": table.schema, "table_name": table.name}
        self._add("tables", **place, table_type="BASE TABLE", is_insertable_into="NO", is_typed="NO")
        self._comment(entry.oid, 0, relation.comment)
        for number, column in enumerate(entry.columns, 1):
            self._attribute(entry.oid, number, column)
            self._add("columns", **place, **_information(self._database, number, column))
            self._comment(entry.oid, number, column.comment)
        if key:
            self._key(entry, key, place)

    def _relations(self) -> None:
        names = {oid: schema for schema, oid in self._schemas.items()}
        for row in self.rows["pg_class"]:
            schema = names[row["relnamespace"]]
            is_visible = schema in ("public", "pg_catalog")
            full = f"{quote_ident(schema)}.{quote_ident(row['relname'])}"
            text = quote_ident(row["relname"]) if is_visible else full
            self._add("_relations", _oid=row["oid"], _text=text, _visible=is_visible)
            for name in {text, full}:
                self._add("_names", _oid=row["oid"], _text=name)

    def _comment(self, oid: int, number: int, text: str | None) -> None:
        if text is not None:
            self._add("pg_description", objoid=oid, classoid=_CLASS, objsubid=number, description=text)
            self._add("_comments", _oid=oid, _number=number, _text=text)

    def _attribute(self, oid: int, number: int, column: Column) -> None:
        self._add(
            "pg_attribute", attrelid=oid, attname=column.name, atttypid=column.type.oid, attnum=number,
            atttypmod=column.modifier, attnotnull=not column.nullable, atthasdef=column.default is not None,
            attlen=-1, attislocal=True, attstattarget=-1, attstorage="p",
        )  # fmt: skip
        self._add("_columns", _oid=oid, _number=number, _text=quote_ident(column.name))
        if column.default is not None:
            self._add("pg_attrdef", oid=self._next(), adrelid=oid, adnum=number, adbin=column.default)

    def _key(self, entry: CatalogTable, key: list[int], place: Mapping[str, str]) -> None:
        table, relation = entry.table, entry.relation
        is_primary = relation.identity != "i"
        index, name = self._next(), f"{table.name}_{'pkey' if is_primary else 'key'}"
        columns = [entry.columns[number - 1] for number in key]
        listed = ", ".join(quote_ident(column.name) for column in columns)
        on = f"{quote_ident(table.schema)}.{quote_ident(table.name)}"
        definition = f"CREATE UNIQUE INDEX {quote_ident(name)} ON {on} USING btree ({listed})"
        namespace = self._schemas[table.schema]
        self._add(
            "pg_class", oid=index, relname=name, relnamespace=namespace, relowner=OWNER, relam=_BTREE, relkind="i",
            relpersistence="p", relnatts=len(key), relispopulated=True, relreplident="n",
        )  # fmt: skip
        flags = dict.fromkeys(("indisunique", "indimmediate", "indisvalid", "indisready", "indislive"), True)
        self._add(
            "pg_index", indexrelid=index, indrelid=entry.oid, indnatts=len(key), indnkeyatts=len(key),
            indisprimary=is_primary, indkey=key, indoption=[0] * len(key), indcollation=[0] * len(key),
            indclass=[0] * len(key), **flags,
        )  # fmt: skip
        for number, column in enumerate(columns, 1):
            self._attribute(index, number, Column(column.name, column.type, column.modifier))
        self._add("pg_indexes", schemaname=table.schema, tablename=table.name, indexname=name, indexdef=definition)
        self._add("_definitions", _oid=index, _text=definition)
        if not is_primary:
            return
        constraint = self._next()
        self._add(
            "pg_constraint", oid=constraint, conname=name, connamespace=namespace, contype="p", convalidated=True,
            conrelid=entry.oid, conindid=index, conkey=key, conislocal=True, conenforced=True,
        )  # fmt: skip
        self._add("_definitions", _oid=constraint, _text=f"PRIMARY KEY ({listed})")
        named = {"constraint_catalog": self._database, "constraint_schema": table.schema, "constraint_name": name}
        kind = {"constraint_type": "PRIMARY KEY", "is_deferrable": "NO", "initially_deferred": "NO", "enforced": "YES"}
        self._add("table_constraints", **named, **place, **kind)
        for number, column in enumerate(columns, 1):
            self._add("key_column_usage", **named, **place, column_name=column.name, ordinal_position=number)
            self._add("constraint_column_usage", **named, **place, column_name=column.name)

    def _types(self, tables: Sequence[CatalogTable]) -> None:
        known: dict[int, Type] = {}
        for entry in tables:
            for column in entry.columns:
                for type_ in _with_parts(column.type):
                    if type_.schema != "pg_catalog":
                        known.setdefault(type_.oid, type_)
        arrays = {t.element.oid: t.oid for t in known.values() if t.element is not None}
        for type_ in known.values():
            namespace = self._schemas.setdefault(type_.schema, PUBLIC)
            category = "A" if type_.element is not None else {"e": "E", "c": "C", "r": "R"}.get(type_.kind, "U")
            self._add(
                "pg_type", oid=type_.oid, typname=type_.name, typnamespace=namespace, typowner=OWNER, typlen=-1,
                typtype=type_.kind, typcategory=category, typisdefined=True, typdelim=",",
                typelem=type_.element.oid if type_.element else 0, typarray=arrays.get(type_.oid, 0),
                typbasetype=type_.base.oid if type_.base else 0, typtypmod=type_.base_modifier,
                typinput="array_in" if type_.element else f"{type_.name}_in",
                typreceive=str(ARRAY_RECV) if type_.element else None,
            )  # fmt: skip
            self._add("_types", _oid=type_.oid, _text=_type_name(type_), _base=type_.name)
            for order, label in enumerate(type_.labels, 1):
                self._add("pg_enum", oid=self._next(), enumtypid=type_.oid, enumsortorder=float(order), enumlabel=label)


def _type_name(type_: Type) -> str:
    """The name as format_type returns it: with the schema unless it is public or pg_catalog."""
    name = types.sql_name(type_)
    return name.removeprefix("public.")


def _with_parts(type_: Type) -> Iterator[Type]:
    yield type_
    for part in (type_.base, type_.element):
        if part is not None:
            yield from _with_parts(part)


def _information(database: str, number: int, column: Column) -> Row:
    base, modifier = types.base(column.type, column.modifier)
    is_text = base.name in ("varchar", "bpchar") and modifier >= 4
    row: Row = {
        "column_name": column.name,
        "ordinal_position": number,
        "column_default": column.default,
        "is_nullable": "YES" if column.nullable else "NO",
        "data_type": types.data_type(base),
        "character_maximum_length": modifier - 4 if is_text else None,
        "udt_catalog": database,
        "udt_schema": base.schema,
        "udt_name": base.name,
        "is_identity": "NO",
        "is_generated": "NEVER",
        "is_updatable": "NO",
        "dtd_identifier": str(number),
    }
    if base.name == "numeric" and modifier >= 4:
        row["numeric_precision"], row["numeric_scale"] = types.numeric_modifier(modifier)
    integers, floats = {"int2": 16, "int4": 32, "int8": 64}, {"float4": 24, "float8": 53}
    if base.name in integers:
        row["numeric_precision"], row["numeric_scale"] = integers[base.name], 0
    if base.name in floats:
        row["numeric_precision"] = floats[base.name]
    if base.name in integers or base.name in floats:
        row["numeric_precision_radix"] = 2
    if base.name == "numeric":
        row["numeric_precision_radix"] = 10
    if base.name in ("text", "varchar"):
        row["character_octet_length"] = 4 * (modifier - 4) if is_text else 1 << 30
    if base.name == "bpchar":
        row["character_octet_length"] = 4 * (modifier - 4) if is_text else None
    if base.name in ("timestamp", "timestamptz", "time", "timetz", "interval"):
        row["datetime_precision"] = modifier if 0 <= modifier <= 6 else 6
    if base.name == "date":
        row["datetime_precision"] = 0
    return row
