"""Restores tables from snapshots and the log, into a database or a SQL script, in one transaction.

Rows go from the store to COPY as they are read. Nothing is visible at the destination before the commit, and a restore
that fails leaves nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path
from typing import IO, Any, Final, Protocol

import psycopg
import pyarrow as pa

from tailrace import postgres
from tailrace.capture.postgres import schema_catalog
from tailrace.change import Column, Lsn, Relation
from tailrace.errors import ConfigError, SinkError, SinkRefused, SnapshotError
from tailrace.images import Images
from tailrace.log import schema_record
from tailrace.log.reader import LogReader
from tailrace.log.schema_record import RecordedType
from tailrace.log.snapshot import SnapshotReader
from tailrace.postgres import copy_text
from tailrace.postgres.classifier import Classifier, Rule
from tailrace.postgres.connection import SESSION
from tailrace.recovery import log_moment
from tailrace.recovery.restored_table import (
    CopiedColumn,
    ForeignKey,
    Name,
    RestoredTable,
    choose_definition,
    literal,
    plan_table,
    quoted,
    type_conflict,
    type_statement,
)
from tailrace.settings import Secret
from tailrace.settings.secret import split_password
from tailrace.sinks.messages.batching import prefetch
from tailrace.state import postgres_binary, postgres_text, table_state
from tailrace.state.table_state import TableState

_RULES: Final = (
    Rule(SinkError, "40...|55P03|25006", r"", "run the restore again"),
    Rule(SinkRefused, "42501", r"", "the role needs CREATE on the schema, and TEMPORARY on the database for --where"),
    Rule(
        SinkRefused,
        "42883|42704|42P01|3F000",
        r"",
        "the definition uses it: create it at the destination first, or write --sql FILE and edit that",
    ),
    Rule(
        SinkRefused,
        "23514",
        r"no partition of relation",
        "the partition was created after the table's definition was last recorded: write --sql FILE and add it there",
    ),
    Rule(
        SinkRefused,
        "23...",
        r"",
        "the rows at that moment violate it: was it added later? write --sql FILE and edit that",
    ),
)
_OTHERWISE: Final = (Rule(SinkRefused, "(0A|42|22|54|55|P0|38|39|44)...", r"", "write --sql FILE and edit that"),)
_classify: Final = Classifier("--into", SinkError, SinkRefused, _RULES, _OTHERWISE)


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows for COPY."""

    rows: int
    content: bytes
    is_binary: bool = False
    """In the binary format, without header and trailer; otherwise lines of text."""


Blocks = Callable[["PlannedRestore", bool], Iterator[Block]]
"""Reads a table's rows; in the binary format, where they allow it, if the second argument is true."""


@dataclass(frozen=True)
class PlannedRestore:
    """One table: what to read, and what to create."""

    state: TableState
    table: RestoredTable
    logged_rows: int
    """Changes in the segments that have to be read, those of other tables included."""

    @property
    def estimated_rows(self) -> int:
        return self.state.snapshot.rows

    @property
    def read_rows(self) -> int:
        """At most as many rows and changes have to be read."""
        return self.estimated_rows + self.logged_rows


@dataclass
class RestoreProgress:
    tables: int = 0
    rows: int = 0
    """Rows read from the store; with a condition, fewer are restored."""
    bytes: int = 0
    estimated_rows: int = 0
    step: str = "starting"
    restored: dict[Name, int] = field(default_factory=dict)
    """The number of rows of each table at the destination, as far as it is known."""

    def add(self, rows: int, size: int) -> None:
        self.rows += rows
        self.bytes += size

    def state(self) -> tuple[int, int, str]:
        total = self.bytes * max(self.estimated_rows, self.rows) // max(self.rows, 1)
        return self.bytes, total, f"{self.rows:,} rows, {self.step}"


