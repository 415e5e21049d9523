"""Which table a name means, and which relations it had: from headers alone."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.captured import captured
from tests.fixtures.postgres import Database

from tailrace.log import lineage
from tailrace.log.lineage import Lineage
from tailrace.log.reader import LogReader


def test_a_table_is_followed_through_names_and_shapes(database: Database, tmp_path: Path) -> None:
    """At every segment what is known is what the changes up to there say."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    with captured(database, tmp_path) as log:
        for statement in [
            "INSERT INTO t VALUES (1)",
            "ALTER TABLE t ADD b int",
            "INSERT INTO t VALUES (2)",
            "BEGIN; INSERT INTO t VALUES (3); ALTER TABLE t DROP a; ALTER TABLE t RENAME TO u;"
            " INSERT INTO u VALUES (4); COMMIT",
            "ALTER TABLE u ADD a int; ALTER TABLE u RENAME TO t",
            "INSERT INTO t VALUES (5)",
            "DROP TABLE t",
            "CREATE TABLE t (id text PRIMARY KEY)",
            "INSERT INTO t VALUES ('6')",
            "BEGIN; ALTER TABLE t RENAME TO old; CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (7); COMMIT",
            "INSERT INTO old VALUES ('8')",
        ]:
            log.execute(statement)
            log.catch_up()
    reader = LogReader(log.store)
    seen = Lineage(reader, "public", "t", 0)
    told = []
    for part in reader.list():
        content = part.content()
        assert content is not None
        told += [c for c in LogReader(log.store).changes() if c.relation and _is_in(c.position, content.header)]
        bearers = [c.relation.oid for c in told if c.relation and c.table == "t"]
        if not bearers:
            continue
        own = [c.relation for c in told if c.relation and c.relation.oid == bearers[-1]]
        assert seen.table(part.id) == bearers[-1]
        assert seen.bearers(part.id) >= set(bearers)
        assert lineage.newest(reader, "public", "t", part.id) == own[-1]
        assert [r for r in seen.chain(own[-1].oid, own[-1]) if r in own] == list(dict.fromkeys(own))
    last = reader.last()
    assert last is not None
    assert len(told) == 8
    assert lineage.newest(reader, "public", "nothing", last.id) is None
    fifth = next(c.relation for c in told if c.after == {"id": 5, "b": None, "a": None})
    assert lineage.newest(reader, "public", "u", last.id) == fifth, "whatever it is called since"
    assert lineage.names(reader, last.id) == [("public", "old"), ("public", "t"), ("public", "u")]


def _is_in(position: object, header: object) -> bool:
    first, last = header.first, header.last  # type: ignore[attr-defined]
    return first is not None and first <= position <= last
