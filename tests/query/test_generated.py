"""Generated queries over generated tables: the answer equals PostgreSQL's, or it is an error with a hint."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.query import sample_lake
from tests.query.conftest import connect
from tests.query.edges import EdgeCase, edge_cases
from tests.query.generated import TYPES_SQL, RandomTable, make_table
from tests.query.generated_query import QueryGenerator
from tests.query.sample_lake import SampleLake

from tailrace.embedded.postgres import Postgres
from tailrace.query.query_server import QueryServer
from tailrace.settings import QuerySettings

_SEEDS = int(os.environ.get("QUERY_SEEDS", "300"))
_LONG_SEEDS = int(os.environ.get("QUERY_SEEDS", "5000"))

Answer = tuple[list[tuple[str, int]], list[list[bytes | None]]]
"""Names and types of the columns, and the rows."""
_FIRST_OWN_OID = 16384
_EXACT = ("equal", "refused", "failed in both")


@dataclass(frozen=True)
class Pair:
    """The query server and PostgreSQL over the same table."""

    ours: psycopg.Connection[Any]
    theirs: psycopg.Connection[Any]
    table: RandomTable


@pytest.fixture(scope="module")
def pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    # The query server's text behaves as with the locale C.UTF-8.
    name = f"generated_{os.getpid()}"
    create = sql.SQL(
        "CREATE DATABASE {} TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'"
    ).format(sql.Identifier(name))
    with postgres.connect("postgres", autocommit=True) as admin:
        admin.execute(create)
        try:
            lake = SampleLake.under(tmp_path_factory.mktemp("generated"), name)
            table, statements = make_table(random.Random(18), "facts", 40)
            with postgres.connect(name, autocommit=True) as theirs:
                theirs.execute((TYPES_SQL + statements).encode())
                lake.step(theirs, ["public.facts"])
                server = QueryServer(lake.options, sample_lake.SINK, QuerySettings(port=0))
                with server, connect(server, dbname=name) as ours:
                    yield Pair(ours, theirs, table)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _answer(connection: psycopg.Connection[Any], query: str) -> Answer | psycopg.Error:
    try:
        with psycopg.RawCursor(connection) as cursor:
            cursor.execute(query.encode())
            result = cursor.pgresult
            assert result is not None
            rows = [[result.get_value(r, c) for c in range(result.nfields)] for r in range(result.ntuples)]
            return [(column.name, column.type_code) for column in cursor.description or ()], rows
    except psycopg.Error as error:
        return error


def _compare(pair: Pair, query: str, refusals: tuple[str, ...] = ("0A",)) -> str:
    """`equal`, `refused`, `failed in both`, or what differs. Refusals are errors of these classes with a hint."""
    ours, theirs = _answer(pair.ours, query), _answer(pair.theirs, query)
    if isinstance(ours, psycopg.Error):
        if isinstance(theirs, psycopg.Error):
            return "failed in both"
        if (ours.sqlstate or "").startswith(refusals) and ours.diag.message_hint:
            return "refused"
        return f"{query}\n    failed: {ours.sqlstate} {ours}"
    if isinstance(theirs, psycopg.Error):
        return f"{query}\n    PostgreSQL fails: {theirs.sqlstate} {theirs}    ours: {ours[1][:3]}"
    # Arrays of the source's own types that no column has are sent as text: the lake does not know their OIDs.
    columns = [
        (name, theirs_[1] if oid in (25, 1231) and theirs_[1] >= _FIRST_OWN_OID else oid)
        for (name, oid), theirs_ in zip(ours[0], theirs[0], strict=True)
    ]
    if (columns, ours[1]) == theirs:
        return "equal"
    different = [(a, b) for a, b in zip(ours[1], theirs[1], strict=False) if a != b]
    return f"{query}\n    names {ours[0]} {theirs[0]}, rows {len(ours[1])} {len(theirs[1])}, first {different[:2]}"


def _run(pair: Pair, seeds: range) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in seeds:
        found[_compare(pair, QueryGenerator(random.Random(seed), pair.table).query())] += 1
    return found


def _assert_exact(found: Counter[str]) -> None:
    known = {key: found.pop(key, 0) for key in _EXACT}
    assert not found, f"{known}, and {len(found)} others:\n" + "\n".join(list(found)[:40])
    assert known["equal"] > known["refused"]


def test_generated_queries_are_equal_or_refused(pair: Pair) -> None:
    _assert_exact(_run(pair, range(_SEEDS)))


def test_expressions_over_edge_values_are_equal_or_refused(pair: Pair) -> None:
    """Every twelfth; the others are among those of the next test."""
    found = [difference for case in edge_cases()[::12] for difference in _edge_differences(pair, case)]
    assert not found, f"{len(found)}:\n" + "\n".join(found[:40])


@pytest.mark.soak
def test_thousands_of_expressions_over_edge_values_are_equal_or_refused(pair: Pair) -> None:
    found = [difference for case in edge_cases() for difference in _edge_differences(pair, case)]
    assert not found, f"{len(found)}:\n" + "\n".join(found[:40])


def _edge_differences(pair: Pair, case: EdgeCase) -> Iterator[str]:
    """What differs for all values together; if the expression fails, for each of them."""
    # Data that only PostgreSQL accepts, such as other forms of dates, are errors of class 22 with a hint.
    outcome = _compare(pair, case.query(), ("0A", "22"))
    if "OVER" in case.expression:
        yield from [] if outcome in _EXACT else [outcome]
    elif outcome != "equal":
        outcomes = [_compare(pair, case.query((value,)), ("0A", "22")) for value in case.values]
        yield from [o for o in outcomes if o not in _EXACT]


@pytest.mark.soak
def test_thousands_of_generated_queries_are_equal_or_refused(pair: Pair) -> None:
    _assert_exact(_run(pair, range(10_000, 10_000 + _LONG_SEEDS)))
