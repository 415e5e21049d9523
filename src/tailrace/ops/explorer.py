"""What an operator looks up: tables, changes, the versions of a row, dead letters. Read from the store, as JSON.

Values are PostgreSQL's texts: numbers keep all their digits, and nothing is interpreted. No request reads more than a
bounded part of the log; its answer says how far it got, and has a cursor to go on.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tailrace.change import Column, Lsn, Position
from tailrace.delivery import dead_letters
from tailrace.delivery.context import Contexts
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import ConfigError
from tailrace.log import published_table
from tailrace.log.change_search import (
    ChangeCriteria,
    FoundChange,
    SearchCursor,
    SearchLimits,
    SearchResult,
    key_after,
    key_before,
    search_back,
)
from tailrace.log.change_text import message_text
from tailrace.log.decoding import ChangePositions
from tailrace.log.planner import segment_reaching
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader, TableSnapshot
from tailrace.log.timestamp import format_timestamp, parse_timestamp
from tailrace.ops.cache import BackgroundCache
from tailrace.ops.row_version import RowVersion, versions
from tailrace.ops.status import Overview
from tailrace.ops.table_activity import LastChange, TableActivity
from tailrace.settings.pattern import TablePattern, quote_name
from tailrace.store import Store

_MAX_CHANGES: Final = 200
_MAX_VERSIONS: Final = 200
_MAX_DEAD_LETTERS: Final = 200
# A page shows the beginning of a long value; `tailrace log cat` prints all of it.
_MAX_VALUE: Final = 4000
# Tables are listed in the store, and new segments are read.
_TABLES_SECONDS: Final = 5.0

_NUMBER: Final = re.compile(r"[0-9]{1,10}")

Pairs = list[tuple[str, str | None]]
"""Names and values of columns, in the table's order."""


