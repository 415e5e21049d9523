"""The net change of a table's rows: keys that are gone, and rows to write. Pure, vectorised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Relation
from tailrace.errors import PoisonError, SinkRefused
from tailrace.images import Images, record_batch
from tailrace.log.decoding import Chunk, LogicalMessages, TableChanges
from tailrace.sinks.documents.net_effect import net_effect
from tailrace.sinks.valkey.command import require_sizes
from tailrace.sinks.valkey.key_template import KeyTemplate
from tailrace.sinks.valkey.row_encoding import EncodedRows
from tailrace.state.fold import has_key, join_runs, key_columns


@dataclass(frozen=True)
class RowChange:
    """What a batch does to the rows of one table, in this order: empties the table, removes rows, writes rows."""

    relation: Relation
    target: tuple[str, str]
    span: str
    """The first and last position, for messages."""
    empties: bool
    removed: pa.Array
    """Keys of rows that are gone, or have another key now."""
    keys: pa.Array
    rows: Images
    """Rows to write. Values that PostgreSQL did not send are in the rows at `sources`."""
    sources: pa.Array
    """The key before the change of each row that lacks values."""
    encoded: EncodedRows | None = None
    """The rows as commands, if they are whole and were encoded in advance."""

    @property
    def is_whole(self) -> bool:
        return not self.rows.unchanged

    def without(self, rows: npt.NDArray[np.bool_]) -> RowChange:
        """Return it without some rows, which are gone."""
        mask, left = pa.array(rows), ~rows
        removed = pa.concat_arrays([self.removed, self.keys.filter(mask)])
        kept = pa.array(left)
        return replace(
            self,
            removed=removed,
            keys=self.keys.filter(kept),
            rows=self.rows.take(left),
            sources=self.sources.filter(kept),
        )


def row_changes(chunk: Chunk, template: KeyTemplate) -> list[RowChange]:
    """Return the net change of each table. A table's runs in the chunk have one relation: see `cut_at_definitions`."""
    by_table: dict[int, list[TableChanges]] = {}
    for run in chunk:
        if isinstance(run, TableChanges) and len(run):
            require_key(run.relation, template)
            by_table.setdefault(run.relation.oid, []).append(run)
    return [_row_change(runs, template) for runs in by_table.values()]


def cut_at_definitions(chunk: Chunk) -> list[Chunk]:
    """Return a chunk in pieces in each of which every table has one relation and one target."""
    runs = sorted((run for run in chunk if len(run)), key=lambda run: run.at.position(0))
    current: dict[int, tuple[Relation, tuple[str, str]]] = {}
    cuts = []
    for run in runs:
        if isinstance(run, LogicalMessages):
            continue
        definition = run.relation, run.target
        if current.setdefault(run.relation.oid, definition) != definition:
            cuts.append(run.at.position(0))
            # A run of another table may go on after the cut, so its definition stays.
            current[run.relation.oid] = definition
    pieces: list[Chunk] = []
    for first, last in zip([None, *cuts], [*cuts, None], strict=True):
        piece = []
        for run in runs:
            lsn, ordinal = run.at.commit_lsn, run.at.ordinal
            inside = np.ones(len(run), np.bool_)
            if first is not None:
                inside &= (lsn > first.commit_lsn) | ((lsn == first.commit_lsn) & (ordinal >= first.ordinal))
            if last is not None:
                inside &= (lsn < last.commit_lsn) | ((lsn == last.commit_lsn) & (ordinal < last.ordinal))
            if inside.any():
                piece.append(run if inside.all() else run.take(inside))
        pieces.append(piece)
    return pieces


def require_key(relation: Relation, template: KeyTemplate) -> None:
    """Raise if a table's rows cannot have keys of their own."""
    if not has_key(relation):
        raise SinkRefused(
            f"{relation.qualified_name} has no key, so its rows cannot have keys at the destination",
            'Give the table a primary key, exclude it, or use mode = "stream".',
        )
    template.column_indexes(relation)
    if not template.identifies_rows(relation):
        raise SinkRefused(
            f"{relation.qualified_name}: the template of keys does not have exactly the columns of the table's key",
            "Use {key}, or all columns of the key and no others.",
        )


def _row_change(runs: Sequence[TableChanges], template: KeyTemplate) -> RowChange:
    """What precedes the last TRUNCATE does not matter."""
    truncates = [number for number, run in enumerate(runs) if run.is_truncate]
    following = runs[truncates[-1] + 1 :] if truncates else runs
    if following:
        return replace(_net_change(join_runs(following), template), empties=bool(truncates))
    last = runs[-1]
    none = pa.array([], pa.string())
    return RowChange(
        last.relation, last.target, last.span, True, none, none, last.new.take(np.empty(0, np.int64)), none
    )


def _net_change(changes: TableChanges, template: KeyTemplate) -> RowChange:
    relation, target = changes.relation, changes.target
    net = net_effect(changes, lambda columns: template.keys_of(relation, target, columns))
    require_sizes(net.rows.batch.columns, net.position, relation.qualified_name)
    sources = net.old_keys
    if net.rows.unchanged:
        is_partial = net.is_partial
        lacking = np.flatnonzero(is_partial & sources.is_null().to_numpy(zero_copy_only=False))
        if len(lacking):
            raise PoisonError(
                f"{relation.qualified_name}, {net.position(int(lacking[0]))}: PostgreSQL did not send a value of a new"
                " row",
                "a row filter admits rows on update: set REPLICA IDENTITY FULL on the table, and load it again",
                tuple([str(net.position(int(row))) for row in lacking]),
            )
        sources = pc.if_else(pa.array(is_partial), sources, pa.scalar(None, pa.string()))
    return RowChange(relation, target, changes.span, False, net.removed, net.keys, net.rows, sources)


def with_keys(relation: Relation, target: tuple[str, str], rows: Images, template: KeyTemplate) -> RowChange:
    """Return rows to write that are whole."""
    keys = template.keys_of(relation, target, [rows.batch.column(index) for index in key_columns(relation)])
    none = pa.array([], pa.string())
    return RowChange(relation, target, "", False, none, keys, rows, pa.nulls(len(keys), pa.string()))


def complete(change: RowChange, stored: Images) -> RowChange:
    """Return a change whose rows have the unsent values. `stored` has the rows at `sources`, under its relation."""
    arrays = list(change.rows.batch.columns)
    for column, unsent in change.rows.unchanged.items():
        arrays[column] = pc.if_else(pa.array(unsent), stored.batch.column(column), arrays[column])
    batch = record_batch(arrays, change.rows.batch.schema, len(change.rows))
    return replace(change, rows=replace(change.rows, batch=batch, unchanged={}))
