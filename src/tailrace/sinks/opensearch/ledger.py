"""The sink's own documents in the index `cursor_index`: its cursor, its tables, and rows that it is about to write.

A step's writes are not one transaction, so whoever stages first *claims* the step: the claim stores the step, which is
repeated exactly after a crash, and a token that is checked before each request. An attempt that another one has
overtaken finds another token there, and stops.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tailrace.change import Lsn, Position, Relation
from tailrace.delivery import cursors
from tailrace.delivery.contract import REWIND, State, Step
from tailrace.errors import CorruptError, FencedError, SinkError, SinkRefused, TailraceError
from tailrace.sinks.opensearch.cluster import NDJSON, Cluster
from tailrace.sinks.opensearch.index_name import SinkId
from tailrace.sinks.opensearch.stored_document import read_documents
from tailrace.sinks.opensearch.table_index import index_uuids

_log = logging.getLogger("tailrace.deliver")

FIRST: Final = Position(Lsn(0), 0)
_FORMAT: Final = 1
_PAGE: Final = 500
_GUARD: Final = ("if_seq_no", "if_primary_term")
_SETTINGS: Final = {
    "index": {"number_of_shards": 1, "translog.durability": "request", "hidden": True, "auto_expand_replicas": "0-1"}
}
_MAPPINGS: Final = {
    "dynamic": False,
    "properties": {"sink": {"type": "keyword"}, "kind": {"type": "keyword"}},
}


@dataclass(frozen=True)
class TableRecord:
    """A table and the index that has its documents."""

    oid: int
    relation: Relation
    target: tuple[str, str]
    index: str
    uuid: str
    """The index's identity: a restored one has another."""
    alias: str = ""
    """The alias under which readers find the documents; empty before the first commit."""
    since: Position = FIRST
    """The index has all changes at positions before this one, because it was made from an index that had them."""
    snapshot: str | None = None
    """While the table is loaded: the id of its snapshot."""


@dataclass(frozen=True)
class SinkRecord:
    """The document of the sink itself, as of `version`."""

    state: State
    pending: Step | None
    part: int
    """The last part of it that was begun; -1 without one."""
    claim: str
    version: tuple[int, int] | None
    """Sequence number and primary term; None to write whatever is there."""


