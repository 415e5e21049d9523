"""The definition of a table in MySQL, and the statements that create it or change it into another. Pure.

The changes follow from two successive relations. Columns are identified by number, so a renamed column retains its
values. Afterwards rows are as PostgreSQL would show them at the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tailrace.change import Relation
from tailrace.column_name import numbered_name
from tailrace.errors import SinkRefused
from tailrace.sinks.database import history
from tailrace.sinks.database.replica import DestinationTable
from tailrace.sinks.mysql import load_data
from tailrace.sinks.mysql.column_mapping import ColumnMapping, map_relation
from tailrace.sinks.mysql.definition_change import DefinitionStatement
from tailrace.sinks.mysql.flavour import Flavour
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.retyping import is_same_type, retains_values
from tailrace.sinks.mysql.table_name import TableName
from tailrace.sinks.mysql.unrepresentable import UnrepresentablePolicy
from tailrace.state.evolution import dropped_columns, origins
from tailrace.state.fold import has_key, key_columns

ROW_NUMBER: Final = "_tailrace_row"
"""An invisible column that distinguishes equal rows of a table without a primary key."""
_ROW_NUMBER_TYPE: Final = "BIGINT UNSIGNED NOT NULL AUTO_INCREMENT"
_CURRENT: Final = "_tailrace_current"
"""The index that finds the current version of a key in a history."""
POSITION_TYPE: Final = "VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin"
_HISTORY: Final = dict(
    zip(history.COLUMNS, ("DATETIME(6)", "DATETIME(6)", POSITION_TYPE, POSITION_TYPE, POSITION_TYPE), strict=True)
)
_HISTORY_KEY_BYTES: Final = 9
"""What `_valid_to` takes of the index."""
RELOAD: Final = "take a new snapshot of the table, then `tailrace sink reload {} {}`"
"""The hint for values that cannot be converted; takes the names of the sink and the table."""
_MAX_COMMENT: Final = {"table": 2048, "column": 1024}


@dataclass(frozen=True)
class TableDefinition:
    """A table in MySQL."""

    name: TableName
    relation: Relation
    columns: tuple[ColumnMapping, ...]
    collation: str
    is_history: bool

    @property
    def key(self) -> list[str]:
        """The names of the key's columns; empty if there is no key."""
        return [self.columns[i].name for i in key_columns(self.relation)] if has_key(self.relation) else []

    @property
    def has_row_number(self) -> bool:
        return self.is_history or not self.key

    def declaration(self, column: ColumnMapping, *, is_nullable: bool | None = None) -> str:
        """A column as CREATE TABLE and ALTER TABLE declare it. A history's columns are all nullable."""
        nullable = column.nullable if is_nullable is None else is_nullable
        null = "NULL" if nullable or self.is_history else "NOT NULL"
        return f"{quote(column.name)} {column.sql_type} {null}{_comment('column', column.column.comment)}"

    def declarations(self) -> list[str]:
        """All columns and keys."""
        found = [self.declaration(column) for column in self.columns]
        if self.is_history:
            found += [f"{quote(name)} {type_} NULL" for name, type_ in _HISTORY.items()]
        if self.has_row_number:
            # A table has at least one visible column.
            found.append(f"{quote(ROW_NUMBER)} {_ROW_NUMBER_TYPE}{' INVISIBLE' if found else ''}")
        return found + self.key_declarations()

    def key_declarations(self) -> list[str]:
        names = ", ".join(map(quote, self.key))
        if not self.has_row_number:
            return [f"PRIMARY KEY ({names})"]
        current = [f"KEY {quote(_CURRENT)} ({names}, `_valid_to`)"] if self.key else []
        return [f"PRIMARY KEY ({quote(ROW_NUMBER)})", *current]

    @property
    def create(self) -> str:
        return (
            f"CREATE TABLE {self.name.sql} ({', '.join(self.declarations())}) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"
            f" CHARACTER SET utf8mb4 COLLATE {self.collation}{_comment('table', self.relation.comment)}"
        )


@dataclass(frozen=True)
class DefinitionFormat:
    """What definitions depend on besides the relation."""

    flavour: Flavour
    policy: UnrepresentablePolicy
    is_history: bool

    def columns(self, relation: Relation) -> tuple[ColumnMapping, ...]:
        reserved = _HISTORY_KEY_BYTES if self.is_history else 0
        return map_relation(relation, self.flavour, self.policy, reserved_key_bytes=reserved)

    def of(self, table: DestinationTable, name: TableName) -> TableDefinition:
        columns = self.columns(table.relation)
        return TableDefinition(name, table.relation, columns, self.flavour.collation, self.is_history)


@dataclass(frozen=True)
class PresentTable:
    """What a table has now."""

    columns: Collection[str]
    has_rows: bool
    has_null: Callable[[str], bool]
    """Whether a column contains NULL."""


def alterations(
    sink: str, old: TableDefinition, new: TableDefinition, present: PresentTable
) -> list[DefinitionStatement]:
    """The statements that alter a table. Each changes its definition visibly.

    Args:
        sink: The sink's name, for messages.
        old: The definition that the table has. Its name is that of `new`.
        new: The definition that it gets.
        present: What it has now: in a history also columns that were dropped at the source.
    """
    return _Alteration(sink, old, new, present).statements()