def plan(
    reader: LogReader,
    tables: Sequence[Name],
    lsn: Lsn,
    names: Callable[[Name], Name] = lambda name: name,
    *,
    is_subset: bool = False,
) -> list[PlannedRestore]:
    """What to restore for the tables that had these names at an LSN.

    Args:
        reader: The log.
        tables: Schema and name of each table.
        lsn: The moment.
        names: The name at the destination of a table.
        is_subset: Only some rows are restored.
    """
    states = [_find(reader, name, lsn) for name in tables]
    renamed = {state.relation.oid: names((state.relation.schema, state.relation.name)) for state in states}
    if len(set(renamed.values())) < len(states):
        raise ConfigError("two tables would have the same name at the destination", "restore them one by one")
    return [_plan_one(reader, state, renamed, is_subset) for state in states]


def _find(reader: LogReader, name: Name, lsn: Lsn) -> TableState:
    try:
        return table_state.find(reader, *name, lsn)
    except SnapshotError as error:
        snapshots = SnapshotReader(reader.store).list(*name)
        if not snapshots:
            raise
        hint = f"it has snapshots from {snapshots[0].lsn} on, and {log_moment.range_text(reader)}"
        raise ConfigError(str(error), hint) from None


def _plan_one(reader: LogReader, state: TableState, names: Mapping[int, Name], is_subset: bool) -> PlannedRestore:
    last_change = state.snapshot.lsn
    if state.slices:
        header = reader.header(state.slices[-1].segment)
        if header is not None and header.last is not None:
            last_change = min(header.last.commit_lsn, state.lsn)
    definitions = schema_record.definitions_of(reader.store, state.relation.oid)
    definition, is_newer = choose_definition(definitions, state.relation, state.lsn, last_change)
    table = plan_table(state.relation, definition, is_newer, names, is_subset=is_subset)
    return PlannedRestore(state, table, sum(s.stop - s.start for s in state.slices))


def copy_blocks(
    state: TableState,
    reader: LogReader,
    columns: Sequence[CopiedColumn],
    accepts_binary: bool,
    part: int = 0,
    parts: int = 1,
) -> Iterator[Block]:
    """The rows of one of several parts of a state, for COPY."""
    binary = _binary_columns(state, columns) if accepts_binary else ()
    for images in table_state.rows(state, reader, part, parts):
        if binary and images.special is None:
            arrays = [images.batch.column(index) for index, _ in binary]
            content = postgres_binary.rows(arrays, [column for _, column in binary])
            if content is not None:
                yield Block(len(images), content, is_binary=True)
                continue
        yield from _text_blocks(images, state.relation, columns)


def _binary_columns(state: TableState, columns: Sequence[CopiedColumn]) -> Sequence[tuple[int, Column]]:
    """The columns to copy, if the binary format can have all of them."""
    found = [(each.index, state.relation.columns[each.index]) for each in columns if each.index is not None]
    is_supported = all(postgres_binary.is_supported(column) for _, column in found)
    return found if is_supported and len(found) == len(columns) and not any(each.is_cast for each in columns) else ()


def _text_blocks(images: Images, relation: Relation, columns: Sequence[CopiedColumn]) -> Iterator[Block]:
    texts = postgres_text.image_texts(images, relation).batch.columns
    size = len(images)
    arrays = [
        texts[column.index]
        if column.index is not None
        else pa.array([column.text], pa.string()).take(pa.array([0] * size, pa.int32()))
        for column in columns
    ]
    for number, lines in enumerate(copy_text.lines(arrays, size)):
        yield Block(size if number == 0 else 0, lines)


def direct_blocks(reader: LogReader) -> Blocks:
    """Reads rows in this process: the next ones while the destination takes the last."""

    def blocks(planned: PlannedRestore, accepts_binary: bool) -> Iterator[Block]:
        return prefetch(copy_blocks(planned.state, reader, planned.table.columns, accepts_binary))

    return blocks


