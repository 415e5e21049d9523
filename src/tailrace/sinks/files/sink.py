"""The sink `files`: every change appended, in files that are written whole and named by their step.

The cursor and the step under way are in Tailrace's own store. A step that was begun is repeated exactly, and so writes
the same files again: nothing is ever missing from the files below the cursor, and nothing is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import numpy as np

from tailrace.errors import ConfigError
from tailrace.log.decoding import Messages, TableChanges
from tailrace.sinks import Context, cursor
from tailrace.sinks.base import Parallel, Part, State, Step
from tailrace.sinks.cursor import Kept
from tailrace.sinks.files import layout
from tailrace.sinks.files.encoding import MIB, Encoding, JsonLines, Parquet, Piece
from tailrace.sinks.files.layout import Stem
from tailrace.store import Store
from tailrace.text import DAY_US

FILE_BYTES: Final = 32 * MIB
"""A file ends at the first piece beyond: large enough to read well, small enough to hold a few in memory."""
SPOOL_BYTES: Final = 128 * MIB
"""Of files under way in one part, over all tables: beyond this the largest is written as it is."""

_COMPRESSIONS: Final = {"jsonl": ("none", "gzip", "zstd"), "parquet": ("zstd", "snappy", "gzip", "none")}


@dataclass(frozen=True)
class FilesOptions:
    url: str = ""
    """`file://`, `s3://`, `gs://` or `az://`: where the files go."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Handed to the object store as those of `[store.options]` are: endpoint, region, credentials."""
    format: str = field(default="jsonl", metadata={"choices": tuple(_COMPRESSIONS)})
    compression: str | None = None
    """Unset: none for jsonl, so that any tool reads it; zstd for parquet, which every reader of it knows."""


class FilesSink:
    Options: ClassVar[type] = FilesOptions
    parallel: ClassVar[Parallel] = Parallel.RANGES
    whole_transactions: ClassVar[bool] = True
    keeps_tables: ClassVar[bool] = False
    start: ClassVar[str] = "snapshot"
    packages: ClassVar[tuple[str, ...]] = ()
    interval_ms: ClassVar[int] = 10_000
    """Each step makes at least one file for each table that changed: six a minute are still few enough to read."""

    def __init__(self, name: str, options: FilesOptions, context: Context) -> None:
        if not options.url:
            raise ConfigError("url is missing: where should the files go?", "such as file:///data/changes")
        if urlsplit(options.url).scheme not in ("", "file", "s3", "gs", "az", "abfs", "abfss"):
            raise ConfigError(f"url {options.url}: not a place for files", "use file://, s3://, gs:// or az://")
        known = _COMPRESSIONS[options.format]
        compression = options.compression or known[0]
        if compression not in known:
            raise ConfigError(f"compression of {options.format} is {compression!r}", f"one of {', '.join(known)}")
        self.name = name
        self.values: Literal["text", "typed"] = "text" if options.format == "jsonl" else "typed"
        self._encoding: Encoding = JsonLines(compression) if options.format == "jsonl" else Parquet(compression)
        self._options = options
        self._context = context
        self._kept = Kept()
        self._stores: tuple[Store, Store] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stores": None}

    @property
    def _files(self) -> Store:
        return self._open_stores()[0]

    @property
    def _store(self) -> Store:
        return self._open_stores()[1]

    def _open_stores(self) -> tuple[Store, Store]:
        if self._stores is None:
            own = self._context.store
            self._stores = Store.open(self._options.url, self._options.options), Store.open(own.url, own.options)
        return self._stores

    def open(self) -> State:
        self._kept = cursor.load(self._store, self.name) or Kept()
        return self._kept.state

    def pending(self) -> Step | None:
        return self._kept.pending

    def begin(self, step: Step) -> None:
        self._keep(step, replace(self._kept, pending=step))

    def stage(self, part: Part) -> tuple[str, ...]:
        """The files that it wrote."""
        spool = _Spool(self._files, self._encoding, Stem.of(part, self._kept.replays))
        for chunk in part.chunks:
            for run in chunk:
                # What happened to a table since its snapshot comes late; the messages of that time were delivered then.
                if not (part.step.loads and isinstance(run, Messages)):
                    spool.add(run)
        return spool.finish()

    def commit(self, step: Step, receipts: Sequence[tuple[str, ...]]) -> None:
        loaded = tuple(load.snapshot for load in step.loads)
        if step.loads:
            self._remove_abandoned(step, {key for receipt in receipts for key in receipt})
        self._keep(step, replace(self._kept, state=step.after, pending=None, loaded=(*self._kept.loaded, *loaded)))

    def tend(self) -> None:
        pass

    def rewind(self, state: State) -> None:
        self._kept = cursor.rewound(self._store, self.name, state)

    def close(self) -> None:
        self._stores = None

    def _keep(self, step: Step, kept: Kept) -> None:
        self._kept = cursor.keep(self._store, self.name, step.before, kept)

    def _remove_abandoned(self, step: Step, written: set[str]) -> None:
        """Files of loads that were never finished, because a newer snapshot came before they were tried again."""
        for load in step.loads:
            for info in self._files.list(layout.directory(load.target)):
                snapshot = layout.snapshot_of(info.key)
                if snapshot is not None and snapshot not in self._kept.loaded and info.key not in written:
                    self._files.delete(info.key)


class _Spool:
    """The files of one part that are under way. What becomes a file follows from what is added, and nothing else."""

    def __init__(self, store: Store, encoding: Encoding, stem: Stem) -> None:
        self._store = store
        self._encoding = encoding
        self._stem = stem
        self._open: dict[tuple[str, str, str], list[Piece]] = {}
        self._sizes: dict[tuple[str, str, str], int] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._written: list[str] = []

    def add(self, run: TableChanges | Messages) -> None:
        directory = layout.MESSAGES if isinstance(run, Messages) else layout.directory(run.target)
        for day, some in _by_day(run):
            for piece in self._encoding.pieces(some):
                place = directory, day, piece.group
                self._open.setdefault(place, []).append(piece)
                self._sizes[place] = self._sizes.get(place, 0) + piece.size
                if self._sizes[place] >= FILE_BYTES:
                    self._write(place)
        while sum(self._sizes.values()) > SPOOL_BYTES:
            self._write(max(self._sizes, key=self._sizes.__getitem__))

    def finish(self) -> tuple[str, ...]:
        for place in list(self._open):
            self._write(place)
        return tuple(self._written)

    def _write(self, place: tuple[str, str, str]) -> None:
        directory, day, _ = place
        number = self._numbers.get((directory, day), 0)
        self._numbers[directory, day] = number + 1
        del self._sizes[place]
        key = self._stem.key(directory, day, number, self._encoding.suffix)
        self._store.replace(key, self._encoding.file(self._open.pop(place)))
        self._written.append(key)


def _by_day(run: TableChanges | Messages) -> Iterator[tuple[str, TableChanges | Messages]]:
    """By the day of the commit, in UTC."""
    days = run.at.committed_at_us // DAY_US
    for day in np.unique(days):
        rows = days == day
        yield layout.day_of(int(day) * DAY_US), run if rows.all() else run.take(rows)
