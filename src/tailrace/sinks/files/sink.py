"""The sink `files`: appends every change, in files that are written as a whole and named after their step.

The cursor and the pending step are in Tailrace's own store. A step that was begun is repeated exactly and writes the
same files again: below the cursor no change is missing from the files, and none is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import numpy as np

from tailrace.delivery import cursors
from tailrace.delivery.contract import BaseSink, Parallel, Part, State, Step
from tailrace.delivery.cursors import StoredState
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import ConfigError
from tailrace.finding import Finding
from tailrace.log.decoding import LogicalMessages, TableChanges
from tailrace.sinks.files import layout
from tailrace.sinks.files.file_format import MIB, FileFormat, FileFragment, JsonLinesFormat, ParquetFormat
from tailrace.sinks.files.layout import FileNamePrefix
from tailrace.store import Store
from tailrace.text import DAY_US

FILE_BYTES: Final = 32 * MIB
"""A file ends with the fragment that reaches this size: large enough to read well, small enough to buffer several."""
BUFFER_BYTES: Final = 128 * MIB
"""The memory for unfinished files of one part, over all tables. Beyond this the largest file is written."""

_COMPRESSIONS: Final = {"jsonl": ("none", "gzip", "zstd"), "parquet": ("zstd", "snappy", "gzip", "none")}


@dataclass(frozen=True)
class FilesOptions:
    url: str = ""
    """The destination: `file://`, `s3://`, `gs://` or `az://`."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the object store, as in `[store.options]`: endpoint, region, credentials."""
    format: str = field(default="jsonl", metadata={"choices": tuple(_COMPRESSIONS)})
    compression: str | None = None
    """Default: none for jsonl, which any tool reads; zstd for parquet, which every Parquet reader supports."""


class FilesSink(BaseSink):
    Options: ClassVar[type] = FilesOptions
    parallel: ClassVar[Parallel] = Parallel.RANGES
    start: ClassVar[str] = "snapshot"
    interval_ms: ClassVar[int] = 10_000
    """Each step writes at least one file per changed table. Six a minute are still few enough to read."""

    def __init__(self, name: str, options: FilesOptions, context: SinkContext) -> None:
        if not options.url:
            raise ConfigError("url is missing", "for example file:///data/changes")
        if urlsplit(options.url).scheme not in ("", "file", "s3", "gs", "az", "abfs", "abfss"):
            raise ConfigError(f"url {options.url} is not supported", "use file://, s3://, gs:// or az://")
        known = _COMPRESSIONS[options.format]
        compression = options.compression or known[0]
        if compression not in known:
            raise ConfigError(
                f"{options.format} does not support compression {compression!r}", f"use {', '.join(known)}"
            )
        self.name = name
        self._format: FileFormat = (
            JsonLinesFormat(compression) if options.format == "jsonl" else ParquetFormat(compression)
        )
        self._options = options
        self._context = context
        self._stored_state = StoredState()
        self._stores: tuple[Store, Store] | None = None

    @property
    def values(self) -> Literal["text", "typed"]:  # type: ignore[override]
        return "text" if self._options.format == "jsonl" else "typed"

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
        self._stored_state = cursors.load(self._store, self.name) or StoredState()
        return self._stored_state.state

    def check(self) -> Iterator[Finding]:
        """Write and remove an object; nothing else shows whether that is allowed."""
        self._files.probe()
        return iter(())

    def pending(self) -> Step | None:
        return self._stored_state.pending

    def begin(self, step: Step) -> None:
        self._store_state(step, replace(self._stored_state, pending=step))

    def stage(self, part: Part) -> tuple[str, ...]:
        """Write the files of a part and return their keys."""
        writer = _FileWriter(self._files, self._format, FileNamePrefix.of(part, self._stored_state.replays))
        for chunk in part.chunks:
            for run in chunk:
                # Changes since a snapshot are delivered late, but the messages of that time were delivered in time.
                if not (part.step.loads and isinstance(run, LogicalMessages)):
                    writer.add(run)
        return writer.finish()

    def commit(self, step: Step, receipts: Sequence[tuple[str, ...]]) -> None:
        loaded = tuple(load.snapshot for load in step.loads)
        if step.loads:
            self._remove_abandoned(step, {key for receipt in receipts for key in receipt})
        self._store_state(
            step,
            replace(self._stored_state, state=step.after, pending=None, loaded=(*self._stored_state.loaded, *loaded)),
        )

    def rewind(self, state: State) -> None:
        self._stored_state = cursors.rewind(self._store, self.name, state)

    def close(self) -> None:
        self._stores = None

    def _store_state(self, step: Step, stored: StoredState) -> None:
        self._stored_state = cursors.advance(self._store, self.name, step.before, stored)

    def _remove_abandoned(self, step: Step, written: set[str]) -> None:
        """Delete the files of loads that never finished, because a newer snapshot came before the retry."""
        for load in step.loads:
            for info in self._files.list(layout.directory(load.target)):
                snapshot = layout.snapshot_of(info.key)
                if snapshot is not None and snapshot not in self._stored_state.loaded and info.key not in written:
                    self._files.delete(info.key)


class _FileWriter:
    """Writes the files of one part. Their boundaries depend only on the changes that are added."""

    def __init__(self, store: Store, format: FileFormat, prefix: FileNamePrefix) -> None:
        self._store = store
        self._format = format
        self._prefix = prefix
        self._unfinished: dict[tuple[str, str, str], list[FileFragment]] = {}
        self._sizes: dict[tuple[str, str, str], int] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._written: list[str] = []

    def add(self, run: TableChanges | LogicalMessages) -> None:
        directory = layout.MESSAGES if isinstance(run, LogicalMessages) else layout.directory(run.target)
        for day, changes in _by_day(run):
            for fragment in self._format.encode(changes):
                file = directory, day, fragment.group
                self._unfinished.setdefault(file, []).append(fragment)
                self._sizes[file] = self._sizes.get(file, 0) + fragment.size
                if self._sizes[file] >= FILE_BYTES:
                    self._write(file)
        while sum(self._sizes.values()) > BUFFER_BYTES:
            self._write(max(self._sizes, key=self._sizes.__getitem__))

    def finish(self) -> tuple[str, ...]:
        for file in list(self._unfinished):
            self._write(file)
        return tuple(self._written)

    def _write(self, file: tuple[str, str, str]) -> None:
        directory, day, _ = file
        number = self._numbers.get((directory, day), 0)
        self._numbers[directory, day] = number + 1
        del self._sizes[file]
        key = self._prefix.key(directory, day, number, self._format.suffix)
        self._store.replace(key, self._format.file(self._unfinished.pop(file)))
        self._written.append(key)


def _by_day(run: TableChanges | LogicalMessages) -> Iterator[tuple[str, TableChanges | LogicalMessages]]:
    """Split a run by the day of the commit, in UTC."""
    days = run.at.committed_at_us // DAY_US
    for day in np.unique(days):
        rows = days == day
        yield layout.day_of(int(day) * DAY_US), run if rows.all() else run.take(rows)
