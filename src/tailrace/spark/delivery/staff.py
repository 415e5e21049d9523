"""Errands carried out by Spark's executors.

Parts that are ranges of the log are one task each. Parts that are keys need a shuffle: ranges are read and cut by key,
then each task gets all changes of its keys, in the log's order.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from tailrace.change import Relation
from tailrace.errors import SinkError, SparkError, TailraceError
from tailrace.log import decoding
from tailrace.log.decoding import Messages, TableChanges
from tailrace.log.fold import joined
from tailrace.pgoutput.columns import Images
from tailrace.sinks.base import Parallel, Part
from tailrace.sinks.errand import Errand, Staged, Tally, Work, stage

Piece = tuple[tuple[int, int, int], TableChanges | Messages]
"""Number of the range, of the chunk in it and of the run in that; and changes of one bucket that are there."""


_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): (?!.*\bException\b.*at )")


class Executors:
    """The staff of one sink."""

    def __init__(self, context: SparkContext, sink: str) -> None:
        self._context = context
        self._sink = sink

    def __call__(self, errands: Sequence[Work], parallel: Parallel) -> list[Staged]:
        # Shown by Spark's own pages. Jobs of one sink share a pool, so that none waits for another sink's.
        self._context.setLocalProperty("spark.scheduler.pool", self._sink)
        self._context.setJobDescription(f"{self._sink}: {len(errands)} parts")
        try:
            match parallel:
                case Parallel.NONE:
                    found = self._context.parallelize([list(errands)], 1).map(_one_by_one).collect()[0]
                case Parallel.RANGES:
                    found = self._context.parallelize(errands, len(errands)).map(stage).collect()
                case Parallel.KEYS:
                    found = self._by_key([errand for errand in errands if isinstance(errand, Errand)])
        except (PySparkException, Py4JError) as error:
            raise _failure(self._sink, error) from error
        finally:
            self._context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
        for one in found:
            if isinstance(one, TailraceError):
                raise one
        return [one for one in found if isinstance(one, Staged)]

    def _by_key(self, errands: Sequence[Errand]) -> list[Staged | TailraceError]:
        loads = [e for e in errands if e.rows is not None]
        ranges = [e for e in errands if e.rows is None]
        # A table's rows as they are come before anything that happened to it.
        found = self._context.parallelize(loads, len(loads)).map(stage).collect() if loads else []
        if not ranges:
            return found
        buckets = len(ranges)
        pieces = self._context.parallelize(list(enumerate(ranges)), len(ranges)).flatMap(
            lambda numbered: _pieces(numbered[0], numbered[1], buckets)
        )
        pieces.persist()
        try:
            whole = set(pieces.filter(lambda piece: piece[3]).map(lambda piece: piece[0]).distinct().collect())
            model = replace(ranges[0], slices=())
            grouped = pieces.map(
                lambda piece: (
                    zlib.crc32(str(piece[0]).encode()) % buckets if piece[0] in whole else piece[1],
                    piece[2],
                )
            ).groupByKey(buckets)
            found += grouped.map(lambda group: _stage_bucket(model, group[0], group[1])).collect()
        finally:
            pieces.unpersist()
        return found


def _one_by_one(errands: Sequence[Work]) -> list[Staged | TailraceError]:
    """In order; what comes after a failure must not be seen before it."""
    done: list[Staged | TailraceError] = []
    for errand in errands:
        done.append(stage(errand))
        if isinstance(done[-1], TailraceError):
            break
    return done


def _pieces(number: int, errand: Errand, buckets: int) -> Iterator[tuple[int, int, Piece, bool]]:
    """Relation id, bucket, changes, and whether all of that table must stay together."""
    for index, chunk in enumerate(errand.chunks()):
        for run, part in enumerate(chunk):
            place = number, index, run
            if isinstance(part, Messages):
                yield 0, 0, (place, part), False
                continue
            oid = part.relation.oid
            if part.is_truncate or not part.relation.key:
                yield oid, 0, (place, part), True
                continue
            keys, changes_keys = key_buckets(part, buckets)
            for bucket in np.unique(keys):
                yield oid, int(bucket), (place, part.take(keys == bucket)), changes_keys


def _stage_bucket(model: Errand, bucket: int, pieces: Iterable[Piece]) -> Staged | TailraceError:
    runs: dict[tuple[int, int, int], list[TableChanges | Messages]] = {}
    for place, part in sorted(pieces, key=lambda piece: piece[0]):
        runs.setdefault(place, []).append(part)
    tally = Tally()
    chunks: Iterator[decoding.Chunk] = ([_whole(parts)] for parts in runs.values())
    try:
        receipt = model.sink.stage(Part(model.step, bucket, tally.over(chunks)))
    except TailraceError as error:
        return error
    return Staged(receipt, tally.changes, tally.has_marker)


def _whole(parts: Sequence[TableChanges | Messages]) -> TableChanges | Messages:
    """A run as it was before it was cut by key: its table turned out to be one that must stay together."""
    if len(parts) == 1:
        return parts[0]
    run = joined([part for part in parts if isinstance(part, TableChanges)])
    return run.take(np.lexsort((run.at.ordinal, run.at.commit_lsn)))


def key_buckets(part: TableChanges, buckets: int) -> tuple[npt.NDArray[np.int64], bool]:
    """For each change the bucket of the key it has now (of a delete: had), and whether any update changed a key."""
    new = _keys(part.relation, part.new)
    old = _keys(part.relation, part.old)
    both = part.old.present & part.new.present
    changed = any(new[row] != old[row] for row in np.flatnonzero(both))
    named = [new[row] if part.new.present[row] else old[row] for row in range(len(part))]
    hashes = [zlib.crc32(repr(key).encode()) % buckets for key in named]
    return np.array(hashes, np.int64), changed


def _keys(relation: Relation, images: Images) -> list[tuple[object, ...]]:
    columns = [images.batch.column(relation.columns.index(c)) for c in relation.columns if c.name in relation.key]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _failure(sink: str, error: BaseException) -> TailraceError:
    """Executors that were lost may come back; an exception in a task comes again."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The task's own words are in the middle of a Java stack: of Python's traceback the last line says what it was.
    raised = [line for line in lines if _RAISED.match(line)]
    what = f"sink {sink}: a job of Spark's failed: {(raised or lines or [type(error).__name__])[0]}"
    return SparkError(what, "this is a bug in Tailrace or in the sink") if raised else SinkError(what)
