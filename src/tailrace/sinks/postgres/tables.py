"""The tables at the destination: made, and brought to each relation as changes under it come. All in one transaction.

What the source did to a table is worked out from two relations that follow each other; columns are told by number, so
a renamed one keeps its values. Rows are as PostgreSQL would show them at the source.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.change import Column, Relation
from tailrace.errors import SinkDiverged, SinkRefused
from tailrace.log.evolution import dropped, origins
from tailrace.log.fold import has_key
from tailrace.sinks.base import Load
from tailrace.sinks.postgres.declared import Types
from tailrace.sinks.postgres.failure import REWIND, kind
from tailrace.sinks.postgres.ledger import Known, Ledger

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
HISTORY: Final = {
    "_valid_from": "timestamptz",
    "_valid_to": "timestamptz",
    "_valid_from_position": "text",
    "_valid_to_position": "text",
    "_operation": "text",
}
"""Columns of a history beside the table's own."""


class Tables:
    """What is known of them holds from commit to commit; `copy` is for one that may fail."""

    def __init__(
        self, connection: Connection, ledger: Ledger, types: Types, sink: str, known: dict[int, Known], is_history: bool
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._types = types
        self._sink = sink
        self._is_history = is_history
        self.known = known

    def copy(self) -> Tables:
        return Tables(self._connection, self._ledger, self._types, self._sink, dict(self.known), self._is_history)

    def ready(self, relation: Relation, target: tuple[str, str], nulls: tuple[str, ...] = ()) -> sql.Identifier:
        """The table, such that rows of this relation fit."""
        known = self.known.get(relation.oid)
        if known is None:
            self._clear_the_way(relation, target)
            self._make(relation, target, with_key=True)
        elif (known.relation is not relation and known.relation != relation) or known.target != target:
            self._become(known, relation, target)
        where = sql.Identifier(*target)
        for name in nulls:
            self._alter(where, sql.SQL("ALTER {} DROP NOT NULL").format(sql.Identifier(name)))
        return where

    def begin_load(self, load: Load) -> sql.Identifier:
        """The table, empty."""
        relation, target = load.relation, load.target
        for oid, known in list(self.known.items()):
            if known.target == target and oid != relation.oid:
                self._replace(oid, known, relation)
        known_now = self.known.get(relation.oid)
        if known_now is not None and self._exists(known_now.target):
            where = self.ready(relation, target)
            if not self._is_history:
                self._connection.execute(sql.SQL("TRUNCATE {}").format(where))
            return where
        self._make(relation, target, with_key=False)
        return sql.Identifier(*target)

    def end_load(self, load: Load, rows: int) -> None:
        """The key is made when the rows are there: sorted once, in place of row by row."""
        where = sql.Identifier(*load.target)
        if not self._is_history and self._key(where)[0] is None:
            self._add_key(where, load.relation)
        if rows > _WORTH_STATISTICS:
            self._connection.execute(sql.SQL("ANALYZE {}").format(where))

    def _replace(self, oid: int, known: Known, relation: Relation) -> None:
        """At the source a new table took the name of this one, which was dropped there."""
        if self._is_history:
            # Its versions stay, and go on with the new table's.
            del self.known[oid]
            self._ledger.forget(oid)
            self.known[relation.oid] = known
        else:
            self._connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(*known.target)))
            del self.known[oid]
            self._ledger.forget(oid)

    def _make(self, relation: Relation, target: tuple[str, str], *, with_key: bool) -> None:
        where = sql.Identifier(*target)
        if self._exists(target):
            self._adopt(where, relation, target)
        else:
            self._make_schema(target[0])
            columns = [self._declaration(column) for column in relation.columns]
            if self._is_history:
                columns += [sql.SQL("{} {}").format(sql.Identifier(n), _raw(t)) for n, t in HISTORY.items()]
            self._connection.execute(sql.SQL("CREATE TABLE {} ({})").format(where, sql.SQL(", ").join(columns)))
            if with_key or self._is_history:
                self._add_key(where, relation)
        self._remember(relation, target)

    def _declaration(self, column: Column) -> sql.Composed:
        strict = sql.SQL("" if column.nullable or self._is_history else " NOT NULL")
        return sql.SQL("{} {}{}").format(sql.Identifier(column.name), _raw(self._types.of(column)), strict)

    def _add_key(self, where: sql.Identifier, relation: Relation) -> None:
        if not has_key(relation):
            return
        names = sql.SQL(", ").join(map(sql.Identifier, relation.key))
        if self._is_history:
            index = sql.SQL("CREATE UNIQUE INDEX ON {} ({}) WHERE {} IS NULL")
            self._connection.execute(index.format(where, names, sql.Identifier("_valid_to")))
        else:
            self._alter(where, sql.SQL("ADD PRIMARY KEY ({})").format(names))

    def _adopt(self, where: sql.Identifier, relation: Relation, target: tuple[str, str]) -> None:
        """A table that we did not make: ours from now on if it is empty and just as we would have made it."""
        name = ".".join(target)
        hint = "drop or rename it, or send the source's table elsewhere with `route`"
        if (owner := self._ledger.owner(target)) is not None:
            raise SinkRefused(f"{name} belongs to sink {owner}", "send one of them elsewhere with `route`")
        wanted = {c.name: self._canonical(self._types.of(c)) for c in relation.columns}
        if self._is_history:
            wanted |= {column: self._canonical(type_) for column, type_ in HISTORY.items()}
        if {n: t for n, t, _ in self._columns(where)} != wanted:
            raise SinkRefused(f"{name} is there already, with other columns, and Tailrace did not make it", hint)
        if has_key(relation) and not self._is_history and self._key(where)[1] != list(relation.key):
            raise SinkRefused(f"{name} is there already, with another primary key than the source's", hint)
        if self._connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(where)).fetchone() is not None:
            raise SinkRefused(f"{name} is there already, with rows in it, and Tailrace did not make it", hint)

    def _clear_the_way(self, relation: Relation, target: tuple[str, str]) -> None:
        """A table of ours that has this name was renamed at the source, and no change of it has told us yet."""
        for oid, known in list(self.known.items()):
            if known.target == target and oid != relation.oid:
                aside = (target[0], _shortened(target[1], f"~{oid}"))
                self._move(known.target, aside)
                self._remember(known.relation, aside)

    def _become(self, known: Known, relation: Relation, target: tuple[str, str]) -> None:
        old = known.relation
        where = sql.Identifier(*target)
        try:
            if known.target != target:
                self._clear_the_way(relation, target)
                self._move(known.target, target)
            if old != relation:
                self._reshape(where, old, relation)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise SinkDiverged(
                f"{'.'.join(target)} is not at the destination as it was left there", REWIND.format(self._sink)
            ) from None
        self._remember(relation, target)

    def _reshape(self, where: sql.Identifier, old: Relation, new: Relation) -> None:
        found = origins(old, new)
        key_before = _key_places(old)
        place_of = {column.name: origin.index for column, origin in zip(new.columns, found, strict=True)}
        key_after = [place_of[name] for name in new.key] if has_key(new) else []
        if key_before != key_after:
            self._drop_key(where)
        if not self._is_history:
            for index in dropped(old, new):
                self._alter(where, sql.SQL("DROP COLUMN {}").format(sql.Identifier(old.columns[index].name)))
        self._rename(
            where,
            {old.columns[o.index].name: c.name for c, o in zip(new.columns, found, strict=True) if o.index is not None},
        )
        for column, origin in zip(new.columns, found, strict=True):
            if origin.index is None:
                self._add(where, column, origin.missing)
                continue
            before = old.columns[origin.index]
            if self._types.of(before) != self._types.of(column):
                self._retype(where, column)
            # What was part of the key is NOT NULL, whatever the relation says.
            if before.nullable != column.nullable or (key_before != key_after and origin.index in key_before):
                self._set_nullable(where, column)
        if key_before != key_after:
            self._add_key(where, new)

    def _rename(self, where: sql.Identifier, names: dict[str, str]) -> None:
        """Old name → new name. Two columns may have taken each other's."""
        changed = {old: new for old, new in names.items() if old != new}
        taken = {name for name, _, _ in self._columns(where)} if changed else set()
        waiting = {}
        for number, (old, new) in enumerate(changed.items()):
            first = new
            if new in taken:
                first = f"~{number}"
                if new not in changed:
                    self._set_aside(where, new)
                    first = new
                else:
                    waiting[first] = new
            self._rename_column(where, old, first)
        for first, new in waiting.items():
            self._rename_column(where, first, new)

    def _set_aside(self, where: sql.Identifier, name: str) -> None:
        """A history keeps the columns that were dropped; another may have the name now."""
        taken = {column for column, _, _ in self._columns(where)}
        number = next(n for n in range(1, 1700) if _shortened(name, f"~{n}") not in taken)
        self._rename_column(where, name, _shortened(name, f"~{number}"))

    def _rename_column(self, where: sql.Identifier, old: str, new: str) -> None:
        self._alter(where, sql.SQL("RENAME COLUMN {} TO {}").format(sql.Identifier(old), sql.Identifier(new)))

    def _add(self, where: sql.Identifier, column: Column, missing: str | None) -> None:
        if self._is_history and column.name in {name for name, _, _ in self._columns(where)}:
            self._set_aside(where, column.name)
        name, type_ = sql.Identifier(column.name), _raw(self._types.of(column))
        if missing is None:
            self._alter(where, sql.SQL("ADD COLUMN {} {}").format(name, type_))
        else:
            # A constant default costs nothing: rows that are there show it without being written again.
            default = sql.SQL("ADD COLUMN {} {} DEFAULT {}::{}").format(name, type_, sql.Literal(missing), type_)
            self._alter(where, default)
            self._alter(where, sql.SQL("ALTER {} DROP DEFAULT").format(name))
        if not column.nullable:
            self._set_nullable(where, column)

    def _retype(self, where: sql.Identifier, column: Column) -> None:
        name, type_ = sql.Identifier(column.name), _raw(self._types.of(column))
        casts = ("{name}::{type}", "{name}::text::{type}")
        for number, cast in enumerate(casts):
            using = sql.SQL("ALTER {name} TYPE {type} USING " + cast).format(name=name, type=type_)
            try:
                with self._connection.transaction():
                    self._alter(where, using)
                return
            except psycopg.errors.CannotCoerce:
                if number == len(casts) - 1:
                    raise
            except psycopg.DataError as error:
                raise SinkRefused(
                    f"{where.as_string(self._connection)}, column {column.name}: its type became "
                    f"{self._types.of(column)}, and a value does not become that by itself: {kind(error)}",
                    "take a new snapshot of the table, then " + REWIND.format(self._sink),
                ) from None

    def _set_nullable(self, where: sql.Identifier, column: Column) -> None:
        name = sql.Identifier(column.name)
        if self._is_history:
            return
        if column.nullable:
            if column.name not in self._key(where)[1]:
                self._alter(where, sql.SQL("ALTER {} DROP NOT NULL").format(name))
            return
        # The catalogue may have been ahead of the changes when the relation was read from it.
        has_null = sql.SQL("SELECT FROM {} WHERE {} IS NULL LIMIT 1").format(where, name)
        if self._connection.execute(has_null).fetchone() is None:
            self._alter(where, sql.SQL("ALTER {} SET NOT NULL").format(name))

    def _drop_key(self, where: sql.Identifier) -> None:
        if self._is_history:
            query = (
                "SELECT n.nspname, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
                " JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indpred IS NOT NULL"
            )
            for names in self._connection.execute(query, [where.as_string(self._connection)]).fetchall():
                self._connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(*names)))
            return
        name, _ = self._key(where)
        if name is not None:
            self._alter(where, sql.SQL("DROP CONSTRAINT {}").format(sql.Identifier(name)))

    def _move(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        schema, name = old
        rename = sql.SQL("ALTER TABLE {} RENAME TO {}")
        if schema != new[0]:
            self._make_schema(new[0])
            # In either schema another table may have the name that it has in the other.
            between = f"~{name}"[:40]
            self._connection.execute(rename.format(sql.Identifier(schema, name), sql.Identifier(between)))
            move = sql.SQL("ALTER TABLE {} SET SCHEMA {}")
            self._connection.execute(move.format(sql.Identifier(schema, between), sql.Identifier(new[0])))
            schema, name = new[0], between
        if name != new[1]:
            self._connection.execute(rename.format(sql.Identifier(schema, name), sql.Identifier(new[1])))

    def _make_schema(self, schema: str) -> None:
        quoted = sql.Identifier(schema)
        row = self._connection.execute(
            "SELECT to_regnamespace(%s) IS NULL", [quoted.as_string(self._connection)]
        ).fetchone()
        if row == (True,):
            self._connection.execute(sql.SQL("CREATE SCHEMA {}").format(quoted))

    def _remember(self, relation: Relation, target: tuple[str, str]) -> None:
        self.known[relation.oid] = Known(relation, target)
        self._ledger.remember(relation.oid, self.known[relation.oid])

    def _exists(self, target: tuple[str, str]) -> bool:
        name = sql.Identifier(*target).as_string(self._connection)
        return self._connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone() == (True,)

    def _columns(self, where: sql.Identifier) -> list[tuple[str, str, bool]]:
        return self._connection.execute(_COLUMNS, [where.as_string(self._connection)]).fetchall()

    def _key(self, where: sql.Identifier) -> tuple[str | None, list[str]]:
        row = self._connection.execute(_KEY, [where.as_string(self._connection)]).fetchone()
        return (row[0], row[1]) if row else (None, [])

    def _canonical(self, declared: str) -> str:
        """A type as PostgreSQL prints it."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql.SQL("SELECT NULL::{}").format(_raw(declared)))
            assert cursor.pgresult is not None
            oid, modifier = cursor.pgresult.ftype(0), cursor.pgresult.fmod(0)
        row = self._connection.execute("SELECT format_type(%s, %s)", [oid, modifier]).fetchone()
        assert row is not None
        return str(row[0])

    def _alter(self, where: sql.Identifier, what: sql.Composable) -> None:
        self._connection.execute(sql.SQL("ALTER TABLE {} {}").format(where, what))


_WORTH_STATISTICS: Final = 10_000


def _key_places(relation: Relation) -> list[int]:
    places = {column.name: index for index, column in enumerate(relation.columns)}
    return [places[name] for name in relation.key] if has_key(relation) else []


def _shortened(name: str, suffix: str) -> str:
    """Within the 63 bytes that PostgreSQL has for a name."""
    return name.encode()[: 63 - len(suffix)].decode(errors="ignore") + suffix


def _raw(text: str) -> sql.SQL:
    """A type's name, quoted by `types.sql_name` where it must be."""
    return sql.SQL(text)
