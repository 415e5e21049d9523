"""A sink's statement in the driver: parsed, analysed against each relation of its table, applied to rows."""

from __future__ import annotations

import importlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tailrace import settings
from tailrace.change import Column, Relation
from tailrace.delivery.sink_settings import SinkSettings
from tailrace.delivery.transforms import Shaping
from tailrace.errors import ConfigError, SinkError, SnapshotError
from tailrace.log import lineage
from tailrace.log.reader import LogReader
from tailrace.settings.pattern import split_name
from tailrace.spark import schema
from tailrace.spark.state_source import state
from tailrace.spark.statement.catalyst import CarriedPlan, Catalyst, ColumnLineage, Plan, RefusedError
from tailrace.spark.statement.derivation import CHANGES, Derivation, ResultColumn
from tailrace.spark.statement.image_rows import row_schema
from tailrace.state import table_state as log_state
from tailrace.store import Store

_log = logging.getLogger("tailrace.deliver")

_STATE: Final = "state"
"""The schema under which statements find the current rows of other tables."""
_FULL: Final = "f"

# Errors about data, such as a cast that fails, have an SQLSTATE of class 22, as in PostgreSQL.
_DATA_ERROR: Final = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\][^\n]*SQLSTATE: (?:22|P0)\w{3}")

Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Analysis:
    derivation: Derivation
    carried: CarriedPlan


