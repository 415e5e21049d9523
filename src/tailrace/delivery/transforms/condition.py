"""A condition in SQL over a table's columns, evaluated by DuckDB on whole columns.

The condition is parsed first. Its columns are resolved here, because DuckDB ignores the case of names. A condition that
does not depend on the row alone is refused: a row that matched yesterday must still match today, else its delete would
never be delivered.
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
from tailrace.pgoutput import cell
from tailrace.types import Form

Bools = npt.NDArray[np.bool_]

_REFUSED: Final = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
}
# DuckDB's catalogue does not list these as volatile. `age` of one timestamp depends on today.
_ALSO_VOLATILE: Final = ("current_localtime", "current_localtimestamp", "current_setting", "unnest")
_VIEW: Final = "tailrace_rows"


@dataclass(frozen=True)
class Condition:
    """A condition, compiled for one relation."""

    text: str
    query: str
    places: tuple[int, ...]
    """The indexes of the columns that it uses."""
    where: str
    """The sink and the table, for messages."""

    @classmethod
    def compile(cls, text: str, relation: Relation, sink: str) -> Condition:
        """Compile a condition; ConfigError if it is not valid for the relation.

        Args:
            text: The condition in SQL.
            relation: The table.
            sink: The sink, for messages.
        """
        where = f"{sink}: the condition for {relation.qualified_name}, {text!r},"
        try:
            tree = _parse(text)
            used: dict[int, str] = {}
            for node in _nodes(tree):
                _refuse(node)
                if node.get("class") == "COLUMN_REF":
                    place, rest = _resolve(node["column_names"], relation)
                    node["column_names"] = [used.setdefault(place, f"c{place}"), *rest]
            places = tuple(sorted(used))
            selected = ", ".join(_column_sql(relation.columns[place], used[place]) for place in places)
            # Without columns there is still one result for each row.
            query = f"SELECT {_to_sql(tree)} FROM (SELECT {selected or '1'} FROM {_VIEW})"  # noqa: S608 (parsed above)
            condition = cls(text, query, places, where)
            none = {place: pa.nulls(0, types.mapping(relation.columns[place]).arrow) for place in places}
            answer = condition._run(none, 0)
        except _InvalidCondition as reason:
            raise ConfigError(f"{where} {reason}", f"correct [[sink]] where of {relation.qualified_name}") from None
        except _duckdb().Error as error:
            # There are no rows, so the error concerns only the condition.
            reason_ = str(error).splitlines()[0]
            raise ConfigError(
                f"{where} cannot be evaluated: {reason_}", f"correct [[sink]] where of {relation.qualified_name}"
            ) from None
        if not pa.types.is_boolean(answer.type):
            raise ConfigError(
                f"{where} has type {answer.type}, not boolean",
                f"correct [[sink]] where of {relation.qualified_name}",
            )
        return condition

    def matches(self, columns: Mapping[int, pa.Array], count: int) -> Bools:
        """Whether each row matches. A row for which the condition is NULL does not."""
        if not count:
            return np.zeros(0, np.bool_)
        try:
            answer = self._run(columns, count)
        except _duckdb().Error as error:
            # DuckDB's message would quote the row.
            raise ConfigError(
                f"{self.where} cannot be evaluated on a row ({type(error).__name__})",
                "usually a value cannot be converted: TRY_CAST returns NULL for it",
            ) from None
        return np.asarray(answer.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)

    def _run(self, columns: Mapping[int, pa.Array], count: int) -> pa.Array:
        rows = {f"c{place}": columns[place] for place in self.places} or {"none": pa.nulls(count, pa.int8())}
        # Each call has a cursor of its own: sinks share the process, each in its own thread.
        with _session().cursor() as cursor:
            cursor.register(_VIEW, pa.RecordBatch.from_pydict(rows))
            answer = cursor.execute(self.query).fetch_arrow_table().column(0).combine_chunks()
        assert len(answer) == count
        return answer


def check(text: str) -> None:
    """Validate a condition as far as possible without a table."""
    try:
        for node in _nodes(_parse(text)):
            _refuse(node)
    except _InvalidCondition as reason:
        raise ConfigError(f"{text!r} {reason}") from None


def typed(array: pa.Array, column: Column) -> pa.Array:
    """A column in its mapped type, given in that type or as PostgreSQL's text."""
    mapping = types.mapping(column)
    return array if array.type == mapping.arrow else cell.read(cell.Cells.of(array), mapping)[0]


