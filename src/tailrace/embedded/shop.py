"""The demo's shop: its tables, and simulated customers who order, pay, cancel and leave."""

from __future__ import annotations

import json
import random
from types import TracebackType
from typing import Any

import psycopg

from tailrace.background import BackgroundThread
from tailrace.embedded.postgres import Postgres

KEYS = {"customers": ("id",), "orders": ("id",), "order_items": ("order_id", "line")}
TABLES = tuple(KEYS)

_SCHEMA = """
CREATE TABLE customers (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, email text UNIQUE, joined_at timestamptz
        NOT NULL DEFAULT now());
CREATE TABLE orders (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id int NOT NULL REFERENCES customers,
    status text NOT NULL DEFAULT 'new', total numeric(10,2) NOT NULL, placed_at timestamptz NOT NULL DEFAULT now());
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE order_items (
    order_id int REFERENCES orders ON DELETE CASCADE, line int, product text NOT NULL, quantity int NOT NULL,
    price numeric(10,2) NOT NULL, attributes jsonb, PRIMARY KEY (order_id, line));
"""
_FIRST = [
    "Ada",
    "Alan",
    "Barbara",
    "Claude",
    "Donald",
    "Edsger",
    "Grace",
    "Hedy",
    "Joan",
    "Katherine",
    "Leslie",
    "Linus",
    "Margaret",
    "Radia",
    "Tim",
]
_LAST = [
    "Allen",
    "Codd",
    "Dijkstra",
    "Goldberg",
    "Hamilton",
    "Hopper",
    "Knuth",
    "Lamarr",
    "Liskov",
    "Lovelace",
    "Perlman",
    "Ritchie",
    "Turing",
]
_PRODUCTS = {"kettle": 39, "teapot": 28, "cup": 7, "tea, 100 g": 12, "strainer": 5, "tray": 19, "honey": 9}


class Shop(BackgroundThread):
    """Creates the tables; while the context lasts, customers make about `per_second` transactions per second."""

    def __init__(self, server: Postgres, *, per_second: float = 150.0, seed: int = 1) -> None:
        self._server = server
        self._pause = 1 / per_second
        self._rng = random.Random(seed)  # noqa: S311 (a simulation, not a secret)
        super().__init__("shop")
        self._error: BaseException | None = None
        with server.connect(autocommit=True) as connection:
            connection.execute(_SCHEMA)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            with self._server.connect(autocommit=True) as connection:
                for _ in range(20):
                    self._join(connection)
                actions = (self._join, self._order, self._advance, self._cancel, self._leave)
                while not self._stopping.wait(self._rng.expovariate(1 / self._pause)):
                    self._rng.choices(actions, (2, 6, 8, 1, 0.3))[0](connection)
        except psycopg.Error as error:
            self._error = error

    def _join(self, connection: psycopg.Connection[Any]) -> None:
        name = f"{self._rng.choice(_FIRST)} {self._rng.choice(_LAST)}"
        email = f"{name.lower().replace(' ', '.')}.{self._rng.randrange(10**9)}@example.com"
        connection.execute("INSERT INTO customers (name, email) VALUES (%s, %s)", (name, email))

    def _order(self, connection: psycopg.Connection[Any]) -> None:
        items = self._rng.sample(list(_PRODUCTS.items()), self._rng.randint(1, 4))
        lines = [(n, product, self._rng.randint(1, 3), price) for n, (product, price) in enumerate(items, 1)]
        with connection.transaction():
            row = connection.execute(
                "INSERT INTO orders (customer_id, total) SELECT id, %s FROM customers ORDER BY random() LIMIT 1"
                " RETURNING id",
                (sum(quantity * price for _, _, quantity, price in lines),),
            ).fetchone()
            if row is None:
                return
            with connection.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO order_items VALUES (%s, %s, %s, %s, %s, jsonb_build_object('gift', %s::bool))",
                    [(row[0], *line, self._rng.random() < 0.2) for line in lines],
                )

    def _advance(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            # The context for the audit trail: who made the change.
            who = json.dumps({"user": self._rng.choice(_FIRST), "request": f"r-{self._rng.randrange(10**6)}"})
            connection.execute("SELECT pg_logical_emit_message(true, '_bemi', %s)", (who,))
            connection.execute(
                "UPDATE orders SET status = CASE status WHEN 'new' THEN 'paid' WHEN 'paid' THEN 'sent' ELSE 'done' END"
                " WHERE id = (SELECT id FROM orders WHERE status <> 'done' ORDER BY random() LIMIT 1)"
            )

    def _cancel(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "DELETE FROM orders WHERE id = (SELECT id FROM orders WHERE status = 'new' ORDER BY random() LIMIT 1)"
        )

    def _leave(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "DELETE FROM customers WHERE id = (SELECT id FROM customers c WHERE NOT EXISTS"
            " (SELECT FROM orders WHERE customer_id = c.id) ORDER BY random() LIMIT 1)"
        )
