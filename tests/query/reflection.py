"""Prints, as JSON, what SQLAlchemy's inspector finds in a database. See test_clients."""

import json
import sys
from typing import Any

import sqlalchemy


def reflection(url: str) -> dict[str, Any]:
    """What BI tools ask for: Superset lists schemas, tables and views, and describes each table."""
    engine = sqlalchemy.create_engine(url)
    inspector = sqlalchemy.inspect(engine)
    found: dict[str, Any] = {"version": sqlalchemy.__version__}
    for schema in ("public", "archive"):
        names = sorted(inspector.get_table_names(schema))
        found[schema] = {"tables": names, "views": inspector.get_view_names(schema)}
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
            inspector.get_indexes(name, schema)
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
        for statement in (
            # Superset's statements for PostgreSQL: catalogs, a time grain, a preview with a limit.
            "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname = current_database()",
            "SELECT DATE_TRUNC('month', at) AS at, count(*) AS c FROM parted GROUP BY DATE_TRUNC('month', at)"
            " ORDER BY c DESC, at LIMIT 10000",
            "SELECT * FROM (SELECT * FROM pairs) AS virtual_table ORDER BY a, b LIMIT 101",
        ):
            rows = connection.execute(sqlalchemy.text(statement)).fetchall()
            if "datname" not in statement:
                found[statement] = [list(map(str, row)) for row in rows]
    return found


if __name__ == "__main__":
    print(json.dumps([reflection(url) for url in sys.argv[1:]]))