class _InvalidCondition(Exception):
    """Why a condition is not valid; `compile` adds which condition it is."""


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ConfigError("a condition needs DuckDB", 'install it: pip install "tailrace[spark]"') from None
    return duckdb


@lru_cache(maxsize=1)
def _session() -> Any:
    # One thread, because each Spark task has one core. Conditions can access nothing but the rows.
    session = _duckdb().connect(":memory:", config={"threads": 1, "enable_external_access": False})
    session.execute("SET GLOBAL TimeZone = 'UTC'")
    session.execute("SET GLOBAL lock_configuration = true")
    return session


@lru_cache(maxsize=1)
def _volatile() -> Mapping[str, str]:
    """Functions whose result does not depend on their arguments alone."""
    with _session().cursor() as cursor:
        # A name may have several functions: it counts if all of them are volatile or aggregates.
        return dict.fromkeys(_ALSO_VOLATILE, "scalar") | dict(
            cursor.execute(
                "SELECT function_name, min(function_type) FROM duckdb_functions() GROUP BY function_name "
                "HAVING bool_and(function_type = 'aggregate' OR coalesce(stability, 'CONSISTENT') <> 'CONSISTENT')"
            ).fetchall()
        )


def _parse(text: str) -> dict[str, Any]:
    with _session().cursor() as cursor:
        # The line break ends a comment that the condition may end with.
        (raw,) = cursor.execute("SELECT json_serialize_sql(?)", [f"SELECT ({text}\n)"]).fetchone()
    tree = json.loads(raw)
    if tree["error"]:
        raise _InvalidCondition(f"cannot be parsed: {tree['error_message']}")
    statements = tree["statements"]
    node = statements[0]["node"] if len(statements) == 1 else {}
    plain = node.get("type") == "SELECT_NODE" and node["from_table"]["type"] == "EMPTY" and not node["where_clause"]
    if not plain or len(node["select_list"]) != 1 or node["modifiers"] or node["group_expressions"]:
        raise _InvalidCondition("is not a single expression")
    return tree  # type: ignore[no-any-return]


def _to_sql(tree: dict[str, Any]) -> str:
    with _session().cursor() as cursor:
        (query,) = cursor.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    return str(query).removeprefix("SELECT ")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All expressions in the parsed condition, outermost first."""
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
        raise _InvalidCondition(f"contains {what}: it may use only the columns of one row")
    name = str(node.get("function_name", "")).lower()
    if node["class"] == "FUNCTION" and (name in _volatile() or (name == "age" and len(node["children"]) == 1)):
        kind = "several rows" if _volatile().get(name) == "aggregate" else "more than the row"
        raise _InvalidCondition(f"calls {name}, which depends on {kind}")


def _resolve(names: Sequence[str], relation: Relation) -> tuple[int, Sequence[str]]:
    """The column's index, and the fields of it that follow. Table and schema may precede a column's name."""
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
            raise _InvalidCondition(f"names {name}, which is ambiguous: {', '.join(columns[place] for place in alike)}")
    if len(names) == 1 and names[0].lower() in _volatile():
        raise _InvalidCondition(f"uses {names[0]}, which depends on more than the row")
    raise _InvalidCondition(f"names {'.'.join(names)}, which is not a column of the table")


def _equal(some: Sequence[str], others: Sequence[str]) -> bool:
    return [name.lower() for name in some] == [name.lower() for name in others]


def _column_sql(column: Column, name: str) -> str:
    """SQL for a column, converted if DuckDB could not compare its Arrow form with numbers or intervals."""
    match types.mapping(column).form:
        case Form.NUMERIC:
            return f"TRY_CAST({name} AS DOUBLE) AS {name}"
        case Form.INTERVAL:
            return f"to_months({name}.months) + to_days({name}.days) + to_microseconds({name}.microseconds) AS {name}"
        case _:
            return name
