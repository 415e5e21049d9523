"""Joins a part's changes into runs as long as memory allows, for sinks that apply many changes of a table at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tailrace.log.decoding import Chunk, TableChanges
from tailrace.state.fold import join_runs

HELD_BYTES: Final = 64 * 1024 * 1024
"""Decoded rows to hold at once: a few seconds' work, and a fraction of an executor's memory."""


def coalesce(chunks: Iterable[Chunk]) -> Iterator[TableChanges]:
    """Runs of changes, in log order within each table. The order among tables is lost: nothing depends on it."""
    held: dict[int, list[TableChanges]] = {}
    size = 0
    for chunk in chunks:
        for run in chunk:
            if not isinstance(run, TableChanges) or not len(run):
                continue
            runs = held.setdefault(run.relation.oid, [])
            if runs and (run.is_truncate or not _continues(runs[-1], run)):
                yield join_runs(runs)
                runs.clear()
            if run.is_truncate:
                yield run
                continue
            runs.append(run)
            size += run.new.batch.nbytes + (run.old.batch.nbytes if run.old.present.any() else 0)
        if size > HELD_BYTES:
            yield from (join_runs(runs) for runs in held.values() if runs)
            held.clear()
            size = 0
    yield from (join_runs(runs) for runs in held.values() if runs)


def _continues(run: TableChanges, next_: TableChanges) -> bool:
    return run.target == next_.target and (run.relation is next_.relation or run.relation == next_.relation)
