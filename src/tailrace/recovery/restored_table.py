"""The SQL that creates a table again: from its recorded definition, adapted to the rows at the chosen moment. Pure.

Rows come with the columns of a relation. A definition was read at another LSN, so the two may differ. Where they do,
the newer one decides which columns there are. What refers to a column that differs is left out, and said in `notes`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from psycopg import sql

from tailrace import types
from tailrace.change import Column, Lsn, Relation, Type
from tailrace.log.schema_record import (
    RecordedColumn,
    RecordedConstraint,
    RecordedIndex,
    RecordedSequence,
    RecordedTable,
    RecordedType,
)

Name = tuple[str, str]
"""Schema and table."""

_NAME_BYTES: Final = 63
_QUOTED: Final = r'(?:"(?:[^"]|"")*"|[^\s".(]+)'
_REFERENCES: Final = re.compile(
    rf'(FOREIGN KEY \((?:"(?:[^"]|"")*"|[^")])*\) REFERENCES ){_QUOTED}\.{_QUOTED}(\(.*)', re.DOTALL
)
_COUNTED: Final = ("smallint", "integer", "bigint", "numeric")
"""Types whose values a sequence can be compared with."""


def quoted(*names: str) -> str:
    return sql.Identifier(*names).as_string(None)


def literal(text: str) -> str:
    return sql.Literal(text).as_string(None)


@dataclass(frozen=True, slots=True)
class CopiedColumn:
    """A column that COPY fills: from a column of the relation, or with the same text in all rows."""

    name: str
    index: int | None
    text: str | None = None
    is_cast: bool = False
    """It has another type than the relation's column, so it is read from the text."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    statement: str
    """Without NOT VALID."""
    label: str
    parent: Name
    """At the destination."""
    is_inside: bool
    """The parent is restored too."""
    is_partitioned: bool


@dataclass
class RestoredTable:
    """One table at the destination: what to run before its rows are copied and after."""

    name: Name
    source: Name
    columns: Sequence[CopiedColumn] = ()
    types: Sequence[RecordedType] = ()
    sequences: Sequence[tuple[Name, str, bool]] = ()
    """The sequences to create: name, options, and whether the table owns it. One that it only uses may exist."""
    create: list[str] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)
    """Owned sequences, keys, checks, indexes, comments: after the rows, because that is faster."""
    foreign_keys: list[ForeignKey] = field(default_factory=list)
    is_partitioned: bool = False
    notes: list[str] = field(default_factory=list)
    """What is left out, and why."""

    @property
    def qualified(self) -> str:
        return quoted(*self.name)

    @property
    def schemas(self) -> set[str]:
        """The schemas that have to exist."""
        named = {schema for (schema, _), _, _ in self.sequences}
        return {self.name[0], *named, *(each.schema for each in self.types if each.extension is None)}

    @property
    def column_list(self) -> str:
        return ", ".join(quoted(column.name) for column in self.columns)


def choose_definition(
    definitions: Sequence[tuple[Lsn, RecordedTable]], relation: Relation, lsn: Lsn, last_change: Lsn
) -> tuple[RecordedTable | None, bool]:
    """The definition that applies at an LSN, and whether it is newer than the relation.

    `last_change` is an LSN at or after the last change before `lsn`, which the relation is from.
    """
    earlier = [(at, table) for at, table in definitions if at <= lsn]
    if earlier and earlier[-1][0] >= last_change:
        return earlier[-1][1], True
    later = [table for at, table in definitions if at > lsn]
    candidates = [*(table for _, table in earlier[-1:]), *later]
    fitting = next((table for table in candidates if _fits(table, relation)), None)
    return fitting or (candidates[0] if candidates else None), False


def _fits(table: RecordedTable, relation: Relation) -> bool:
    sent = {(c.name, c.type.oid) for c in relation.columns}
    return sent == {(c.name, c.type_oid) for c in table.columns if c.is_published and not c.generated} | (
        sent & {(c.name, c.type_oid) for c in table.columns if c.generated}
    )


