"""Rows to write to the destination: in a receipt if they are few, else in a staging table at the destination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.change import Column, Lsn, Position, Relation
from tailrace.log.decoding import ChangePositions

StagingType = Literal["bigint", "timestamptz", "text", "text[]", "uuid", "jsonb"]


@dataclass(frozen=True)
class StagingField:
    """One column of a staging table: a relation's column, or one of Tailrace's."""

    name: str
    """In the staging table: `c3` is the relation's fourth column, `k0` the first column of the old key."""
    type: Column | StagingType


def value_fields(relation: Relation, columns: Sequence[int] | None = None) -> list[StagingField]:
    """Fields for the relation's columns, or some of them."""
    places = range(len(relation.columns)) if columns is None else columns
    return [StagingField(f"c{i}", relation.columns[i]) for i in places]


def key_fields(relation: Relation, key: Sequence[int]) -> list[StagingField]:
    """Fields for the old key."""
    return [StagingField(f"k{n}", relation.columns[i]) for n, i in enumerate(key)]


@dataclass(frozen=True)
class Positions:
    """The position of each row's change."""

    commit_lsn: npt.NDArray[np.int64]
    ordinal: npt.NDArray[np.int64]

    @classmethod
    def of(cls, at: ChangePositions, changes: npt.NDArray[np.int64] | None = None) -> Positions:
        if changes is None:
            return cls(at.commit_lsn, at.ordinal)
        return cls(at.commit_lsn[changes], at.ordinal[changes])

    def __getitem__(self, row: int) -> Position:
        return Position(Lsn(self.commit_lsn[row]), int(self.ordinal[row]))


@dataclass(frozen=True)
class RowBatch:
    """Rows in memory, to be staged."""

    fields: tuple[StagingField, ...]
    arrays: tuple[pa.Array, ...]
    positions: Positions

    def __len__(self) -> int:
        return len(self.positions.commit_lsn)


@dataclass(frozen=True)
class StagedRows:
    """Staged rows: as text in a receipt, or in a staging table."""

    fields: tuple[StagingField, ...]
    count: int
    lines: bytes | None = field(default=None, repr=False)
    """The rows' text in the destination's format."""
    positions: Positions | None = field(default=None, repr=False)
    """Of `lines`, to report the change that the destination does not accept."""
    table: str | None = None
    """The staging table."""
    is_values: bool = False
    """Whether `lines` are what follows VALUES in an INSERT, rather than lines of a file."""

    @property
    def is_staged(self) -> bool:
        return self.table is not None
