"""OpenSearch indices as a destination, read back by OpenSearch's own client."""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests import oracle
from tests.contract.destinations import assert_same, delivered_tables, difference
from tests.contract.scenario import Mark, Scenario
from tests.fixtures.opensearch import Digits, documents, search_client

from tailrace.change import Lsn
from tailrace.delivery.contract import State
from tailrace.embedded.opensearch import OpenSearchServer
from tailrace.sinks.opensearch.index_name import alias_name, name_part

KEYLESS = ("public.twins", "public.bag")
"""Tables whose rows have no key and change: the sink refuses them."""


@dataclass
class SearchIndices:
    server: OpenSearchServer
    more: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = field(default_factory=lambda: f"x{secrets.token_hex(4)}")
    """Of the names of all indices: tests share a server."""

    def settings(self) -> Mapping[str, Any]:
        return {
            "type": "opensearch",
            "url": self.server.url,
            "index": f"{self.prefix}-{{schema}}-{{table}}",
            "cursor_index": f"{self.prefix}-cursors",
            "index_settings": {"number_of_replicas": "0"},
            "exclude": list(KEYLESS),
            **self.more,
        }

    def close(self) -> None:
        search_client(self.server.url).indices.delete(
            index=f"{self.prefix}-*", params={"expand_wildcards": "all", "ignore_unavailable": "true"}
        )

    def alias(self, schema: str, table: str) -> str:
        return alias_name(f"{self.prefix}-{name_part(schema)}-{name_part(table)}")

    def documents(self, schema: str, table: str) -> dict[str, dict[str, Any]]:
        return documents(self.server.url, self.alias(schema, table))

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        for name, table in delivered_tables(mark, state).items():
            if ".".join(name) in KEYLESS:
                continue
            types = {column["name"]: column["data_type"] for column in mark.described.get(name, ())}
            found = self.rows(name, table.columns, types)
            expected = self.comparable(table.rows, table.columns, types)
            assert found == expected, f"{name}: {difference(found, expected)}"
        self.assert_no_leftovers()

    def rows(self, name: tuple[str, str], columns: Sequence[str], types: Mapping[str, str]) -> oracle.Rows:
        """The documents as PostgreSQL's rows."""
        fields = {column: column.replace("%", "%25").replace(".", "%2e") for column in columns}
        found: oracle.Rows = Counter()
        for document in self.documents(*name).values():
            assert document.keys() <= set(fields.values()), f"{name}: {document.keys() - set(fields.values())}"
            values = [
                _text(document[fields[column]], types.get(column, "")) if fields[column] in document else None
                for column in columns
            ]
            found[_comparable(tuple(None if v is None else v.encode() for v in values), columns, types)] += 1
        return found

    def comparable(self, rows: oracle.Rows, columns: Sequence[str], types: Mapping[str, str]) -> oracle.Rows:
        """PostgreSQL's rows in the form that `rows` returns."""
        return Counter({_comparable(row, columns, types): count for row, count in rows.items()})

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        aliases = search_client(self.server.url).indices.get_alias(index=f"{self.prefix}-*")
        names = {alias for index in aliases.values() for alias in index["aliases"] if "~" not in alias}
        assert_same(names, (self.alias(schema, table) for table in tables))
        for table, rows in tables.items():
            found: oracle.Rows = Counter()
            for document in self.documents(schema, table).values():
                values = [_text(value, "") for value in document.values()]
                found[tuple(None if value is None else value.encode() for value in values)] += 1
            assert found == rows, f"{table}: {difference(found, rows)}"

    def fingerprint(self) -> Any:
        client = search_client(self.server.url)
        aliases = client.indices.get_alias(index=f"{self.prefix}-*", params={"expand_wildcards": "all"})
        names = sorted(alias for index in aliases.values() for alias in index["aliases"] if "~" not in alias)
        return {name: documents(self.server.url, name) for name in names}

    def assert_no_leftovers(self) -> None:
        """Every index belongs to a table, except that of the cursor."""
        client = search_client(self.server.url)
        aliases = client.indices.get_alias(index=f"{self.prefix}-*", params={"expand_wildcards": "all"})
        unused = [name for name, index in aliases.items() if len(index["aliases"]) < 2]
        assert unused in ([], [f"{self.prefix}-cursors"]), "indices were left behind"


def _text(value: Any, data_type: str) -> str | None:
    """PostgreSQL's text of a document's value."""
    if data_type in ("json", "jsonb"):
        return json.dumps(value)
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, list):
        return "{" + ",".join(_element(item) for item in value) + "}"
    assert isinstance(value, str), type(value)
    if data_type.startswith("timestamp") and not isinstance(value, Digits):
        value = re.sub(r"^(\S+)T(\S+)Z$", r"\1 \2", value)
        if data_type.endswith("with time zone") and "infinity" not in value and "+" not in value:
            value = f"{value}+00"
    return str(value)


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    text = _text(value, "")
    assert text is not None
    if text == "" or text.upper() == "NULL" or re.search(r'[\s{}",\\]', text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _comparable(row: oracle.Row, columns: Sequence[str], types: Mapping[str, str]) -> oracle.Row:
    """The row, with json in one form: the sink writes it on one line."""
    return tuple(
        json.dumps(json.loads(value, parse_int=Digits, parse_float=Digits)).encode()
        if value is not None and types.get(column) in ("json", "jsonb")
        else value
        for column, value in zip(columns, row, strict=True)
    )
