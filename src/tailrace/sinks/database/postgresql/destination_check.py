"""Checks whether a role can deliver to a PostgreSQL database: temporary tables, and what it may create in schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from tailrace.finding import Finding, Severity

_OLDEST: Final = 14


def destination_findings(connection: psycopg.Connection[Any], own: str, targets: Iterable[str]) -> Iterator[Finding]:
    """Report what the role lacks. Since PostgreSQL 15, only a database's owner may create tables in `public`.

    Args:
        connection: A connection to the destination.
        own: The schema of Tailrace's own tables.
        targets: The schemas of the tables that are delivered, as far as they are known.
    """
    with connection.cursor(row_factory=dict_row) as cursor:
        database = cursor.execute(
            "SELECT current_user AS role, pg_catalog.current_database() AS name,"
            " pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS may_create,"
            " pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY') AS may_use_temporary"
        ).fetchone()
        assert database is not None
        schemas = cursor.execute(
            "SELECT n.nspname::text AS name, pg_catalog.has_schema_privilege(n.oid, 'CREATE') AS may_create,"
            " pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS may_use FROM pg_catalog.pg_namespace n"
        ).fetchall()
    role, name = str(database["role"]), str(database["name"])
    version = connection.info.server_version // 10000
    if version < _OLDEST:
        message = f"is PostgreSQL {version}: the sink needs {_OLDEST} or newer"
        yield Finding(Severity.ERROR, "the destination's server", message)
    if connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone() == (True,):
        yield Finding(Severity.ERROR, "the destination's server", "is a standby: nothing can be written to it")
    if not database["may_use_temporary"]:
        yield Finding(
            Severity.ERROR,
            f"role {role}",
            f"may not create temporary tables in database {name}, which rows are staged in",
            _grant(connection, "GRANT TEMPORARY ON DATABASE {} TO {};", name, role),
        )
    existing = {str(schema["name"]): schema for schema in schemas}
    for wanted in dict.fromkeys([own, *targets]):
        schema = existing.get(wanted)
        if schema is None and not database["may_create"]:
            yield Finding(
                Severity.ERROR,
                f"schema {wanted}",
                f"does not exist, and role {role} may not create it in database {name}",
                _grant(connection, "GRANT CREATE ON DATABASE {} TO {};", name, role),
            )
        elif schema is not None and not (schema["may_create"] and schema["may_use"]):
            yield Finding(
                Severity.ERROR,
                f"schema {wanted}",
                f"does not let role {role} create tables",
                _grant(connection, "GRANT USAGE, CREATE ON SCHEMA {} TO {};", wanted, role),
            )


def _grant(connection: psycopg.Connection[Any], text: Any, *names: str) -> str:
    return sql.SQL(text).format(*map(sql.Identifier, names)).as_string(connection)
