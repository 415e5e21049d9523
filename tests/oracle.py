"""The oracle: PostgreSQL's own rows, and the rows that result from applying changes one by one.

Rows are tuples of PostgreSQL's text (bytes, or None for NULL), tables are multisets of rows. `Replica` is strict: a
change of a missing row, or a second row with the same key, fails at its position.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace import text, types
from tailrace.capture.postgres.source_connection import SESSION
from tailrace.change import Change, Column, Image, Operation, Relation, Unchanged

Row = tuple[bytes | None, ...]
Rows = Counter[Row]
Connection = psycopg.Connection[Any]

_COLUMNS = """
SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum
"""


def pin(connection: Connection) -> None:
    """The session settings that Tailrace uses, for equal text."""
    for name, setting in SESSION.items():
        if name != "search_path":
            connection.execute("SELECT set_config(%s, %s, false)", [name, setting])


def rows(connection: Connection, schema: str, table: str, columns: Sequence[str] | None = None) -> Rows:
    """The table's current rows, as the connection's transaction sees them, without generated columns."""
    pin(connection)
    qualified = sql.Identifier(schema, table)
    if columns is None:
        columns = [name for (name,) in connection.execute(_COLUMNS, [qualified.as_string(connection)])]
    # A cast to text differs from the type's output function for char and bool, so results are read as they are sent.
    select = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(map(sql.Identifier, columns)), qualified)
    result = connection.execute(select).pgresult
    assert result is not None
    return Counter(
        tuple([None if (v := result.get_value(r, c)) is None else bytes(v) for c in range(result.nfields)])
        for r in range(result.ntuples)
    )


_DESCRIBED = """
SELECT table_schema::text, table_name::text, column_name::text, ordinal_position::int,
       data_type::text, is_nullable = 'YES', column_default::text
FROM information_schema.columns
WHERE table_schema NOT IN ('pg_catalog', 'information_schema') AND is_generated = 'NEVER'
ORDER BY 1, 2, 4
"""


def column_descriptions(connection: Connection) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The columns of every table, from information_schema."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    fields = ("name", "position", "data_type", "is_nullable", "column_default")
    for schema, table, *column in _query_without_search_path(connection, _DESCRIBED):
        found[schema, table].append(dict(zip(fields, column, strict=True)))
    return dict(found)


def type_names(connection: Connection) -> dict[int, str]:
    """The types by oid, as information_schema names them for a column."""
    return dict(_query_without_search_path(connection, _TYPE_NAMES))


_TYPE_NAMES = """
SELECT t.oid::int8,
       CASE WHEN s.typelem <> 0 AND s.typlen = -1 THEN 'ARRAY'
            WHEN s.typnamespace = 'pg_catalog'::regnamespace THEN format_type(s.oid, NULL) ELSE 'USER-DEFINED' END
FROM pg_type t JOIN pg_type s ON s.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
"""


def _query_without_search_path(connection: Connection, query: LiteralString) -> list[Any]:
    """Run with a search_path in which only names of pg_catalog need no schema."""
    with connection.transaction():
        connection.execute("SELECT set_config('search_path', '', true)")
        return connection.execute(query).fetchall()


class Replica:
    """Tables by oid, each with the definition of its newest relation."""

    def __init__(self) -> None:
        self._tables: dict[int, _Table] = {}

    def load(self, relation: Relation, rows: Iterable[Row]) -> None:
        """Load the initial state, such as a snapshot's rows. May be called again with more rows."""
        table = self._table(relation)
        for row in rows:
            table.insert(row)

    def apply(self, change: Change) -> None:
        if change.relation is None:
            return
        try:
            self._table(change.relation).apply(change)
        except AssertionError as fault:
            where = f"{change.position} {change.operation} {change.relation.qualified_name}"
            raise AssertionError(f"{where}: {fault}") from None

    def rows(self, schema: str, table: str) -> Rows:
        """The rows of the newest table with that name; empty if no change ever touched it."""
        found = [t for t in self._tables.values() if (t.relation.schema, t.relation.name) == (schema, table)]
        return found[-1].multiset() if found else Counter()

    def relation(self, schema: str, table: str) -> Relation | None:
        found = [t.relation for t in self._tables.values() if (t.relation.schema, t.relation.name) == (schema, table)]
        return found[-1] if found else None

    def _table(self, relation: Relation) -> _Table:
        table = self._tables.setdefault(relation.oid, _Table(relation))
        if table.relation is not relation and table.relation != relation:
            table.become(relation)
        return table


def replay(changes: Iterable[Change], start: Mapping[Relation, Iterable[Row]] | None = None) -> Replica:
    """Apply changes to an initial state (None: empty tables)."""
    replica = Replica()
    for relation, initial in (start or {}).items():
        replica.load(relation, initial)
    for change in changes:
        replica.apply(change)
    return replica


