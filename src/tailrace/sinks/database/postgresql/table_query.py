"""Reads a table of a PostgreSQL server, as source or destination: the checksums of its ranges, and its rows.

The server hashes each row's text, as its types' output functions print it under the settings of `SESSION`, so equal
rows have equal hashes on any two servers. A *range* has the rows whose keys' hashes are equal modulo the number of
ranges: unlike ranges of the keys themselves, it does not depend on collations, which differ between servers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, runtime_checkable

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace.change import Column, Relation, Type
from tailrace.images import Images
from tailrace.pgoutput.decoder import decode_copy

Connection = psycopg.Connection[Any]
Errors = Callable[[], AbstractContextManager[None]]

# Text to decode at a time: enough to vectorise, small enough to bound the offset columns beside the text.
_BLOCK_BYTES: Final = 8 << 20
_TEXT: Final = Type(25, "pg_catalog", "text")
_BIGINT: Final = Type(20, "pg_catalog", "int8")


@dataclass(frozen=True)
class RowHash:
    """How a server hashes rows."""

    columns: tuple[str, ...]
    """The columns that are compared."""
    key: tuple[str, ...]
    ranges: int
    """How many ranges there are: a power of two."""
    seed: int
    """The same on both servers, and another at each comparison."""

    def expressions(self) -> tuple[sql.Composed, sql.Composed, sql.Composed]:
        """The number of a row's range, and the two halves of its hash."""
        hashed = sql.SQL('hashtextextended(ROW({})::text COLLATE "C", {})')
        key = hashed.format(_names(self.key), sql.Literal(self.seed))
        number = sql.SQL("({} & {})").format(key, sql.Literal(self.ranges - 1))
        first, second = [hashed.format(_names(self.columns), sql.Literal(self.seed + n)) for n in (1, 2)]
        return number, first, second


@dataclass(frozen=True)
class RangeSum:
    """The number of rows of a range, and the sums of their hashes, which do not depend on the rows' order."""

    count: int = 0
    first: int = 0
    second: int = 0

    def without(self, other: RangeSum) -> RangeSum:
        return RangeSum(self.count - other.count, self.first - other.first, self.second - other.second)

    def with_row(self, first: int, second: int) -> RangeSum:
        return RangeSum(self.count + 1, self.first + first, self.second + second)


RangeSums = dict[int, RangeSum]
"""By the number of the range; without those that have no rows."""


class TableQuery:
    """Reads one table in the transaction of a connection."""

    def __init__(self, connection: Connection, rows: sql.Composable, relation: Relation, errors: Errors) -> None:
        """Read a table.

        Args:
            connection: A connection.
            rows: What follows FROM: a table, or a query in parentheses.
            relation: The columns to read.
            errors: Classifies psycopg's errors.
        """
        self._connection = connection
        self._rows = rows
        self._relation = relation
        self._errors = errors

    def sums(self, row_hash: RowHash) -> RangeSums:
        """The checksums of all ranges, in one pass over the table."""
        number, first, second = row_hash.expressions()
        query = sql.SQL(
            "SELECT number, count(*), sum(first), sum(second)"
            " FROM (SELECT {} AS number, {} AS first, {} AS second FROM {} AS t) AS hashed GROUP BY number"
        ).format(number, first, second, self._rows)
        with self._errors():
            found = self._connection.execute(query).fetchall()
        return {number: RangeSum(count, int(first), int(second)) for number, count, first, second in found}

    def images(self, *, as_text: bool = False) -> Iterator[Images]:
        """All rows."""
        yield from self._copy(self._select(), _as_text(self._relation) if as_text else self._relation)

    def range_texts(self, row_hash: RowHash, ranges: Collection[int]) -> Iterator[pa.RecordBatch]:
        """The rows of some ranges, as texts."""
        number, _, _ = row_hash.expressions()
        wanted = sql.SQL(" WHERE {} = ANY ({})").format(number, sql.Literal([*ranges]))
        for images in self._copy(self._select() + wanted, _as_text(self._relation)):
            yield images.batch

    def find(
        self, keys: pa.RecordBatch, types: Sequence[str], row_hash: RowHash | None = None, *, as_text: bool = False
    ) -> Iterator[tuple[Images, RangeSums]]:
        """The rows with these keys, and their checksums if they are asked for.

        Args:
            keys: The keys' texts, in the order of the relation's key.
            types: The types of the key's columns, in SQL.
            row_hash: How to hash rows.
            as_text: Whether values are read as texts.
        """
        casts = [sql.SQL("{}::{}").format(sql.Identifier(f"k{n}"), sql.SQL(type_)) for n, type_ in enumerate(types)]
        arrays = [sql.SQL("{}::text[]").format(sql.Literal(column.to_pylist())) for column in keys.columns]
        names = [sql.Identifier(f"k{n}") for n in range(len(types))]
        wanted = sql.SQL(" WHERE ({}) IN (SELECT {} FROM unnest({}) AS k ({}))").format(
            _names(self._relation.key), _joined(casts), _joined(arrays), _joined(names)
        )
        relation = _as_text(self._relation) if as_text else self._relation
        hashes = row_hash.expressions() if row_hash is not None else ()
        added = tuple(Column(f"~{n}", _BIGINT) for n in range(len(hashes)))
        whole = replace(relation, columns=(*relation.columns, *added))
        for images in self._copy(self._select(hashes) + wanted, whole):
            yield _without_hashes(images, len(hashes))

    def _select(self, more: Sequence[sql.Composable] = ()) -> sql.Composed:
        listed = [sql.Identifier(column.name) for column in self._relation.columns]
        return sql.SQL("SELECT {} FROM {} AS t").format(_joined([*listed, *more]), self._rows)

    def _copy(self, query: sql.Composed, relation: Relation) -> Iterator[Images]:
        copy_out = sql.SQL("COPY ({}) TO STDOUT").format(query)
        with self._errors(), self._connection.cursor() as cursor, cursor.copy(copy_out) as copy:
            text = bytearray()
            for block in copy:
                text += block
                if len(text) >= _BLOCK_BYTES:
                    yield decode_copy(relation, pa.py_buffer(bytes(text)))
                    text.clear()
            if text:
                yield decode_copy(relation, pa.py_buffer(bytes(text)))


@runtime_checkable
class HashesRows(Protocol):
    """A reader of rows whose server computes checksums."""

    def query(self, oid: int) -> AbstractContextManager[TableQuery]:
        """Read a table, which nobody alters meanwhile."""

    def key_types(self, oid: int) -> Sequence[str]:
        """The types of the key's columns, in SQL."""

    def cancel(self) -> None:
        """Cancel what the server is executing; another thread may call it."""


def _without_hashes(images: Images, count: int) -> tuple[Images, RangeSums]:
    sums: RangeSums = {}
    columns = images.batch.columns
    own = columns[: len(columns) - count]
    if count:
        for number, first, second in zip(*(c.to_pylist() for c in columns[-count:]), strict=True):
            sums[number] = sums.get(number, RangeSum()).with_row(first, second)
    batch = pa.RecordBatch.from_arrays(own, schema=pa.schema(list(images.batch.schema)[: len(own)]))
    return replace(images, batch=batch), sums


def _as_text(relation: Relation) -> Relation:
    """The relation with columns that hold any value's text."""
    return replace(relation, columns=tuple([replace(c, type=_TEXT, modifier=-1) for c in relation.columns]))


def _names(names: Sequence[str]) -> sql.Composed:
    return _joined([sql.Identifier("t", name) for name in names])


def _joined(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
