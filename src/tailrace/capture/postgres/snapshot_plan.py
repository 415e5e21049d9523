"""Plans a snapshot: each table as pgoutput would describe it, split into parts that workers copy one by one.

The plan is read in a transaction that uses the snapshot, so that definitions are those at its LSN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.catalog import PublishedTable
from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import Relation

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Heap:
    """The storage of rows: the table itself, or one partition of it."""

    oid: int
    schema: str
    name: str
    pages: int
    page_bytes: int
    rows_per_page: float
    """From the last ANALYZE; an estimate if there was none."""


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows of one table that a worker copies at a time: those in a range of pages of one heap."""

    relation: Relation
    heap: Heap
    row_filter: str | None
    first_page: int
    end_page: int | None
    """None for the last part, because pages may have been added since they were counted."""

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
        """The query. It names the columns, because a partition may have them in another order than its root."""
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.relation.columns)
        heap = sql.Identifier(self.heap.schema, self.heap.name)
        return sql.SQL("SELECT {} FROM ONLY {}{}").format(columns, heap, self.where)


@dataclass(frozen=True, slots=True)
class TablePlan:
    relation: Relation
    parts: tuple[TablePart, ...]
    estimated_rows: int


# The stream never has changes of foreign and unlogged partitions, so the snapshot leaves out their rows too.
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


def select_tables(
    connection: Connection, publication: str, oids: Collection[int] | None = None
) -> list[PublishedTable]:
    return [table for table in catalog.published_tables(connection, publication) if oids is None or table.oid in oids]


def plan(connection: Connection, tables: Collection[PublishedTable], part_bytes: int) -> list[TablePlan]:
    """Plan the copies, smallest table first: the more tables are finished, the less an interruption costs."""
    relations = catalog.describe(connection, [t.oid for t in tables], {t.oid: t.columns for t in tables})
    heaps: defaultdict[int, list[Heap]] = defaultdict(list)
    with source_errors():
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


def _parts(relation: Relation, heap: Heap, row_filter: str | None, part_bytes: int) -> list[TablePart]:
    step = max(part_bytes // heap.page_bytes, 1)
    # A last part of less than half the size is merged into the one before it.
    bounds = list(range(0, max(heap.pages - step // 2, 1), step))
    ends: list[int | None] = [*bounds[1:], None]
    return [TablePart(relation, heap, row_filter, first, end) for first, end in zip(bounds, ends, strict=True)]