class RestoreDestination(Protocol):
    """Where tables are restored to. All calls happen inside `transaction`."""

    accepts_binary: bool
    """Whether `copy` accepts blocks in the binary format."""

    def transaction(self) -> contextlib.AbstractContextManager[None]: ...

    def check(self, tables: Sequence[RestoredTable]) -> None:
        """Refuse tables that exist, and types that differ."""

    def prepare(self, tables: Sequence[RestoredTable]) -> None:
        """Create schemas, extensions, types and sequences that do not exist."""

    def execute(self, statement: str, label: str) -> int | None:
        """Run a statement, and return the number of rows if it is known."""

    def filter_rows(self, statement: str) -> int | None:
        """Run a statement with a condition that the user wrote."""

    def copy(self, target: str, blocks: Iterator[Block], *, freeze: bool) -> None:
        """Copy rows into a table. `freeze`: it was created in this transaction, and has no partitions."""

    def add_foreign_key(self, key: ForeignKey) -> str | None:
        """Add a foreign key whose parent is not restored, not validated. Return why not, if it is not possible."""


def restore(
    planned: Sequence[PlannedRestore],
    destination: RestoreDestination,
    blocks: Blocks,
    where: str | None = None,
    progress: RestoreProgress | None = None,
) -> RestoreProgress:
    """Restore the tables in one transaction. What had to be left out is added to the tables' notes.

    Args:
        planned: The tables.
        destination: Where to.
        blocks: Reads a table's rows.
        where: A condition in SQL, which the destination evaluates for each row.
        progress: Is updated while it runs.
    """
    progress = progress or RestoreProgress()
    progress.tables = len(planned)
    progress.estimated_rows = sum(each.estimated_rows for each in planned)
    tables = [each.table for each in planned]
    with destination.transaction():
        destination.check(tables)
        destination.prepare(tables)
        for table in tables:
            for statement in table.create:
                destination.execute(statement, f"creating {'.'.join(table.name)}")
        for number, each in enumerate(planned):
            progress.step = f"copying {'.'.join(each.table.name)}"
            _copy_rows(each, destination, blocks, where, number, progress)
        for table in tables:
            progress.step = f"creating keys and indexes of {'.'.join(table.name)}"
            for statement in table.finish:
                destination.execute(statement, f"completing {'.'.join(table.name)}")
        for table in tables:
            for key in table.foreign_keys:
                progress.step = f"adding {key.label} of {'.'.join(table.name)}"
                if key.is_inside:
                    destination.execute(key.statement, f"{'.'.join(table.name)}: {key.label}")
                elif reason := destination.add_foreign_key(key):
                    table.notes.append(f"{key.label} is left out: {reason}")
        progress.step = "committing"
    return progress


def _copy_rows(
    planned: PlannedRestore,
    destination: RestoreDestination,
    blocks: Blocks,
    where: str | None,
    number: int,
    progress: RestoreProgress,
) -> None:
    table = planned.table
    total = 0

    def counted() -> Iterator[Block]:
        nonlocal total
        with contextlib.closing(blocks(planned, destination.accepts_binary)) as source:  # type: ignore[type-var]
            for block in source:
                progress.add(block.rows, len(block.content))
                total += block.rows
                yield block

    columns = f" ({table.column_list})" if table.columns else ""
    if where is None:
        destination.copy(f"{table.qualified}{columns}", counted(), freeze=not table.is_partitioned)
        progress.restored[table.name] = total
        return
    staging = f"pg_temp.tailrace_restore_{number}"
    destination.execute(
        f"CREATE TEMPORARY TABLE tailrace_restore_{number} (LIKE {table.qualified} INCLUDING GENERATED) ON COMMIT DROP",
        "creating a temporary table for --where",
    )
    destination.copy(f"{staging}{columns}", counted(), freeze=False)
    # The condition ends with a line end, because it may end with a comment.
    found = destination.filter_rows(
        f"INSERT INTO {table.qualified}{columns} OVERRIDING SYSTEM VALUE "  # noqa: S608 (the user's own condition)
        f"SELECT {table.column_list} FROM {staging} AS {quoted(table.source[1])} WHERE ({where}\n)"
    )
    if found is not None:
        progress.restored[table.name] = found


@dataclass(frozen=True)
class _Address:
    url: str
    password: Secret | None
    sslmode: str | None = None
    sslrootcert: Path | None = None


