"""The rows of a sink at the server: written and removed in transactions, with an index of each table's keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace import types
from tailrace.change import Relation
from tailrace.column_name import with_suffix
from tailrace.delivery.contract import Load
from tailrace.errors import SinkRefused
from tailrace.images import Images, record_batch
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.command import CommandBatch
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.row_change import RowChange, complete, with_keys
from tailrace.sinks.valkey.row_encoding import ROW_ENCODINGS, EncodedRows
from tailrace.sinks.valkey.sink_state import SinkState, Writer, diverged
from tailrace.state.cast import column_texts, recast
from tailrace.state.evolution import origins, project

_GROUP: Final = 1000
"""Rows that are rewritten or removed in one transaction beside a step's own: a few milliseconds of the server."""
_MAX_EMPTIED: Final = 20_000
"""A larger table is emptied in several transactions: one would stop the server for longer than a tenth of a second."""


@dataclass(frozen=True)
class StoredTable:
    """A table as its rows are at the server."""

    relation: Relation
    target: tuple[str, str]

    def to_json(self) -> str:
        return json.dumps({"relation": json.loads(self.relation.to_json()), "target": self.target}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: bytes) -> StoredTable:
        raw = json.loads(text)
        return cls(Relation.from_json(json.dumps(raw["relation"])), (raw["target"][0], raw["target"][1]))


@dataclass(frozen=True)
class RowWrite:
    """What is written in one transaction."""

    changes: Sequence[RowChange]
    loads: Sequence[Load]
    """The tables that the step loads."""
    is_load: bool
    """The rows are those of a snapshot: older definitions of the table do not matter."""


IsDropped = Callable[[int], bool]
"""Whether a table, by oid, no longer exists at the source."""


