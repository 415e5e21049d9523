"""Parses and validates the options of the data source."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Final

from tailrace.errors import ConfigError
from tailrace.log.planner import UNLIMITED, BatchLimits
from tailrace.log.reader import LogReader
from tailrace.settings.parser import did_you_mean
from tailrace.settings.pattern import TablePattern

_STORE: Final = "store."
_LISTED: Final = re.compile(r'(?:[^,"]|"(?:[^"]|"")*")+')
_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".\s]+)')


@dataclass(frozen=True)
class Table:
    """The name of one table. As in PostgreSQL, unquoted letters are folded to lower case."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Table:
        found = [(m.group(), m.group(1), m.group(2)) for m in _PART.finditer(text)]
        if len(found) != 2 or ".".join(whole for whole, _, _ in found) != text:
            raise ConfigError(f"table is {text!r}", 'write schema.table, such as public.orders or public."Orders"')
        schema, name = (plain.lower() if plain else quoted.replace('""', '"') for _, quoted, plain in found)
        return cls(schema, name)

    def __str__(self) -> str:
        plain = re.compile(r"[a-z_][a-z0-9_]*")
        names = (n if plain.fullmatch(n) else '"' + n.replace('"', '""') + '"' for n in (self.schema, self.name))
        return ".".join(names)


@dataclass(frozen=True)
class Options:
    """The options of `spark.read.format("tailrace")`. `path` is the argument of `load`."""

    path: str = ""
    table: Table | None = None
    tables: tuple[TablePattern, ...] = ()
    """Patterns of the tables whose changes the change stream contains. Empty: all tables."""
    starting: str = "earliest"
    """earliest, latest, an LSN or an ISO time: the first commit that is read."""
    ending: str = "latest"
    """The same for the end of batch reads: the first commit that is no longer read."""
    max_segments_per_batch: int = BatchLimits().segments
    max_bytes_per_batch: int = BatchLimits().bytes
    poll_interval_ms: int = 50
    """How long a stream that found nothing new waits before it polls the store again. Each poll costs one request.
    Capture seals a segment at most every 50 ms, so more frequent polls find nothing more."""
    across_gaps: bool = False
    """Whether to continue across gaps, where changes are missing because the slot was lost."""
    snapshot: bool = False
    """Whether to read the table's state instead of its changes."""
    as_of: str = "latest"
    splits: int | None = None
    store: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Parse options as Spark passes them, with names in lower case."""
        known = [f.name for f in fields(cls) if f.name != "store"]
        faults = []
        values: dict[str, object] = {}
        for name, text in given.items():
            if name.startswith(_STORE):
                continue
            if name not in known:
                faults.append(f"{name} is not an option{did_you_mean(name, known)}")
                continue
            try:
                values[name] = _READ.get(name, str)(text)
            except ValueError as error:
                faults.append(f"{name} is {text!r}: {error}")
            except ConfigError as error:
                faults.append(f"{error}: {error.hint}")
        if {"table", "tables"} <= given.keys():
            faults.append(
                "table and tables are both set: use table for rows of one table, or tables for changes of several"
            )
        if not given.get("path"):
            faults.append("the store's URL is missing")
        if faults:
            raise ConfigError(
                "; ".join(faults),
                'use spark.read.format("tailrace").option(name, value).load("file:///store"); '
                "docs/spark.md lists the options",
            )
        store = {name.removeprefix(_STORE): text for name, text in given.items() if name.startswith(_STORE)}
        return cls(**values, store=store)  # type: ignore[arg-type]

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.max_segments_per_batch, self.max_bytes_per_batch)

    def log(self) -> LogReader:
        return LogReader(self.path, self.store)

    @cached_property
    def of(self) -> str:
        """The table and the store that are read, for messages."""
        return f"table {self.table} of {self.path}" if self.table else self.path


def _at_least(low: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError("write a whole number") from None
    if number < low:
        raise ValueError(f"must be at least {low}")
    return number


def _limit(text: str) -> int:
    if text == "unlimited":
        return UNLIMITED.bytes
    try:
        return _at_least(1, text)
    except ValueError as error:
        raise ValueError(f"{error}, or unlimited") from None


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def _patterns(text: str) -> tuple[TablePattern, ...]:
    return tuple(TablePattern.parse(part.strip()) for part in _LISTED.findall(text))


_READ: Final[Mapping[str, Callable[[str], object]]] = {
    "table": Table.parse,
    "tables": _patterns,
    "max_segments_per_batch": _limit,
    "max_bytes_per_batch": _limit,
    "poll_interval_ms": lambda text: _at_least(0, text),
    "across_gaps": _boolean,
    "snapshot": _boolean,
    "splits": lambda text: _at_least(1, text),
}