class DatabaseDestination:
    """A database, by its URL."""

    accepts_binary = True

    def __init__(self, url: str) -> None:
        self._address = _Address(*split_password(url))
        self._connection: psycopg.Connection[Any] | None = None
        self._search_path = ""

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        pins = {name: value for name, value in SESSION.items() if name != "search_path"}
        try:
            connection = postgres.connection.connect(self._address, pins)
        except psycopg.Error as error:
            failed = _classify(error)
            raise type(failed)(f"--into: {failed}", "correct the URL; PGPASSWORD may have the password") from None
        with connection, _errors("committing"):
            self._connection = connection
            row = connection.execute("SHOW search_path").fetchone()
            assert row is not None
            self._search_path = row[0]
            with connection.transaction():
                self._set_search_path("pg_catalog")
                yield

    def check(self, tables: Sequence[RestoredTable]) -> None:
        for table in tables:
            if self._exists(table.name):
                raise ConfigError(
                    f"{'.'.join(table.name)} exists at the destination",
                    "restore it under another name: --as schema.table, or --as 'schema.*'",
                )

    def prepare(self, tables: Sequence[RestoredTable]) -> None:
        connection = self._open
        schemas = {schema for table in tables for schema in table.schemas}
        found = connection.execute(
            "SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname = ANY (%s)", [list(schemas)]
        ).fetchall()
        for schema in sorted(schemas - {name for (name,) in found}):
            self.execute(f"CREATE SCHEMA {quoted(schema)}", f"creating schema {schema}")
        wanted = _distinct_types(tables)
        existing = schema_catalog.read_types(connection, [(each.schema, each.name) for each in wanted])
        for each in wanted:
            name = f"{each.schema}.{each.name}"
            if (present := existing.get((each.schema, each.name))) is not None:
                if each.extension is None and (conflict := type_conflict(each, present)):
                    raise ConfigError(
                        f"type {name} {conflict}", "rename it at the destination, or use another database"
                    )
            elif each.extension is not None:
                raise ConfigError(
                    f"type {name} does not exist at the destination",
                    f"CREATE EXTENSION {quoted(each.extension)} SCHEMA {quoted(each.extension_schema or 'public')};",
                )
            elif (statement := type_statement(each)) is not None:
                self.execute(statement, f"creating type {name}")
            else:
                raise ConfigError(f"type {name} does not exist at the destination", "create it there first")
        for sequence, options, is_owned in _sequences(tables):
            if is_owned or not self._exists(sequence):
                self.execute(f"CREATE SEQUENCE {quoted(*sequence)} {options}", f"creating sequence {sequence[1]}")

    def execute(self, statement: str, label: str) -> int | None:
        with _errors(label):
            return self._open.execute(statement.encode()).rowcount

    def filter_rows(self, statement: str) -> int | None:
        self._set_search_path(self._search_path)
        with _errors("--where"), self._open.cursor() as cursor:
            # With binary results the server accepts only one statement.
            cursor.execute(statement.encode(), binary=True)
            rows = cursor.rowcount
        self._set_search_path("pg_catalog")
        return rows

    def copy(self, target: str, blocks: Iterator[Block], *, freeze: bool) -> None:
        # Rows that the binary format cannot have get a COPY of their own.
        for is_binary, run in groupby(blocks, lambda block: block.is_binary):
            with (
                _errors(f"COPY {target.partition(' (')[0]}"),
                self._open.cursor() as cursor,
                cursor.copy(_copy_statement(target, is_binary, freeze).encode()) as copy,
            ):
                copy.write(postgres_binary.HEADER if is_binary else b"")
                for block in run:
                    copy.write(block.content)
                copy.write(postgres_binary.TRAILER if is_binary else b"")

    def add_foreign_key(self, key: ForeignKey) -> str | None:
        if not self._exists(key.parent):
            return f"{'.'.join(key.parent)} does not exist at the destination"
        if key.is_partitioned and self._open.info.server_version < 180000:
            return "before PostgreSQL 18, a partitioned table cannot have one that is not validated"
        self.execute(f"{key.statement} NOT VALID", key.label)
        return None

    def _exists(self, name: Name) -> bool:
        row = self._open.execute("SELECT pg_catalog.to_regclass(%s) IS NOT NULL", [quoted(*name)]).fetchone()
        return row is not None and bool(row[0])

    def _set_search_path(self, path: str) -> None:
        self._open.execute("SELECT pg_catalog.set_config('search_path', %s, true)", [path])

    @property
    def _open(self) -> psycopg.Connection[Any]:
        assert self._connection is not None
        return self._connection


