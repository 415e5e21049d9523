"""Which table each destination (subject, topic, stream) belongs to. A second table is refused.

Tables are identified by oid, so a table that is renamed or moves to another schema never collides with itself. A table
that was dropped releases its destination. Messages of two tables that share one could not be told apart.

`cursors/<sink>/tables.json` in the store holds the registry of one sink.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast, get_args

from tailrace import stored_json
from tailrace.errors import ConfigError, CorruptError, SinkError, TailraceError
from tailrace.log.published_table import PublishedOids
from tailrace.log.retention import CURSORS
from tailrace.store import Store

_KEY: Final = "tables.json"

Standing = Literal["known", "current", "replaced"]
"""`current`: its changes go to the destination. `known`: it exists and had no change yet, and the destination may still
receive earlier changes of another table. `replaced`: another table took the destination over."""

LoadPublished = Callable[[], PublishedOids]
"""Returns the tables that capture publishes."""


@dataclass(frozen=True)
class RegisteredTable:
    oid: int
    source: tuple[str, str]
    """Schema and name at the source."""
    target: tuple[str, str]
    """Schema and name at the destination, as the sink's settings route the table."""
    destination: str
    standing: Standing = "current"
    seen_at_us: int = 0
    """The commit time of a change under this name, in microseconds since 1970; 0 if it had none."""


@dataclass(frozen=True)
class DestinationRegistry:
    """The tables of one sink, by oid. Immutable and picklable."""

    hint: str
    """What resolves a collision, in the settings of the sink."""
    tables: Mapping[int, RegisteredTable] = field(default_factory=dict)

    def register(self, table: RegisteredTable, published: LoadPublished) -> DestinationRegistry:
        """Return the registry with a table under its current destination; raise if that belongs to another table.

        Args:
            table: The table, as a change or the catalogue describes it.
            published: Tells whether the other table still exists.
        """
        known = self.tables.get(table.oid)
        if known is not None and (table.standing == "known" or replace(table, seen_at_us=known.seen_at_us) == known):
            return self
        tables = {**self.tables, table.oid: table}
        for other in self.tables.values():
            is_rival = other.standing == "current" and other.destination == table.destination
            if not is_rival or other.oid == table.oid or table.standing == "known":
                continue
            if known is not None and (known.standing, known.destination) == ("replaced", table.destination):
                raise self._collision(ConfigError, other, table)  # both have changes at the same time
            if other.source != table.source:
                self._refuse_unless_dropped(table, other, published())
            tables[other.oid] = replace(other, standing="replaced")
        return DestinationRegistry(self.hint, tables)

    def rewound(self) -> DestinationRegistry:
        """Return the registry for changes that are delivered again: which table comes first is open again."""
        known = {oid: replace(t, standing="known") for oid, t in self.tables.items() if t.standing != "replaced"}
        return DestinationRegistry(self.hint, known)

    def without(self, oids: Iterable[int]) -> DestinationRegistry:
        removed = set(oids)
        return DestinationRegistry(self.hint, {oid: t for oid, t in self.tables.items() if oid not in removed})

    def unused(self, earlier: Iterable[RegisteredTable]) -> list[RegisteredTable]:
        """Return those of some earlier tables whose destination is not in use any more."""
        used = {table.destination for table in self.tables.values() if table.standing != "replaced"}
        return list({table.destination: table for table in earlier if table.destination not in used}.values())

    def check(self, published: Iterable[RegisteredTable]) -> None:
        """Raise if two tables that are published at the same time have one destination."""
        owners: dict[str, RegisteredTable] = {}
        for table in published:
            other = owners.setdefault(table.destination, table)
            # Capture lists the tables when one is added or removed, so it may not know yet that one was renamed.
            if other.oid != table.oid and not (self._is_renamed(table) or self._is_renamed(other)):
                raise self._collision(ConfigError, other, table)

    def _is_renamed(self, table: RegisteredTable) -> bool:
        registered = self.tables.get(table.oid)
        return registered is not None and registered.destination != table.destination

    def _refuse_unless_dropped(self, table: RegisteredTable, other: RegisteredTable, published: PublishedOids) -> None:
        if published.is_dropped(other.oid, table.seen_at_us):
            return
        if not published.oids or table.oid in published.oids or published.listed_at_us > table.seen_at_us:
            raise self._collision(ConfigError, other, table)
        # Capture lists the tables a few seconds after one is created or dropped: the other may be gone by then.
        raise self._collision(SinkError, other, table)

    def _collision(self, kind: type[TailraceError], first: RegisteredTable, second: RegisteredTable) -> TailraceError:
        names = sorted(".".join(table.source) for table in (first, second))
        return kind(f"{names[0]} and {names[1]} would both be published to {first.destination}", self.hint)


class PartRegistry:
    """Registers the tables of one part in the order of their changes."""

    def __init__(self, registry: DestinationRegistry, published: LoadPublished) -> None:
        self._registry = registry
        self._published = published
        self.tables: list[RegisteredTable] = []
        """Those that were new or renamed, for the part's receipt."""

    def register(self, table: RegisteredTable) -> None:
        registry = self._registry.register(table, self._published)
        if registry is not self._registry:
            self.tables.append(table)
            self._registry = registry


def load(store: Store, sink: str, hint: str) -> DestinationRegistry:
    """Return the stored registry; an empty one if the sink never stored one."""
    key = f"{CURSORS}/{sink}/{_KEY}"
    data = store.get(key)
    try:
        tables = [
            RegisteredTable(
                int(raw["oid"]),
                (str(raw["source"][0]), str(raw["source"][1])),
                (str(raw["target"][0]), str(raw["target"][1])),
                str(raw["destination"]),
                _standing(raw["standing"]),
                int(raw["seen_at_us"]),
            )
            for raw in stored_json.parse(data or b"[]")
        ]
    except stored_json.ERRORS as error:
        raise CorruptError(
            f"{key} does not list the tables of sink {sink}", "remove it: the sink writes it again"
        ) from error
    return DestinationRegistry(hint, {table.oid: table for table in tables})


def save(store: Store, sink: str, registry: DestinationRegistry) -> None:
    raw = [
        {
            "oid": table.oid,
            "source": table.source,
            "target": table.target,
            "destination": table.destination,
            "standing": table.standing,
            "seen_at_us": table.seen_at_us,
        }
        for table in registry.tables.values()
    ]
    store.replace(f"{CURSORS}/{sink}/{_KEY}", json.dumps(raw, ensure_ascii=False).encode())


def _standing(text: str) -> Standing:
    if text not in get_args(Standing):
        raise ValueError(text)
    return cast(Standing, text)
