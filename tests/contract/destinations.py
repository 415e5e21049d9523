"""The sinks under test: how each is configured, and how its destination is compared with what it must hold.

Destinations that keep tables are compared with PostgreSQL's rows. Event destinations are compared change by change with
the log as `LogReader` returns it, and with the rows that snapshots were made from. `test_the_scenario_itself` proves
once that these two result in PostgreSQL's rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from tests import oracle
from tests.contract import recorder
from tests.contract.scenario import Mark, Scenario
from tests.fixtures.postgres import Database

from tailrace import types
from tailrace.change import Change, Lsn, Operation, Position, Relation, Unchanged
from tailrace.delivery.contract import State
from tailrace.log import change_text
from tailrace.store import Store


class Place(Protocol):
    """A place that a sink delivers to."""

    def settings(self) -> Mapping[str, Any]:
        """The settings of its `[[sink]]`, without the name."""


class Destination(Place, Protocol):
    """The destination of one sink, created for one test."""

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        """Assert that the destination of a sink at a mark holds what it must. `began` is the sink's first cursor."""

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        """Assert that there are these tables and no others. Rows have the delivered columns, in their order."""

    def fingerprint(self) -> Any:
        """All visible content, to be compared with itself later."""


def delivered_tables(mark: Mark, state: State) -> dict[tuple[str, str], Any]:
    """The tables of a mark that the sink has, except those whose snapshot is newer."""
    return {
        name: table
        for name, table in mark.tables.items()
        if state.tables.get(table.oid, Lsn((1 << 64) - 1)) <= mark.lsn
    }


@dataclass
class Mirror:
    """Tables in another database."""

    database: Database
    type: str = "postgres"

    def settings(self) -> Mapping[str, Any]:
        return {"type": self.type, "url": self.database.url}

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        with self.database.connect(client_encoding="UTF8") as connection:
            for name, table in delivered_tables(mark, state).items():
                found = oracle.rows(connection, *name, table.columns)
                assert found == table.rows, f"{name}: {difference(found, table.rows)}"
            left = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'staged_%' AND relkind = 'r'")
            assert left.fetchall() == [], "staged tables were left behind"

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        with self.database.connect(client_encoding="UTF8") as connection:
            assert_same(_tables(connection), ((schema, name) for name in tables))
            for name, rows in tables.items():
                found = oracle.rows(connection, schema, name)
                assert found == rows, f"{name}: {difference(found, rows)}"

    def fingerprint(self) -> Any:
        with self.database.connect(client_encoding="UTF8") as connection:
            return {name: oracle.rows(connection, *name) for name in _tables(connection)}


@dataclass
class History:
    """Every version of every row, in another database."""

    database: Database

    def settings(self) -> Mapping[str, Any]:
        return {"type": "postgres", "url": self.database.url, "mode": "history"}

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        """Assert that the valid versions are the rows, and that each change began and ended the right versions."""
        begun: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        with self.database.connect(client_encoding="UTF8") as connection:
            for name, table in delivered_tables(mark, state).items():
                versions = oracle.rows(connection, *name, ["_valid_to_position", *table.columns])
                found = Counter({row[1:]: count for row, count in versions.items() if row[0] is None})
                assert found == table.rows, f"{name}: {difference(found, table.rows)}"
            for name in _tables(connection):
                own = ["_valid_from_position", "_valid_to_position", "_operation"]
                for (first, last, operation), count in oracle.rows(connection, *name, own).items():
                    assert first is not None
                    assert operation is not None
                    if operation != b"SNAPSHOT":
                        begun[first.decode()] += count
                    if last is not None:
                        ended[last.decode()] += count
        assert_versions(scenario, state, began, begun, ended)

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        with self.database.connect(client_encoding="UTF8") as connection:
            assert_same(_tables(connection), ((schema, name) for name in tables))
            for name, rows in tables.items():
                versions = oracle.rows(connection, schema, name)
                # Five columns of the history follow the table's columns. The second of them is the version's end.
                found = Counter({row[:-5]: count for row, count in versions.items() if row[-4] is None})
                assert found == rows, f"{name}: {difference(found, rows)}"

    def fingerprint(self) -> Any:
        with self.database.connect(client_encoding="UTF8") as connection:
            return {name: oracle.rows(connection, *name) for name in _tables(connection)}


