"""A condition in SQL over a table's columns, evaluated by DuckDB on whole columns.

The condition is parsed first. Its columns are resolved here, because DuckDB takes names that differ only by case for
one, and what does not depend on the row alone is refused: a row that matched yesterday must still match today, else
its delete would never be delivered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace import types
from tailrace.change import Column, Relation
from tailrace.errors import ConfigError
from tailrace.pgoutput import cells
from tailrace.types import Form

Bools = npt.NDArray[np.bool_]

_REFUSED: Final = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
}
# DuckDB's catalogue does not say so of these; `age` of one moment is until today.
_ALSO_UNSTEADY: Final = ("current_localtime", "current_localtimestamp", "current_setting", "unnest")
_VIEW: Final = "tailrace_rows"


@dataclass(frozen=True)
class Condition:
    text: str
    query: str
    places: tuple[int, ...]
    """Columns of the relation that it looks at."""
    where: str
    """The sink and the table, for messages."""

    @classmethod
    def compile(cls, text: str, relation: Relation, sink: str) -> Condition:
        where = f"{sink}: the condition for {relation.qualified_name}, {text!r},"
        try:
            tree = _parsed(text)
            used: dict[int, str] = {}
            for node in _nodes(tree):
                _refuse(node)
                if node.get("class") == "COLUMN_REF":
                    place, rest = _resolved(node["column_names"], relation)
                    node["column_names"] = [used.setdefault(place, f"c{place}"), *rest]
            places = tuple(sorted(used))
            given = ", ".join(_given(relation.columns[place], used[place]) for place in places)
            # Of no column at all, there is still one answer for each row.
            query = f"SELECT {_printed(tree)} FROM (SELECT {given or '1'} FROM {_VIEW})"  # noqa: S608 (parsed above)
            condition = cls(text, query, places, where)
            none = {place: pa.nulls(0, types.mapping(relation.columns[place]).arrow) for place in places}
            answer = condition._run(none, 0)
        except _Wrong as reason:
            raise ConfigError(f"{where} {reason}", f"correct [[sink]] where of {relation.qualified_name}") from None
        except _duckdb().Error as error:
            # Of no rows, so it can tell of the condition alone.
            reason_ = str(error).splitlines()[0]
            raise ConfigError(
                f"{where} cannot be evaluated: {reason_}", f"correct [[sink]] where of {relation.qualified_name}"
            ) from None
        if not pa.types.is_boolean(answer.type):
            raise ConfigError(
                f"{where} is {answer.type}, neither true nor false",
                f"correct [[sink]] where of {relation.qualified_name}",
            )
        return condition

    def matches(self, columns: Mapping[int, pa.Array], count: int) -> Bools:
        """For each row whether it matches; where the condition is unknown (NULL) it does not."""
        if not count:
            return np.zeros(0, np.bool_)
        try:
            answer = self._run(columns, count)
        except _duckdb().Error as error:
            # DuckDB's own words would quote the row.
            raise ConfigError(
                f"{self.where} cannot be evaluated on a row ({type(error).__name__})",
                "values it cannot convert are the usual reason: TRY_CAST gives NULL for them",
            ) from None
        return np.asarray(answer.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)

    def _run(self, columns: Mapping[int, pa.Array], count: int) -> pa.Array:
        rows = {f"c{place}": columns[place] for place in self.places} or {"none": pa.nulls(count, pa.int8())}
        # A cursor of its own: sinks share the process, each in its thread.
        with _session().cursor() as cursor:
            cursor.register(_VIEW, pa.RecordBatch.from_pydict(rows))
            answer = cursor.execute(self.query).fetch_arrow_table().column(0).combine_chunks()
        assert len(answer) == count
        return answer


def check(text: str) -> None:
    """As far as a condition can be judged without a table."""
    try:
        for node in _nodes(_parsed(text)):
            _refuse(node)
    except _Wrong as reason:
        raise ConfigError(f"{text!r} {reason}") from None


def typed(array: pa.Array, column: Column) -> pa.Array:
    """A column as its mapped type has it, whether it is that already or PostgreSQL's text."""
    mapping = types.mapping(column)
    return array if array.type == mapping.arrow else cells.read(cells.Cells.of(array), mapping)[0]


class _Wrong(Exception):
    """Said of the condition, for `compile` to add which."""


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ConfigError("a condition needs DuckDB", 'install it: pip install "tailrace[spark]"') from None
    return duckdb


