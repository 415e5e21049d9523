"""A step of a sink with a statement: rows of changes → statement → staging, in the tasks of one job."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from tailrace import settings
from tailrace.change import Relation
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.step import PlannedStep
from tailrace.delivery.task import StageTask, log_reader
from tailrace.errors import ConfigError
from tailrace.spark import schema
from tailrace.spark.statement.analysis import Statement
from tailrace.spark.statement.derivation import CHANGES
from tailrace.spark.statement.image_rows import RowReader, row_schema
from tailrace.spark.statement.result_changes import RESULT, RowStager, stage_nothing

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def with_statement(
    spark: SparkSession, configured: ConfiguredSink, store: settings.StoreSettings
) -> tuple[ConfiguredSink, Statement]:
    """A sink that has `sql` or `transform`, with its statement: it gets the changes of the statement's table alone."""
    common = configured.common
    statement = Statement(spark, common, store, configured.sink.keeps_tables)
    common = replace(common, tables=statement.tables)
    if statement.reads_stream:
        if common.start == "snapshot":
            raise ConfigError(
                f"sink {common.name}: start is snapshot, and sql reads changes, which no snapshot has",
                "start from earliest, latest, an LSN or a time",
            )
        common = replace(common, start=common.start or "earliest")
    return replace(configured, common=common, statement=statement), statement


def run_alone(spark: SparkSession, statement: Statement, tasks: Sequence[StageTask]) -> list[Any]:
    """The results of tasks of one kind, without a streaming query."""
    pickled = [(pickle.dumps(task),) for task in tasks]
    batch = spark.createDataFrame(pickled, schema.spark_type(RESULT)).coalesce(1)
    found = result_rows(statement, batch, tasks, is_load=tasks[0].rows is not None)
    staged = map_in_arrow(*(found or (batch, stage_nothing)), schema.spark_type(RESULT))
    return [pickle.loads(row.result) for row in staged.collect()]  # noqa: S301 (a task of ours pickled it)


def run(statement: Statement, batch: DataFrame, planned: PlannedStep) -> list[Any]:
    """The tasks' results, in order. `batch` has the pickled tasks, divided as they are to run."""
    results: list[Any] = []
    for is_load, group in groupby(planned.tasks, lambda task: task.rows is not None):
        found = result_rows(statement, batch, list(group), is_load=is_load)
        staged = map_in_arrow(*(found or (batch, stage_nothing)), schema.spark_type(RESULT))
        results += [pickle.loads(row.result) for row in staged.collect()]  # noqa: S301 (a task of ours pickled it)
    return results


def result_rows(
    statement: Statement, batch: DataFrame, tasks: Sequence[StageTask], *, is_load: bool
) -> tuple[DataFrame, RowStager] | None:
    """The statement's rows for some of a step's tasks, and what stages them. None: they meet no change of its table."""
    chains, last, target = _chains(tasks)
    if statement.reads_stream:
        last, target = CHANGES, tasks[0].shaping.target(CHANGES)
    if last is None:
        return None
    analysis = statement.analysis(last)
    reader = RowReader(analysis.derivation, chains, is_load)
    rows = map_in_arrow(batch, reader, schema.spark_type(row_schema(analysis.derivation.source)))
    return statement.apply(analysis, rows), RowStager(analysis.derivation, target)


def _chains(tasks: Sequence[StageTask]) -> tuple[dict[int, list[Relation]], Relation | None, tuple[str, str]]:
    """The table's relations that some tasks meet, as they are shaped: in order, by oid; the last; and the target."""
    chains: dict[int, list[Relation]] = {}
    last: Relation | None = None
    target = ("", "")
    for relation in _relations(tasks):
        if (shaped := tasks[0].shaping.load(relation)) is None:
            continue
        last, target = shaped
        chain = chains.setdefault(last.oid, [])
        if last not in chain[-1:]:
            chain.append(last)
    return chains, last, target


def _relations(tasks: Sequence[StageTask]) -> Iterator[Relation]:
    for task in tasks:
        if task.rows is not None:
            yield task.rows.snapshot.relation
    counts = tasks[0].change_filter.start_of
    for segment in dict.fromkeys(s.segment for task in tasks for s in task.slices):
        used = sorted(log_reader(tasks[0].store).relations(segment), key=lambda pair: pair[0].first_row)
        yield from (relation for _, relation in used if counts(relation.oid) is not None)


def map_in_arrow(frame: DataFrame, function: ArrowFunction, result: spark.StructType) -> DataFrame:
    """As `DataFrame.mapInArrow`, which wants pandas to be installed, and does not use it."""
    mapped = UserDefinedFunction(function, returnType=result, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    # Quoted: the name of an expression without AS may contain dots.
    column = mapped(*[frame["`" + name.replace("`", "``") + "`"] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
