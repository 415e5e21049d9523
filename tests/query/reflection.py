"""Prints, as JSON, what SQLAlchemy's inspector finds in a database. See test_clients."""

import json
import sys
from typing import Any, Final

import sqlalchemy


def reflection(url: str) -> dict[str, Any]:
    """What BI tools ask for: Superset lists schemas, tables and views, and describes each table."""
    engine = sqlalchemy.create_engine(url)
    inspector: Any = sqlalchemy.inspect(engine)
    found: dict[str, Any] = {"version": sqlalchemy.__version__}
    found["default schema"] = inspector.default_schema_name
    for schema in ("public", "archive"):
        names = sorted(inspector.get_table_names(schema))
        enums = sorted((e["name"], tuple(e["labels"])) for e in inspector.get_enums(schema))
        found[schema] = {"tables": names, "views": inspector.get_view_names(schema), "enums": enums}
        found[schema]["foreign tables"] = inspector.get_foreign_table_names(schema)
        if hasattr(inspector, "get_materialized_view_names"):
            found[schema]["materialized views"] = inspector.get_materialized_view_names(schema)
            found[schema]["all columns"] = sorted(name for _, name in inspector.get_multi_columns(schema=schema))
            inspector.get_domains(schema)
            inspector.get_sequence_names(schema)
        for name in names:
            found[schema][name] = {
                "columns": [
                    (c["name"], str(c["type"]), c["nullable"], c.get("comment"))
                    for c in inspector.get_columns(name, schema)
                ],
                "key": inspector.get_pk_constraint(name, schema)["constrained_columns"],
                "comment": inspector.get_table_comment(name, schema)["text"],
                "exists": inspector.has_table(name, schema),
            }
            # The lake does not know the names of indexes.
            indexes = inspector.get_indexes(name, schema)
            found[schema][name]["indexes"] = [(i["column_names"], i["unique"]) for i in indexes]
            inspector.get_table_oid(name, schema)
            inspector.get_foreign_keys(name, schema)
            inspector.get_unique_constraints(name, schema)
            inspector.get_check_constraints(name, schema)
    found["schemas"] = [s for s in inspector.get_schema_names() if s in ("public", "archive")]
    metadata = sqlalchemy.MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        for table in metadata.sorted_tables:
            count = sqlalchemy.select(sqlalchemy.func.count()).select_from(table)
            found[f"rows of {table.name}"] = connection.execute(count).scalar()
        grains = [f"SELECT {grain.format('at')} AS t FROM parted GROUP BY 1 ORDER BY 1" for grain in _TIME_GRAINS]
        for statement in (*_SUPERSET, *grains):
            rows = connection.execute(sqlalchemy.text(statement.replace(":", "\\:"))).fetchall()
            found[statement] = [list(map(str, row)) for row in rows]
    return found


# Superset's statements for PostgreSQL: catalogs, materialized views, filters by time, previews.
_SUPERSET: Final = (
    "SELECT count(*) FROM pg_database WHERE datistemplate = false AND datname = current_database()",
    "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'archive'"
    " AND c.relkind = 'm' ORDER BY c.relname",
    "SHOW search_path",
    "SELECT DATE_TRUNC('month', at) AS at, count(*) AS c FROM parted GROUP BY DATE_TRUNC('month', at)"
    " ORDER BY c DESC, at LIMIT 10000",
    "SELECT count(*) FROM parted WHERE at >= TO_TIMESTAMP('2024-02-04 00:00:00.000000', 'YYYY-MM-DD HH24:MI:SS.US')"
    " AND at < TO_DATE('2024-07-05', 'YYYY-MM-DD')",
    "SELECT * FROM (SELECT * FROM pairs) AS virtual_table ORDER BY a, b LIMIT 101",
    "SELECT b AS b, SUM(value) AS \"SUM(value)\" FROM public.pairs WHERE a > 0 AND (b IN ('x', 'y')) GROUP BY b"
    ' ORDER BY "SUM(value)" DESC LIMIT 50000',
)
_TIME_GRAINS: Final = (
    "DATE_TRUNC('second', {0})",
    "DATE_TRUNC('minute', {0}) + INTERVAL '5 seconds' * FLOOR(EXTRACT(SECOND FROM {0}) / 5)",
    "DATE_TRUNC('hour', {0}) + INTERVAL '15 minutes' * FLOOR(EXTRACT(MINUTE FROM {0}) / 15)",
    "DATE_TRUNC('day', {0})",
    "DATE_TRUNC('week', {0})",
    "DATE_TRUNC('week', DATE_TRUNC('day', {0}) + INTERVAL '1 day') + INTERVAL '-1 day'",
    "DATE_TRUNC('quarter', {0})",
    "DATE_TRUNC('year', {0})",
)


if __name__ == "__main__":
    print(json.dumps([reflection(url) for url in sys.argv[1:]]))