class Statement:
    """`sql` or `transform` of a sink. Not thread-safe."""

    def __init__(
        self, spark: SparkSession, common: SinkSettings, store: settings.StoreSettings, keeps_tables: bool
    ) -> None:
        """Raises ConfigError for what is wrong whatever the table looks like."""
        self._spark = spark
        self._common = common
        self._store = store
        self._keeps_tables = keeps_tables
        self._shaping = Shaping(common)
        self._catalyst = Catalyst(spark)
        self._analyses: dict[str, Analysis] = {}
        self._states: dict[str, DataFrame] = {}
        self._states_at = float("-inf")
        self._plan: Plan | None = None
        self._transform: Transform | None = None
        if common.sql:
            self._where = f"sink {common.name}: the statement {common.sql!r}"
            self._option = "sql"
            self._plan, (self.schema, self.table) = self._parse(common.sql)
        else:
            self._where = f"sink {common.name}: transform {common.transform}"
            self._option = "transform"
            self._transform = self._import_function(common.transform)
            self.schema, self.table = self._single_table()

    @property
    def tables(self) -> tuple[str, ...]:
        """The patterns of the tables whose changes it gets."""
        return self._common.tables if self.reads_stream else (f"{_quoted(self.schema)}.{_quoted(self.table)}",)

    @property
    def reads_stream(self) -> bool:
        """Whether it reads `changes`: those of all tables of the sink, as the change stream has them."""
        return (self.schema, self.table) == (CHANGES.schema, CHANGES.name)

    def check(self) -> None:
        """Analyse the statement against the table as the log has it last. Nothing to check if the log does not."""
        if self.reads_stream:
            self.analysis(CHANGES)
            return
        reader = LogReader(Store.open(self._store.url, self._store.options))
        last = reader.last()
        relation = lineage.newest_relation(reader, self.schema, self.table, last.id if last else 0)
        if relation is None:
            _log.warning("%s: the log has no table %s.%s yet", self._where, self.schema, self.table)
        elif (shaped := self._shaping.load(relation)) is not None:
            self.analysis(shaped[0])

    def derive(self, relation: Relation) -> Relation:
        """The statement's result for a relation, shaped already."""
        return self.analysis(relation).derivation.result

    def analysis(self, relation: Relation) -> Analysis:
        self._refresh_states()
        if relation.digest not in self._analyses:
            with self._explain_errors(relation):
                self._analyses[relation.digest] = self._analyze(relation)
        return self._analyses[relation.digest]

    def apply(self, analysis: Analysis, rows: DataFrame) -> DataFrame:
        """The statement's result over change rows, and the hidden column of each."""
        return self._catalyst.evaluate(analysis.carried, rows)

    def failure(self, error: BaseException) -> ConfigError | None:
        """What a job's error says of the statement; None if it is about something else."""
        # Spark's own words would quote the row.
        if "PythonException" in str(error) or (found := _DATA_ERROR.search(str(error))) is None:
            return None
        return ConfigError(
            f"{self._where} cannot be evaluated on a row ({found.group(1)})",
            "try_cast, try_divide and the like give NULL instead",
        )

    def close(self) -> None:
        for frame in self._states.values():
            frame.unpersist()
        self._states = {}

    def _analyze(self, relation: Relation) -> Analysis:
        own = schema.CHANGES.names if self.reads_stream else [column.name for column in relation.columns]
        empty = self._spark.createDataFrame([], schema.spark_type(row_schema(relation)))
        leaf = self._catalyst.leaf(empty, own)
        if self._plan is not None:
            streamed = self.schema, self.table

            def found(name: tuple[str, ...], alias: str | None) -> Plan | None:
                if _table(name) == streamed:
                    return self._catalyst.table(leaf, len(own), (alias,) if alias else streamed)
                if name[0] == _STATE:
                    return self._catalyst.alias(self._state(*_table(name[1:])), alias or name[-1])
                return None

            plan = self._catalyst.analyze(self._catalyst.substitute(self._plan, found))
        else:
            assert self._transform is not None
            given = self._catalyst.frame(self._catalyst.table(leaf, len(own), (self.schema, self.table)))
            result = self._transform(given)
            if not isinstance(result, DataFrame):
                raise RefusedError(f"returns {type(result).__name__}, not a DataFrame")
            plan = self._catalyst.analyzed_frame(result)
        identity = frozenset(c.name for c in relation.columns if c.is_identity)
        carried = self._catalyst.carry_hidden(plan, leaf, identity)
        declared = [field.dataType for field in self._catalyst.frame(carried.plan).schema][:-1]
        return Analysis(self._derivation(relation, carried, declared), carried)

    def _derivation(self, relation: Relation, carried: CarriedPlan, found: Sequence[Any]) -> Derivation:
        own = {column.name: column for column in relation.columns}
        columns: list[Column] = []
        results: list[ResultColumn] = []
        for (name, origin), type_ in zip(carried.outputs, found, strict=True):
            if name in {c.name for c in columns}:
                raise RefusedError(f"has two columns named {name}: name one of them with AS")
            source = own.get(origin.column) if origin.column is not None else None
            columns.append(_column(name, source, type_, relation))
            results.append(ResultColumn(name, source.name if source else None, origin.uses & own.keys()))
        if not columns:
            raise RefusedError("has no columns")
        shown = {result.source: result.name for result in reversed(results) if result.source is not None}
        lost = [name for name in relation.key if name not in shown]
        if self._keeps_tables:
            self._check_table(relation, lost, carried.condition, own.keys())
        result = replace(
            relation,
            columns=tuple(columns),
            key=() if lost else tuple([shown[name] for name in relation.key]),
            generated=(),
        )
        return Derivation(self._where, relation, result, tuple(results), carried.condition.uses & own.keys())

    def _check_table(self, relation: Relation, lost: list[str], condition: ColumnLineage, own: Any) -> None:
        if not relation.key:
            name = "changes" if self.reads_stream else relation.qualified_name
            raise RefusedError(f"has no key: {name} has none, and {self._common.type} could not tell rows apart")
        if lost:
            raise RefusedError(
                f"loses {', '.join(lost)} of the key of {relation.qualified_name}: without it, {self._common.type} "
                "could not tell which row an UPDATE or DELETE means; select it as it is"
            )
        if condition.has_others:
            raise RefusedError(
                "has a condition over another table: whether a row is there must not depend on when it was delivered"
            )
        if about := sorted(condition.uses - own):
            raise RefusedError(
                f"has a condition over {', '.join(about)}: whether a row is there must follow from the row alone"
            )

    def _parse(self, text: str) -> tuple[Plan, tuple[str, str]]:
        hint = f"correct [[sink]] sql of {self._common.name}"
        try:
            with _quiet():
                plan = self._catalyst.parse(text)
        except PySparkException as error:
            raise ConfigError(f"{self._where} cannot be parsed: {_first_line(error)}", hint) from None
        names = self._catalyst.tables(plan)
        streamed = [name for name in names if name[0] != _STATE]
        if len(streamed) != 1:
            named = ", ".join(".".join(name) for name in streamed) or "none"
            raise ConfigError(
                f"{self._where} reads the changes of {len(streamed)} tables ({named}): it must be one",
                "look up current rows of others with LEFT JOIN state.TABLE",
            )
        if len(streamed[0]) > 2:
            raise ConfigError(f"{self._where} names {'.'.join(streamed[0])}", "write table or schema.table")
        return plan, _table(streamed[0])

    def _import_function(self, path: str) -> Transform:
        module, _, name = path.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{self._where}: no module {error.name}", "is it on Python's path?") from None
        except AttributeError:
            raise ConfigError(f"{self._where}: {module} has no {name}", "correct the function's name") from None
        if not callable(found):
            raise ConfigError(f"{self._where}: {name} is not a function", "name a function: DataFrame → DataFrame")
        return found  # type: ignore[no-any-return]

    def _single_table(self) -> tuple[str, str]:
        if len(self._common.tables) != 1 or set(self._common.tables[0]) & set("*?"):
            raise ConfigError(
                f"{self._where} gets the changes of one table", 'name it: tables = ["public.orders"], without wildcards'
            )
        return split_name(self._common.tables[0])

    def _state(self, schema_name: str, name: str) -> DataFrame:
        table = f"{_quoted(schema_name)}.{_quoted(name)}"
        if table not in self._states:
            try:
                log_state.find(LogReader(Store.open(self._store.url, self._store.options)), schema_name, name, None)
            except SnapshotError as error:
                # It may be taken yet: the sink waits for it.
                raise SinkError(f"{self._where}: state.{name}: {error}", error.hint) from None
            options = {f"store.{key}": value for key, value in self._store.options.items()}
            frame = state(self._spark, self._store.url, table, options=options)
            # Rows of a broadcast join stay in the order, and in the task, of the changes.
            self._states[table] = f.broadcast(frame.drop("_special").cache())
        return self._states[table]

    def _refresh_states(self) -> None:
        now = time.monotonic()
        if self._states and now - self._states_at < self._common.state_refresh_s:
            return
        if self._states:
            self.close()
            self._analyses.clear()
        self._states_at = now

    @contextmanager
    def _explain_errors(self, relation: Relation) -> Iterator[None]:
        hint = f"correct [[sink]] {self._option} of {self._common.name}"
        try:
            with _quiet():
                yield
        except RefusedError as reason:
            raise ConfigError(f"{self._where} {reason}", hint) from None
        except (PySparkException, Py4JError) as error:
            what = f"{self._where} does not fit {relation.qualified_name}: {_first_line(error)}"
            raise ConfigError(what, hint) from None


def _table(name: tuple[str, ...]) -> tuple[str, str]:
    if name == (CHANGES.name,):
        return CHANGES.schema, CHANGES.name
    return (name[0], name[1]) if len(name) > 1 else ("public", name[0])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _column(name: str, source: Column | None, type_: Any, relation: Relation) -> Column:
    if source is not None:
        # Numbers order a table's columns; a statement orders its own, so names tell which is which.
        return replace(source, name=name, number=None)
    known = schema.postgres_type(type_)
    if known is None:
        raise RefusedError(
            f"has column {name} of type {type_.simpleString()}, for which PostgreSQL has no single type: "
            "to_json() makes a text of it"
        )
    declared, modifier = known
    return Column(name, declared, modifier, is_identity=relation.identity == _FULL)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition(" SQLSTATE")[0].rstrip(".;") if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without pyspark's own log of the error, which is pages long."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
