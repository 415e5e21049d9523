"""Batches of changes for a transport: small chunks merged, and the next batch prepared while one is published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tailrace.delivery.coalesce import coalesce
from tailrace.log.decoding import Chunk, LogicalMessages, TableChanges

_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Decoded bytes per batch, about ten thousand small rows. Larger batches are no faster."""

Batch = TypeVar("Batch")


class _Exhausted:
    """Marks the end of the batches."""


_EXHAUSTED: Final = _Exhausted()


def prefetch(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches, preparing each one while the caller uses the previous one."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, _EXHAUSTED)
        while not isinstance(batch := coming.result(), _Exhausted):
            coming = pool.submit(next, batches, _EXHAUSTED)
            yield batch


def merge_small(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Merge small chunks: each run of changes costs milliseconds, however short it is."""
    waiting: list[Chunk] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += sum(run.new.batch.nbytes + run.old.batch.nbytes for run in chunk if isinstance(run, TableChanges))
        size += sum(len(content) for run in chunk if isinstance(run, LogicalMessages) for content in run.content)
        if size > _BATCH_BYTES:
            yield _merge(waiting)
            waiting, size = [], 0
    yield _merge(waiting)


def _merge(chunks: Sequence[Chunk]) -> Chunk:
    runs = sorted(coalesce(chunks), key=lambda run: run.at.position(0))
    messages = [run for chunk in chunks for run in chunk if isinstance(run, LogicalMessages)]
    return [*runs, LogicalMessages.joined(messages)] if messages else runs