class _Table:
    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self._rows: dict[int, Row] = {}
        self._by_identity: defaultdict[Row, list[int]] = defaultdict(list)
        self._next = 0
        self._identity = self._identity_of(relation)

    def multiset(self) -> Rows:
        return Counter(self._rows.values())

    def become(self, relation: Relation) -> None:
        """Adapt the rows to a changed definition, as PostgreSQL does."""
        places = _places(self.relation, relation)
        rows = [tuple([row[p] if p is not None else missing for p, missing in places]) for row in self._rows.values()]
        self.__init__(relation)  # type: ignore[misc]
        for row in rows:
            self.insert(row)

    def insert(self, row: Row) -> None:
        identity = self._of(row)
        if self._is_unique:
            assert identity not in self._by_identity, "a row with this key already exists"
        self._rows[self._next] = row
        self._by_identity[identity].append(self._next)
        self._next += 1

    def apply(self, change: Change) -> None:
        match change.operation:
            case Operation.INSERT:
                assert change.new is not None
                self.insert(self._whole(change.new, None))
            case Operation.UPDATE:
                assert change.new is not None
                removed = self._remove(change.old if change.old is not None else change.new)
                self.insert(self._whole(change.new, removed))
            case Operation.DELETE:
                assert change.old is not None
                self._remove(change.old)
            case Operation.TRUNCATE:
                self._rows.clear()
                self._by_identity.clear()

    def _remove(self, image: Image) -> Row:
        identity = self._of(image)
        found = self._by_identity.get(identity)
        assert found, "no such row"
        number = found.pop()
        if not found:
            del self._by_identity[identity]
        return self._rows.pop(number)

    @property
    def _is_unique(self) -> bool:
        return self.relation.identity in "di" and bool(self._identity)

    @staticmethod
    def _identity_of(relation: Relation) -> list[int]:
        return [i for i, c in enumerate(relation.columns) if relation.identity == "f" or c.is_identity]

    def _of(self, image: Image) -> Row:
        identity = [image[i] for i in self._identity]
        assert not any(isinstance(v, Unchanged) for v in identity), "the identity itself was not sent"
        return tuple(identity)  # type: ignore[arg-type]

    @staticmethod
    def _whole(image: Image, before: Row | None) -> Row:
        """Take unchanged values from the old row."""
        row = []
        for index, value in enumerate(image):
            if isinstance(value, Unchanged):
                assert before is not None, "an unchanged value without an old row"
                row.append(before[index])
            else:
                row.append(value)
        return tuple(row)


def _places(old: Relation, new: Relation) -> list[tuple[int | None, bytes | None]]:
    """For each new column, the matching old column, if any, and the value of rows without it.

    Numbers match first. A column that was renamed or dropped since has none, as the catalogue no longer had it; then
    the name matches, and unmatched columns on both sides were renamed.
    """
    left = dict(enumerate(old.columns))
    found: dict[int, int] = {}
    rules: list[Callable[[Column, Column], bool]] = [
        lambda a, b: a.number is not None and a.number == b.number,
        lambda a, b: a.name == b.name and (a.number is None or b.number is None),
        lambda a, b: a.type.oid == b.type.oid and (a.number is None or b.number is None),
    ]
    for is_same in rules:
        for index, column in enumerate(new.columns):
            if index not in found:
                match = next((i for i, c in left.items() if is_same(c, column)), None)
                if match is not None:
                    found[index] = match
                    del left[match]
        if len(new.columns) != len(old.columns) and len(found) == min(len(new.columns), len(old.columns)):
            break
    return [(found.get(i), c.missing.encode() if c.missing is not None else None) for i, c in enumerate(new.columns)]


def to_typed(relation: Relation, image: Image) -> tuple[Any, ...]:
    """The image in its mapped types, as values that can be compared and hashed; special values stay text."""
    return tuple([_to_typed(column, value) for column, value in zip(relation.columns, image, strict=True)])


def _to_typed(column: Column, value: bytes | Unchanged | None) -> Any:
    if value is None or isinstance(value, Unchanged):
        return value
    found = types.mapping(column).arrow_value(value)
    return ("special", value.decode()) if found is text.SPECIAL else _comparable(found)


def typed_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """The rows of a snapshot's chunks, as such values."""
    for batch in batches:
        columns = [_plain(column).to_pylist() for column in batch.columns[:-1]]
        names = batch.schema.names
        for index, special in enumerate(batch.columns[-1].to_pylist()):
            row = [_comparable(column[index]) for column in columns]
            for name, value in special or ():
                assert row[names.index(name)] is None, "a special value beside an ordinary one"
                row[names.index(name)] = ("special", value)
            yield tuple(row)


def _plain(column: pa.Array) -> pa.Array:
    """Temporal values as integers, because Python's end at the year 9999."""
    if pa.types.is_date32(column.type):
        return column.view(pa.int32())
    return column.view(pa.int64()) if pa.types.is_temporal(column.type) else column


def _comparable(value: Any) -> Any:
    match value:
        case float():
            return "float", struct.pack(">d", value)  # NaN equals itself, -0 is not 0
        case dict():
            return tuple(value.items())
    return value