class RowTransport:
    """Writes the rows of one sink. It is the sink's only writer until another one connects."""

    def __init__(self, name: str, options: ValkeyOptions, source: str, is_dropped: IsDropped) -> None:
        self._name = name
        self._options = options
        self._template = options.template(source)
        self._encoding = ROW_ENCODINGS[options.mode]
        self._is_dropped = is_dropped
        self._client = ValkeyClient(options, f"tailrace-{name}")
        self._state = SinkState(self._client, name)
        self._keys = self._state.keys
        self._writer = Writer(self._client, self._state, name)
        self._progress = self._state.progress()
        raw = self._client.run("HGETALL", self._keys.tables)
        self._tables = {int(oid): StoredTable.from_json(text) for oid, text in zip(raw[::2], raw[1::2], strict=True)}

    def close(self) -> None:
        self._client.close()

    def progress(self) -> Progress | None:
        return self._progress

    def publish(self, messages: RowWrite, after: Progress) -> None:
        """Write rows and the progress in one transaction."""
        loading = {load.relation.oid: load.snapshot for load in messages.loads}
        for change in messages.changes:
            self._prepare(change.relation, change.target, loading, after.replays, is_load=messages.is_load)
        completed = [self._completed(change) for change in messages.changes]
        for change in completed:
            if change.empties:
                self._empty_large(change.relation.oid)
        self._writer.watch()
        batch = CommandBatch()
        for change in completed:
            if self._is_first(loading.get(change.relation.oid), after.replays):
                batch.add("DEL", self._keys.loaded(change.relation.oid))
            self._add(batch, change, is_loading=change.relation.oid in loading)
        self._state.add_progress(batch, after)
        self._writer.run(batch, messages.changes[0].span)
        self._progress = after

    def finish_load(self, load: Load, replays: int) -> None:
        """Remove the rows that a load did not write. `replays` is how often the sink was rewound."""
        loading = {load.relation.oid: load.snapshot}
        self._prepare(load.relation, load.target, loading, replays, is_load=True)
        self._remove_stale(load.relation, load.snapshot, replays)

    def _remove_stale(self, relation: Relation, snapshot: str, replays: int) -> None:
        rows, loaded, stale = (of(relation.oid) for of in (self._keys.rows, self._keys.loaded, self._keys.stale))
        what = f"load of {relation.qualified_name}"
        self._writer.watch()
        batch = CommandBatch()
        if self._is_first(snapshot, replays):  # the table is empty
            batch.add("DEL", loaded)
        batch.add("SDIFFSTORE", stale, rows, loaded)
        self._writer.run(batch, what)
        for keys in self._groups(stale):
            batch = CommandBatch()
            batch.add_many("UNLINK", values=keys)
            batch.add_many("SREM", rows, values=keys)
            batch.add_many("SREM", stale, values=keys)
            self._writer.run(batch, what)

    def _is_first(self, snapshot: str | None, replays: int) -> bool:
        """Whether nothing of a load was written yet, since the sink was last rewound."""
        if snapshot is None:
            return False
        written = self._progress
        return written is None or written.replays != replays or snapshot not in written.loads

    def _add(self, batch: CommandBatch, change: RowChange, *, is_loading: bool) -> None:
        oid = change.relation.oid
        sets = [self._keys.rows(oid), *([self._keys.loaded(oid)] if is_loading else [])]
        if change.empties:
            batch.add_many("UNLINK", values=self._client.run("SMEMBERS", sets[0]))
            for name in sets:
                batch.add("DEL", name)
        for name in sets:
            batch.add_many("SREM", name, values=change.removed)
        batch.add_many("UNLINK", values=change.removed)
        rows = change.encoded or self._encode(change)
        if self._options.mode == "hash":
            # A key that holds something else could not be written, and a hash could retain fields.
            batch.add_many("UNLINK", values=rows.keys)
        batch.add_encoded(rows.commands, rows.count)
        for name in sets:
            batch.add_many("SADD", name, values=rows.keys)

    def _encode(self, change: RowChange) -> EncodedRows:
        return self._encoding.encode(change.relation, change.keys, change.rows, self._options.ttl_s)

    def _completed(self, change: RowChange) -> RowChange:
        """Return a change with the values that PostgreSQL did not send, which are in the rows at the server."""
        if change.is_whole:
            return change
        partial = np.flatnonzero(change.sources.is_valid().to_numpy(zero_copy_only=False))
        keys = change.sources.take(pa.array(partial)).cast(pa.binary()).to_pylist()
        stored = self._read(change.relation, keys)
        lacks = np.zeros(len(change.rows), np.bool_)
        lacks[partial] = ~stored.present
        places = np.zeros(len(change.rows), np.int64)
        places[partial] = np.arange(len(partial))
        spread = [column.take(pa.array(places)) for column in stored.batch.columns]
        batch = record_batch(spread, stored.batch.schema, len(change.rows))
        whole = complete(change, Images(batch, ~lacks, {}, None))
        if not lacks.any():
            return whole
        if not self._options.ttl_s:
            raise diverged(self._name, f"{change.relation.qualified_name}, {change.span}: a row to update is missing")
        return whole.without(lacks)  # it has expired

    def _read(self, relation: Relation, keys: Sequence[bytes]) -> Images:
        batch = CommandBatch()
        self._encoding.read(batch, relation, keys)
        try:
            return self._encoding.parse(relation, self._client.pipeline(batch))
        except ValueError as error:
            raise diverged(self._name, f"{relation.qualified_name}: a row at the server is {error}") from None

    def _empty_large(self, oid: int) -> None:
        """Remove the rows of a table before the transaction, if they are many."""
        rows = self._keys.rows(oid)
        if self._client.run("SCARD", rows) <= _MAX_EMPTIED:
            return
        for keys in self._groups(rows):
            batch = CommandBatch()
            batch.add_many("UNLINK", values=keys)
            batch.add_many("SREM", rows, values=keys)
            self._writer.run(batch, "TRUNCATE")

    def _groups(self, name: str) -> Iterator[list[bytes]]:
        """Yield the members of a set in groups, each of which is to be removed from it in one transaction."""
        while True:
            self._writer.watch()
            keys = self._client.run("SRANDMEMBER", name, _GROUP)
            if not keys:
                return
            yield keys

    def _prepare(
        self, relation: Relation, target: tuple[str, str], loading: Mapping[int, str], replays: int, *, is_load: bool
    ) -> None:
        """Give the rows of a table the definition that the next changes have."""
        oid = relation.oid
        known = self._tables.get(oid)
        if known is not None and known.target == target and (known.relation is relation or known.relation == relation):
            return
        for other, table in list(self._tables.items()):
            if table.target == target and other != oid:
                self._free(other, table)
        wanted = StoredTable(relation, target)
        if known is not None and not is_load and not _is_same_form(known, wanted):
            if oid in loading:
                # The rows that are not of this load may have a newer definition, from an earlier delivery.
                self._remove_stale(relation, loading[oid], replays)
            self._rewrite(known, wanted, is_loading=oid in loading)
            return
        self._writer.watch()
        batch = CommandBatch()
        batch.add("HSET", self._keys.tables, oid, wanted.to_json())
        self._writer.run(batch, relation.qualified_name)
        self._tables[oid] = wanted

    def _free(self, oid: int, table: StoredTable) -> None:
        """Another table has the name of this one: it was dropped, or renamed without a change to show it."""
        if not self._is_dropped(oid):
            target = (table.target[0], with_suffix(table.target[1], f"~{oid}"))
            self._rewrite(table, replace(table, target=target), is_loading=False)
            return
        rows = self._keys.rows(oid)
        for keys in self._groups(rows):
            batch = CommandBatch()
            batch.add_many("UNLINK", values=keys)
            batch.add_many("SREM", rows, values=keys)
            self._writer.run(batch, f"{table.relation.qualified_name}, which was dropped")
        self._writer.watch()
        batch = CommandBatch()
        batch.add("HDEL", self._keys.tables, oid)
        self._writer.run(batch, table.relation.qualified_name)
        del self._tables[oid]

    def _rewrite(self, old: StoredTable, new: StoredTable, *, is_loading: bool) -> None:
        """Write all rows of a table again under another definition, a group at a time. A restart continues it."""
        oid = new.relation.oid
        rows, rewritten = self._keys.rows(oid), self._keys.rewritten(oid)
        what = f"{new.relation.qualified_name}: another definition"
        for keys in self._groups(rows):
            stored = self._read(old.relation, keys)
            if not stored.present.all() and not self._options.ttl_s:
                raise diverged(self._name, f"{old.relation.qualified_name}: a row is missing")
            images = _converted(stored.take(stored.present), old.relation, new.relation, self._name)
            change = with_keys(new.relation, new.target, images, self._template)
            batch = CommandBatch()
            batch.add_many("UNLINK", values=keys)
            encoded = self._encode(change)
            batch.add_encoded(encoded.commands, encoded.count)
            batch.add_many("SREM", rows, values=keys)
            batch.add_many("SADD", rewritten, values=encoded.keys)
            if is_loading:
                self._rename_loaded(batch, oid, keys, stored, change)
            self._writer.run(batch, what)
        self._writer.watch()
        batch = CommandBatch()
        if self._client.run("EXISTS", rewritten):
            batch.add("RENAME", rewritten, rows)
        batch.add("HSET", self._keys.tables, oid, new.to_json())
        self._writer.run(batch, what)
        self._tables[oid] = new

    def _rename_loaded(
        self, batch: CommandBatch, oid: int, keys: Sequence[bytes], stored: Images, change: RowChange
    ) -> None:
        """Have the set of loaded rows follow their keys."""
        loaded = self._keys.loaded(oid)
        is_member = np.array(self._client.run("SMISMEMBER", loaded, *keys), np.bool_)
        batch.add_many("SREM", loaded, values=[key for key, member in zip(keys, is_member, strict=True) if member])
        batch.add_many("SADD", loaded, values=change.keys.filter(pa.array(is_member[stored.present])))