def plan_table(
    relation: Relation, definition: RecordedTable | None, is_newer: bool, names: Mapping[int, Name], *, is_subset: bool
) -> RestoredTable:
    """Plan one table.

    Args:
        relation: The relation that the rows have.
        definition: The recorded definition, if there is one.
        is_newer: Whether the definition is newer than the relation.
        names: By oid, the names at the destination of all tables that are restored together.
        is_subset: Only some rows are restored, so that foreign keys may be violated.
    """
    if definition is None:
        return _from_relation(relation, names[relation.oid])
    return _Planner(relation, definition, is_newer, names, is_subset).plan()


def _from_relation(relation: Relation, name: Name) -> RestoredTable:
    """A table of which only the log knows: columns and key."""
    table = RestoredTable(name, (relation.schema, relation.name))
    table.columns = [CopiedColumn(column.name, index) for index, column in enumerate(relation.columns)]
    table.types = list(_enum_types(relation.columns))
    lines = [
        f"{quoted(c.name)} {types.sql_name(c.type, c.modifier)}{'' if c.nullable else ' NOT NULL'}"
        for c in relation.columns
    ]
    if relation.key and relation.identity in "df":
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, relation.key))})")
    table.create = [f"CREATE TABLE {quoted(*name)} ({', '.join(lines)})"]
    table.notes.append(
        "its definition was not recorded: it has its columns and its key, but no defaults, checks and indexes"
    )
    return table


def _enum_types(columns: Iterable[Column]) -> Iterator[RecordedType]:
    seen = set()
    for column in columns:
        type_: Type | None = column.type
        while type_ is not None and type_.kind != "e":
            type_ = type_.element or type_.base
        if type_ is not None and (type_.schema, type_.name) not in seen:
            seen.add((type_.schema, type_.name))
            yield RecordedType(type_.schema, type_.name, "e", None, None, type_.labels, "")


