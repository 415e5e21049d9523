"""The sink's own keys at the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.sinks.valkey.key_template import escape

PREFIX: Final = "tailrace:"
"""The keys of all sinks begin with it."""


@dataclass(frozen=True)
class OwnKeys:
    sink: str

    @property
    def state(self) -> str:
        """A hash: the sink's mode, its state and its progress."""
        return f"{PREFIX}{escape(self.sink)}"

    @property
    def writer(self) -> str:
        """The id of the connection that writes for the sink. All others are refused."""
        return f"{self.state}:writer"

    @property
    def tables(self) -> str:
        """A hash: the definition of each table, by oid."""
        return f"{self.state}:tables"

    @property
    def streams(self) -> str:
        """A hash: the last id in each stream."""
        return f"{self.state}:streams"

    def rows(self, oid: int) -> str:
        """A set: the keys of a table's rows."""
        return f"{self.state}:rows:{oid}"

    def loaded(self, oid: int) -> str:
        """A set: those of a load that is under way, or was interrupted."""
        return f"{self.state}:loaded:{oid}"

    def rewritten(self, oid: int) -> str:
        """A set: the keys of rows that have the table's new definition already."""
        return f"{self.state}:rewritten:{oid}"

    def stale(self, oid: int) -> str:
        """A set: the keys of rows that a load did not write."""
        return f"{self.state}:stale:{oid}"