@lru_cache(maxsize=1)
def _session() -> Any:
    # One thread, because each of Spark's tasks has one core; and conditions reach nothing but the rows.
    session = _duckdb().connect(":memory:", config={"threads": 1, "enable_external_access": False})
    session.execute("SET GLOBAL TimeZone = 'UTC'")
    session.execute("SET GLOBAL lock_configuration = true")
    return session


@lru_cache(maxsize=1)
def _unsteady() -> Mapping[str, str]:
    """Functions whose answer does not follow from their arguments alone."""
    with _session().cursor() as cursor:
        # A name may stand for several functions: one whose every kind is unsteady, or that only aggregates.
        return dict.fromkeys(_ALSO_UNSTEADY, "scalar") | dict(
            cursor.execute(
                "SELECT function_name, min(function_type) FROM duckdb_functions() GROUP BY function_name "
                "HAVING bool_and(function_type = 'aggregate' OR coalesce(stability, 'CONSISTENT') <> 'CONSISTENT')"
            ).fetchall()
        )


def _parsed(text: str) -> dict[str, Any]:
    with _session().cursor() as cursor:
        # The line end closes a comment that the condition may end with.
        (raw,) = cursor.execute("SELECT json_serialize_sql(?)", [f"SELECT ({text}\n)"]).fetchone()
    tree = json.loads(raw)
    if tree["error"]:
        raise _Wrong(f"cannot be read: {tree['error_message']}")
    statements = tree["statements"]
    node = statements[0]["node"] if len(statements) == 1 else {}
    plain = node.get("type") == "SELECT_NODE" and node["from_table"]["type"] == "EMPTY" and not node["where_clause"]
    if not plain or len(node["select_list"]) != 1 or node["modifiers"] or node["group_expressions"]:
        raise _Wrong("is more than one expression")
    return tree  # type: ignore[no-any-return]


def _printed(tree: dict[str, Any]) -> str:
    with _session().cursor() as cursor:
        (query,) = cursor.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    return str(query).removeprefix("SELECT ")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every expression in the parsed condition, outermost first."""
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for inner in list(tree.values()):
            yield from _nodes(inner)
    elif isinstance(tree, list):
        for inner in tree:
            yield from _nodes(inner)


def _refuse(node: dict[str, Any]) -> None:
    if (what := _REFUSED.get(node["class"])) is not None:
        raise _Wrong(f"has {what}: it can look only at the columns of one row")
    name = str(node.get("function_name", "")).lower()
    if node["class"] == "FUNCTION" and (name in _unsteady() or (name == "age" and len(node["children"]) == 1)):
        kind = "many rows" if _unsteady().get(name) == "aggregate" else "more than the row"
        raise _Wrong(f"calls {name}, which looks at {kind}")


def _resolved(names: Sequence[str], relation: Relation) -> tuple[int, Sequence[str]]:
    """The column, and the fields of it that follow. A name may have the table's before it, and the schema's."""
    columns = [column.name for column in relation.columns]
    for prefix in ((), (relation.name,), (relation.schema, relation.name)):
        if len(names) <= len(prefix) or not _equal(names[: len(prefix)], prefix):
            continue
        name = names[len(prefix)]
        if name in columns:
            return columns.index(name), names[len(prefix) + 1 :]
        alike = [place for place, other in enumerate(columns) if _equal([other], [name])]
        if len(alike) == 1:
            return alike[0], names[len(prefix) + 1 :]
        if alike:
            raise _Wrong(f"names {name}, which may be any of {', '.join(columns[place] for place in alike)}")
    if len(names) == 1 and names[0].lower() in _unsteady():
        raise _Wrong(f"uses {names[0]}, which looks at more than the row")
    raise _Wrong(f"names {'.'.join(names)}, which is no column of it")


def _equal(some: Sequence[str], others: Sequence[str]) -> bool:
    return [name.lower() for name in some] == [name.lower() for name in others]


def _given(column: Column, name: str) -> str:
    """How DuckDB gets a column whose Arrow form it could not compare with numbers or intervals."""
    match types.mapping(column).form:
        case Form.NUMERIC:
            return f"TRY_CAST({name} AS DOUBLE) AS {name}"
        case Form.INTERVAL:
            return f"to_months({name}.months) + to_days({name}.days) + to_microseconds({name}.microseconds) AS {name}"
        case _:
            return name