class ScriptDestination:
    """A script for psql."""

    accepts_binary = False

    def __init__(self, file: IO[bytes], lsn: Lsn) -> None:
        self._file = file
        self._lsn = lsn

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self._write(f"-- Written by `tailrace restore`: tables as of {self._lsn}. Run it with psql.")
        self._write("\\set ON_ERROR_STOP on")
        self._write("BEGIN;")
        for name, value in SESSION.items():
            if name not in ("search_path", "client_min_messages", "quote_all_identifiers"):
                self._write(f"SET LOCAL {name} = {literal(value)};")
        self._write("SET LOCAL client_encoding = 'UTF8';\nSET LOCAL standard_conforming_strings = on;")
        self._write("SELECT current_setting('search_path') AS tailrace_search_path \\gset")
        self._write("SET LOCAL search_path = pg_catalog;")
        yield
        self._write("COMMIT;")

    def check(self, tables: Sequence[RestoredTable]) -> None:
        pass  # CREATE TABLE fails where the script runs

    def prepare(self, tables: Sequence[RestoredTable]) -> None:
        for schema in sorted({schema for table in tables for schema in table.schemas} - {"public"}):
            self._write(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};")
        for each in _distinct_types(tables):
            name = quoted(each.schema, each.name)
            if each.extension is not None:
                self._write(f"CREATE EXTENSION IF NOT EXISTS {quoted(each.extension)};")
            elif (statement := type_statement(each)) is not None:
                self._write(_conditionally(f"to_regtype({literal(name)}) IS NULL", statement))
            else:
                self._write(f"-- type {name} must exist")
        for sequence, options, is_owned in _sequences(tables):
            exists = "" if is_owned else "IF NOT EXISTS "
            self._write(f"CREATE SEQUENCE {exists}{quoted(*sequence)} {options};")

    def execute(self, statement: str, label: str) -> int | None:  # noqa: ARG002
        self._write(f"{statement};")
        return None

    def filter_rows(self, statement: str) -> int | None:
        self._write("SELECT set_config('search_path', :'tailrace_search_path', true);")
        self._write(f"{statement};")
        self._write("SET LOCAL search_path = pg_catalog;")
        return None

    def copy(self, target: str, blocks: Iterator[Block], *, freeze: bool) -> None:
        self._write(f"{_copy_statement(target, False, freeze)};")
        for block in blocks:
            self._file.write(block.content)
        self._write("\\.")

    def add_foreign_key(self, key: ForeignKey) -> str | None:
        if key.is_partitioned:
            return "before PostgreSQL 18, a partitioned table cannot have one that is not validated"
        self._write(
            _conditionally(f"to_regclass({literal(quoted(*key.parent))}) IS NOT NULL", f"{key.statement} NOT VALID")
        )
        return None

    def _write(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")


def _copy_statement(target: str, is_binary: bool, freeze: bool) -> str:
    # Nobody can see rows that are frozen too early, because the table was created in this transaction.
    options = ", ".join(["FORMAT binary"] * is_binary + ["FREEZE"] * freeze)
    return f"COPY {target} FROM STDIN" + (f" WITH ({options})" if options else "")


@contextlib.contextmanager
def _errors(label: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        found = _classify(error)
        raise type(found)(f"{label}: {found}", found.hint) from None


def _conditionally(condition: str, statement: str) -> str:
    tag = next(f"$r{n}$" for n in count() if f"$r{n}$" not in statement)
    return f"DO {tag} BEGIN IF {condition} THEN {statement}; END IF; END {tag};"


def _distinct_types(tables: Iterable[RestoredTable]) -> list[RecordedType]:
    return list({(each.schema, each.name): each for table in tables for each in table.types}.values())


def _sequences(tables: Iterable[RestoredTable]) -> list[tuple[Name, str, bool]]:
    return list({name: (name, options, owned) for table in tables for name, options, owned in table.sequences}.values())
