"""Batches of changes for a transport: small chunks merged, and the next batch prepared while one is published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tailrace.delivery.coalesce import coalesce
from tailrace.log.decoding import Chunk, LogicalMessages, TableChanges

_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Decoded bytes per batch, about ten thousand small rows. Larger batches are no faster."""

_TRANSACTION_BYTES: Final = 64 * 1024 * 1024
"""Decoded bytes of a transaction that is still delivered in one batch, if the caller wants whole ones."""

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


def merge_small(chunks: Iterator[Chunk], *, whole_transactions: bool = False) -> Iterator[Chunk]:
    """Merge small chunks: each run of changes costs milliseconds, however short it is.

    Args:
        chunks: The chunks.
        whole_transactions: Do not end a chunk inside a transaction, unless that is very large.
    """
    waiting: list[Chunk] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += sum(run.new.batch.nbytes + run.old.batch.nbytes for run in chunk if isinstance(run, TableChanges))
        size += sum(len(content) for run in chunk if isinstance(run, LogicalMessages) for content in run.content)
        is_at_end = not whole_transactions or size > _TRANSACTION_BYTES or _ends_transaction(chunk)
        if size > _BATCH_BYTES and is_at_end:
            yield _merge(waiting)
            waiting, size = [], 0
    yield _merge(waiting)


def _ends_transaction(chunk: Chunk) -> bool:
    """Whether the last change of a chunk is the last of its transaction."""
    runs = [run for run in chunk if len(run)]
    return not runs or bool(max(runs, key=lambda run: run.at.position(len(run) - 1)).at.is_last[-1])


def _merge(chunks: Sequence[Chunk]) -> Chunk:
    runs = sorted(coalesce(chunks), key=lambda run: run.at.position(0))
    messages = [run for chunk in chunks for run in chunk if isinstance(run, LogicalMessages)]
    return [*runs, LogicalMessages.joined(messages)] if messages else runs
