"""Differences of every kind, written by the sink itself, and what verification must say of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from psycopg import sql
from tests.fixtures.postgres import Database
from tests.verify.load import busy
from tests.verify.running_sink import Scene, named

_COLUMNS: Final = {
    "note": "text",
    "empty": "text",
    "digits": "numeric",
    "price": "numeric(8,2)",
    "ratio": "float8",
    "list": "int[]",
    "words": "text[]",
    "raw_json": "json",
    "tree": "jsonb",
    "at": "timestamptz",
    "local": "timestamp",
    "day": "date",
    "raw": "bytea",
    "large": "text",
}
ODD: Final = f"""
CREATE TABLE odd (a text, b int, {", ".join(map(" ".join, _COLUMNS.items()))}, PRIMARY KEY (a, b));
ALTER TABLE odd ALTER large SET STORAGE EXTERNAL;
"""
_LARGE: Final = "0123456789" * 1000
"""PostgreSQL stores it beside the row, and does not send it again with a change of another column."""
_RIGHT: Final[dict[str, str | None]] = {
    "note": None,
    "empty": "",
    "digits": "1.0",
    "price": "1.50",
    "ratio": "0.1",
    "list": "{1,NULL,3}",
    "words": '{a,"b c",NULL,""}',
    "raw_json": '{"a": 1}',
    "tree": '{"a": 1}',
    "at": "2024-02-29 12:00:00.000001+00",
    "local": "2024-02-29 12:00:00",
    "day": "2024-02-29",
    "raw": "\\x00ff",
    "large": _LARGE,
}
_WRONG: Final[dict[str, tuple[str, str | None]]] = {
    "'' instead of NULL": ("note", ""),
    "NULL instead of ''": ("empty", None),
    "1.00 instead of 1.0": ("digits", "1.00"),
    "one cent": ("price", "1.51"),
    "the last bit of a float": ("ratio", "0.10000000000000002"),
    "an element of an array": ("list", "{1,3}"),
    "the word NULL in an array": ("words", '{a,"b c","NULL",""}'),
    "a blank in json": ("raw_json", '{"a":1}'),
    "a value in json": ("raw_json", '{"a": 2}'),
    "a zero in jsonb": ("tree", '{"a": 1.0}'),
    "a microsecond with a zone": ("at", "2024-02-29 12:00:00.000002+00"),
    "a microsecond without one": ("local", "2024-02-29 12:00:00.000001"),
    "no date": ("day", None),
    "a byte": ("raw", "\\x00"),
    "the end of a large value": ("large", _LARGE[:-1] + "x"),
}
_NAMES: Final = (
    "it's",
    'a "b" c',
    "back\\slash",
    "a/b:c,d",
    "ü ☃ 😀",
    " ",
    "{}",
    "%s %",
    "tab\tline\n",
    "*?[x]",
    "NULL",
)
"""First columns of keys, each of which something could take for something else."""
_ROWS: Final = 200

Plant = tuple[str, dict[str, str], list[str]]
"""The kind of a difference, its key, and the columns that differ."""


def _row(name: str, number: int, **other: str | None) -> tuple[str | None, ...]:
    return (name, str(number), *(_RIGHT | other).values())


def _name(number: int) -> str:
    return _NAMES[number % len(_NAMES)]


def create(source: Database) -> None:
    """Create the table `odd` and its rows."""
    source.execute(ODD)
    with source.connect() as connection:
        places = sql.SQL(", ").join([sql.Placeholder()] * (len(_COLUMNS) + 2))
        insert = sql.SQL("INSERT INTO odd VALUES ({})").format(places)
        connection.cursor().executemany(insert, [_row(_name(number), number) for number in range(_ROWS)])


@contextmanager
def busy_with_large_values(source: Database) -> Iterator[None]:
    """The load of `busy`, and changes that leave large values out, of rows where nothing is planted."""
    touch = f"UPDATE odd SET price = price + 1 WHERE b = 100 + %s %% {_ROWS - 100}"
    with busy(source, touch):
        yield


def plant(scene: Scene) -> dict[str, Plant]:
    """Write wrong values, remove a row for each odd key, and add as many. Returns the differences by what they are."""
    updated, found = [], {}
    for number, (what, (column, value)) in enumerate(_WRONG.items()):
        updated.append(_row(_name(number), number, **{column: value}))
        found[what] = ("changed", {"a": _name(number), "b": str(number)}, [column])
    deleted, inserted = [], []
    for number, name in enumerate(_NAMES, 50):
        deleted.append(_row(_name(number), number))
        found[f"no row {number}"] = ("missing", {"a": _name(number), "b": str(number)}, [])
        inserted.append(_row(name, -number))
        found[f"row {-number}"] = ("extra", {"a": name, "b": str(-number)}, [])
    scene.plant("odd", updated=updated, deleted=deleted, inserted=inserted)
    return found


def assert_planted_rows_are_named_and_repaired(scene: Scene, unseen: frozenset[str] = frozenset()) -> None:
    """Under load, all of them.

    Args:
        scene: A sink that delivers the table that `create` made.
        unseen: What the destination does not store, so that it is no difference.
    """
    scene.catch_up()
    with busy_with_large_values(scene.source):
        before = scene.verify()
        assert named(before) == []
        assert not [(table.table, table.error) for table in before.tables if table.error]
        planted = plant(scene)
        assert unseen <= planted.keys()
        report = scene.verify()
        found: list[Any] = [(kind, key, list(values)) for _, kind, key, values in named(report)]
        expected = [difference for what, difference in planted.items() if what not in unseen]
        unnamed = [what for what, difference in planted.items() if difference not in found and what not in unseen]
        unexpected = [each for each in found if each not in expected]
        assert not unnamed, unnamed
        assert not unexpected, unexpected
        assert len(found) == len(expected)
        assert report.exit_code == 1
        repaired, totals = scene.repair(report)
        assert named(repaired) == []
        assert not [(table.table, table.error) for table in repaired.tables if table.error]
        assert totals.applied == len(expected)
    scene.catch_up()
    assert scene.verify().exit_code == 0, "nothing changes any more"
    assert scene.running.pipeline.status().failures == 0