def assert_versions(
    scenario: Scenario, state: State, began: Lsn, begun: Mapping[str, int], ended: Mapping[str, int]
) -> None:
    """Assert that each change began and ended the right number of versions, which are given by position."""
    changes = [c for c in expected_changes(scenario, state, began) if c.relation is not None]
    assert_same(begun.items(), Counter(str(c.position) for c in changes if c.operation in ("INSERT", "UPDATE")).items())
    many = {str(c.position) for c in changes if c.operation == "TRUNCATE"}
    many |= {end for end in ended if end.endswith(":0") and Lsn.parse(end[:-2]) in state.tables.values()}
    one = Counter(str(c.position) for c in changes if c.operation in ("UPDATE", "DELETE"))
    assert_same({end: count for end, count in ended.items() if end not in many}.items(), one.items())


def _tables(connection: oracle.Connection) -> list[tuple[str, str]]:
    return connection.execute(
        "SELECT schemaname, tablename FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema', 'tailrace')"
        # Temporary tables of a session that is about to end.
        " AND schemaname NOT LIKE 'pg_temp%' ORDER BY 1, 2"
    ).fetchall()


@dataclass(frozen=True)
class Record:
    """One change in the destination's own format."""

    position: Position
    is_last: bool
    content: Any


class EventDestination(Protocol):
    """A destination that receives events instead of rows."""

    def records(self) -> Iterator[Record]:
        """The records of changes from the log."""

    def loaded(self) -> Iterator[tuple[tuple[int, Lsn], Any]]:
        """The rows of snapshots, by oid and LSN."""

    def content(self, change: Change) -> Any:
        """The content that a record of this change must have."""

    def row(self, relation: Relation, row: oracle.Row) -> Any:
        """The same for a snapshot's row."""


def assert_delivered(
    destination: EventDestination,
    scenario: Scenario,
    state: State,
    began: Lsn,
    *,
    again: bool = False,
) -> None:
    """Assert that all changes of the log and each table's snapshot were delivered once. `again`: at least once."""
    found: dict[Position, Record] = {}
    for record in destination.records():
        assert again or record.position not in found, f"{record.position} is delivered twice"
        found[record.position] = record
    expected = {change.position: change for change in expected_changes(scenario, state, began)}
    assert_same(found, expected)
    contents = scenario.known.setdefault(type(destination), {})
    for position, change in expected.items():
        if position not in contents:
            contents[position] = destination.content(change)
        assert found[position].content == contents[position], f"{position}: {change.operation} of {change.table}"
    rows: dict[tuple[int, Lsn], Counter[Any]] = {key: Counter() for key in state.tables.items()}
    for key, row in destination.loaded():
        rows.setdefault(key, Counter())[row] += 1
    relations = {(s.relation.oid, s.lsn): s.relation for s in scenario.snapshots}
    for key, delivered in rows.items():
        if key not in contents:
            contents[key] = Counter(destination.row(relations[key], row) for row in scenario.copied[key].elements())
        matches = set(delivered) == set(contents[key]) if again else delivered == contents[key]
        assert matches, relations[key].qualified_name


@dataclass
class RecorderFiles:
    """The files that `tests.contract.recorder` writes."""

    directory: Path
    type: str

    def beside(self, name: str) -> RecorderFiles:
        """Another destination of the same kind."""
        return RecorderFiles(self.directory / name, self.type)

    def settings(self) -> Mapping[str, Any]:
        return {"type": f"tests.contract.recorder:{self.type}", "directory": str(self.directory)}

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        assert_delivered(self, scenario, state, began)

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        changes = sorted(
            (
                one
                for part in recorder.written_parts(self.directory)
                for one in part.changes
                if one.relation is not None
            ),
            key=lambda one: (one.load is None, one.position),
        )
        assert_same({one.target for one in changes}, ((schema, name) for name in tables))
        replica = oracle.Replica()
        for one in changes:
            assert one.relation is not None
            relation = replace(one.relation, schema=one.target[0], name=one.target[1])
            if one.load is not None:
                replica.load(relation, [one.new])  # type: ignore[list-item]
                continue
            what = Operation(one.operation)
            epoch = datetime.fromtimestamp(0, UTC)
            replica.apply(Change(one.position, Lsn(0), 0, epoch, what, relation, one.old, False, one.new))
        for name, rows in tables.items():
            found = replica.rows(schema, name)
            assert found == rows, f"{name}: {difference(found, rows)}"

    def fingerprint(self) -> Any:
        return recorder.written_parts(self.directory)

    def records(self) -> Iterator[Record]:
        for part in recorder.written_parts(self.directory):
            for one in part.changes:
                if one.load is None:
                    where = None if one.relation is None else one.target
                    content = one.operation, one.relation, where, one.old, one.new, one.message
                    yield Record(one.position, one.is_last, content)

    def loaded(self) -> Iterator[tuple[tuple[int, Lsn], Any]]:
        for part in recorder.written_parts(self.directory):
            for one in part.changes:
                if one.load is not None:
                    assert one.operation == "SNAPSHOT"
                    yield (one.load.relation.oid, one.load.lsn), one.new

    def content(self, change: Change) -> Any:
        relation = change.relation
        where = None if relation is None else (relation.schema, relation.name)
        message = None if change.prefix is None else (change.prefix, change.content, change.transactional)
        return str(change.operation), relation, where, change.old, change.new, message

    def row(self, relation: Relation, row: oracle.Row) -> Any:
        return row


