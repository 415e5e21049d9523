"""The modes `hash` and `json`: a key for each row. Rows and progress change in one transaction, so nothing is applied
twice, and a transaction of the source becomes visible as a whole unless it is very large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from tailrace.delivery.contract import Part, Receipt, Step
from tailrace.errors import SinkRefused
from tailrace.log import source_record
from tailrace.sinks.messages.batching import merge_small
from tailrace.sinks.messages.destination_registry import PartRegistry
from tailrace.sinks.messages.progress import PartProgress, Progress
from tailrace.sinks.messages.transport import close_kept_transport, kept_transport
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.row_change import RowChange, cut_at_definitions, require_key, row_changes
from tailrace.sinks.valkey.row_encoding import ROW_ENCODINGS
from tailrace.sinks.valkey.row_reader import ValkeyRowReader
from tailrace.sinks.valkey.row_store import RowTransport, RowWrite
from tailrace.sinks.valkey.server_sink import ServerSink


class RowSink(ServerSink):
    keeps_tables: ClassVar[bool] = True
    replays_dead_letters: ClassVar[bool] = False

    def connect(self) -> RowTransport:
        def is_dropped(oid: int) -> bool:
            table = self._registry.tables.get(oid)
            return table is not None and self._published_oids().is_dropped(oid, table.seen_at_us)

        return RowTransport(self.name, self._options, self._database, is_dropped)

    @contextmanager
    def read_rows(self) -> Iterator[ValkeyRowReader]:
        if self._options.ttl_s:
            raise SinkRefused(
                f"sink {self.name}: its rows expire (ttl_s), so it does not have all of them", "verify another sink"
            )
        source = source_record.load(self._store)
        client = ValkeyClient(self._options, f"tailrace-verify-{self.name}")
        try:
            yield ValkeyRowReader(client, self.name, self._options, str(source["database"]) if source else "")
        finally:
            client.close()

    def _batches(self, part: Part, progress: Progress, tables: PartRegistry) -> Iterator[tuple[RowWrite, Progress]]:
        template = self._options.template(self._database)
        part_progress = PartProgress(progress, part)
        for whole in merge_small(part.chunks, whole_transactions=True):
            for chunk in cut_at_definitions(whole):
                self._register(chunk, tables)
                missing, after = part_progress.select_missing(chunk)
                if changes := row_changes(missing, template):
                    encoded = [self._encoded(change) for change in changes]
                    yield RowWrite(encoded, part.step.loads, part.load is not None), after

    def _encoded(self, change: RowChange) -> RowChange:
        """Return a change with its commands, unless the server has some of its values. They are made while the server
        runs those before them."""
        if not change.is_whole:
            return change
        encoding = ROW_ENCODINGS[self._options.mode]
        encoded = encoding.encode(change.relation, change.keys, change.rows, self._options.ttl_s)
        return replace(change, encoded=encoded)

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None:
        if not step.loads:
            super().commit(step, receipts)
            return
        close_kept_transport(self._transport_key)  # a task's transport has taken over from an earlier one
        with kept_transport(self._transport_key, self.connect, None, "") as kept:
            assert isinstance(kept.transport, RowTransport)
            self._check_interrupted(step, self._progress(kept.transport))
            for load in step.loads:
                require_key(load.relation, self._options.template(self._database))
                kept.transport.finish_load(load, self._stored_state.replays)
        super().commit(step, receipts)
        self._last_transport = kept.id
