"""An audit table as a destination, compared change by change with the log as `LogReader` returns it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql
from tests.contract.destinations import assert_same
from tests.fixtures.postgres import Database

from tailrace.change import Change, Lsn, Operation, Position
from tailrace.log.change_text import to_json

UNCHANGED = "__tailrace_unchanged"


@dataclass
class AuditTable:
    database: Database
    more: Mapping[str, Any] = field(default_factory=dict)
    table: str = "public.changes"

    def settings(self) -> Mapping[str, Any]:
        return {"type": "audit", "url": self.database.url, **self.more}

    def rows(self) -> dict[Position, Row]:
        query = sql.SQL("SELECT * FROM {} ORDER BY commit_position, ordinal").format(
            sql.Identifier(*self.table.split("."))
        )
        with self.database.connect(client_encoding="UTF8") as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = connection.execute(query)
            assert found.description is not None
            names = [column.name for column in found.description]
            rows = [Row(dict(zip(names, row, strict=True))) for row in found]
        positions = [row.position for row in rows]
        assert len(set(positions)) == len(positions), "delivered twice"
        assert len({row["id"] for row in rows}) == len(rows)
        return dict(zip(positions, rows, strict=True))

    def assert_matches(self, changes: Iterable[Change], start: Lsn, end: Lsn) -> None:
        """Assert that the trail has exactly the changes of tables that commit from `start` to below `end`."""
        expected = {c.position: c for c in changes if c.relation and start <= c.position.commit_lsn < end}
        found = self.rows()
        assert_same(found, expected)
        contexts = dict(contexts_of(changes))
        for position, normal in zip(expected, self._expected_content(expected.values()), strict=True):
            row, change = found[position], expected[position]
            assert row.content(change) == normal, f"{position}: {change.operation} of {change.table}"
            assert row["context"] == contexts.get(position), position
            assert set(row["unchanged"] or ()) <= set(change.unchanged), position
            for name in change.unchanged:
                is_known = name not in (row["unchanged"] or ())
                assert (row["after"][name] != UNCHANGED) == is_known, position

    def _expected_content(self, changes: Iterable[Change]) -> Iterator[dict[str, Any]]:
        """The expected content of each change, with JSON as jsonb prints it."""
        with self.database.connect(client_encoding="UTF8") as connection:
            for change in changes:
                raw = json.loads(to_json(change), parse_float=str, parse_int=str)
                texts = _texts(change)
                row = connection.execute("SELECT %s::jsonb, %s::jsonb", [texts["before"], texts["after"]]).fetchone()
                assert row is not None
                yield {
                    "operation": raw["operation"],
                    "schema": raw["schema"],
                    "table": raw["table"],
                    "before": row[0],
                    "after": row[1],
                    "xid": change.xid,
                    "position": int(change.lsn),
                    "committed_at": change.committed_at,
                }


class Row(dict[str, Any]):
    @property
    def position(self) -> Position:
        return Position(Lsn(self["commit_position"]), self["ordinal"])

    def content(self, change: Change) -> dict[str, Any]:
        after = self["after"]
        sent = after and {name: value for name, value in after.items() if name not in change.unchanged}
        names = ("operation", "schema", "table", "before", "xid", "position", "committed_at")
        return {name: self[name] for name in names} | {"after": sent}


def _texts(change: Change) -> dict[str, str | None]:
    """`before` and `after` as JSON, cut out of the change's JSON."""
    text = to_json(change)
    decoder = json.JSONDecoder()
    found: dict[str, str | None] = {}
    for name in ("key", "before", "after"):
        start = text.index(f'"{name}": ') + len(name) + 4
        _, end = decoder.raw_decode(text, start)
        found[name] = None if text[start:end] == "null" else text[start:end]
    is_upsert = change.relation is not None and change.relation.is_upsert  # nobody knows whether there was a row
    if change.operation is Operation.UPDATE and found["before"] is None and not is_upsert:
        found["before"] = found["key"]
    return found


def contexts_of(changes: Iterable[Change]) -> Iterator[tuple[Position, Any]]:
    """By the documented rule, transaction by transaction."""
    by_commit: dict[Lsn, list[Change]] = {}
    for change in changes:
        by_commit.setdefault(change.position.commit_lsn, []).append(change)
    for events in by_commit.values():
        messages = [e for e in events if e.prefix == "_bemi" and e.transactional]
        if not messages:
            continue
        leads = all(event.relation is None for event in events[: events.index(messages[0])])
        for number, event in enumerate(events):
            if event.relation is None:
                continue
            before = [e for e in events[:number] if e in messages]
            after = [e for e in events[number:] if e in messages]
            chosen = before[-1] if before and (leads or not after) else after[0]
            yield event.position, json.loads(chosen.content or b"")
