"""The oracle: PostgreSQL's own rows, and the rows that changes make when they are followed one by one.

Rows are tuples of PostgreSQL's text (bytes, or None for NULL), tables are multisets of rows. `Replica` is strict: a
change of a row that is not there, or a second row of the same key, fails at its position.
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
from tailrace.change import Change, Column, Image, Operation, Relation, Unchanged
from tailrace.source.connection import SESSION

Row = tuple[bytes | None, ...]
Rows = Counter[Row]
Connection = psycopg.Connection[Any]

_COLUMNS = """
SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum
"""


def pin(connection: Connection) -> None:
    """Texts as Tailrace's own sessions have them."""
    for name, setting in SESSION.items():
        if name != "search_path":
            connection.execute("SELECT set_config(%s, %s, false)", [name, setting])


def rows(connection: Connection, schema: str, table: str, columns: Sequence[str] | None = None) -> Rows:
    """What is in the table now, or in the connection's transaction; generated columns are left out."""
    pin(connection)
    qualified = sql.Identifier(schema, table)
    if columns is None:
        columns = [name for (name,) in connection.execute(_COLUMNS, [qualified.as_string(connection)])]
    # Casts to text do not print what the type's output function prints (char, bool), so results are taken as they come.
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


def described(connection: Connection) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Every table's columns as information_schema has them."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    fields = ("name", "position", "data_type", "is_nullable", "column_default")
    for schema, table, *column in _unqualified(connection, _DESCRIBED):
        found[schema, table].append(dict(zip(fields, column, strict=True)))
    return dict(found)


def type_names(connection: Connection) -> dict[int, str]:
    """By oid, as information_schema says of a column that has the type."""
    return dict(_unqualified(connection, _TYPE_NAMES))


_TYPE_NAMES = """
SELECT t.oid::int8,
       CASE WHEN s.typelem <> 0 AND s.typlen = -1 THEN 'ARRAY'
            WHEN s.typnamespace = 'pg_catalog'::regnamespace THEN format_type(s.oid, NULL) ELSE 'USER-DEFINED' END
FROM pg_type t JOIN pg_type s ON s.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
"""


def _unqualified(connection: Connection, query: LiteralString) -> list[Any]:
    """Where only names of the catalogue itself go without a schema."""
    with connection.transaction():
        connection.execute("SELECT set_config('search_path', '', true)")
        return connection.execute(query).fetchall()


class Replica:
    """Tables by oid, each as its newest relation describes it."""

    def __init__(self) -> None:
        self._tables: dict[int, _Table] = {}

    def load(self, relation: Relation, rows: Iterable[Row]) -> None:
        """The state to start from, a snapshot's for example; may be called again with more rows."""
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
        """The newest table of that name; nothing when no change ever touched it."""
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
    """Follow changes from an initial state (none: empty tables)."""
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
        """The shape changed: rows show what PostgreSQL shows for them now."""
        places = _places(self.relation, relation)
        rows = [tuple([row[p] if p is not None else missing for p, missing in places]) for row in self._rows.values()]
        self.__init__(relation)  # type: ignore[misc]
        for row in rows:
            self.insert(row)

    def insert(self, row: Row) -> None:
        identity = self._of(row)
        if self._is_unique:
            assert identity not in self._by_identity, "a row of this key is there already"
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
        """An unchanged value is the one that was there."""
        row = []
        for index, value in enumerate(image):
            if isinstance(value, Unchanged):
                assert before is not None, "a value said to be unchanged, where there was no row"
                row.append(before[index])
            else:
                row.append(value)
        return tuple(row)


def _places(old: Relation, new: Relation) -> list[tuple[int | None, bytes | None]]:
    """For each new column, the old one that it is, if any, and what rows without it show.

    Numbers tell best. A column renamed or dropped since has none (the catalogue no longer knew it); then the name does,
    and what is left over on both sides was renamed.
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


def typed(relation: Relation, image: Image) -> tuple[Any, ...]:
    """The image as its mapped types have it, in values that can be compared and hashed; special ones stay text."""
    return tuple([_typed(column, value) for column, value in zip(relation.columns, image, strict=True)])


def _typed(column: Column, value: bytes | Unchanged | None) -> Any:
    if value is None or isinstance(value, Unchanged):
        return value
    found = types.mapping(column).arrow_value(value)
    return ("special", value.decode()) if found is text.SPECIAL else _comparable(found)


def typed_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Rows of a snapshot's chunks, in the same values."""
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
    """Moments as integers: Python's end at the year 9999."""
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
