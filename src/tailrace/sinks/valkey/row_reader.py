"""Reads the rows of the modes `hash` and `json` back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.delivery.row_reader import DeliveredTable
from tailrace.errors import SinkDiverged, SinkRefused
from tailrace.images import Images
from tailrace.sinks.documents.row_document import row_documents
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.command import CommandBatch
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.own_key import PREFIX
from tailrace.sinks.valkey.row_encoding import ROW_ENCODINGS
from tailrace.sinks.valkey.row_store import StoredTable
from tailrace.sinks.valkey.sink_state import SinkState

_GROUP: Final = 1000
"""Rows to read at once: a few milliseconds of the server."""


class ValkeyRowReader:
    """Fulfils `RowReader` and `FindsRows`."""

    is_snapshot = False
    can_repair = True

    def __init__(self, client: ValkeyClient, sink: str, options: ValkeyOptions, database: str) -> None:
        self._client = client
        self._mode = options.mode
        self._template = options.template(database)
        self._encoding = ROW_ENCODINGS[options.mode]
        state = SinkState(client, sink)
        self._keys = state.keys
        stored = state.stored(options.mode)
        if stored is None or stored.state.cursor is None:
            raise SinkRefused(f"sink {sink} has delivered nothing yet", "start it with `tailrace run` or `deliver`")
        self.state = stored.state
        raw = client.run("HGETALL", self._keys.tables)
        tables = {int(oid): StoredTable.from_json(text) for oid, text in zip(raw[::2], raw[1::2], strict=True)}
        self.tables: Mapping[int, DeliveredTable] = {
            oid: DeliveredTable(table.relation, table.target) for oid, table in tables.items()
        }

    def rows(self, oid: int) -> Iterator[pa.RecordBatch]:
        group: list[bytes] = []
        for key in self._keys_of(oid):
            group.append(key)
            if len(group) == _GROUP:
                yield self._read(oid, group)
                group = []
        if group:
            yield self._read(oid, group)

    def find(self, oid: int, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        table = self.tables[oid]
        own = self._template.keys_of(table.relation, table.target, keys.columns).cast(pa.binary()).to_pylist()
        for first in range(0, len(own), _GROUP):
            yield self._read(oid, own[first : first + _GROUP])

    def comparable(self, oid: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._mode == "hash":
            return rows
        relation = self.tables[oid].relation
        images = Images(rows, np.ones(len(rows), np.bool_), {}, None)
        documents = row_documents(images, relation).to_pylist()
        return self._encoding.parse(relation, documents).batch

    def _keys_of(self, oid: int) -> Iterator[bytes]:
        """The keys that the sink has written, and others of the table's form, which somebody else has."""
        seen: set[bytes] = set()
        pattern = self._template.pattern(self.tables[oid].target)
        for command in (("SSCAN", self._keys.rows(oid)), ("SCAN",)):
            for key in self._scan(*command, pattern=pattern):
                if key not in seen and not key.startswith(PREFIX.encode()):
                    seen.add(key)
                    yield key

    def _scan(self, *command: str, pattern: str) -> Iterator[bytes]:
        place = b"0"
        while True:
            place, keys = self._client.run(*command, place, "MATCH", pattern, "COUNT", _GROUP)
            yield from keys
            if place == b"0":
                return

    def _read(self, oid: int, keys: Sequence[bytes]) -> pa.RecordBatch:
        relation = self.tables[oid].relation
        batch = CommandBatch()
        self._encoding.read(batch, relation, keys)
        try:
            images = self._encoding.parse(relation, self._client.pipeline(batch))
        except ValueError as error:
            raise SinkDiverged(
                f"{relation.qualified_name}: a row at the server is {error}", "remove the key that somebody else wrote"
            ) from None
        return images.take(images.present).batch
