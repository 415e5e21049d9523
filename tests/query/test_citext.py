"""citext of the real extension, which Debian's PostgreSQL 15 has and the embedded PostgreSQL does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fixtures.postgres import running
from tests.query.conftest import connect
from tests.query.sample_lake import SINK, SampleLake

from tailrace.query.query_server import QueryServer
from tailrace.settings import QuerySettings

pytestmark = pytest.mark.skipif(
    not Path("/usr/share/postgresql/15/extension/citext.control").exists(),
    reason="needs the contrib modules of Debian's postgresql-15",
)
_TABLE = """
CREATE EXTENSION citext;
CREATE TABLE c (id int PRIMARY KEY, x citext, t text, a citext[]);
INSERT INTO c VALUES (1, 'Abc', 'abc', '{A,b}'), (2, 'abC', 'ABC', '{}'), (3, 'b', 'B', NULL), (4, NULL, NULL, '{x}'),
    (5, 'ÄB', 'äb', '{Ä}'), (6, '', ' ', '{abc}');
"""
_EXACT = (
    "SELECT * FROM c ORDER BY id",
    "SELECT id FROM c WHERE x = 'ABC' OR x = t ORDER BY id",
    "SELECT id, x = t, x::text = 'Abc', x < 'B', x > 'abb', x IS DISTINCT FROM 'ABC' FROM c ORDER BY id",
    "SELECT id, x LIKE 'a%', x ~ '^A', x SIMILAR TO 'A%', x NOT LIKE 'A%', x::text LIKE 'A%' FROM c ORDER BY id",
    "SELECT id FROM c WHERE x IN ('ABC', 'B') OR x BETWEEN 'AC' AND 'B' ORDER BY id",
    "SELECT x, id FROM c ORDER BY x, id",
    "SELECT count(*), min(id) FROM c GROUP BY x ORDER BY 2",
    "SELECT count(DISTINCT x), max(x), (SELECT count(*) FROM (SELECT DISTINCT x FROM c) s) FROM c",
    "SELECT x || t, upper(x), length(x), coalesce(x, 'none'), nullif(x, 'ABC'), greatest(x, 'AZ') FROM c ORDER BY id",
    "SELECT id, x = ANY('{ABC,B}'), 'ABC' = ANY(a), a[1], x = ANY(a), a @> '{B}' FROM c ORDER BY id",
    "SELECT c.id, d.id FROM c JOIN c d ON c.x = d.x ORDER BY 1, 2",
    "SELECT id FROM c WHERE x IN (SELECT x FROM c WHERE id = 2) ORDER BY id",
    "SELECT id, rank() OVER (ORDER BY x) FROM c ORDER BY id",
)
_REFUSED = ("replace(x, 'A', 'z')", "split_part(x, 'B', 1)", "regexp_replace(x, 'B', 'z')", "translate(x, 'A', 'x')")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[psycopg.Connection[Any], psycopg.Connection[Any]]]:
    with running(15, autovacuum=False) as postgres, postgres.connect("postgres", autocommit=True) as admin:
        admin.execute("CREATE DATABASE folded TEMPLATE template0 LOCALE 'C.UTF-8' ENCODING 'UTF8'")
        with postgres.connect("folded", autocommit=True) as theirs:
            theirs.execute(_TABLE.encode())
            lake = SampleLake.under(tmp_path_factory.mktemp("citext"), "folded")
            lake.step(theirs, ["c"])
            with QueryServer(lake.options, SINK, QuerySettings(port=0)) as server, connect(server) as ours:
                yield ours, theirs


@pytest.mark.parametrize("query", _EXACT)
def test_citext_equals_postgresql(both: tuple[Any, Any], query: str) -> None:
    ours, theirs = (connection.execute(query).fetchall() for connection in both)
    assert ours == theirs


@pytest.mark.parametrize("call", _REFUSED)
def test_functions_of_citext_without_an_exact_rendering_are_refused(both: tuple[Any, Any], call: str) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="Cast to text"):
        both[0].execute(f"SELECT {call} FROM c")