@dataclass
class JsonLines:
    directory: Path

    def beside(self, name: str) -> JsonLines:
        """Another destination of the same kind."""
        return JsonLines(self.directory / name)

    def settings(self) -> Mapping[str, Any]:
        return {"type": "files", "url": self.directory.as_uri(), "format": "jsonl"}

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        assert_delivered(self, scenario, state, began)

    def fingerprint(self) -> Any:
        return _files(self.directory)

    def records(self) -> Iterator[Record]:
        for raw in self._lines():
            if raw["operation"] != "SNAPSHOT":
                is_last = raw.pop("is_last")
                yield Record(Position.parse(raw["position"]), is_last, raw)

    def loaded(self) -> Iterator[tuple[tuple[int, Lsn], Any]]:
        for raw in self._lines():
            if raw["operation"] == "SNAPSHOT":
                after = json.dumps(raw["after"])
                yield (int(raw["relation_id"].split()[1]), Lsn.parse(raw["commit_lsn"])), after

    def content(self, change: Change) -> Any:
        return _parse(change_text.to_json(change))

    def row(self, relation: Relation, row: oracle.Row) -> Any:
        pairs = zip(relation.columns, row, strict=True)
        return json.dumps({c.name: _parse(types.mapping(c).json_text(v)) for c, v in pairs})

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        events: list[Event] = []
        for key, data in _files(self.directory).items():
            for line in data.decode().split("\n")[:-1]:
                raw = json.loads(line)
                at = Position.parse(raw["position"])
                events.append(Event(key.split("/")[0], at, raw["operation"], raw["before"], raw["after"]))
        assert_results_in(events, schema, tables)

    def _lines(self) -> Iterator[dict[str, Any]]:
        for data in _files(self.directory).values():
            for line in data.decode().split("\n")[:-1]:
                yield _parse(line)


@dataclass
class Parquet:
    directory: Path

    def beside(self, name: str) -> Parquet:
        """Another destination of the same kind."""
        return Parquet(self.directory / name)

    def settings(self) -> Mapping[str, Any]:
        return {"type": "files", "url": self.directory.as_uri(), "format": "parquet"}

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        assert_delivered(self, scenario, state, began)

    def fingerprint(self) -> Any:
        return _files(self.directory)

    def records(self) -> Iterator[Record]:
        for relation, batch in self._batches():
            if relation is None:
                yield from _messages(batch)
                continue
            for row in _typed_changes(relation, batch):
                if row.operation != "SNAPSHOT":
                    content = row.operation, relation, row.old, row.new, row.unchanged
                    yield Record(row.position, row.is_last, content)

    def loaded(self) -> Iterator[tuple[tuple[int, Lsn], Any]]:
        for relation, batch in self._batches():
            if relation is not None:
                for row in _typed_changes(relation, batch):
                    if row.operation == "SNAPSHOT":
                        yield (relation.oid, row.position.commit_lsn), row.new

    def content(self, change: Change) -> Any:
        if change.relation is None:
            return change.prefix, change.content, change.transactional
        sent = change.new and tuple([None if isinstance(v, Unchanged) else v for v in change.new])
        old, new = (image and oracle.to_typed(change.relation, image) for image in (change.old, sent))
        return str(change.operation), change.relation, old, new, change.unchanged

    def row(self, relation: Relation, row: oracle.Row) -> Any:
        return oracle.to_typed(relation, row)

    def assert_shaped(self, schema: str, tables: Mapping[str, oracle.Rows]) -> None:
        events: list[Event] = []
        for key, data in _files(self.directory).items():
            table = pq.ParquetFile(pa.BufferReader(data)).read()
            for raw in table.to_pylist() if not key.startswith("_") else ():
                unsent = {*raw["_unchanged"]}
                after = {name: raw[name] for name in raw if not name.startswith("_") and name not in unsent}
                operation, before = raw["_operation"], raw["_before"]
                new = None if operation == "DELETE" else after
                events.append(Event(key.split("/")[0], Position.parse(raw["_position"]), operation, before, new))
        assert_results_in(events, schema, tables)

    def _batches(self) -> Iterator[tuple[Relation | None, pa.RecordBatch]]:
        for data in _files(self.directory).values():
            table = pq.ParquetFile(pa.BufferReader(data)).read()
            text = (table.schema.metadata or {}).get(b"tailrace.relation")
            for batch in table.combine_chunks().to_batches():
                yield (None if text is None else Relation.from_json(text.decode())), batch


