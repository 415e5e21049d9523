"""A table's rows at a position: a snapshot, and what changed since."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tailrace.log import decoding
from tailrace.log.decoding import SNAPSHOT, At, TableChanges, no_images
from tailrace.log.printing import snapshot_images
from tailrace.log.snapshot import Chunk, Snapshot


def snapshot_chunks(snapshot: Snapshot, chunk: Chunk, first_ordinal: int, *, as_text: bool) -> Iterator[decoding.Chunk]:
    """Rows of one of a snapshot's chunks as changes: all stand at the snapshot's LSN, numbered from an ordinal on."""
    relation = snapshot.relation
    taken_at_us = round(snapshot.taken_at.timestamp() * 1_000_000)
    for batch in snapshot.chunk(chunk):
        count = len(batch)
        lsn = np.full(count, snapshot.lsn, np.int64)
        at = At(
            lsn,
            np.arange(first_ordinal, first_ordinal + count),
            lsn,
            np.zeros(count, np.int64),
            np.full(count, taken_at_us, np.int64),
            np.zeros(count, np.bool_),
        )
        first_ordinal += count
        yield [
            TableChanges(
                relation,
                at,
                np.full(count, SNAPSHOT, np.uint8),
                no_images(relation, count, as_text),
                np.zeros(count, np.bool_),
                snapshot_images(batch, relation, as_text=as_text),
                target=(relation.schema, relation.name),
            )
        ]
