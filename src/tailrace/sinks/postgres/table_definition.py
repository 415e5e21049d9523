"""The definition of one table at the destination: creates, compares and alters its columns, their types and its key.

The changes to a table's definition follow from two successive relations. Columns are identified by number, so a renamed
column retains its values. Afterwards rows are as PostgreSQL would show them at the source.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.change import Column, Relation
from tailrace.column_name import numbered_name
from tailrace.errors import SinkRefused
from tailrace.sinks.database import history
from tailrace.sinks.database.postgresql.destination_error import describe
from tailrace.sinks.database.postgresql.destination_type import DestinationTypes
from tailrace.state.evolution import dropped_columns, origins
from tailrace.state.fold import has_key, key_columns

Connection = psycopg.Connection[Any]

_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_KEY = """
SELECT c.conname, array_agg(a.attname ORDER BY k.place) FROM pg_constraint c
CROSS JOIN unnest(c.conkey) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number
WHERE c.conrelid = %s::regclass AND c.contype = 'p' GROUP BY c.conname
"""
_CURRENT_INDEXES = """
SELECT n.nspname, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indpred IS NOT NULL
"""
HISTORY: Final = dict(zip(history.COLUMNS, ("timestamptz", "timestamptz", "text", "text", "text"), strict=True))
"""Columns that a history adds to the table's own, with their types."""