@dataclass(frozen=True)
class Event:
    """An event of a table whose key is `id`."""

    directory: str
    position: Position
    operation: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


def assert_results_in(events: Iterable[Event], schema: str, tables: Mapping[str, oracle.Rows]) -> None:
    """Assert that applying the events by key results in these rows. Columns are texts and numbers."""
    rows: dict[str, dict[Any, dict[str, Any]]] = {}
    for event in sorted(events, key=lambda event: (event.operation != "SNAPSHOT", event.position)):
        if event.directory.startswith("_"):
            continue
        own = rows.setdefault(event.directory, {})
        known = {}
        if event.operation in ("UPDATE", "DELETE"):
            named = event.before or event.after
            assert named is not None
            known = own.pop(named["id"])
        if event.after is not None:
            assert event.after["id"] not in own
            own[event.after["id"]] = {name: event.after.get(name, known.get(name)) for name in {**known, **event.after}}
    assert_same(rows, (f"{schema}.{name}" for name in tables))
    for name, expected in tables.items():
        texts = (
            tuple(None if value is None else str(value).encode() for value in row.values())
            for row in rows[f"{schema}.{name}"].values()
        )
        found = Counter(texts)
        assert found == expected, f"{name}: {difference(found, expected)}"


@dataclass(frozen=True)
class _TypedChange:
    position: Position
    is_last: bool
    operation: str
    old: Any
    new: Any
    unchanged: tuple[str, ...]


def _typed_changes(relation: Relation, batch: pa.RecordBatch) -> Iterator[_TypedChange]:
    count = len(relation.columns)
    # The table's own columns come first, followed by the others in a fixed order.
    operation, position, _, _, _, _, _, is_last, before, unchanged, special, old_special = batch.columns[count:]
    new = list(oracle.typed_rows([_batch(relation, [*batch.columns[:count], special])]))
    old = list(oracle.typed_rows([_batch(relation, [*before.flatten(), old_special])]))
    has_old = before.is_valid().to_pylist()
    for row, what in enumerate(operation.to_pylist()):
        yield _TypedChange(
            Position.parse(position[row].as_py()),
            is_last[row].as_py(),
            what,
            old[row] if has_old[row] else None,
            new[row] if what not in ("DELETE", "TRUNCATE") else None,
            tuple(unchanged[row].as_py()),
        )


def _batch(relation: Relation, columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, names=[*(c.name for c in relation.columns), "special"])


def _messages(batch: pa.RecordBatch) -> Iterator[Record]:
    for raw in batch.select(["_position", "_is_last", "prefix", "content", "transactional"]).to_pylist():
        content = raw["prefix"], raw["content"], raw["transactional"]
        yield Record(Position.parse(raw["_position"]), raw["_is_last"], content)


def _files(directory: Path) -> dict[str, bytes]:
    if not directory.exists():
        return {}
    store = Store.open(directory.as_uri())
    return {info.key: store.get(info.key) or b"" for info in store.list("")}


def _digits(text: str) -> str:
    return f"number {text}"


def _parse(text: str) -> Any:
    """Parse JSON, with numbers as the digits in the text."""
    return json.loads(text, parse_float=_digits, parse_int=_digits)


def expected_changes(scenario: Scenario, state: State, began: Lsn) -> Iterator[Change]:
    """The changes that a sink must have received, each once."""
    assert state.cursor is not None
    for change in scenario.changes.values():
        floor = began if change.relation is None else state.tables.get(change.relation.oid)
        if floor is not None and floor <= change.position.commit_lsn < state.cursor:
            yield change


def assert_same(found: Iterable[Any], expected: Iterable[Any]) -> None:
    """Assert that two sets are equal, with a short message."""
    one, other = set(found), set(expected)
    lost, added = sorted(other - one), sorted(one - other)
    assert not lost, f"{len(lost)} missing, from {lost[0]} to {lost[-1]}"
    assert not added, f"{len(added)} unexpected, from {added[0]} to {added[-1]}"


def difference(found: oracle.Rows, expected: oracle.Rows) -> str:
    def cut(rows: oracle.Rows) -> list[Any]:
        return [[v and v[:40] for v in row[:12]] for row in list(rows)[:3]]

    return f"too many {cut(found - expected)}, missing {cut(expected - found)}"
