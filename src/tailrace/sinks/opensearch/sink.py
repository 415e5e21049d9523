"""The sink `opensearch`: versioned writes, so that a repeated step changes nothing, and the cursor after them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tailrace.delivery.coalesce import coalesce
from tailrace.delivery.contract import BaseSink, Part, State, Step
from tailrace.delivery.sink_settings import SinkContext
from tailrace.delivery.transforms import Shaping
from tailrace.errors import ConfigError, SinkError
from tailrace.finding import Finding, Severity
from tailrace.log import published_table, source_record
from tailrace.settings.secret import with_picklable_secrets
from tailrace.sinks.messages.batching import prefetch
from tailrace.sinks.opensearch.check import check_cluster
from tailrace.sinks.opensearch.cluster import Cluster
from tailrace.sinks.opensearch.index_name import SinkId, alias_name, displaced_alias
from tailrace.sinks.opensearch.ledger import Ledger, TableRecord
from tailrace.sinks.opensearch.options import OpenSearchOptions
from tailrace.sinks.opensearch.row_reader import OpenSearchRowReader
from tailrace.sinks.opensearch.step_writer import Claim, StepWriter, is_keyless, keyless_error
from tailrace.sinks.opensearch.table_index import (
    index_uuids,
    move_aliases,
    own_indices,
    remove_indices,
)
from tailrace.store import Store

_log = logging.getLogger("tailrace.deliver")


@dataclass(frozen=True)
class StageReceipt:
    tables: tuple[TableRecord, ...]
    """The tables that were written to, in the order of their first change."""
    journal: tuple[str, ...]


class OpenSearchSink(BaseSink):
    Options: ClassVar[type] = OpenSearchOptions
    keeps_tables: ClassVar[bool] = True
    start: ClassVar[str] = "snapshot"

    def __init__(self, name: str, options: OpenSearchOptions, context: SinkContext) -> None:
        self.name = name
        self._options = options.validate()
        self._id = SinkId(options.cursor_index, name)
        self._context = context
        self._database: str | None = None
        self._cluster: Cluster | None = None
        self._tables: dict[int, TableRecord] = {}
        self._pending: Step | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For executors: without connections, with the passwords."""
        return self.__dict__ | {
            "_options": with_picklable_secrets(self._options),
            "_cluster": None,
            "_tables": {},
            "_pending": None,
        }

    def open(self) -> State:
        self.close()
        source = source_record.load(Store.open(self._context.store.url, self._context.store.options))
        self._database = str(source["database"]) if source else ""
        ledger = self._ledger
        ledger.create()
        found = ledger.read()
        self._tables, self._pending = ledger.tables(), None if found is None else found.pending
        ledger.remove_loads()
        if found is None:
            return State()
        state = self._check_indices(found.state)
        if state != found.state:
            # The rest of a step that was begun cannot be repeated without these tables: everything is loaded again.
            state = state if self._pending is None else replace(state, tables={})
            ledger.set_state(state)
            self._pending = None
        if self._pending is None:
            ledger.remove_journal()
            self._show(self._tables.values())
        self._remove_leftovers()
        return state

    def pending(self) -> Step | None:
        return self._pending

    def stage(self, part: Part) -> StageReceipt:
        writer = self._writer(part.step, part.number if part.load is None else -1)
        runs = prefetch(coalesce(part.chunks))
        if part.load is not None:
            writer.load(part.load, part.number, runs)
        else:
            for run in runs:
                writer.apply(run)
        return StageReceipt(tuple(writer.tables.values()), tuple(writer.journal))

    def commit(self, step: Step, receipts: Sequence[StageReceipt]) -> None:
        ledger = self._ledger
        ledger.require(step.before)
        touched: dict[int, TableRecord] = {}
        for record in (*self._begin_empty_loads(step, receipts), *(r for receipt in receipts for r in receipt.tables)):
            touched.pop(record.oid, None)
            touched[record.oid] = record
        before = dict(self._tables)
        for record in touched.values():
            known = before.get(record.oid)
            if known is None or known.index != record.index or self._options.refresh == "step":
                self._connected.ask("POST", (record.index, "_refresh"))
            self._tables[record.oid] = replace(record, snapshot=None, alias=known.alias if known else "")
        self._assign_aliases(list(touched))
        # After a crash in a commit, the aliases may be behind the records.
        is_resumed = self._pending is not None
        changed = [record for oid, record in self._tables.items() if is_resumed or before.get(oid) != record]
        for record in changed:
            ledger.save_table(record)
        self._show(changed)
        ledger.advance(step.before, step.after)
        self._pending = None
        ledger.forget_rows(name for receipt in receipts for name in receipt.journal)
        for load in step.loads:
            ledger.forget_load(load.relation.oid)
        if step.loads or {record.index for record in before.values()} - {t.index for t in self._tables.values()}:
            self._remove_leftovers()

    @contextmanager
    def read_rows(self) -> Iterator[OpenSearchRowReader]:
        cluster = Cluster(self._options)
        try:
            yield OpenSearchRowReader(cluster, self._id)
        finally:
            cluster.close()

    def rewind(self, state: State) -> None:
        found = self._ledger.read()
        if found is not None and found.pending is not None and state.tables:
            raise SinkError(f"sink {self.name}: a step was begun", "Opening the sink again, which repeats it first.")
        self._ledger.set_state(state)
        self._pending = None

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def check(self) -> Iterator[Finding]:
        yield from check_cluster(self._id, self._options)
        shaping = Shaping(self._context.common)
        for relation in published_table.load(Store.open(self._context.store.url, self._context.store.options)):
            if shaping.load(relation) is not None and is_keyless(relation):
                error = keyless_error(relation)
                yield Finding(Severity.ERROR, relation.qualified_name, f"cannot be delivered: {error}", error.hint)

    @property
    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options)
        return self._cluster

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self._connected, self._id)

    def _writer(self, step: Step, part: int) -> StepWriter:
        claim = Claim(self._id, self._options, self._alias_of, step, part, uuid.uuid4().hex)
        return StepWriter(self._connected, claim)

    def _alias_of(self, target: tuple[str, str]) -> str:
        return alias_name(self._options.template(self._database or "").of_table(target))

    def _check_indices(self, state: State) -> State:
        """Return the state without tables whose index is gone or was restored: they are loaded again."""
        found = index_uuids(self._connected, [record.index for record in self._tables.values()])
        lost = [
            record
            for record in self._tables.values()
            if record.oid in state.tables and found.get(record.index) != record.uuid
        ]
        for record in lost:
            _log.warning(
                "sink %s: the index of %s is missing or was restored: loading the table again",
                *(self.name, record.relation.qualified_name),
            )
        for record in lost:
            del self._tables[record.oid]
        gone = {record.oid for record in lost}
        return replace(state, tables={oid: lsn for oid, lsn in state.tables.items() if oid not in gone})

    def _begin_empty_loads(self, step: Step, receipts: Sequence[StageReceipt]) -> list[TableRecord]:
        """Make the indices of loads that have no rows."""
        begun = {record.oid for receipt in receipts for record in receipt.tables}
        empty = [load for load in step.loads if load.relation.oid not in begun]
        if not empty:
            return []
        writer = self._writer(step, -1)
        for load in empty:
            writer.load(load, 0, iter(()))
        return list(writer.tables.values())

    def _assign_aliases(self, touched: Sequence[int]) -> None:
        """Give tables the aliases that their names call for. A table whose name another one has taken was renamed or
        dropped at the source, without a change to show it."""
        for oid in touched:
            record = self._tables[oid]
            wanted = self._alias_of(record.target)
            for other in [each for each in self._tables.values() if each.alias == wanted and each.oid != oid]:
                if other.oid in touched and self._alias_of(other.target) != wanted:
                    continue  # it gets another one, too
                if other.target != record.target:
                    raise ConfigError(
                        f"{'.'.join(other.target)} and {'.'.join(record.target)} would both be found under {wanted}",
                        "use another `index`, such as {schema}.{table}, or `route` one of them elsewhere",
                    )
                self._tables[other.oid] = replace(other, alias=displaced_alias(wanted, other.oid))
            self._tables[oid] = replace(record, alias=wanted)

    def _show(self, records: Iterable[TableRecord]) -> None:
        """Show readers the indices of tables. A table that no step was committed for has no alias yet."""
        if aliases := {record.index: record.alias for record in records if record.alias}:
            move_aliases(self._connected, self._id, aliases)

    def _remove_leftovers(self) -> None:
        """Remove indices that were replaced, and those of attempts that failed."""
        used = {record.index for record in self._tables.values()}
        remove_indices(self._connected, own_indices(self._connected, self._id).keys() - used)
