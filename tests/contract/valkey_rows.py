"""The rows of a sink in a Valkey server, read by a client that is independent of Tailrace's own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from tests import oracle
from tests.contract.destinations import delivered_tables, difference
from tests.contract.document_row import comparable_row, postgres_text
from tests.contract.scenario import Mark, Scenario
from tests.fixtures.opensearch import Digits

from tailrace.change import Lsn
from tailrace.delivery.contract import State
from tailrace.embedded.valkey import ValkeyServer

KEYLESS = ("public.nothing", "public.twins", "public.bag")
"""Tables without a key, whose rows cannot have keys at the destination either."""


def connect(server: ValkeyServer) -> redis.Redis:
    return redis.Redis(port=server.port)


def escaped(name: str) -> str:
    """A name as a part of a key."""
    return "".join(f"%{ord(c):02X}" if c in "%:{}\x7f" or c <= " " else c for c in name)


@dataclass
class ValkeyRows:
    """A server that holds nothing but the rows of one sink, as hashes or as JSON."""

    server: ValkeyServer
    mode: str
    without: tuple[str, ...] = KEYLESS

    def __post_init__(self) -> None:
        connect(self.server).flushall()

    def settings(self) -> Mapping[str, Any]:
        return {"type": "valkey", "url": self.server.url, "mode": self.mode, "exclude": list(self.without)}

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        found = self.rows()
        for name, table in delivered_tables(mark, state).items():
            if ".".join(name) in self.without:
                continue
            own = [row for key, row in found.items() if key.startswith(f"{escaped(name[0])}:{escaped(name[1])}:")]
            if self.mode == "hash":
                rows = Counter(tuple(row.get(column) for column in table.columns) for row in own)
                assert rows == table.rows, f"{name}: {difference(rows, table.rows)}"
                fields = {field for row in own for field in row}
                assert fields <= {*table.columns}, f"{name}: {fields} of dropped columns"
                continue
            types = {column["name"]: column["data_type"] for column in mark.described.get(name, ())}
            documents = Counter(document_row(document, table.columns, types) for document in own)
            expected = Counter(comparable_document(row, table.columns, types) for row in table.rows.elements())
            assert documents == expected, f"{name}: {difference(documents, expected)}"
        assert set(connect(self.server).keys("tailrace:*")) >= {b"tailrace:tested"}
        assert not connect(self.server).keys("tailrace:tested:loaded:*"), "a load was not finished"

    def rows(self) -> dict[str, Any]:
        """All rows by key: fields and their texts, or documents."""
        client = connect(self.server)
        found: dict[str, Any] = {}
        for key in client.scan_iter(count=1000):
            if key.startswith(b"tailrace:"):
                continue
            if self.mode == "hash":
                fields: dict[Any, Any] = client.hgetall(key)
                found[key.decode()] = {name.decode(): value for name, value in fields.items()}
            else:
                text = client.get(key) or b""
                found[key.decode()] = json.loads(text, parse_int=Digits, parse_float=Digits)
        return found

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        found = self.rows()
        assert {key.rpartition(":")[0] for key in found} == {f"{schema}:{name}" for name in tables}
        for name, expected in tables.items():
            own = [row for key, row in found.items() if key.startswith(f"{schema}:{name}:")]
            # Without NULLs, and in any order: the tables' columns cannot be mistaken for each other.
            texts = Counter(tuple(sorted(_text(v) for v in row.values() if v is not None)) for row in own)
            wanted = Counter(tuple(sorted(v for v in row if v is not None)) for row in expected.elements())
            assert texts == wanted, name

    def fingerprint(self) -> Any:
        return self.rows()


def _text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def document_row(document: Mapping[str, Any], columns: Sequence[str], types: Mapping[str, str]) -> oracle.Row:
    """A document as PostgreSQL's row."""
    assert document.keys() == {*columns}
    texts = [None if document[c] is None else postgres_text(document[c], types.get(c, "")) for c in columns]
    return comparable_document(tuple(None if text is None else text.encode() for text in texts), columns, types)


def comparable_document(row: oracle.Row, columns: Sequence[str], types: Mapping[str, str]) -> oracle.Row:
    """A row in which JSON's null is NULL: in a document they are the same."""
    found = comparable_row(row, columns, types)
    is_json = [types.get(column) in ("json", "jsonb") for column in columns]
    return tuple(None if json_ and value == b"null" else value for value, json_ in zip(found, is_json, strict=True))
