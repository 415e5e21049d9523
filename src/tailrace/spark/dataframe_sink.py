"""A user's own streaming DataFrame of changes, delivered to a sink of the settings: each batch is a step."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as spark
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tailrace import settings, sinks, types
from tailrace.change import Column, Lsn, Relation
from tailrace.delivery.contract import Part, Sink, State, Step
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.transforms import Shaping
from tailrace.errors import ConfigError, TailraceError
from tailrace.images import Images, record_batch
from tailrace.log import decoding, lineage
from tailrace.log.decoding import OPERATIONS, TRUNCATE, ChangePositions, TableChanges
from tailrace.log.planner import Offset
from tailrace.log.reader import LogReader
from tailrace.settings import Settings
from tailrace.settings.parser import did_you_mean
from tailrace.settings.pattern import split_name
from tailrace.spark import schema
from tailrace.spark.statement.result_changes import RESULT, typed_column
from tailrace.spark.statement.runner import map_in_arrow
from tailrace.state import postgres_text
from tailrace.state.evolution import special_map
from tailrace.store import Store

_POSITION: Final = ("_commit_lsn", "_ordinal", "_lsn", "_xid")
_REQUIRED: Final = ("_operation", *_POSITION, "_committed_at")
_OPTIONAL: Final = ("_position", "_relation_id", "_before", "_unchanged", "_special", "_before_special")
_LETTERS: Final = {name: letter for letter, name in OPERATIONS.items()}


def sink(df: DataFrame, name: str, config: Settings | Path | str | None = None) -> DataStreamWriter:
    """Deliver a streaming DataFrame of changes to a sink of the settings, each change exactly once.

    The result is a writer: set a checkpoint location and a trigger as for any other, and start it.

    Arguments:
        df: rows of `spark.readStream.format("tailrace").option("table", …)`, changed as you like, row by row. It keeps
            the columns `_operation`, `_commit_lsn`, `_ordinal`, `_lsn`, `_xid` and `_committed_at`, and `_before` if
            rows are updated or deleted. All columns but those that Tailrace adds are delivered.
        name: a `[[sink]]`. Its `tables` names the one table that the rows are changes of, and `route` where they go.
        config: the settings, or their file. Default: `tailrace.toml`, and the environment.

    Raises ConfigError if a column that is needed is missing, and for a sink that keeps tables if the key is.
    """
    given = config if isinstance(config, Settings) else _load_settings(config)
    configured = {found.name: found for found in sinks.from_settings(given, os.environ)}
    if name not in configured:
        raise ConfigError(f"there is no sink {name!r}{did_you_mean(name, configured)}")
    delivery = _FrameDelivery(configured[name], given.store, df)
    return df.writeStream.foreachBatch(delivery.deliver)


def _load_settings(path: Path | str | None) -> Settings:
    default = Path("tailrace.toml")
    chosen = Path(path) if path is not None else default if default.exists() else None
    return settings.load(chosen, os.environ, ("store",))


class _FrameDelivery:
    def __init__(self, configured: ConfiguredSink, store: settings.StoreSettings, df: DataFrame) -> None:
        self._name = configured.name
        self._sink = configured.sink
        if missing := [column for column in _REQUIRED if column not in df.columns]:
            raise ConfigError(
                f"sink {self._name}: the DataFrame has no {', '.join(missing)}",
                "keep the columns that begin with an underscore: they say which change a row is",
            )
        if len(configured.common.tables) != 1 or set(configured.common.tables[0]) & set("*?"):
            raise ConfigError(
                f"sink {self._name} gets changes of one table", 'name it: tables = ["public.orders"], without wildcards'
            )
        reader = LogReader(Store.open(store.url, store.options))
        last = reader.last()
        schema_name, table = split_name(configured.common.tables[0])
        relation = lineage.newest_relation(reader, schema_name, table, last.id if last else 0)
        if relation is None:
            raise ConfigError(f"sink {self._name}: the log has no table {schema_name}.{table}")
        shaped = Shaping(configured.common).load(relation)
        assert shaped is not None
        self._target = shaped[1]
        self._relation = _result(self._name, relation, df.schema)
        if self._sink.keeps_tables and not self._relation.key:
            raise ConfigError(
                f"sink {self._name}: the rows lack {', '.join(relation.key) or 'a key'} of {schema_name}.{table}; "
                f"without the key, {configured.common.type} could not tell rows apart",
                "keep the columns of the key under their names",
            )

    def deliver(self, batch: DataFrame, _: int) -> None:
        """Called by Spark for each batch. A batch that Spark repeats, and the destination has, changes nothing."""
        try:
            state = self._sink.open()
            if state.cursor is None:
                state = State(Lsn(0), {})
                self._sink.rewind(state)
            self._deliver(batch, state, state.cursor or Lsn(0))
        finally:
            # Nobody says when the query ends, and an open sink may lock its destination.
            self._sink.close()

    def _deliver(self, batch: DataFrame, state: State, cursor: Lsn) -> None:
        rows = batch.where(f.col("_commit_lsn") >= int(cursor))
        last = rows.agg(f.max("_commit_lsn").alias("last")).collect()[0]["last"]
        if last is None:
            return
        after = replace(state, cursor=Lsn(last + 1))
        step = Step(state, after, Offset(0, cursor), Offset(0, Lsn(last + 1)), 1)
        self._sink.begin(step)
        stager = _FrameStager(self._sink, self._relation, self._target, step)
        # One part, in the log's order: whatever the DataFrame's plan did to it.
        ordered = rows.coalesce(1).sortWithinPartitions("_commit_lsn", "_ordinal")
        (row,) = map_in_arrow(ordered, stager, schema.spark_type(RESULT)).collect()
        result = pickle.loads(row.result)  # noqa: S301 (a task of ours pickled it)
        if isinstance(result, TailraceError):
            raise result
        self._sink.commit(step, [result])


@dataclass(frozen=True)
class _FrameStager:
    """Runs in an executor: makes changes of rows and stages them."""

    sink: Sink
    relation: Relation
    target: tuple[str, str]
    step: Step

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result: Any
        try:
            chunks = decoding.with_last_of(list(self._changes(batch)) for batch in batches if len(batch))
            part = Part(self.step, 0, chunks)
            result = self.sink.stage(part)
            for _ in part.chunks:
                pass
        except TailraceError as error:
            result = error
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], schema=RESULT)

    def _changes(self, batch: pa.RecordBatch) -> Iterator[TableChanges]:
        letters = np.array([_LETTERS[name] for name in batch.column("_operation").to_pylist()], np.uint8)
        edges = np.flatnonzero((letters[1:] == TRUNCATE) | (letters[:-1] == TRUNCATE)) + 1
        for rows in np.split(np.arange(len(letters)), edges):
            yield self._run(batch.slice(rows[0], len(rows)), letters[rows])

    def _run(self, batch: pa.RecordBatch, letters: Any) -> TableChanges:
        as_text = self.sink.values == "text"
        if letters[0] == TRUNCATE:
            none = decoding.no_images(self.relation, 1, as_text)
            no = np.zeros(1, np.bool_)
            return TableChanges(self.relation, _positions(batch), letters, none, no, none, target=self.target)
        is_deleted = letters == _LETTERS["DELETE"]
        new = self._images(batch, batch, ~is_deleted, "_special", "_unchanged")
        if "_before" in batch.schema.names:
            before = batch.column("_before")
            had = before.is_valid().to_numpy(zero_copy_only=False)
            fields = {field.name: before.field(field.name) for field in before.type}
            old = self._images(fields, batch, had, "_before_special", "")
        else:
            had = np.zeros(len(batch), np.bool_)
            old = decoding.no_images(self.relation, len(batch))
        if as_text:
            old, new = (postgres_text.image_texts(images, self.relation) for images in (old, new))
        return TableChanges(self.relation, _positions(batch), letters, old, had, new, target=self.target)

    def _images(self, values: Any, batch: pa.RecordBatch, present: Any, special: str, unsent: str) -> Images:
        names = set(values) if isinstance(values, dict) else set(values.schema.names)
        texts: dict[str, dict[int, str]] = {}
        arrays = []
        for column in self.relation.columns:
            array, texts[column.name] = pa.nulls(len(batch), types.mapping(column).arrow), {}
            # Of the row before, the key: the other columns may have been computed.
            if column.name in names and (values is batch or column.name in self.relation.key):
                array, texts[column.name] = typed_column(values[column.name], column)
            arrays.append(array)
        for row, entries in _entries(batch, special):
            for name, text in entries:
                if name in texts:
                    texts[name][row] = text
        unchanged: dict[int, Any] = {}
        for row, entries in _entries(batch, unsent):
            for place, column in enumerate(self.relation.columns):
                if column.name in entries:
                    unchanged.setdefault(place, np.zeros(len(batch), np.bool_))[row] = True
        rows = record_batch(arrays, types.schema(self.relation), len(batch))
        return Images(rows, present, unchanged, special_map({k: v for k, v in texts.items() if v}, len(batch)))


def _entries(batch: pa.RecordBatch, name: str) -> Iterator[tuple[int, Any]]:
    if name in batch.schema.names:
        for row, entries in enumerate(batch.column(name).to_pylist()):
            if entries:
                yield row, entries


def _positions(batch: pa.RecordBatch) -> ChangePositions:
    commit_lsn, ordinal, lsn, xid = (np.asarray(batch.column(name), np.int64) for name in _POSITION)
    times = batch.column("_committed_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return ChangePositions(commit_lsn, ordinal, lsn, xid, np.asarray(times), np.zeros(len(batch), np.bool_))


def _result(sink_name: str, relation: Relation, given: spark.StructType) -> Relation:
    """The relation of the DataFrame's rows. A column of the table's name and type is the table's."""
    own = {column.name: column for column in relation.columns}
    columns = []
    for field in given.fields:
        if field.name in (*_REQUIRED, *_OPTIONAL):
            continue
        source = own.get(field.name)
        if source is not None and schema.column_type(source) == field.dataType:
            columns.append(replace(source, number=None))
            continue
        known = schema.postgres_type(field.dataType)
        if known is None:
            raise ConfigError(
                f"sink {sink_name}: column {field.name} is {field.dataType.simpleString()}, for which PostgreSQL has "
                "no single type",
                "to_json() makes a text of it",
            )
        columns.append(Column(field.name, *known))
    has_key = all(name in {column.name for column in columns} for name in relation.key)
    return replace(relation, columns=tuple(columns), key=relation.key if has_key else (), generated=())
