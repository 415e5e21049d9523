"""The table of PostgreSQL's functions, operators and casts that the translation chooses from."""

from __future__ import annotations

import os
from importlib.resources import files

from tests.fixtures.postgres import Database

from tailrace.embedded.postgres import Postgres

# The queries that generated `signatures.txt`.
_QUERIES = r"""
SELECT 'f ' || proname || ' ' || string_agg(
   CASE prokind WHEN 'a' THEN 'a' WHEN 'w' THEN 'w' ELSE CASE WHEN proretset THEN 's' ELSE 'f' END END || ':' || sig || '>' || ret, ' ' ORDER BY sig COLLATE "C", oid)
FROM (SELECT p.oid, proname, prokind, proretset, (SELECT coalesce(string_agg(t.typname || CASE WHEN provariadic<>0 AND n = pronargs THEN '*' WHEN n > pronargs - pronargdefaults THEN '=' ELSE '' END, ',' ORDER BY n), '') FROM unnest(proargtypes) WITH ORDINALITY u(o,n) JOIN pg_type t ON t.oid=u.o) sig, r.typname ret
 FROM pg_proc p JOIN pg_type r ON r.oid=prorettype WHERE pronamespace='pg_catalog'::regnamespace AND prokind IN ('f','a','w')
 AND NOT EXISTS (SELECT 1 FROM unnest(proargtypes) o WHERE o::regtype::text IN ('internal','cstring')) AND prorettype::regtype::text NOT IN ('internal','trigger','event_trigger','cstring','index_am_handler','table_am_handler','tsm_handler')) x
GROUP BY proname ORDER BY proname COLLATE "C";
SELECT 'o ' || oprname || ' ' || string_agg(coalesce(l.typname,'') || ',' || r.typname || '>' || s.typname, ' ' ORDER BY coalesce(l.typname,'') COLLATE "C", r.typname COLLATE "C")
FROM pg_operator o LEFT JOIN pg_type l ON l.oid=oprleft JOIN pg_type r ON r.oid=oprright JOIN pg_type s ON s.oid=oprresult WHERE oprnamespace='pg_catalog'::regnamespace GROUP BY oprname ORDER BY oprname COLLATE "C";
SELECT 'c ' || s.typname || ' ' || string_agg(t.typname || ':' || castcontext::text || castmethod::text, ' ' ORDER BY t.typname COLLATE "C") FROM pg_cast JOIN pg_type s ON s.oid=castsource JOIN pg_type t ON t.oid=casttarget GROUP BY s.typname ORDER BY s.typname COLLATE "C";
SELECT 'p ' || string_agg(typname, ' ' ORDER BY typname COLLATE "C") FROM pg_type WHERE typispreferred
"""  # noqa: E501


def test_signatures_are_those_of_postgresql(database: Database) -> None:
    expected = [row[0] for query in _QUERIES.split(";") for row in database.rows(query)]
    assert files("tailrace.query.sql").joinpath("signatures.txt").read_text("utf-8").splitlines() == expected


_CHARACTERS = "generate_series(1, 1114111) n WHERE n NOT BETWEEN 55296 AND 57343"


def test_letter_classes_are_those_of_postgresql(postgres: Postgres) -> None:
    """The classes of regular expressions, with the query that generated `letter_classes.txt`."""
    name = f"letters_{os.getpid()}"
    ranges = f"""
        SELECT string_agg(to_hex(min) || CASE WHEN max > min THEN '-' || to_hex(max) ELSE '' END, ' ' ORDER BY min)
        FROM (SELECT min(n), max(n) FROM (SELECT n, n - row_number() OVER (ORDER BY n) AS g FROM {_CHARACTERS}
        AND chr(n) ~ '[[:class:]]') s GROUP BY g) r"""
    with postgres.connect("postgres", autocommit=True) as admin:
        admin.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'"
        )
        try:
            with postgres.connect(name, autocommit=True) as connection:
                lines = files("tailrace.query.sql").joinpath("letter_classes.txt").read_text("utf-8").splitlines()
                for line in lines:
                    word, _, expected = line.partition(" ")
                    found = connection.execute(ranges.replace("class", word)).fetchone()
                    assert found == (expected,), word
                assert [line.partition(" ")[0] for line in lines] == ["alpha", "lower", "punct", "upper"]
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
