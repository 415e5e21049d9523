"""The chunks of a part → effects: runs of one table that follow each other are one, as far as memory goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tailrace.log.decoding import Chunk, TableChanges
from tailrace.log.fold import joined
from tailrace.sinks.postgres.effect import Effect, span
from tailrace.sinks.postgres.rows import Table
from tailrace.sinks.postgres.versions import moment

HELD_BYTES: Final = 64 * 1024 * 1024
"""Of decoded rows: a few seconds' work, and a fraction of what an executor has."""


def effects(chunks: Iterable[Chunk], of: Callable[[TableChanges], Effect[Table]]) -> Iterator[Effect[Table]]:
    """Each table's in the log's order. Tables are apart from each other: nothing depends on the order among them."""
    held: dict[int, list[TableChanges]] = {}
    size = 0
    for chunk in chunks:
        for run in chunk:
            if not isinstance(run, TableChanges) or not len(run):
                continue
            runs = held.setdefault(run.relation.oid, [])
            if runs and (run.is_truncate or not _continues(runs[-1], run)):
                yield from _effects(runs, of)
                runs.clear()
            if run.is_truncate:
                yield Effect(run.relation, run.target, span(run), is_truncate=True, moment=moment(run.at, 0))
                continue
            runs.append(run)
            size += run.new.batch.nbytes + (run.old.batch.nbytes if run.old.present.any() else 0)
        if size > HELD_BYTES:
            for runs in held.values():
                yield from _effects(runs, of)
            held.clear()
            size = 0
    for runs in held.values():
        yield from _effects(runs, of)


def _effects(runs: list[TableChanges], of: Callable[[TableChanges], Effect[Table]]) -> Iterator[Effect[Table]]:
    if runs:
        yield of(joined(runs))


def _continues(run: TableChanges, next_: TableChanges) -> bool:
    return run.target == next_.target and (run.relation is next_.relation or run.relation == next_.relation)