class Ledger:
    def __init__(self, cluster: Cluster, sink: SinkId) -> None:
        self._cluster = cluster
        self._index = sink.ledger
        self._sink = sink.name
        self._uuid = ""

    def create(self) -> None:
        """Create the index if there is none, and learn its identity."""
        if not index_uuids(self._cluster, [self._index]):
            body = {"settings": _SETTINGS, "mappings": _MAPPINGS}
            answer = self._cluster.ask("PUT", (self._index,), body=body, expected=(400,))
            if answer.status == 400 and answer.error != "resource_already_exists_exception":
                raise SinkRefused(
                    f"{self._index} cannot be created: {answer.error}", "`tailrace check` inspects the cluster"
                )
        (self._uuid,) = index_uuids(self._cluster, [self._index]).values()

    def read(self) -> SinkRecord | None:
        """Return the sink's own document; None if it never delivered to this cluster."""
        answer = self._cluster.ask("GET", (self._index, "_doc", self._sink), expected=(404,))
        found = answer.json()
        if answer.status == 404:
            if "error" in found:
                raise SinkError(
                    f"{self._index} is missing: somebody removed it", "Creating it, and loading all tables again."
                )
            return None
        raw = found["_source"]
        try:
            if raw["format"] != _FORMAT:
                raise CorruptError(
                    f"{self._index}/{self._sink} has format {raw['format']}", "deliver with a newer Tailrace"
                )
            if self._uuid and raw["ledger"] != self._uuid:
                _log.warning(
                    "sink %s: %s was restored or copied, so its cursor may not be that of the documents:"
                    " loading all tables again",
                    *(self._sink, self._index),
                )
                return None
            return SinkRecord(
                cursors.state_from_json(raw["state"]),
                None if raw["pending"] is None else cursors.step_from_json(raw["pending"]),
                raw["part"],
                raw["claim"],
                (found["_seq_no"], found["_primary_term"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptError(
                f"{self._index}/{self._sink} is not the state of a sink", REWIND.format(self._sink)
            ) from error

    def claim(self, step: Step, part: int, token: str) -> bool:
        """Take over a part of a step; return whether an earlier attempt may have written some of it."""
        found = self.require(step.before)
        if found.pending not in (None, step):
            raise SinkError(
                f"sink {self._sink}: a step up to {found.pending.end.lsn if found.pending else None} was begun",
                "Opening the sink again, which repeats that step first.",
            )
        is_repeat = found.pending == step and part <= found.part
        # A load writes to a new index and starts again after a crash.
        pending = None if step.loads else step
        self._write(replace(found, pending=pending, part=max(part, found.part), claim=token))
        return is_repeat

    def check_claim(self, token: str) -> None:
        """Raise if another attempt has taken the step over."""
        found = self.read()
        if found is None or found.claim != token:
            raise SinkError(
                f"sink {self._sink}: another process delivers this step", "Retrying. Is deliver running twice?"
            )

    def require(self, before: State) -> SinkRecord:
        """Return the sink's document; FencedError if it is not in this state."""
        found = self.read()
        if found is None or found.state != before:
            cursor = None if found is None else found.state.cursor
            raise FencedError(
                f"sink {self._sink} is at {cursor} at its destination, and this step starts at {before.cursor}: "
                "it was rewound, or another process delivers to it",
                "restart deliver: it continues from the destination's cursor",
            )
        return found

    def advance(self, before: State, after: State) -> None:
        """Store a state; FencedError if the sink is not in the state before it."""
        self._write(replace(self.require(before), state=after, pending=None, part=-1, claim=""))

    def set_state(self, state: State) -> None:
        """Store a state, whatever is there."""
        self._write(SinkRecord(state, None, -1, "", None))

    def _write(self, record: SinkRecord) -> None:
        guard = {} if record.version is None else dict(zip(_GUARD, record.version, strict=True))
        body = {
            "sink": self._sink,
            "kind": "sink",
            "format": _FORMAT,
            "ledger": self._uuid or self._find_uuid(),
            "state": cursors.state_to_json(record.state),
            "pending": None if record.pending is None else cursors.step_to_json(record.pending),
            "part": record.part,
            "claim": record.claim,
        }
        answer = self._cluster.ask("PUT", (self._index, "_doc", self._sink), guard, body, expected=(409,))
        if answer.status == 409:
            raise FencedError(
                f"sink {self._sink}: another process has moved its cursor", "is deliver running twice? restart it"
            )

    def _find_uuid(self) -> str:
        self.create()
        return self._uuid

    def table(self, oid: int, *, is_load: bool = False) -> TableRecord | None:
        """Return a table's record, or the one of its load."""
        answer = self._cluster.ask("GET", (self._index, "_doc", self._table_id(oid, is_load=is_load)), expected=(404,))
        return None if answer.status == 404 else _table_record(answer.json()["_source"])

    def save_table(self, record: TableRecord, *, is_load: bool = False) -> None:
        body = {
            "sink": self._sink,
            "kind": "load" if is_load else "table",
            "oid": record.oid,
            "relation": record.relation.to_json(),
            "target": list(record.target),
            "index": record.index,
            "uuid": record.uuid,
            "alias": record.alias,
            "since": str(record.since),
            "snapshot": record.snapshot,
        }
        self._cluster.ask("PUT", (self._index, "_doc", self._table_id(record.oid, is_load=is_load)), body=body)

    def tables(self) -> dict[int, TableRecord]:
        """Return the records of all tables."""
        return {record.oid: record for record in map(_table_record, self._search("table").values())}

    def remove_loads(self) -> None:
        """Remove the records of loads that were not finished."""
        self.remove(self._search("load"))

    def journal(self, ids: Iterable[str]) -> dict[str, str]:
        """Return those of some rows that were stored before an earlier attempt wrote any of them."""
        found = read_documents(self._cluster, self._index, [self._journal_id(each) for each in ids])
        prefix = len(self._journal_id(""))
        return {id_[prefix:]: json.loads(document.source)["document"] for id_, document in found.items()}

    def save_journal(self, documents: Mapping[str, str]) -> None:
        """Store rows before any of them is written. Durable when it returns."""
        lines = []
        for id_, document in documents.items():
            lines.append(json.dumps({"index": {"_id": self._journal_id(id_)}}))
            lines.append(json.dumps({"sink": self._sink, "kind": "journal", "document": document}, ensure_ascii=False))
        self._bulk(lines)

    def remove_journal(self) -> None:
        """Remove what was stored for steps that are finished."""
        self.remove(self._search("journal"))

    def forget_rows(self, ids: Iterable[str]) -> None:
        """Remove rows of a step that is finished."""
        self.remove([self._journal_id(each) for each in ids])

    def forget_load(self, oid: int) -> None:
        self.remove([self._table_id(oid, is_load=True)])

    def remove(self, ids: Iterable[str]) -> None:
        lines = [json.dumps({"delete": {"_id": each}}) for each in ids]
        if lines:
            self._bulk(lines)

    def _bulk(self, lines: list[str]) -> None:
        body = ("\n".join(lines) + "\n").encode(errors="surrogateescape")
        answer = self._cluster.ask("POST", (self._index, "_bulk"), {"filter_path": "errors"}, body, content_type=NDJSON)
        if answer.json()["errors"]:
            raise SinkError(f"{self._index} cannot be written", "Retrying.")

    def _table_id(self, oid: int, *, is_load: bool) -> str:
        return f"{self._sink}~{oid}" + ("~load" if is_load else "")

    def _journal_id(self, id_: str) -> str:
        return f"{self._sink}~journal~{id_}"

    def _search(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the sink's documents of a kind, by id."""
        self._cluster.ask("POST", (self._index, "_refresh"))
        query = {"bool": {"filter": [{"term": {"sink": self._sink}}, {"term": {"kind": kind}}]}}
        return dict(self._pages({"query": query, "size": _PAGE, "sort": ["_doc"]}))

    def _pages(self, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        page = self._cluster.ask("POST", (self._index, "_search"), {"scroll": "1m"}, body).json()
        while page["hits"]["hits"]:
            for hit in page["hits"]["hits"]:
                yield hit["_id"], hit["_source"]
            again = {"scroll": "1m", "scroll_id": page["_scroll_id"]}
            page = self._cluster.ask("POST", ("_search", "scroll"), body=again).json()
        self._cluster.ask("DELETE", ("_search", "scroll"), body={"scroll_id": page["_scroll_id"]}, expected=(404,))


def _table_record(raw: Mapping[str, Any]) -> TableRecord:
    try:
        return TableRecord(
            int(raw["oid"]),
            Relation.from_json(raw["relation"]),
            (str(raw["target"][0]), str(raw["target"][1])),
            str(raw["index"]),
            str(raw["uuid"]),
            str(raw["alias"]),
            Position.parse(raw["since"]),
            raw["snapshot"],
        )
    except (KeyError, TypeError, ValueError, TailraceError) as error:
        raise CorruptError("a document of the sink is not the record of a table") from error