class Explorer:
    """Reads the log of one store. Threads may share it; one search runs at a time, so that memory stays bounded."""

    def __init__(self, store: Store, sinks: Sequence[ConfiguredSink], overview: Callable[[], Overview]) -> None:
        """`sinks` are those whose dead letters can be replayed; `overview` returns the full status."""
        self._store = store
        self._sinks = {sink.name: sink for sink in sinks}
        self._overview = overview
        self._reader = LogReader(store)
        self._snapshots = SnapshotReader(store)
        self._activity = TableActivity(self._reader)
        self._lock = threading.Lock()
        self._tables = BackgroundCache(self._read_tables, _TABLES_SECONDS)

    def tables(self) -> dict[str, Any]:
        """The tables and their states. Without rows: only names, counts and times."""
        return self._tables.get() or {"tables": None, "searched_to": None}

    def changes(self, parameters: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Changes that meet the criteria, newest first, and where to go on."""
        criteria = _criteria(parameters)
        limits = SearchLimits(changes=_count(parameters, _MAX_CHANGES))
        with self._lock:
            result = search_back(self._reader, criteria, _cursor(parameters), limits)
            contexts = self._contexts(result.found)
        found = [_change_json(found, contexts) for found in result.found]
        return {"changes": found, **_progress(result)}

    def row(self, parameters: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """The versions of one row, newest first, also under its earlier keys, and where to go on.

        With `before`, only versions older than that position. `key` of the answer is the key to go on with: before a
        change of its key, the row had another one.
        """
        criteria = _criteria(parameters)
        if criteria.table is None or criteria.key is None:
            raise ConfigError(
                "a row needs a table and a key", "give table=schema.table and key=…, once for each column"
            )
        limits = SearchLimits(changes=_count(parameters, _MAX_VERSIONS))
        cursor, before = _cursor(parameters), _one(parameters, "before")
        with self._lock:
            if before is not None:
                position = Position.parse(before)
                cursor = SearchCursor(segment_reaching(self._reader, Lsn(position.commit_lsn + 1)), position)
            result, key = self._search_row(criteria, cursor, limits)
            contexts = self._contexts(result.found)
        found = list(versions([found.change for found in result.found]))
        rows = [
            _change_json(found, contexts) | _version_json(version)
            for found, version in zip(result.found, found, strict=True)
        ]
        return {"versions": rows, "key": list(key), **_progress(result)}

    def _search_row(
        self, criteria: ChangeCriteria, cursor: SearchCursor | None, limits: SearchLimits
    ) -> tuple[SearchResult, tuple[str, ...]]:
        """Search for changes of a row up to the first that changed its key, after which it is another search."""
        assert criteria.key is not None
        result = search_back(self._reader, criteria, cursor, limits)
        for count, found in enumerate(result.found, 1):
            before, after = key_before(found.change), key_after(found.change)
            if after == criteria.key and before is not None and before != after:
                # Before this change, the key belonged to another row, or to none.
                change = found.change
                rest = SearchCursor(found.slice.segment, change.position)
                return replace(result, found=result.found[:count], searched_to=change.committed_at, cursor=rest), before
        return result, criteria.key

    def dead_letters(self, parameters: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Dead letters of one sink or of all, with the changes; at most 200."""
        sink = _one(parameters, "sink")
        if sink is not None and sink not in self._sinks:
            raise ConfigError(f"there is no sink {sink!r} here", f"there are: {', '.join(self._sinks) or 'none'}")
        letters = list(itertools.islice(dead_letters.load_all(self._store, sink), _MAX_DEAD_LETTERS + 1))
        shown = [
            letter.summary | {"change": _cut_deeply(letter.change), "can_replay": self._can_replay(letter.sink)}
            for letter in letters[:_MAX_DEAD_LETTERS]
        ]
        return {"dead_letters": shown, "has_more": len(letters) > _MAX_DEAD_LETTERS}

    def replay(self, sink: str, positions: Sequence[str]) -> int:
        """Have a sink deliver dead letters again. Returns how many."""
        if not positions:
            raise ConfigError("no position is given", "give position=…, once for each dead letter")
        letters = [dead_letters.find(self._store, sink, Position.parse(text)) for text in positions]
        dead_letters.check_replayable(self._sinks[sink], self._reader, letters)
        for letter in letters:
            dead_letters.request_replay(self._store, letter)
        return len(letters)

    def _can_replay(self, sink: str) -> bool:
        configured = self._sinks.get(sink)
        return configured is not None and (configured.sink.keeps_tables or configured.sink.replays_dead_letters)

    def _contexts(self, found: Sequence[FoundChange]) -> dict[Position, str | None]:
        """The context of each change. A change whose transaction is split between segments is left out: a context may
        be in another segment."""
        whole = [each for each in found if not each.is_split and each.change.relation is not None]
        if not whole:
            return {}
        slices = {each.slice.segment: each.slice for each in whole}
        contexts = Contexts.in_slices(self._reader, slices.values())
        positions = [each.change.position for each in whole]
        lsns, ordinals = (np.array(column, np.int64) for column in zip(*positions, strict=True))
        none = np.zeros(len(whole), np.int64)
        at = ChangePositions(lsns, ordinals, none, none, none, none.astype(np.bool_))
        texts: pa.StringArray = contexts.of_changes(at)
        return dict(zip(positions, texts.to_pylist(), strict=True))

    def _read_tables(self) -> dict[str, Any]:
        overview = self._overview()
        with self._lock:
            self._activity.refresh()
            activity, searched_to = self._activity.last_changes, self._activity.searched_to
        published = published_table.load_oids(self._store)
        snapshots = {snapshot.relation.oid: snapshot for snapshot in self._snapshots.newest_of_each()}
        is_copying = overview.capture is not None and overview.capture.tables_copying > 0
        tables = []
        for relation, has_snapshot in published_table.known_tables(self._snapshots):
            snapshot = snapshots.get(relation.oid) if has_snapshot else None
            state = "captured" if has_snapshot or not is_copying else "copying"
            if snapshot is not None and published.is_dropped(relation.oid, int(snapshot.taken_at.timestamp() * 1e6)):
                state = "not published"
            tables.append(
                _name_json(relation.schema, relation.name)
                | {"state": state, "reason": None, "key": list(relation.key), "columns": len(relation.columns)}
                | _rows_json(snapshot)
                | _last_change_json(activity.get(relation.oid))
            )
        known = {(table["schema"], table["table"]) for table in tables}
        tables += [table for table in _left_out(overview) if (table["schema"], table["table"]) not in known]
        tables.sort(key=lambda table: (table["schema"], table["table"]))
        return {"tables": tables, "searched_to": None if searched_to is None else format_timestamp(searched_to)}


def _left_out(overview: Overview) -> list[dict[str, Any]]:
    """The tables that the settings name and the publication lacks."""
    return [
        _name_json(table.schema, table.name)
        | {
            "state": "left out" if table.is_left_out else "not captured",
            "reason": f"{table.reason}. {table.fix}".strip(),
        }
        | {"key": None, "columns": None, **_rows_json(None), **_last_change_json(None)}
        for table in overview.uncaptured or ()
    ]


def _name_json(schema: str, table: str) -> dict[str, Any]:
    return {"schema": schema, "table": table, "name": quote_name(schema, table)}


def _rows_json(snapshot: TableSnapshot | None) -> dict[str, Any]:
    if snapshot is None:
        return {"rows": None, "rows_at": None}
    return {"rows": snapshot.rows, "rows_at": format_timestamp(snapshot.taken_at)}


def _last_change_json(change: LastChange | None) -> dict[str, Any]:
    if change is None:
        return {"last_change_at": None, "last_change": None}
    return {"last_change_at": format_timestamp(change.committed_at), "last_change": str(change.position)}


def _change_json(found: FoundChange, contexts: Mapping[Position, str | None]) -> dict[str, Any]:
    change = found.change
    relation = change.relation
    return {
        "position": str(change.position),
        "commit_lsn": str(change.position.commit_lsn),
        "xid": change.xid,
        "committed_at": format_timestamp(change.committed_at),
        "operation": str(change.operation),
        "table": None if relation is None else relation.qualified_name,
        "name": None if relation is None else quote_name(relation.schema, relation.name),
        "key": _pairs(change.key_columns),
        "before": _pairs(change.old_columns),
        "before_is_key": change.old_is_key,
        "after": _pairs(change.new_columns),
        "unchanged": list(change.unchanged),
        "message_prefix": change.prefix,
        "message": _cut(message_text(change)),
        "context": _cut(contexts.get(change.position)),
        "is_split": found.is_split,
    }


def _version_json(version: RowVersion) -> dict[str, Any]:
    return {
        "row": None if version.row is None else [(name, _cut(value)) for name, value in version.row.items()],
        "unknown": list(version.unknown),
    }


def _progress(result: SearchResult) -> dict[str, Any]:
    return {
        "searched_to": None if result.searched_to is None else format_timestamp(result.searched_to),
        "cursor": None if result.cursor is None else str(result.cursor),
        "segments_left": result.segments_left,
    }


def _pairs(columns: Sequence[tuple[Column, bytes | None]] | None) -> Pairs | None:
    if columns is None:
        return None
    return [(column.name, None if value is None else _cut(value.decode())) for column, value in columns]


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}… ({len(text):,} characters)"


