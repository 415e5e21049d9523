"""Reads the documents of tables back as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from tailrace.change import Column, Relation
from tailrace.delivery.row_reader import DeliveredTable
from tailrace.errors import SinkRefused
from tailrace.sinks.documents.document_text import document_text
from tailrace.sinks.documents.key_text import key_texts
from tailrace.sinks.documents.raw_json import members
from tailrace.sinks.opensearch.cluster import Cluster
from tailrace.sinks.opensearch.index_mapping import field_values
from tailrace.sinks.opensearch.index_name import SinkId, document_ids, field_name
from tailrace.sinks.opensearch.ledger import Ledger
from tailrace.sinks.opensearch.stored_document import StoredDocument, read_documents, scan_documents


class OpenSearchRowReader:
    """Fulfils `RowReader` and `FindsRows`."""

    is_snapshot = False
    can_repair = True

    def __init__(self, cluster: Cluster, sink: SinkId) -> None:
        self._cluster = cluster
        self._sink = sink
        ledger = Ledger(cluster, sink)
        found = ledger.read()
        if found is None or found.state.cursor is None:
            raise SinkRefused(
                f"sink {sink.name} has delivered nothing yet", "start it with `tailrace run` or `deliver`"
            )
        self.state = found.state
        self._records = ledger.tables()
        self.tables: Mapping[int, DeliveredTable] = {
            oid: DeliveredTable(record.relation, record.target) for oid, record in self._records.items()
        }

    def rows(self, oid: int) -> Iterator[pa.RecordBatch]:
        for page in scan_documents(self._cluster, self._alias(oid)):
            yield _texts(self.tables[oid].relation, page.values())

    def find(self, oid: int, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        ids = document_ids(key_texts(keys.columns)).to_pylist()
        yield _texts(self.tables[oid].relation, read_documents(self._cluster, self._alias(oid), ids).values())

    def comparable(self, oid: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = self.tables[oid].relation.columns
        texts = [_comparable(array, column) for array, column in zip(rows.columns, columns, strict=True)]
        return pa.RecordBatch.from_arrays(texts, names=rows.schema.names)

    def _alias(self, oid: int) -> str:
        return self._sink.write_alias(self._records[oid].index)


def _texts(relation: Relation, documents: Iterable[StoredDocument]) -> pa.RecordBatch:
    sources = [members(document.source) for document in documents]
    arrays = [
        pa.array([_text(source.get(field_name(column.name)), column) for source in sources], pa.string())
        for column in relation.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in relation.columns])


def _comparable(texts: pa.Array, column: Column) -> pa.Array:
    """Texts as they are after a way through a document: json on one line, for example."""
    values = field_values(texts, column).to_pylist()
    return pa.array([_text(None if v is None else v.decode(), column) for v in values], pa.string())


def _text(value: str | None, column: Column) -> str | None:
    return None if value is None else document_text(value, column)