class _Planner:
    def __init__(
        self,
        relation: Relation,
        definition: RecordedTable,
        is_newer: bool,
        names: Mapping[int, Name],
        is_subset: bool,
    ) -> None:
        self._relation = relation
        self._definition = definition
        self._is_newer = is_newer
        self._names = names
        self._is_subset = is_subset
        self._own = (definition.schema, definition.name)
        self._table = RestoredTable(names[relation.oid], (relation.schema, relation.name))
        self._sound: dict[int, str] = {}
        """Columns that are at the destination as the definition has them: number → name."""

    def plan(self) -> RestoredTable:
        table, definition = self._table, self._definition
        table.is_partitioned = definition.kind == "p"
        table.types = definition.types
        declarations = self._declarations()
        table.sequences = [
            (self._sequence_name(each), each.options, each.is_owned)
            for each in definition.sequences
            if not each.is_identity and each.column in self._sound
        ]
        options = ""
        if definition.options and not table.is_partitioned:
            pairs = (option.partition("=") for option in definition.options)
            options = f" WITH ({', '.join(f'{name} = {literal(value)}' for name, _, value in pairs)})"
        by = f" PARTITION BY {definition.partition_key}" if definition.partition_key else ""
        table.create.append(f"CREATE TABLE {table.qualified} ({', '.join(declarations)}){by}{options}")
        self._plan_partitions()
        self._plan_sequences()
        for kind in "puxcn":
            for constraint in definition.constraints:
                if constraint.kind == kind and self._has(constraint.columns, f"constraint {constraint.name}"):
                    self._add_constraint(table.name, constraint)
        for index in definition.indexes:
            if self._has(index.columns, f"index {index.name}"):
                self._add_index(table.name, index)
        self._plan_foreign_keys()
        self._plan_comments()
        self._plan_identity()
        for each in definition.not_restored:
            table.notes.append(f"{each} is not restored")
        return table

    # Columns

    def _declarations(self) -> list[str]:
        by_number = {c.number: i for i, c in enumerate(self._relation.columns) if c.number is not None}
        by_name = {c.name: i for i, c in enumerate(self._relation.columns) if c.number is None}
        recorded = {c.number: c for c in self._definition.columns}
        matched = {number: by_number.get(number, by_name.get(c.name)) for number, c in recorded.items()}
        lines: dict[int, str] = {}
        copied: dict[int, CopiedColumn] = {}
        for number, column in recorded.items():
            index = matched[number]
            if column.generated or (index is None and not self._is_newer):
                continue
            if index is None:
                self._add_unsent(column, lines, copied)
                continue
            self._add_sent(column, self._relation.columns[index], index, lines, copied)
        if not self._is_newer:
            self._add_unrecorded({index for index in matched.values() if index is not None}, lines, copied)
        for number, column in recorded.items():
            if column.generated and set(column.uses) <= self._sound.keys():
                self._sound[number] = column.name
                lines[number] = self._declare(column)
            elif column.generated:
                self._leave_out(f"generated column {column.name}")
        self._table.columns = [copied[number] for number in sorted(copied)]
        return [lines[number] for number in sorted(lines)]

    def _add_sent(
        self,
        column: RecordedColumn,
        sent: Column,
        index: int,
        lines: dict[int, str],
        copied: dict[int, CopiedColumn],
    ) -> None:
        """A column that both have. The newer one decides about its name and type."""
        is_same = column.name == sent.name and column.type_oid == sent.type.oid
        if is_same or self._is_newer:
            self._sound[column.number] = column.name
            lines[column.number] = self._declare(column)
            is_cast = column.type_oid != sent.type.oid
            copied[column.number] = CopiedColumn(column.name, index, is_cast=is_cast)
            if is_cast:
                self._table.notes.append(
                    f"column {column.name} became {column.type} after the last change in the log: its values are cast "
                    "from their text, whatever ALTER TABLE … USING did"
                )
        else:
            self._declare_unrecorded(column.number, sent, index, lines, copied)

    def _add_unsent(self, column: RecordedColumn, lines: dict[int, str], copied: dict[int, CopiedColumn]) -> None:
        """A column that was added after the last change in the log, or that is not published."""
        if not column.is_published:
            self._table.notes.append(f"column {column.name} is left out: it is not published, so the log lacks it")
        elif column.missing is None and (column.default is not None or column.identity or column.not_null):
            self._table.notes.append(
                f"column {column.name} is left out: PostgreSQL computed its values when it was added, and the log has "
                "no later change of the table"
            )
        else:
            self._sound[column.number] = column.name
            lines[column.number] = self._declare(column)
            copied[column.number] = CopiedColumn(column.name, None, column.missing)

    def _add_unrecorded(self, matched: set[int], lines: dict[int, str], copied: dict[int, CopiedColumn]) -> None:
        """Columns that the definition does not have yet, or no longer."""
        number = max([0, *lines])
        for index, column in enumerate(self._relation.columns):
            if index not in matched:
                number = column.number if column.number is not None else number + 1
                self._declare_unrecorded(number, column, index, lines, copied)

    def _declare_unrecorded(
        self, number: int, column: Column, index: int, lines: dict[int, str], copied: dict[int, CopiedColumn]
    ) -> None:
        copied[number] = CopiedColumn(column.name, index)
        default = column.default if column.default is not None and "nextval(" not in column.default else None
        lines[number] = (
            f"{quoted(column.name)} {types.sql_name(column.type, column.modifier)}"
            f"{f' DEFAULT {default}' if default is not None else ''}{'' if column.nullable else ' NOT NULL'}"
        )

    def _declare(self, column: RecordedColumn) -> str:
        parts = [quoted(column.name), column.type]
        if column.collation is not None:
            parts.append(f"COLLATE {column.collation}")
        if column.generated:
            kind = "VIRTUAL" if column.generated == "v" else "STORED"
            parts.append(f"GENERATED ALWAYS AS ({column.default}) {kind}")
        elif column.identity:
            when = "ALWAYS" if column.identity == "a" else "BY DEFAULT"
            parts.append(f"GENERATED {when} AS IDENTITY{self._identity_options(column)}")
        elif column.default is not None:
            parts.append(f"DEFAULT {self._default(column.default)}")
        if column.not_null:
            name = column.not_null_name
            parts.append(f"CONSTRAINT {quoted(self._renamed(name))} NOT NULL" if name else "NOT NULL")
        return " ".join(parts)

    def _identity_options(self, column: RecordedColumn) -> str:
        for each in self._definition.sequences:
            if each.is_identity and each.column == column.number:
                options = re.sub(r"^AS \S+ ", "", each.options)
                return f" (SEQUENCE NAME {quoted(*self._sequence_name(each))} {options})"
        return ""

    def _default(self, expression: str) -> str:
        """The expression, with the new names of the table's own sequences."""
        for each in self._definition.sequences:
            for old in {quoted(each.schema, each.name), *_printed(each.schema, each.name)}:
                new = quoted(*self._sequence_name(each))
                expression = expression.replace(f"{literal(old)}::regclass", f"{literal(new)}::regclass")
        return expression

    # Names

    def _sequence_name(self, sequence: RecordedSequence) -> Name:
        if not sequence.is_owned:
            return sequence.schema, sequence.name
        schema = self._table.name[0] if sequence.schema == self._own[0] else sequence.schema
        return schema, self._renamed(sequence.name)

    def _renamed(self, name: str) -> str:
        """The name of an index, a constraint, a sequence or a partition, if the table has another name now."""
        if self._own[1] == self._table.name[1]:
            return name
        new = self._table.name[1]
        rest = name.removeprefix(self._own[1]) if name.startswith(self._own[1]) else f"_{name}"
        if len(f"{new}{rest}".encode()) <= _NAME_BYTES:
            return f"{new}{rest}"
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        return f"{new.encode()[: _NAME_BYTES - 9].decode(errors='ignore')}_{digest}"

    def _partition_name(self, name: Name) -> Name:
        if name == self._own:
            return self._table.name
        schema = self._table.name[0] if name[0] == self._own[0] else name[0]
        return schema, self._renamed(name[1])

    # Parts

    def _plan_partitions(self) -> None:
        for each in self._definition.partitions:
            name = self._partition_name((each.schema, each.name))
            parent = self._partition_name(each.parent)
            by = f" PARTITION BY {each.key}" if each.key else ""
            self._table.create.append(f"CREATE TABLE {quoted(*name)} PARTITION OF {quoted(*parent)} {each.bound}{by}")
            for constraint in each.constraints:
                if constraint.kind != "f":
                    self._add_constraint(name, constraint)
            for index in each.indexes:
                self._add_index(name, index)

    def _plan_sequences(self) -> None:
        table = self._table
        recorded = {c.number: c for c in self._definition.columns}
        for each in self._definition.sequences:
            column = recorded.get(each.column)
            if column is None or each.column not in self._sound:
                continue
            name = quoted(*self._sequence_name(each))
            if each.is_owned and not each.is_identity:
                table.finish.append(f"ALTER SEQUENCE {name} OWNED BY {table.qualified}.{quoted(column.name)}")
            table.finish.append(_set_sequence(name, each, table.qualified, column))

    def _add_constraint(self, table: Name, constraint: RecordedConstraint) -> None:
        name = quoted(self._renamed(constraint.name))
        self._table.finish.append(f"ALTER TABLE {quoted(*table)} ADD CONSTRAINT {name} {constraint.definition}")
        self._comment(f"CONSTRAINT {name} ON {quoted(*table)}", constraint.comment)

    def _add_index(self, table: Name, index: RecordedIndex) -> None:
        unique = "UNIQUE " if index.is_unique else ""
        name = self._renamed(index.name)
        self._table.finish.append(f"CREATE {unique}INDEX {quoted(name)} ON {quoted(*table)} {index.body}")
        self._comment(f"INDEX {quoted(table[0], name)}", index.comment)

    def _plan_foreign_keys(self) -> None:
        for constraint in self._definition.constraints:
            if constraint.kind != "f" or constraint.parent is None:
                continue
            label = f"foreign key {constraint.name}"
            if not self._has(constraint.columns, label):
                continue
            is_inside = constraint.parent_oid in self._names
            parent = self._names.get(constraint.parent_oid, constraint.parent)
            match = _REFERENCES.fullmatch(constraint.definition.removesuffix(" NOT VALID"))
            if match is None:
                self._table.notes.append(f"{label} is left out: {constraint.definition} is not understood")
                continue
            name = quoted(self._renamed(constraint.name))
            statement = (
                f"ALTER TABLE {self._table.qualified} ADD CONSTRAINT {name} {match[1]}{quoted(*parent)}{match[2]}"
            )
            was_valid = not constraint.definition.endswith(" NOT VALID")
            self._table.foreign_keys.append(
                ForeignKey(
                    statement,
                    label,
                    parent,
                    is_inside and was_valid and not self._is_subset,
                    self._table.is_partitioned,
                )
            )

    def _plan_comments(self) -> None:
        table = self._table
        self._comment(f"TABLE {table.qualified}", self._definition.comment)
        for column in self._definition.columns:
            if column.number in self._sound:
                self._comment(f"COLUMN {table.qualified}.{quoted(column.name)}", column.comment)
                if column.storage is not None:
                    table.create.append(
                        f"ALTER TABLE {table.qualified} ALTER COLUMN {quoted(column.name)} SET STORAGE {column.storage}"
                    )

    def _comment(self, on: str, text: str | None) -> None:
        if text is not None:
            self._table.finish.append(f"COMMENT ON {on} IS {literal(text)}")

    def _plan_identity(self) -> None:
        kinds = {"f": "FULL", "n": "NOTHING"}
        index = self._definition.identity_index
        if self._definition.identity in kinds:
            kind = kinds[self._definition.identity]
        elif self._definition.identity == "i" and index is not None:
            kind = f"USING INDEX {quoted(self._renamed(index))}"
        else:
            return
        self._table.finish.append(f"ALTER TABLE {self._table.qualified} REPLICA IDENTITY {kind}")

    def _has(self, columns: Sequence[int], label: str) -> bool:
        if set(columns) <= self._sound.keys():
            return True
        self._leave_out(label)
        return False

    def _leave_out(self, label: str) -> None:
        self._table.notes.append(f"{label} is left out: at that moment the table had other columns than it refers to")