class _Alteration:
    def __init__(self, sink: str, old: TableDefinition, new: TableDefinition, present: PresentTable) -> None:
        self._sink = sink
        self._old, self._new = old, new
        self._present = present
        self._origins = origins(old.relation, new.relation)
        self._taken = {name.lower() for name in present.columns}

    def statements(self) -> list[DefinitionStatement]:
        first, interim = self._exchange_names()
        second, third = list(self._changes(interim)), list(self._final_declarations())
        return [
            DefinitionStatement(f"ALTER TABLE {self._new.name.sql} {', '.join(clauses)}", self._new.name)
            for clauses in (first, second, third)
            if clauses
        ]

    def _retained(self) -> Iterator[tuple[ColumnMapping, ColumnMapping]]:
        """The columns that remain, as they were and as they become."""
        for column, origin in zip(self._new.columns, self._origins, strict=True):
            if origin.index is not None:
                yield self._old.columns[origin.index], column

    def _exchange_names(self) -> tuple[list[str], dict[str, str]]:
        """Clauses that free the names which other columns get, and the interim names, by old name.

        Without them, a restart could not see whether two columns have exchanged their names.
        """
        renamed = {before.name: after.name for before, after in self._retained() if before.name != after.name}
        wanted = {name.lower() for name in renamed.values()}
        interim = {name: f"~{number}" for number, name in enumerate(renamed) if name.lower() in wanted}
        clauses = [_rename(name, other) for name, other in interim.items()]
        if self._new.is_history:
            # A history retains dropped columns.
            added = [c.name for c, o in zip(self._new.columns, self._origins, strict=True) if o.index is None]
            own = {name.lower() for name in renamed} | {before.name.lower() for before, _ in self._retained()}
            for name in [*renamed.values(), *added]:
                if name.lower() in self._taken - own:
                    free = numbered_name(name.lower(), self._taken, fits_postgres=True)
                    present = next(column for column in self._present.columns if column.lower() == name.lower())
                    clauses.append(_rename(present, free))
                    self._taken.add(free)
        return clauses, interim

    def _changes(self, interim: dict[str, str]) -> Iterator[str]:
        is_other_key = self._is_other_key()
        yield from self._drop_key() if is_other_key else ()
        if not self._new.is_history:
            for index in dropped_columns(self._old.relation, self._new.relation):
                yield f"DROP COLUMN {quote(self._old.columns[index].name)}"
        for before, after in self._retained():
            name = interim.get(before.name, before.name)
            if not is_same_type(before.column, after.column) and not retains_values(before, after):
                raise self._refusal(before, after)
            if self._old.declaration(before) != self._new.declaration(after):
                yield f"CHANGE COLUMN {quote(name)} {self._changed(after, before.name)}"
        for column, origin in zip(self._new.columns, self._origins, strict=True):
            if origin.index is None:
                yield f"ADD COLUMN {self._added(column, origin.missing)}"
        yield from self._add_key() if is_other_key else ()
        if self._old.relation.comment != self._new.relation.comment:
            yield f"COMMENT = {_comment_literal('table', self._new.relation.comment or '')}"

    def _refusal(self, before: ColumnMapping, after: ColumnMapping) -> SinkRefused:
        table = self._new.relation.qualified_name
        return SinkRefused(
            f"{table}, column {after.column.name}: its type changed at the source, and {before.type.sql} cannot become "
            f"{after.type.sql} with the same values as there",
            RELOAD.format(self._sink, table),
        )

    def _changed(self, after: ColumnMapping, name: str) -> str:
        # The catalogue may have been ahead of the changes when the relation was read from it.
        has_null = not after.nullable and not self._new.is_history and self._present.has_null(name)
        return self._new.declaration(after, is_nullable=after.nullable or has_null)

    def _added(self, column: ColumnMapping, missing: str | None) -> str:
        """An added column, whose value in existing rows is its default for a moment."""
        if missing is None:
            # Otherwise existing rows would get a value of MySQL's choice.
            return self._new.declaration(column, is_nullable=column.nullable or self._present.has_rows)
        (value,) = load_data.row_literals([column.encode(pa.array([missing], pa.string()))])
        return f"{self._new.declaration(column)} DEFAULT {value.decode()}"

    def _final_declarations(self) -> Iterator[str]:
        """Columns without the default that gave existing rows their value."""
        for column, origin in zip(self._new.columns, self._origins, strict=True):
            if origin.index is None and origin.missing is not None:
                yield f"MODIFY COLUMN {self._new.declaration(column)}"

    def _is_other_key(self) -> bool:
        before: list[int | None] = [*key_columns(self._old.relation)] if self._old.key else []
        place_of = {column.column.name: o.index for column, o in zip(self._new.columns, self._origins, strict=True)}
        after = [place_of[name] for name in self._new.relation.key] if self._new.key else []
        return before != after

    def _drop_key(self) -> Iterator[str]:
        if self._old.is_history:
            if self._old.key:
                yield f"DROP KEY {quote(_CURRENT)}"
        elif self._old.key:
            yield "DROP PRIMARY KEY"
        else:
            yield f"DROP COLUMN {quote(ROW_NUMBER)}"

    def _add_key(self) -> Iterator[str]:
        if self._new.is_history:
            yield from (f"ADD {key}" for key in self._new.key_declarations()[1:])
            return
        if self._new.has_row_number:
            yield f"ADD COLUMN {quote(ROW_NUMBER)} {_ROW_NUMBER_TYPE}{' INVISIBLE' if self._new.columns else ''}"
        yield from (f"ADD {key}" for key in self._new.key_declarations())


def _rename(old: str, new: str) -> str:
    return f"RENAME COLUMN {quote(old)} TO {quote(new)}"


def _comment(of: str, text: str | None) -> str:
    return f" COMMENT {_comment_literal(of, text)}" if text else ""


def _comment_literal(of: str, text: str) -> str:
    # MySQL has no characters beyond U+FFFF in comments.
    text = re.sub("[\U00010000-\U0010ffff]", "\ufffd", text)[: _MAX_COMMENT[of]]
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
