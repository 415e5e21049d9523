"""The settings that every `[[sink]]` has, whatever its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from tailrace import settings
from tailrace.change import Relation
from tailrace.delivery.contract import Sink

MASKS: Final = ("null", "hash", "redact")


@dataclass(frozen=True)
class SinkSettings:
    """What every sink has: what goes to it, under which names, from where on."""

    type: str = ""
    name: str = ""
    tables: tuple[str, ...] = ("*.*",)
    """Patterns of what is delivered: everything in the log unless said otherwise."""
    exclude: tuple[str, ...] = ()
    """Patterns of tables that are not, though `tables` names them."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """`schema.table`, or a pattern → the columns to deliver, comma-separated; or those not to, each with a `-`."""
    mask: Mapping[str, str] = field(default_factory=dict)
    """`schema.table.column`, or a pattern → null, hash (SHA-256, in hexadecimal) or redact (`***`)."""
    where: Mapping[str, str] = field(default_factory=dict)
    """`schema.table`, or a pattern → a condition in SQL over the table's columns. A row that comes to match is an
    insert, one that no longer does a delete."""
    route: str = "{schema}.{table}"
    """Where a table goes: a template of its name at the destination."""
    sql: str = ""
    """A Spark SQL statement over the changes of one table: its rows are delivered instead of the table's."""
    transform: str = ""
    """The same as a Python function, `module:function`, which gets a DataFrame and returns one."""
    state_refresh_s: float = field(default=60.0, metadata={"at_least": 1})
    """How old the rows of `state.TABLE` in `sql` may be. To read them again costs a job over the whole table, and what
    is looked up there rarely changes within a minute."""
    start: str = ""
    """Where a new sink begins: `snapshot` (the tables as they are, then every change), earliest, latest, an LSN or an
    ISO time (changes alone). Unset: what suits the type of sink, for most of them snapshot."""
    interval_ms: int | None = field(default=None, metadata={"at_least": 0})
    """How long changes are gathered before they are delivered. Unset: what suits the type of sink."""
    on_poison: str = field(default="stop", metadata={"choices": ("stop", "dead_letter")})
    """What to do with a change that the destination can never take: nothing is lost either way."""


@dataclass(frozen=True)
class SinkContext:
    """What a sink may need beside its own options. Picklable."""

    store: settings.StoreSettings
    common: SinkSettings = field(default_factory=lambda: SinkSettings())
    source_tables: tuple[str, ...] = ()
    """The patterns of `source.tables`: what will be captured, as far as that is known before capture has run."""


class SinkStatement(Protocol):
    """`sql` or `transform` of a sink, as the planning of steps needs it."""

    @property
    def reads_stream(self) -> bool:
        """Whether it reads the change stream. A change's context may be anywhere in its transaction, so a task then
        gets whole transactions."""

    def check(self) -> None:
        """Raise ConfigError if it does not fit the table as the log has it."""

    def derive(self, relation: Relation) -> Relation:
        """Return what it makes of a relation, which is shaped already."""


@dataclass(frozen=True)
class ConfiguredSink:
    common: SinkSettings
    sink: Sink
    statement: SinkStatement | None = None
    """Set by the engine, which has the Spark session that it takes."""

    @property
    def name(self) -> str:
        return self.common.name
