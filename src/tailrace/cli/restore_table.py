"""`tailrace restore --table`: restores tables from the log into a database or a SQL script."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import click

from tailrace.change import Lsn
from tailrace.cli import output
from tailrace.cli.progress_display import ProgressDisplay
from tailrace.cli.restore_moment import MomentOptions
from tailrace.cli.restored_server import find_pg_waldump
from tailrace.errors import ConfigError
from tailrace.log.reader import LogReader
from tailrace.recovery import log_moment, table_restore
from tailrace.recovery.restored_table import Name
from tailrace.recovery.table_restore import (
    Blocks,
    DatabaseDestination,
    PlannedRestore,
    RestoreDestination,
    RestoreProgress,
    ScriptDestination,
)
from tailrace.settings import Settings
from tailrace.settings.pattern import split_name
from tailrace.store import Store

_SPARK_ROWS: Final = 50_000_000
"""From this number of rows and changes on, Spark reads them. One process needs minutes for that many, and a retry
begins at the start; Spark uses all processors and repeats only what failed, but needs seconds to start."""


@dataclass(frozen=True)
class TableOptions:
    tables: tuple[str, ...]
    where: str | None
    into: str | None
    script: str | None
    renamed: str | None
    master: str | None


def restore_tables(
    settings: Settings, store: Store, moment: MomentOptions, options: TableOptions, bin_directory: Path | None
) -> None:
    """Restore, and print what was restored and what was left out."""
    if (options.into is None) == (options.script is None):
        raise ConfigError("where to restore is not given", "give either --into URL or --sql FILE")
    wanted = [split_name(text) for text in options.tables]
    names = _names(options.renamed, len(wanted))
    reader = LogReader(store)
    if reader.last() is None:
        raise ConfigError(f"{store.url} has no log", "tables are restored from what `tailrace capture` wrote")
    target = moment.target(reader, lambda: find_pg_waldump(store, bin_directory), lambda line: _say(options, line))
    lsn = log_moment.resolve(reader, target)
    planned = table_restore.plan(reader, wanted, lsn, names, is_subset=options.where is not None)
    progress = RestoreProgress()
    began = time.monotonic()
    with _rows_of(planned, settings, reader, options.master) as blocks, _destination(options, lsn) as destination:
        for each in planned:
            _say(options, f"restoring {'.'.join(each.table.source)} as of {lsn}, from its snapshot at "
                 f"{each.state.snapshot.lsn}")  # fmt: skip
        with ProgressDisplay(progress.state, "tailrace.restore"):
            table_restore.restore(planned, destination, blocks, options.where, progress)
    took = time.monotonic() - began
    for each in planned:
        rows = progress.restored.get(each.table.name)
        count = "rows that meet the condition" if rows is None else f"{rows:,} rows"
        _say(options, f"{'.'.join(each.table.name)}: {count}")
        for note in each.table.notes:
            _say(options, f"    {note}")
    _say(options, f"read {progress.rows:,} rows, {output.size(progress.bytes)}, in {output.duration(took)}")


def _say(options: TableOptions, line: str) -> None:
    """Print a line; beside a script on the standard output, on stderr."""
    click.echo(line, err=options.script == "-")


def _names(renamed: str | None, tables: int) -> Callable[[Name], Name]:
    if renamed is None:
        return lambda name: name
    if renamed.endswith(".*"):
        schema, _ = split_name(renamed.removesuffix("*") + "t")
        return lambda name: (schema, name[1])
    if tables > 1:
        raise ConfigError(f"--as {renamed} names one table, but {tables} are restored", "write --as 'schema.*'")
    given = split_name(renamed)
    return lambda _: given


@contextlib.contextmanager
def _rows_of(
    planned: Sequence[PlannedRestore], settings: Settings, reader: LogReader, master: str | None
) -> Iterator[Blocks]:
    """Reads rows in this process, or with Spark if there are many."""
    if master is None and sum(each.read_rows for each in planned) < _SPARK_ROWS:
        yield table_restore.direct_blocks(reader)
        return
    from tailrace.recovery.spark_rows import spark_blocks
    from tailrace.spark import session

    spark = session("tailrace restore", master)
    try:
        yield spark_blocks(spark, settings.store.url, settings.store.options)
    finally:
        spark.stop()


@contextlib.contextmanager
def _destination(options: TableOptions, lsn: Lsn) -> Iterator[RestoreDestination]:
    if options.into is not None:
        yield DatabaseDestination(options.into)
        return
    assert options.script is not None
    with _script(options.script) as file:
        yield ScriptDestination(file, lsn)


@contextlib.contextmanager
def _script(path: str) -> Iterator[IO[bytes]]:
    """The file for a script, which appears only when it is complete."""
    if path == "-":
        yield sys.stdout.buffer
        return
    target = Path(path)
    if target.exists():
        raise ConfigError(f"{path} exists", "give another file, or remove it")
    partial = target.with_name(f"{target.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.rename(target)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "give a file that can be written") from error
    finally:
        partial.unlink(missing_ok=True)