def _cut_deeply(value: Any) -> Any:
    match value:
        case str():
            return _cut(value)
        case dict():
            return {name: _cut_deeply(inner) for name, inner in value.items()}
        case list():
            return [_cut_deeply(inner) for inner in value]
    return value


def _criteria(parameters: Mapping[str, Sequence[str]]) -> ChangeCriteria:
    table, key, transaction = (
        _one(parameters, "table"),
        tuple(parameters.get("key", ())),
        _one(parameters, "transaction"),
    )
    if key and table is None:
        raise ConfigError("a key alone finds nothing", "give the table too: table=schema.table")
    if transaction is not None and "/" not in transaction and not _NUMBER.fullmatch(transaction):
        raise ConfigError(
            f"{transaction!r} is not a transaction",
            "give its xid, such as 1234, or its commit's LSN, such as 0/1A2B3C4",
        )
    is_lsn = transaction is not None and "/" in transaction
    return ChangeCriteria(
        table=None if table is None else _pattern(table),
        key=key or None,
        xid=int(transaction) if transaction is not None and not is_lsn else None,
        commit_lsn=Lsn.parse(transaction.partition(":")[0]) if transaction is not None and is_lsn else None,
        since=_time(parameters, "since"),
        until=_time(parameters, "until"),
    )


def _pattern(text: str) -> TablePattern:
    """A name or a pattern; without a schema, of a table in any schema."""
    return TablePattern.parse(text if "." in text else f"*.{text}")


def _cursor(parameters: Mapping[str, Sequence[str]]) -> SearchCursor | None:
    text = _one(parameters, "cursor")
    return None if text is None else SearchCursor.parse(text)


def _time(parameters: Mapping[str, Sequence[str]], name: str) -> datetime | None:
    text = _one(parameters, name)
    try:
        return None if text is None else parse_timestamp(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}", "give an ISO time, such as 2026-11-16T12:00:00Z") from None


def _count(parameters: Mapping[str, Sequence[str]], most: int) -> int:
    text = _one(parameters, "limit")
    if text is None:
        return SearchLimits().changes
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
        raise ConfigError(f"limit is {text!r}", f"give a number from 1 to {most}")
    return int(text)


def _one(parameters: Mapping[str, Sequence[str]], name: str) -> str | None:
    values = parameters.get(name, ())
    if len(values) > 1:
        raise ConfigError(f"{name} is given {len(values)} times", "give it once")
    return values[0].strip() or None if values else None
