"""OpenSearch indices as a destination, read back by OpenSearch's own client."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests import oracle
from tests.contract.destinations import assert_same, delivered_tables, difference
from tests.contract.document_row import comparable_row, postgres_text
from tests.contract.scenario import Mark, Scenario
from tests.fixtures.opensearch import documents, search_client

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
                postgres_text(document[fields[column]], types.get(column, "")) if fields[column] in document else None
                for column in columns
            ]
            found[comparable_row(tuple(None if v is None else v.encode() for v in values), columns, types)] += 1
        return found

    def comparable(self, rows: oracle.Rows, columns: Sequence[str], types: Mapping[str, str]) -> oracle.Rows:
        """PostgreSQL's rows in the form that `rows` returns."""
        return Counter({comparable_row(row, columns, types): count for row, count in rows.items()})

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        aliases = search_client(self.server.url).indices.get_alias(index=f"{self.prefix}-*")
        names = {alias for index in aliases.values() for alias in index["aliases"] if "~" not in alias}
        assert_same(names, (self.alias(schema, table) for table in tables))
        for table, rows in tables.items():
            found: oracle.Rows = Counter()
            for document in self.documents(schema, table).values():
                values = [postgres_text(value, "") for value in document.values()]
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