def _set_sequence(name: str, sequence: RecordedSequence, table: str, column: RecordedColumn) -> str:
    """Set a sequence to its recorded value, or to what the rows need if that is further. Never sets one back."""
    further, furthest = ("greatest", "max") if sequence.increment > 0 else ("least", "min")
    needed = ["pg_sequence_last_value(s.seqrelid)"]
    if sequence.last_value is not None:
        needed.append(f"{sequence.last_value}::bigint")
    if column.type in _COUNTED:
        needed.append(f"(SELECT {furthest}({quoted(column.name)}) FROM {table})::bigint")  # noqa: S608 (quoted)
    return (
        "SELECT setval(s.seqrelid, n.value) FROM pg_sequence s "  # noqa: S608 (quoted)
        f"CROSS JOIN LATERAL (SELECT {further}({', '.join(needed)}) AS value) AS n "
        f"WHERE s.seqrelid = {literal(name)}::regclass AND n.value BETWEEN s.seqmin AND s.seqmax "
        "AND has_sequence_privilege(s.seqrelid, 'UPDATE')"
    )


def _printed(schema: str, name: str) -> Iterator[str]:
    """A name as PostgreSQL prints it: quoted only where that is needed, so each part may be either."""
    for first in (schema, quoted(schema)):
        for second in (name, quoted(name)):
            yield f"{first}.{second}"


def type_statement(type_: RecordedType) -> str | None:
    """The statement that creates a type; None if it cannot be created by SQL alone."""
    name = quoted(type_.schema, type_.name)
    match type_.kind:
        case "e":
            return f"CREATE TYPE {name} AS ENUM ({', '.join(map(literal, type_.labels))})"
        case "d":
            return f"CREATE DOMAIN {name} {type_.body}"
        case "c" | "r":
            return f"CREATE TYPE {name} {type_.body}"
    return None


def type_conflict(recorded: RecordedType, existing: RecordedType) -> str | None:
    """Why a type of the destination cannot stand for the recorded one; None if it can."""
    if recorded.kind != existing.kind:
        return "is another kind of type there"
    if recorded.kind == "e":
        order = [label for label in existing.labels if label in recorded.labels]
        return None if order == list(recorded.labels) else "has other labels there"
    return None if recorded.body == existing.body else f"is defined otherwise there: {existing.body}"
