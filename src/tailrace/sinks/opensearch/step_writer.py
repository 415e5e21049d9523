"""Writes the changes of one part of a step. Runs in the tasks.

Every write is a whole document, or a removal, with the commit LSN as its version, so writing it again changes nothing.
What a write needs to read first is either still there after a crash, or was stored in the ledger's journal before:

- A row that stays under its key and lacks values takes them from its own document, which has them before and after.
- A row that moves to another key and lacks values is completed and put into the journal, together with all such rows of
  the run, before anything of the run is written: rows may swap their keys.
- TRUNCATE, and a change of the table that concerns its documents, make a new index. The table's record then says from
  which position on changes belong to it. Readers see it when the step is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Position, Relation
from tailrace.delivery.contract import Load, Step
from tailrace.errors import PoisonError, SinkError, SinkRefused
from tailrace.images import Images
from tailrace.log import json_columns
from tailrace.log.decoding import TableChanges
from tailrace.sinks.documents.key_text import key_texts
from tailrace.sinks.documents.net_effect import NetEffect, net_effect
from tailrace.sinks.documents.row_document import row_documents
from tailrace.sinks.messages.batching import prefetch
from tailrace.sinks.opensearch.bulk import BulkLimits, BulkWriter, Writes, delete_writes, index_writes
from tailrace.sinks.opensearch.cluster import Cluster
from tailrace.sinks.opensearch.document_conversion import DocumentConversion, is_compatible
from tailrace.sinks.opensearch.index_mapping import field_limit, field_values, mapping_of
from tailrace.sinks.opensearch.index_name import SinkId, document_ids, field_name, new_index_name
from tailrace.sinks.opensearch.ledger import FIRST, Ledger, TableRecord
from tailrace.sinks.opensearch.options import OpenSearchOptions
from tailrace.sinks.opensearch.partial_row import complete_document
from tailrace.sinks.opensearch.stored_document import PAGE, read_documents, scan_documents
from tailrace.sinks.opensearch.table_index import add_fields, create_index
from tailrace.state.fold import has_key, key_columns

I64 = npt.NDArray[np.int64]

_SLICE_BYTES = 4 * 1024 * 1024
"""Decoded bytes of rows that become documents at once, while those before them are sent."""


@dataclass(frozen=True)
class Claim:
    """Who writes which part of which step."""

    sink: SinkId
    options: OpenSearchOptions
    alias_of: Callable[[tuple[str, str]], str]
    """Returns a table's alias."""
    step: Step
    part: int
    """-1 for a part of a load."""
    token: str
    """Unique to this attempt."""


