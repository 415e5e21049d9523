"""Tables, and a load on them that never rests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fixtures.postgres import Database

TABLES = """
CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10,2), note text);
CREATE TABLE pair (a text, b int8, value jsonb, PRIMARY KEY (b, a));
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO item SELECT n, 'name ' || n, n * 1.5, repeat('x', n % 50) FROM generate_series(1, 5000) n;
INSERT INTO pair SELECT 'key ' || n, n % 7, jsonb_build_object('n', n) FROM generate_series(1, 500) n;
INSERT INTO bag SELECT n % 10, 'b' FROM generate_series(1, 100) n;
"""


@contextmanager
def busy(source: Database, statement: str = "SELECT %s") -> Iterator[None]:
    """Change rows all the time: values, keys, inserts and deletes, in transactions that overlap the verification.

    Args:
        source: A database with the tables of `TABLES`.
        statement: What else each transaction executes, with a number that grows.
    """
    stopping = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with source.connect() as connection:
                number = 10_000
                while not stopping.wait(0.002):
                    number += 1
                    with connection.transaction():
                        connection.execute("INSERT INTO item VALUES (%s, 'new', 1, 'n')", [number])
                        connection.execute("UPDATE item SET price = price + 1 WHERE id = %s", [number % 4000 + 1])
                        connection.execute("UPDATE item SET id = -id WHERE id = %s", [number - 5])
                        connection.execute("DELETE FROM item WHERE id = %s", [5 - number + 40])
                        connection.execute(
                            "UPDATE pair SET value = value || '{\"more\": 1}' WHERE b = %s", [number % 3]
                        )
                        connection.execute("INSERT INTO bag VALUES (%s, 'more')", [number % 10])
                        connection.execute(statement, [number])
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    assert not errors, errors
