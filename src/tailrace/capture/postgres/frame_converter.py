"""Converts frames of the replication stream to rows of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from tailrace.change import Lsn, Relation
from tailrace.log import ddl_message
from tailrace.log_rows import RowBatch
from tailrace.pgoutput import framing, message
from tailrace.pgoutput.framing import Frames, MessageIndex, OpenTransaction

_log = logging.getLogger("tailrace.capture")

Describe = Callable[[bytes], Relation | None]
"""Converts a RELATION message to its relation; a TYPE message gives None."""


OnRelation = Callable[[Relation, Lsn], None]


class FrameConverter:
    """Fulfils `Converter`. Transactions that commit below `skip_below` are left out, because the log holds them.

    `on_relation` is called with each description of a relation that changes follow, with the commit LSN, and must not
    block.
    """

    def __init__(self, describe: Describe, skip_below: Lsn, on_relation: OnRelation) -> None:
        self._describe = describe
        self._skip_below = skip_below
        self._on_relation = on_relation
        self._unused: dict[int, Relation] = {}
        self._transaction = OpenTransaction()
        self._own: set[int] = set()

    def join(self, portions: Sequence[Frames]) -> Frames:
        return Frames.concat(portions)

    def count(self, portion: Frames) -> int:
        return len(portion.lengths)

    def convert(self, portion: Frames) -> RowBatch:
        messages = MessageIndex.of(portion)
        described = [(at, r) for at, text in messages.descriptions() if (r := self._describe(text)) is not None]
        batch = framing.read(messages, self._transaction, self._skip_below, described, self._own)
        for _, relation in described:
            self._track_own(relation)
        self._report_ddl(batch)
        return batch

    def _report_ddl(self, batch: RowBatch) -> None:
        """Log what DDL says that it did, and pass new descriptions of relations on."""
        # A partition is described too, although its changes are published as the root's. A change of a table follows
        # its description in the same transaction, but maybe not in the same batch.
        self._unused.update((relation.oid, relation) for _, relation in batch.defined if not relation.is_own)
        for oid in self._unused.keys() & set(np.unique(batch.rows.relation_id).tolist()) if self._unused else ():
            relation = self._unused.pop(oid)
            lsn = Lsn(batch.rows.commit_lsn[np.argmax(batch.rows.relation_id == oid)])
            self._on_relation(relation, lsn)
        if batch.end_lsn:
            self._unused.clear()
        for at in np.flatnonzero(batch.rows.kind == framing.M).tolist():
            sent = message.parse(batch.rows.payload[at].as_py())
            if isinstance(sent, message.LogicalMessage) and sent.prefix == ddl_message.PREFIX:
                found = ddl_message.parse(sent.content)
                if found is not None:
                    xid, lsn = batch.rows.xid[at], Lsn(batch.rows.commit_lsn[at])
                    _log.info("%s, in transaction %d at %s", found, xid, lsn)

    def _track_own(self, relation: Relation) -> None:
        """Remember whether the relation is Tailrace's own, until its next description."""
        if not relation.is_own:
            self._own.discard(relation.oid)
        elif relation.oid not in self._own:
            self._own.add(relation.oid)
            _log.info("%s is not captured: its comment marks it as Tailrace's own", relation.qualified_name)