class StepWriter:
    """Writes the runs of one part, one after the other."""

    def __init__(self, cluster: Cluster, claim: Claim) -> None:
        self._cluster = cluster
        self._claim = claim
        self._options = claim.options
        self._ledger = Ledger(cluster, claim.sink)
        self._is_repeat = self._ledger.claim(claim.step, claim.part, claim.token)
        self._loads = {load.relation.oid: load for load in claim.step.loads}
        self.tables: dict[int, TableRecord] = {}
        """The tables that were written to."""
        self.journal: list[str] = []
        """What was put into the journal."""

    def load(self, load: Load, number: int, runs: Iterator[TableChanges]) -> None:
        """Write rows of a snapshot into a new index. The first part makes it."""
        record = self._begin_load(load) if number == 0 else self._load_record(load)
        writer = self._bulk_writer(record)
        for run in runs:
            if has_key(run.relation):
                columns = [run.new.batch.column(column) for column in key_columns(run.relation)]
                ids = document_ids(key_texts(columns))
            else:
                ids = pc.binary_join_element_wise("snapshot", json_columns.positions(run.at), "-")
            writer.send(prefetch(self._row_writes(run.relation, run.new, ids, run.at.commit_lsn, run.at.ordinal)))

    def apply(self, run: TableChanges) -> None:
        """Write the net effect of changes."""
        if is_keyless(run.relation):
            raise keyless_error(run.relation)
        record = self._record(run)
        is_new = _is_from(run, record.since)
        if not is_new.all():
            run = run.take(is_new)  # the rest is in the index already: the step is repeated
            if not len(run):
                return
        if run.is_truncate:
            lsn, ordinal = run.at.position(0)
            self._save(self._new_index(record, run.relation, Position(lsn, ordinal + 1)))
            return
        record = self._follow(record, run.relation, run.at.position(0))
        writer = self._bulk_writer(record)
        if not has_key(run.relation):
            ids = json_columns.positions(run.at)
            writer.send(prefetch(self._row_writes(run.relation, run.new, ids, run.at.commit_lsn, run.at.ordinal)))
            return
        effect = net_effect(run)
        is_partial = effect.is_partial
        is_moved = pc.fill_null(pc.not_equal(effect.keys, effect.old_keys), True).to_numpy(zero_copy_only=False)
        moved = np.flatnonzero(is_partial & is_moved)
        self._store_moved(record, run.relation, effect, moved)
        writer.send(prefetch(self._whole_writes(run.relation, effect, np.flatnonzero(~is_partial))))
        writer.send(self._updated_writes(record, run.relation, effect, np.flatnonzero(is_partial & ~is_moved)))
        writer.send(self._moved_writes(record, effect, moved))

    def _whole_writes(self, relation: Relation, effect: NetEffect, rows: I64) -> Iterator[Writes]:
        images = effect.rows if len(rows) == len(effect.rows) else replace(effect.rows.take(rows), unchanged={})
        ids = document_ids(effect.keys.take(pa.array(rows)))
        yield from self._row_writes(relation, images, ids, effect.commit_lsn[rows], effect.ordinal[rows])
        if len(effect.removed):
            yield delete_writes(document_ids(effect.removed), effect.last_lsn, effect.removed_at)

    def _row_writes(
        self, relation: Relation, images: Images, ids: pa.Array, commit_lsn: I64, ordinal: I64
    ) -> Iterator[Writes]:
        count = len(images)
        step = max(1, count * _SLICE_BYTES // max(images.batch.nbytes, 1))
        for first in range(0, count, step):
            end = min(first + step, count)
            some = images if end - first == count else images.take(np.arange(first, end))
            documents = row_documents(some, relation, field_name, field_values)
            yield index_writes(ids.slice(first, end - first), commit_lsn[first:end], documents, ordinal[first:end])

    def _updated_writes(
        self, record: TableRecord, relation: Relation, effect: NetEffect, rows: I64
    ) -> Iterator[Writes]:
        """Complete rows from their own documents."""
        for page in _pages(rows):
            completed = self._completed(record, relation, effect, page, effect.keys, skips_newer=True)
            yield _document_writes(effect, completed, document_ids(effect.keys))

    def _store_moved(self, record: TableRecord, relation: Relation, effect: NetEffect, rows: I64) -> None:
        """Complete rows from the documents under their old keys, unless an earlier attempt did."""
        for page in _pages(rows):
            names = {int(row): _journal_name(record, effect, row) for row in page}
            known = self._ledger.journal(names.values()) if self._is_repeat else {}
            others = np.array([row for row in page if names[int(row)] not in known], np.int64)
            if len(others):
                completed = self._completed(record, relation, effect, others, effect.old_keys, skips_newer=False)
                self._check_claim()
                self._ledger.save_journal({names[row]: document for row, document in completed.items()})
            self.journal += names.values()

    def _moved_writes(self, record: TableRecord, effect: NetEffect, rows: I64) -> Iterator[Writes]:
        for page in _pages(rows):
            names = {int(row): _journal_name(record, effect, row) for row in page}
            known = self._ledger.journal(names.values())
            yield _document_writes(effect, {row: known[name] for row, name in names.items()}, document_ids(effect.keys))

    def _completed(
        self,
        record: TableRecord,
        relation: Relation,
        effect: NetEffect,
        rows: I64,
        keys: pa.Array,
        *,
        skips_newer: bool,
    ) -> dict[int, str]:
        """Return the whole documents of rows that lack values, by row.

        Args:
            record: The table.
            relation: Its definition.
            effect: The changes.
            rows: The rows.
            keys: The keys of the documents that have the values.
            skips_newer: Leave out rows whose document is newer or gone: the step is repeated.
        """
        ids = dict(zip(rows.tolist(), document_ids(keys.take(pa.array(rows))).to_pylist(), strict=True))
        stored = read_documents(self._cluster, self._alias(record), list(ids.values()))
        sent = row_documents(effect.rows.take(rows), relation, field_name, field_values)
        found, missing = {}, []
        for row, text in zip(rows.tolist(), sent.to_pylist(), strict=True):
            document = stored.get(ids[row])
            if document is None:
                if not (skips_newer and self._is_repeat):
                    missing.append(str(effect.position(row)))
            elif not skips_newer or document.version <= effect.commit_lsn[row]:
                unsent = [index for index, mask in effect.rows.unchanged.items() if mask[row]]
                found[row] = complete_document(text.decode(), document.source, relation, unsent)
        if missing:
            raise PoisonError(
                f"{relation.qualified_name}, {missing[0]}: PostgreSQL did not send a value that has not changed, and"
                " the row's document is missing",
                "Load the table again. Somebody removed the document, or it became a dead letter.",
                tuple(missing),
            )
        return found

    def _record(self, run: TableChanges) -> TableRecord:
        """Return the record of a run's table, whose index is made if there is none."""
        oid = run.relation.oid
        record = self.tables.get(oid)
        if record is None:
            load = self._loads.get(oid)
            record = self._load_record(load) if load is not None else self._ledger.table(oid)
        if record is None:
            made = TableRecord(oid, run.relation, run.target, "", "")
            record = self._new_index(made, run.relation, run.at.position(0))
            self._save(record)
        if record.target != run.target and _is_from(run, record.since).all():
            record = replace(record, target=run.target)
            self._save(record)
        self.tables[oid] = record
        return record

    def _follow(self, record: TableRecord, relation: Relation, since: Position) -> TableRecord:
        """Return the record of an index that can hold rows of a relation."""
        if record.relation is relation or record.relation == relation:
            return record
        before, after = (mapping_of(each, record.target, self._options) for each in (record.relation, relation))
        if is_compatible(record.relation, relation, before, after):
            if added := {name: field for name, field in after.items() if name not in before}:
                add_fields(self._cluster, record.index, added, field_limit(after))
            made = replace(record, relation=relation, since=since)
        else:
            made = self._new_index(record, relation, since)
            self._copy(record, made)
        self._save(made)
        return made

    def _copy(self, old: TableRecord, new: TableRecord) -> None:
        """Write the documents of a table's index into the next one."""
        conversion = DocumentConversion(old.relation, new.relation)
        self._bulk_writer(new).send(self._converted(conversion, self._alias(old)))

    def _converted(self, conversion: DocumentConversion, alias: str) -> Iterator[Writes]:
        for page in scan_documents(self._cluster, alias):
            ids, sources = conversion.convert(page)
            versions = np.array([document.version for document in page.values()], np.int64)
            documents = pa.array([source.encode(errors="surrogateescape") for source in sources], pa.binary())
            yield index_writes(pa.array(ids, pa.string()), versions, documents, np.zeros(len(ids), np.int64))

    def _begin_load(self, load: Load) -> TableRecord:
        if is_keyless(load.relation):
            raise keyless_error(load.relation)
        made = TableRecord(load.relation.oid, load.relation, load.target, "", "", snapshot=load.snapshot)
        record = self._new_index(made, load.relation, FIRST)
        self._save(record)
        return record

    def _load_record(self, load: Load) -> TableRecord:
        record = self.tables.get(load.relation.oid) or self._ledger.table(load.relation.oid, is_load=True)
        if record is None or record.snapshot != load.snapshot:
            raise SinkError(f"the load of {load.relation.qualified_name} was interrupted", "Starting it again.")
        self.tables[load.relation.oid] = record
        return record

    def _new_index(self, record: TableRecord, relation: Relation, since: Position) -> TableRecord:
        """Return the record of a new, empty index for a table."""
        self._check_claim()
        name = new_index_name(self._claim.alias_of(record.target), relation.oid)
        fields = mapping_of(relation, record.target, self._options)
        uuid = create_index(self._cluster, self._claim.sink, name, relation, fields, self._options.index_settings)
        return replace(record, relation=relation, index=name, uuid=uuid, since=since)

    def _save(self, record: TableRecord) -> None:
        self._check_claim()
        self._ledger.save_table(record, is_load=record.snapshot is not None)
        self.tables[record.oid] = record

    def _bulk_writer(self, record: TableRecord) -> BulkWriter:
        limits = BulkLimits(self._options.bulk_bytes, self._options.bulk_documents)
        return BulkWriter(self._cluster, self._alias(record), record.relation.qualified_name, limits, self._check_claim)

    def _alias(self, record: TableRecord) -> str:
        return self._claim.sink.write_alias(record.index)

    def _check_claim(self) -> None:
        self._ledger.check_claim(self._claim.token)


def is_keyless(relation: Relation) -> bool:
    """Whether rows of a table change, and nothing identifies them. A table without a key that only grows is fine."""
    return not has_key(relation) and relation.identity == "f"


def keyless_error(relation: Relation) -> SinkRefused:
    return SinkRefused(
        f"{relation.qualified_name} has REPLICA IDENTITY FULL and no key: nothing identifies a document",
        "add a primary key to the table, or name the table in `exclude` of the sink",
    )


def _is_from(run: TableChanges, since: Position) -> npt.NDArray[np.bool_]:
    """Return the changes at a position or after it."""
    at = run.at
    is_same = at.commit_lsn == since.commit_lsn
    found: npt.NDArray[np.bool_] = (at.commit_lsn > since.commit_lsn) | (is_same & (at.ordinal >= since.ordinal))
    return found


def _pages(rows: I64) -> Iterator[I64]:
    for first in range(0, len(rows), PAGE):
        yield rows[first : first + PAGE]


def _journal_name(record: TableRecord, effect: NetEffect, row: int) -> str:
    return f"{record.index}~{effect.position(row)}"


def _document_writes(effect: NetEffect, documents: dict[int, str], ids: pa.Array) -> Writes:
    rows = np.array(list(documents), np.int64)
    sources = pa.array([each.encode(errors="surrogateescape") for each in documents.values()], pa.binary())
    return index_writes(ids.take(pa.array(rows)), effect.commit_lsn[rows], sources, effect.ordinal[rows])
