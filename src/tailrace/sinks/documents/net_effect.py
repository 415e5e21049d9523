"""The net effect of a run of changes on the documents of a table with a key: at most one write of each key. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Lsn, Position
from tailrace.errors import PoisonError
from tailrace.images import Images
from tailrace.log.decoding import TableChanges
from tailrace.sinks.documents.key_text import key_texts
from tailrace.state.fold import final_images, fold, key_columns, new_values, require_whole

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class NetEffect:
    """Documents to write and keys to remove. No key occurs twice among them."""

    rows: Images
    """The rows to write, as PostgreSQL's texts. `unchanged` has the values that only the document under the old key
    has."""
    keys: pa.Array
    """The key of each row."""
    old_keys: pa.Array
    """The key that each row had before: the same if it did not change, NULL if the row was inserted."""
    commit_lsn: I64
    ordinal: I64
    """The position of the change that made the row what it is."""
    removed: pa.Array
    """The keys that no row has any more."""
    removed_at: tuple[I64, I64]
    """The position of a change of each removed key: commit LSNs and ordinals."""
    last_lsn: int
    """The commit LSN of the run's last change."""

    @property
    def is_partial(self) -> Mask:
        """The rows that lack values."""
        found = np.zeros(len(self.rows), np.bool_)
        for mask in self.rows.unchanged.values():
            found |= mask
        return found

    def position(self, row: int) -> Position:
        """Return the position of a row's change."""
        return Position(Lsn(self.commit_lsn[row]), int(self.ordinal[row]))


KeyTexts = Callable[[Sequence[pa.Array]], pa.Array]
"""Makes the keys of documents from the columns of the table's key."""


def net_effect(changes: TableChanges, make_keys: KeyTexts = key_texts) -> NetEffect:
    """Return the net effect of changes, none of which is a TRUNCATE. They are decoded as text.

    Args:
        changes: The changes.
        make_keys: Makes the keys of documents. Different keys of rows must have different ones.

    Raises a PoisonError that names changes whose key has a NULL, or whose row is new and lacks a value.
    """
    net = fold(changes)
    columns = key_columns(changes.relation)
    written = np.flatnonzero(~net.is_deleted)
    final = net.final[written]
    rows = final_images(changes, net, written)
    keys = make_keys([new_values(changes, column).take(pa.array(final)) for column in columns])
    _require_keys(changes, keys, final)
    if rows.unchanged:
        is_new = net.is_inserted[written]
        require_whole(changes, rows.take(is_new), final[is_new])
    has_old = np.flatnonzero(~net.is_inserted)
    origin = net.origin[has_old]
    before = make_keys([_values_before(changes, column, origin) for column in columns])
    place = np.full(len(net), -1, np.int64)
    place[has_old] = np.arange(len(has_old))
    old_keys = before.take(pa.array(place[written], mask=place[written] < 0))
    is_removed = pc.invert(pc.is_in(before, keys)).to_numpy(zero_copy_only=False)
    removed_by = origin[is_removed]
    return NetEffect(
        rows,
        keys,
        old_keys,
        changes.at.commit_lsn[final],
        changes.at.ordinal[final],
        before.filter(pa.array(is_removed)),
        (changes.at.commit_lsn[removed_by], changes.at.ordinal[removed_by]),
        int(changes.at.commit_lsn[-1]),
    )


def _values_before(changes: TableChanges, column: int, origin: I64) -> pa.Array:
    """Return a column of the key that rows had before these changes."""
    places = pa.array(origin)
    has_old = changes.old.present[origin]
    values = changes.old.batch.column(column).take(places)
    if has_old.all():
        return values
    return pc.if_else(pa.array(has_old), values, changes.new.batch.column(column).take(places))


def _require_keys(changes: TableChanges, keys: pa.Array, final: I64) -> None:
    if not keys.null_count:
        return
    rows = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
    positions = tuple([str(changes.at.position(int(final[row]))) for row in rows])
    raise PoisonError(
        f"{changes.relation.qualified_name}, {positions[0]}: the key has a NULL, so it identifies no document",
        "Give the table a primary key, and load it again.",
        positions,
    )