def _is_same_form(old: StoredTable, new: StoredTable) -> bool:
    """Whether the rows of two definitions look the same: only defaults, comments and the like differ."""
    if old.target != new.target or len(old.relation.columns) != len(new.relation.columns):
        return False
    found = origins(old.relation, new.relation)
    is_same = all(
        origin.index == index and before.name == column.name and types.mapping(before) == types.mapping(column)
        for index, (origin, before, column) in enumerate(
            zip(found, old.relation.columns, new.relation.columns, strict=True)
        )
    )
    return is_same and old.relation.key == new.relation.key


def _converted(images: Images, old: Relation, new: Relation, sink: str) -> Images:
    """Rows of the old relation as PostgreSQL would show them under the new one."""
    projected = project(images, old, new, as_text=True)
    arrays = list(projected.batch.columns)
    for index, (column, origin) in enumerate(zip(new.columns, origins(old, new), strict=True)):
        if origin.index is None or types.mapping(old.columns[origin.index]) == types.mapping(column):
            continue
        values, special = recast(arrays[index], old.columns[origin.index], column)
        if special:
            raise SinkRefused(
                f"{new.qualified_name}, column {column.name}: its type changed at the source, and a value here cannot"
                " be converted",
                f"take a new snapshot of the table, then `tailrace sink reload {sink} {new.qualified_name}`",
            )
        arrays[index] = column_texts(values, column)
    return replace(projected, batch=record_batch(arrays, projected.batch.schema, len(images)))
