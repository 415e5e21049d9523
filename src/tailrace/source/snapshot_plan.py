"""What a snapshot copies: each table as pgoutput would describe it, cut into parts that workers take one by one.

Read inside a transaction that holds the snapshot, so that definitions are those at its LSN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.change import Relation
from tailrace.source import catalog
from tailrace.source.catalog import PublishedTable
from tailrace.source.failure import classified

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Heap:
    """Where rows lie: the table itself, or one partition of it."""

    oid: int
    schema: str
    name: str
    pages: int
    page_bytes: int
    rows_per_page: float
    """By the last ANALYZE; where there was none, a guess."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one table that one worker copies at a time: those of some pages of one heap."""

    relation: Relation
    heap: Heap
    row_filter: str | None
    first_page: int
    end_page: int | None
    """None for the last part: pages may have been added since they were counted."""

    @property
    def where(self) -> sql.Composable:
        conditions: list[sql.Composable] = []
        if self.row_filter is not None:
            conditions.append(sql.SQL("({})").format(sql.SQL(self.row_filter)))
        if self.first_page:
            conditions.append(sql.SQL("ctid >= '({},0)'::pg_catalog.tid").format(sql.SQL(str(self.first_page))))
        if self.end_page is not None:
            conditions.append(sql.SQL("ctid < '({},0)'::pg_catalog.tid").format(sql.SQL(str(self.end_page))))
        return sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL("")

    @property
    def select(self) -> sql.Composed:
        """Columns by name: a partition may have them in another order than its root."""
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.relation.columns)
        heap = sql.Identifier(self.heap.schema, self.heap.name)
        return sql.SQL("SELECT {} FROM ONLY {}{}").format(columns, heap, self.where)


@dataclass(frozen=True, slots=True)
class TablePlan:
    relation: Relation
    parts: tuple[Part, ...]
    estimated_rows: int


# Changes of foreign and unlogged partitions never come through the stream, so their rows are no part of the table here.
_HEAPS: Final = """
SELECT root.oid, leaf.oid, n.nspname, leaf.relname,
       pg_catalog.pg_relation_size(leaf.oid) / pg_catalog.current_setting('block_size')::int,
       pg_catalog.current_setting('block_size')::int,
       CASE WHEN leaf.reltuples >= 0 AND leaf.relpages > 0 THEN leaf.reltuples / leaf.relpages
            ELSE pg_catalog.current_setting('block_size')::int / 100 END::float8
FROM unnest(%s::pg_catalog.oid[]) AS root (oid)
JOIN pg_catalog.pg_class leaf
  ON leaf.oid = root.oid OR leaf.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(root.oid) t)
JOIN pg_catalog.pg_namespace n ON n.oid = leaf.relnamespace
WHERE leaf.relkind = 'r' AND leaf.relpersistence = 'p'
ORDER BY leaf.oid
"""


def published(connection: Connection, publication: str, oids: Collection[int] | None = None) -> list[PublishedTable]:
    return [table for table in catalog.published(connection, publication) if oids is None or table.oid in oids]


def plan(connection: Connection, tables: Collection[PublishedTable], part_bytes: int) -> list[TablePlan]:
    """The smallest first: the more tables are finished, the less an interruption costs."""
    relations = catalog.describe(connection, [t.oid for t in tables], {t.oid: t.columns for t in tables})
    heaps: defaultdict[int, list[Heap]] = defaultdict(list)
    with classified():
        for root, *heap in connection.execute(_HEAPS, [[t.oid for t in tables]]):
            heaps[root].append(Heap(*heap))
        plans = []
        for table in sorted(tables, key=lambda t: t.bytes):
            if table.oid in relations:
                relation = relations[table.oid]
                parts = [p for h in heaps[table.oid] for p in _parts(relation, h, table.row_filter, part_bytes)]
                estimate = sum(heap.pages * heap.rows_per_page for heap in heaps[table.oid])
                plans.append(TablePlan(relation, tuple(parts), int(estimate)))
    return plans


def _parts(relation: Relation, heap: Heap, row_filter: str | None, part_bytes: int) -> list[Part]:
    step = max(part_bytes // heap.page_bytes, 1)
    # A last part of less than half the size goes with the one before it.
    bounds = list(range(0, max(heap.pages - step // 2, 1), step))
    ends: list[int | None] = [*bounds[1:], None]
    return [Part(relation, heap, row_filter, first, end) for first, end in zip(bounds, ends, strict=True)]
