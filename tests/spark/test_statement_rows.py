"""Converts changes to rows of a statement and back, without Spark: rows enter, leave, or are divided among batches."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tailrace import types
from tailrace.change import UNCHANGED, Column, Relation, Type
from tailrace.delivery.contract import BaseSink, Part
from tailrace.delivery.task import TaskResult
from tailrace.errors import ConfigError, TailraceError
from tailrace.images import Images, record_batch
from tailrace.log.decoding import ChangePositions, TableChanges
from tailrace.spark.statement.derivation import HIDDEN, Derivation, ResultColumn
from tailrace.spark.statement.image_rows import RowKind, RowReader
from tailrace.spark.statement.result_changes import RowStager

INT, TEXT = Type(23, "pg_catalog", "int4"), Type(25, "pg_catalog", "text")
UNSENT = UNCHANGED


class GivenChange(NamedTuple):
    """A change: the rows are (id, total, body)."""

    operation: str
    old: tuple[Any, ...] | None = None
    new: tuple[Any, ...] | None = None
    is_key: bool = False


def relation(identity: str = "f") -> Relation:
    columns = (
        Column("id", INT, is_identity=True, number=1),
        Column("total", INT, is_identity=identity == "f", number=2),
        Column("body", TEXT, is_identity=identity == "f", number=3),
    )
    return Relation(7, "public", "orders", identity, columns, ("id",))


def images(of: Relation, rows: Sequence[tuple[Any, ...] | None]) -> Images:
    values = [row or (None,) * 3 for row in rows]
    arrays = [
        pa.array([None if row[place] is UNSENT else row[place] for row in values], types.mapping(column).arrow)
        for place, column in enumerate(of.columns)
    ]
    unsent = {place: np.array([row[place] is UNSENT for row in values]) for place in range(3)}
    present = np.array([row is not None for row in rows])
    masks = {place: mask for place, mask in unsent.items() if mask.any()}
    return Images(record_batch(arrays, types.schema(of), len(rows)), present, masks, None)


def run_of(given: Sequence[GivenChange], of: Relation, first: int) -> TableChanges:
    count = np.arange(first, first + len(given))
    at = ChangePositions(count + 100, count * 0, count + 50, count + 1, count * 10, count < 0)
    return TableChanges(
        of,
        at,
        np.array([ord(change.operation) for change in given], np.uint8),
        images(of, [change.old for change in given]),
        np.array([change.is_key for change in given]),
        images(of, [change.new for change in given]),
    )


def to_given(changes: Iterable[TableChanges]) -> list[GivenChange]:
    found = []
    for run in changes:
        for row in range(len(run)):
            sides = []
            for side in (run.old, run.new):
                values = tuple(side.batch.slice(row, 1).to_pylist()[0].values())
                unsent = [place in side.unchanged and bool(side.unchanged[place][row]) for place in range(len(values))]
                known = tuple(UNSENT if hidden else value for value, hidden in zip(values, unsent, strict=True))
                sides.append(known if side.present[row] else None)
            found.append(GivenChange(chr(run.operation[row]), sides[0], sides[1], bool(run.old_is_key[row])))
    return found


class Collector(BaseSink):
    values: ClassVar[Any] = "typed"

    def stage(self, part: Part) -> list[GivenChange]:
        runs = [run for chunk in part.chunks for run in chunk if isinstance(run, TableChanges)]
        assert [run.at.is_last.all() for run in runs] == [True] * len(runs), "each change must be its own transaction"
        return to_given(runs)


@dataclass
class Task:
    """What `RowReader` and `RowStager` need of a task."""

    given: Sequence[Sequence[GivenChange]]
    identity: str
    sink: Any
    number: int = 0
    rows: None = None
    step: None = None

    def chunks(self, as_text: bool) -> Any:
        assert not as_text
        return [[run_of(given, relation(self.identity), 10 * n)] for n, given in enumerate(self.given)]


def deliver(
    given: Sequence[Sequence[GivenChange]],
    *,
    identity: str = "f",
    least: int | None = None,
    computes: bool = False,
    size: int = 3,
) -> Any:
    """Deliver as `SELECT id, total, body FROM orders WHERE total >= least` would, in batches of some rows."""
    of = relation(identity)
    condition = frozenset({"total"} if least is not None else ())
    columns = [ResultColumn(c.name, c.name, frozenset({c.name})) for c in of.columns]
    if computes:
        columns[2] = ResultColumn("body", None, frozenset({"body"}))
    derivation = Derivation("sink x: the statement", of, of, tuple(columns), condition)
    reader = RowReader(derivation, {7: [of]}, is_load=False)
    task = pa.record_batch({"result": pa.array([pickle.dumps(Task(given, identity, Collector()))])})
    table = pa.Table.from_batches(list(reader([task]))).combine_chunks()
    if least is not None:
        kinds = table.column(HIDDEN).combine_chunks().field("kind").to_pylist()
        totals = table.column("total").to_pylist()
        passes = [k < RowKind.OLD or (t is not None and t >= least) for k, t in zip(kinds, totals, strict=True)]
        table = table.filter(pa.array(passes))
    rows = table.select([*(c.name for c in of.columns), HIDDEN]).combine_chunks()
    batches = rows.to_batches(max_chunksize=size)
    (result,) = [pickle.loads(batch.column(0)[0].as_py()) for batch in RowStager(derivation, ("a", "b"))(batches)]
    if isinstance(result, TailraceError):
        raise result
    assert isinstance(result, TaskResult)
    return result.receipt


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_changes_are_converted_to_rows_and_back(size: int) -> None:
    given = [
        GivenChange("I", None, (1, 5, "a")),
        GivenChange("U", (1, 5, "a"), (1, 6, None)),
        GivenChange("U", (1, 6, None), (2, 6, "b")),
        GivenChange("D", (2, 6, "b")),
        GivenChange("S", None, (3, 1, "s")),
    ]
    truncate = [GivenChange("T")]
    assert deliver([given, truncate, given], size=size) == [*given, *truncate, *given]


@pytest.mark.parametrize("size", [1, 100])
def test_changes_with_only_the_old_key(size: int) -> None:
    given = [
        GivenChange("U", None, (1, 6, UNSENT)),
        GivenChange("U", (1, None, None), (2, 6, UNSENT), is_key=True),
        GivenChange("D", (2, None, None), is_key=True),
    ]
    assert deliver([given], identity="d", size=size) == given


def test_rows_enter_and_leave_the_result() -> None:
    given = [
        GivenChange("I", None, (1, 5, "a")),
        GivenChange("I", None, (2, 50, "b")),
        GivenChange("U", (1, 5, "a"), (1, 50, UNSENT)),
        GivenChange("U", (2, 50, "b"), (2, 60, UNSENT)),
        GivenChange("U", (2, 60, "b"), (2, 6, "c")),
        GivenChange("U", (2, 6, "c"), (2, 7, "c")),
        GivenChange("D", (2, 7, "c")),
        GivenChange("D", (1, 50, "a")),
        GivenChange("T"),
    ]
    assert deliver([given[:-1], given[-1:]], least=10) == [
        GivenChange("I", None, (2, 50, "b")),
        GivenChange("I", None, (1, 50, "a")),
        GivenChange("U", (2, 50, "b"), (2, 60, "b")),
        GivenChange("D", (2, 60, "b")),
        GivenChange("D", (1, 50, "a")),
        GivenChange("T"),
    ]


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (GivenChange("U", None, (1, 50, "a")), {"least": 10}, r"uses total, but UPDATE at 0/64:0 lacks the old values"),
        (GivenChange("D", (1, None, None), is_key=True), {"least": 10}, r"uses total, but DELETE at 0/64:0 lacks"),
        (GivenChange("U", None, (1, 50, UNSENT)), {"computes": True}, r"uses body, but UPDATE at 0/64:0 lacks it"),
    ],
)
def test_missing_values_are_refused(change: GivenChange, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        deliver([[change]], identity="d", **options)
    assert "REPLICA IDENTITY FULL" in raised.value.hint


def test_several_rows_of_one_change_are_refused() -> None:
    of = relation()
    derivation = Derivation("sink x: the statement", of, of, (), frozenset())
    task = pa.record_batch(
        {"result": pa.array([pickle.dumps(Task([[GivenChange("I", None, (1, 1, "a"))]], "f", Collector()))])}
    )
    begin, row = RowReader(derivation, {7: [of]}, is_load=False)([task])
    columns = [*(c.name for c in of.columns), HIDDEN]
    (result,) = RowStager(derivation, ("a", "b"))([batch.select(columns) for batch in (begin, row, row)])
    error = pickle.loads(result.column(0)[0].as_py())
    assert "makes several rows of the change at 0/64:0" in str(error)
