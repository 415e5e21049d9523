"""Rows on their way to the destination: in a receipt where they are few, else in a table of their own there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.change import Column, Lsn, Position, Relation
from tailrace.log.decoding import At

Kind = Literal["bigint", "timestamptz", "text", "text[]", "uuid", "jsonb"]


@dataclass(frozen=True)
class Field:
    """One column of a staging table: a relation's column, or something of ours."""

    name: str
    """In the staging table: `c3` is the relation's fourth column, `k0` the key's first as it was before."""
    type: Column | Kind


def value_fields(relation: Relation, columns: Sequence[int] | None = None) -> list[Field]:
    places = range(len(relation.columns)) if columns is None else columns
    return [Field(f"c{i}", relation.columns[i]) for i in places]


def key_fields(relation: Relation, key: Sequence[int]) -> list[Field]:
    return [Field(f"k{n}", relation.columns[i]) for n, i in enumerate(key)]


@dataclass(frozen=True)
class Positions:
    """Where the change of each row stands."""

    commit_lsn: npt.NDArray[np.int64]
    ordinal: npt.NDArray[np.int64]

    @classmethod
    def of(cls, at: At, changes: npt.NDArray[np.int64] | None = None) -> Positions:
        if changes is None:
            return cls(at.commit_lsn, at.ordinal)
        return cls(at.commit_lsn[changes], at.ordinal[changes])

    def __getitem__(self, row: int) -> Position:
        return Position(Lsn(self.commit_lsn[row]), int(self.ordinal[row]))


@dataclass(frozen=True)
class Table:
    """Rows in memory, to be brought to the destination."""

    fields: tuple[Field, ...]
    arrays: tuple[pa.Array, ...]
    positions: Positions

    def __len__(self) -> int:
        return len(self.positions.commit_lsn)


@dataclass(frozen=True)
class Rows:
    """Rows that were brought, or that a receipt brings: as lines of COPY, or by the name of the table they are in."""

    fields: tuple[Field, ...]
    count: int
    lines: bytes | None = field(default=None, repr=False)
    positions: Positions | None = field(default=None, repr=False)
    """Of `lines`, to say which change the destination does not take."""
    table: str | None = None

    @property
    def is_staged(self) -> bool:
        return self.table is not None
