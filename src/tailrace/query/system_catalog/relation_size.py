"""How many rows and bytes the relations of a version have, from the summaries of the tables' Iceberg snapshots.

Unlike the system catalog, which most versions share, each version has its own: a table and macros in the version's
catalog. They are created when a statement first needs them, because all tables' metadata files are read for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tailrace.query.system_catalog.system_row import DATABASE

RELATION_ROWS: Final = "relation_rows"
"""The macro that returns `pg_class.reltuples` of an OID: -1 if the number is not known."""
RELATION_PAGES: Final = "relation_pages"
LIVE_ROWS: Final = "relation_live_rows"
"""Macros for `relpages` and `n_live_tup`: NULL if the number is not known."""

_BYTES: Final = "(SELECT _bytes FROM {m}._sizes WHERE _oid = TRY_CAST(o AS BIGINT))"
# The lake has no other forks than the main one.
_FORK: Final = (
    f"CASE WHEN fork = 'main' THEN {_BYTES} WHEN fork IN ('fsm', 'vm', 'init') THEN {_BYTES} * 0"
    " WHEN fork IS NOT NULL THEN error('[22023] invalid fork name') END"
)
# A sum is not known if one of its terms is not.
_DATABASE: Final = (
    "CASE WHEN o::VARCHAR = '{oid}' OR o::VARCHAR = {database} THEN"
    " (SELECT CASE WHEN count(*) = count(_bytes) THEN coalesce(CAST(sum(_bytes) AS BIGINT), 0) END"
    " FROM {m}._sizes WHERE _is_table)"
    " WHEN TRY_CAST(o AS BIGINT) IS NULL AND o IS NOT NULL THEN error('[3D000] that database does not exist') END"
)
_MACROS: Final = (
    f"{RELATION_ROWS}(o) AS CAST(coalesce((SELECT _rows FROM {{m}}._sizes WHERE _oid = o), -1) AS FLOAT)",  # noqa: S608
    f"pg_relation_size(o) AS {_BYTES}, (o, fork) AS {_FORK}",
    # In pages of 8 kB, as PostgreSQL counts.
    f'{RELATION_PAGES}(o) AS CAST(system.main."//"({_BYTES} + 8191, 8192) AS INTEGER)',
    f"{LIVE_ROWS}(o) AS (SELECT _rows FROM {{m}}._sizes WHERE _oid = o)",  # noqa: S608
    f"pg_table_size(o) AS {_BYTES}",
    # The lake stores no indexes.
    f"pg_indexes_size(o) AS {_BYTES} * 0",
    f"pg_total_relation_size(o) AS {_BYTES}",
    f"pg_database_size(o) AS {_DATABASE}",
)
NAMES: Final = frozenset(macro.partition("(")[0] for macro in _MACROS)
"""Functions that need the sizes."""


def create(
    cursor: Any, catalog: str, system_catalog: str, database: str, sizes: Iterable[tuple[int, int | None, int | None]]
) -> None:
    """Create the table and the macros. `sizes` has the OID, rows and bytes of each table."""
    place = f"{catalog}.main"
    cursor.execute(f"CREATE TABLE {place}._sizes (_oid BIGINT, _rows BIGINT, _bytes BIGINT, _is_table BOOLEAN)")
    rows = [[*size, True] for size in sizes]
    if rows:
        cursor.executemany(f"INSERT INTO {place}._sizes VALUES (?, ?, ?, ?)", rows)  # noqa: S608
    # An index has an entry for each row; the lake stores none, so it has no size.
    cursor.execute(
        f"INSERT INTO {place}._sizes SELECT i.indexrelid, s._rows, NULL, false"  # noqa: S608
        f" FROM {system_catalog}.main.pg_index i JOIN {place}._sizes s ON s._oid = i.indrelid"
    )
    quoted = "'" + database.replace("'", "''") + "'"
    for macro in _MACROS:
        text = macro.replace("{m}", place).replace("{oid}", str(DATABASE)).replace("{database}", quoted)
        cursor.execute(f"CREATE MACRO {place}.{text}")