class ReplicaTable:
    def __init__(
        self, connection: Connection, types: DestinationTypes, sink: str, where: sql.Identifier, *, is_history: bool
    ) -> None:
        self._connection = connection
        self._types = types
        self._sink = sink
        self._where = where
        self._is_history = is_history

    def create(self, relation: Relation) -> None:
        """Create the table without its key, which `add_key` adds."""
        if self._is_history:
            history.check_names(relation, self._name)
        columns = [self._declaration(column) for column in relation.columns]
        if self._is_history:
            columns += [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in HISTORY.items()]
        self._connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self._where, sql.SQL(", ").join(columns)))

    def fits(self, relation: Relation) -> bool:
        """Whether it has exactly the columns and the key that `create` and `add_key` would make."""
        wanted = {c.name: self._canonical(self._types.of(c)) for c in relation.columns}
        if self._is_history:
            wanted |= {column: self._canonical(type_) for column, type_ in HISTORY.items()}
        key = list(relation.key) if has_key(relation) and not self._is_history else []
        return {n: t for n, t, _ in self._columns()} == wanted and self._key()[1] == key

    def alter(self, old: Relation, new: Relation) -> None:
        """Alter the table from one relation to another."""
        found = origins(old, new)
        key_before: list[int | None] = [*key_columns(old)] if has_key(old) else []
        place_of = {column.name: origin.index for column, origin in zip(new.columns, found, strict=True)}
        key_after = [place_of[name] for name in new.key] if has_key(new) else []
        if key_before != key_after:
            self._drop_key()
        if not self._is_history:
            for index in dropped_columns(old, new):
                self._alter(sql.SQL("DROP COLUMN {}").format(sql.Identifier(old.columns[index].name)))
        retained = [
            (old.columns[o.index].name, c.name) for c, o in zip(new.columns, found, strict=True) if o.index is not None
        ]
        self._rename(dict(retained))
        for column, origin in zip(new.columns, found, strict=True):
            if origin.index is None:
                self._add(column, origin.missing)
                continue
            before = old.columns[origin.index]
            if self._types.of(before) != self._types.of(column):
                self._retype(column)
            # A former key column is NOT NULL, whatever the relation says.
            if before.nullable != column.nullable or (key_before != key_after and origin.index in key_before):
                self._set_nullable(column)
        if key_before != key_after:
            self.add_key(new)

    def add_key(self, relation: Relation) -> None:
        """Add the key if the table has none."""
        if not has_key(relation) or self._key()[0] is not None:
            return
        names = sql.SQL(", ").join(map(sql.Identifier, relation.key))
        if self._is_history:
            index = sql.SQL("CREATE UNIQUE INDEX ON {} ({}) WHERE _valid_to IS NULL")
            self._connection.execute(index.format(self._where, names))
        else:
            self._alter(sql.SQL("ADD PRIMARY KEY ({})").format(names))

    def set_nullability(self, relation: Relation) -> None:
        """Make columns nullable or NOT NULL as the relation declares them."""
        strict = {name for name, _, is_strict in self._columns() if is_strict}
        for column in relation.columns:
            if column.nullable == (column.name in strict):
                self._set_nullable(column)

    def allow_null(self, name: str) -> None:
        self._alter(sql.SQL("ALTER {} DROP NOT NULL").format(sql.Identifier(name)))

    @property
    def _name(self) -> str:
        return self._where.as_string(self._connection)

    def _declaration(self, column: Column) -> sql.Composed:
        strict = sql.SQL("" if column.nullable or self._is_history else " NOT NULL")
        return sql.SQL("{} {}{}").format(sql.Identifier(column.name), sql.SQL(self._types.of(column)), strict)

    def _rename(self, names: dict[str, str]) -> None:
        """Rename columns, old name → new name. They may exchange names."""
        changed = {old: new for old, new in names.items() if old != new}
        taken = {name for name, _, _ in self._columns()} if changed else set()
        postponed = {}
        for number, (old, new) in enumerate(changed.items()):
            if new in changed:
                postponed[f"~{number}"] = new
                self._rename_column(old, f"~{number}")
                continue
            if new in taken:
                self._free_name(new)
            self._rename_column(old, new)
        for interim, new in postponed.items():
            self._rename_column(interim, new)

    def _free_name(self, name: str) -> None:
        """Rename a dropped column, which a history retains, if another column now has its name."""
        taken = {column for column, _, _ in self._columns()}
        self._rename_column(name, numbered_name(name, taken, fits_postgres=True))

    def _rename_column(self, old: str, new: str) -> None:
        self._alter(sql.SQL("RENAME COLUMN {} TO {}").format(sql.Identifier(old), sql.Identifier(new)))

    def _add(self, column: Column, missing: str | None) -> None:
        if self._is_history and column.name in {name for name, _, _ in self._columns()}:
            self._free_name(column.name)
        name, type_ = sql.Identifier(column.name), sql.SQL(self._types.of(column))
        if missing is None:
            self._alter(sql.SQL("ADD COLUMN {} {}").format(name, type_))
        else:
            # A constant default is cheap: existing rows show it without being rewritten.
            add = sql.SQL("ADD COLUMN {} {} DEFAULT {}::{}")
            self._alter(add.format(name, type_, sql.Literal(missing), type_))
            self._alter(sql.SQL("ALTER {} DROP DEFAULT").format(name))
        if not column.nullable:
            self._set_nullable(column)

    def _retype(self, column: Column) -> None:
        """Convert values as the source does by default: by a cast, or through their text."""
        name, type_ = sql.Identifier(column.name), sql.SQL(self._types.of(column))
        direct = sql.SQL("ALTER {name} TYPE {type} USING {name}::{type}").format(name=name, type=type_)
        by_text = sql.SQL("ALTER {name} TYPE {type} USING {name}::text::{type}").format(name=name, type=type_)
        try:
            try:
                with self._connection.transaction():
                    self._alter(direct)
            except psycopg.errors.CannotCoerce:
                self._alter(by_text)
        except psycopg.DataError as error:
            raise SinkRefused(
                f"{self._name}, column {column.name}: its type became {self._types.of(column)} at the source, "
                f"and a value here cannot be converted: {describe(error)}",
                f"take a new snapshot of the table, then `tailrace sink reload {self._sink} {self._name}`",
            ) from None

    def _set_nullable(self, column: Column) -> None:
        if self._is_history:
            return
        name = sql.Identifier(column.name)
        if column.nullable:
            if column.name not in self._key()[1]:
                self.allow_null(column.name)
            return
        # The catalogue may have been ahead of the changes when the relation was read from it.
        has_null = sql.SQL("SELECT FROM {} WHERE {} IS NULL LIMIT 1").format(self._where, name)
        if self._connection.execute(has_null).fetchone() is None:
            self._alter(sql.SQL("ALTER {} SET NOT NULL").format(name))

    def _drop_key(self) -> None:
        if self._is_history:
            for names in self._connection.execute(_CURRENT_INDEXES, [self._name]).fetchall():
                self._connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(*names)))
        elif (name := self._key()[0]) is not None:
            self._alter(sql.SQL("DROP CONSTRAINT {}").format(sql.Identifier(name)))

    def _columns(self) -> list[tuple[str, str, bool]]:
        return self._connection.execute(_COLUMNS, [self._name]).fetchall()

    def _key(self) -> tuple[str | None, list[str]]:
        row = self._connection.execute(_KEY, [self._name]).fetchone()
        return (row[0], row[1]) if row else (None, [])

    def _canonical(self, declared: str) -> str:
        """A type's name as PostgreSQL prints it."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql.SQL("SELECT NULL::{}").format(sql.SQL(declared)))
            assert cursor.pgresult is not None
            oid, modifier = cursor.pgresult.ftype(0), cursor.pgresult.fmod(0)
        row = self._connection.execute("SELECT format_type(%s, %s)", [oid, modifier]).fetchone()
        assert row is not None
        return str(row[0])

    def _alter(self, what: sql.Composable) -> None:
        self._connection.execute(sql.SQL("ALTER TABLE {} {}").format(self._where, what))
