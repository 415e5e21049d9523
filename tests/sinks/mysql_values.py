"""Values of every PostgreSQL type on their way to MySQL or MariaDB and back, without the sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from psycopg import sql
from tests import oracle
from tests.fixtures.postgres import Database

from tailrace.capture.postgres import catalog
from tailrace.change import Relation
from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.sinks.mysql import load_data
from tailrace.sinks.mysql.column_mapping import ColumnMapping, map_relation
from tailrace.sinks.mysql.flavour import Flavour
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.loading_connection import LoadingConnection
from tailrace.sinks.mysql.unrepresentable import UnrepresentablePolicy

Texts = list[str | None]


def connect(server: MysqlFamilyServer) -> LoadingConnection:
    connection = LoadingConnection(
        host="127.0.0.1",
        port=server.port,
        user=server.user,
        password=server.password,
        database=server.database,
        charset="utf8mb4",
        autocommit=True,
    )
    query(connection, "SET sql_mode = 'STRICT_ALL_TABLES'")
    return connection


def query(connection: LoadingConnection, statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def flavour_of(connection: LoadingConnection) -> Flavour:
    return Flavour.parse(query(connection, "SELECT VERSION()")[0][0])


def mapped(
    connection: LoadingConnection, relation: Relation, policy: str | dict[str, str] = "stop"
) -> tuple[ColumnMapping, ...]:
    return map_relation(relation, flavour_of(connection), UnrepresentablePolicy.parse(policy))


def create(connection: LoadingConnection, mappings: Sequence[ColumnMapping], table: str = "t") -> None:
    """Create a table anew, with a number of each row before its columns."""
    query(connection, f"DROP TABLE IF EXISTS {quote(table)}")
    key = [quote(m.name) for m in mappings if m.is_key]
    declarations = ["`#` INT NOT NULL", *(m.declaration for m in mappings)]
    declarations += [f"PRIMARY KEY ({', '.join(key)})"] if key else []
    query(connection, f"CREATE TABLE {quote(table)} ({', '.join(declarations)}) ENGINE = InnoDB")


def load(
    connection: LoadingConnection, mappings: Sequence[ColumnMapping], columns: Sequence[pa.Array], table: str = "t"
) -> None:
    """Load encoded columns, and accept no warning."""
    count = len(columns[0])
    numbers = pa.array(range(count))
    names = ["#", *(m.name for m in mappings)]
    found = connection.load(quote(table), names, load_data.lines([numbers, *columns], count))
    assert found == (count, 0), query(connection, "SHOW WARNINGS")


def insert(
    connection: LoadingConnection, mappings: Sequence[ColumnMapping], columns: Sequence[pa.Array], table: str = "t"
) -> None:
    """Insert encoded columns by one statement of many rows."""
    numbers = pa.array(map(str, range(len(columns[0]))))
    names = ", ".join(quote(name) for name in ["#", *(m.name for m in mappings)])
    rows = b",".join(load_data.row_literals([numbers, *columns]))
    connection.query(f"INSERT INTO {quote(table)} ({names}) VALUES ".encode() + rows)


def read(connection: LoadingConnection, mappings: Sequence[ColumnMapping], table: str = "t") -> list[Texts]:
    """PostgreSQL's texts of each column, from what the destination holds."""
    names = ", ".join(quote(m.name) for m in mappings)
    rows = query(connection, f"SELECT {names} FROM {quote(table)} ORDER BY `#`")
    return [m.decode([row[i] for row in rows]).to_pylist() for i, m in enumerate(mappings)]


def every_type(
    database: Database, declarations: str, values: Mapping[str, Sequence[str | None]]
) -> tuple[Relation, list[Texts]]:
    """A table with a column of each type, and PostgreSQL's texts of the columns' values.

    Args:
        database: Where to create it.
        declarations: Creates the types that PostgreSQL lacks.
        values: Types in SQL with values.
    """
    names = [f"c{i}" for i in range(len(values))]
    count = max(map(len, values.values()))
    padded = [[*column, *[None] * (count - len(column))] for column in values.values()]
    with database.connect() as connection:
        connection.execute(declarations.encode())
        columns = ", ".join(f"{name} {type_}" for name, type_ in zip(names, values, strict=True))
        connection.execute(f"CREATE TABLE every (id serial, {columns})".encode())
        places = sql.SQL(", ").join([sql.Placeholder()] * len(names))
        statement = sql.SQL("INSERT INTO every ({}) VALUES ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, names)), places
        )
        with connection.cursor() as cursor:
            cursor.executemany(statement, zip(*padded, strict=True))
        oracle.pin(connection)
        selected = f"SELECT {', '.join(names)} FROM public.every ORDER BY id"
        result = connection.execute(selected.encode()).pgresult
        assert result is not None
        texts = [
            [None if (v := result.get_value(row, column)) is None else v.decode() for row in range(count)]
            for column in range(len(names))
        ]
        ((oid,),) = connection.execute("SELECT 'public.every'::regclass::oid").fetchall()
        relation = catalog.describe(connection, [oid], {oid: names})[oid]
    return relation, texts
